"""What the experiments on ensembles measure of a network, and which rows they keep of it."""

import functools
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax import configs
from bornbiased_jax.analysis import inter_sequence, predictions, similarity, theory
from bornbiased_jax.analysis.statistics import Statistic, combine
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.transformer import head_of, unembed


def preference(config: ModelConfig, pair_std: bool = False) -> Statistic:
  """Statistics of the last position, over sequences.

  Results: `preference`, which tokens the network predicts; `direction`, the
  contraction direction; `layers`, the similarity of sequences after each
  layer, with its std over pairs if `pair_std` is true.
  """
  return combine({
      'preference': predictions(config.vocab_size),
      'direction': inter_sequence('hidden_last'),
      'layers': inter_sequence('residual_last', pair_std=pair_std),
  })


def contraction(config: ModelConfig) -> Statistic:
  """`preference`, with the std of the similarities over pairs of sequences."""
  return preference(config, pair_std=True)


def direction_token(config: ModelConfig):
  """The token that the contraction direction predicts, as the `readout` of `ensemble.measure`.

  It is the argmax of the LM head W_U applied to the direction (Finding 2.2).
  """

  def readout(params, sums):
    logits_V = unembed(config, head_of(config, params), sums['direction']['unit_sum'])
    return {'direction_top1_id': jnp.argmax(logits_V)}

  return readout


def contraction_row(measured: dict) -> dict:
  """The row of a network of which `contraction` and `direction_token` were measured."""
  return {
      **measured['preference'],
      'direction_top1_id': measured['direction_top1_id'],
      **layers_row(measured['layers']),
      'inter_sequence_cosine': measured['layers']['cosine'][-1],
  }


def layers_row(measured: dict) -> dict:
  """Similarity of sequences after each layer, and its std over pairs."""
  return {'layer_cosine': measured['cosine'], 'layer_cosine_std': measured['cosine_std']}


def median_log10_p(cosines: list[float], num_sequences: int, width: int) -> float:
  """Median over networks of log10 p that isotropic vectors are as similar (Tables 2 and 3)."""
  return float(np.median(similarity.isotropic_log10_p(cosines, num_sequences, width)))


def predicted_cosine(fields: dict, settings: SimpleNamespace) -> np.ndarray:
  """What theory says of the cosine of sequences after each layer, [L], in the cell `fields`.

  It includes finite width up to 1,300 tokens.
  """
  return np.asarray(_finite_width(fields, settings).inter_cosine_L)


def predicted_last_cosine(fields: dict, settings: SimpleNamespace) -> dict:
  """`theory_cosine` and `theory_cosine_std`, mean and std over networks after the last layer."""
  predicted = _finite_width(fields, settings)
  return {'theory_cosine': predicted.inter_cosine_L[-1],
          'theory_cosine_std': predicted.inter_cosine_std}


def predicted_direction_cosine(fields: dict, settings: SimpleNamespace, length: int) -> float:
  """Theory's cosine of a network's directions in the cell `fields` and at a shorter length."""
  limit = theory.at_birth(_config(fields), fields['length'], settings.probe)
  return limit.direction_cosine(length)


def _config(fields):
  changed = {name: fields[name] for name in ('sublayers',) if name in fields}
  return configs.get(fields['config'], length=fields['length'], **changed)


def _finite_width(fields, settings):
  config = _config(fields)
  return theory.finite_width(config, config.length, settings.probe)


def predicted_preference(fields: dict, settings: SimpleNamespace) -> dict:
  """What theory says of the favourite tokens in the cell `fields`, of random tokens.

  Returns:
    `theory_top1_frequency` and `theory_top1_frequency_std`, mean and std over networks,
    `theory_direction_agreement`, and `theory_same_id_as_shortest`, the share of networks whose
    favourite is the same at the shortest of the lengths.
  """
  config, shortest = _config(fields), min(settings.lengths)
  found = favourites(config, settings.num_sequences, shortest)
  same = found.pop('theory_same_id')
  # At the shortest length both favourites are of the same sequences.
  return found | {'theory_same_id_as_shortest': 1.0 if config.length == shortest else same}


def favourites(config: ModelConfig, num_sequences: int, other_length: int | None = None) -> dict:
  """What theory says of the favourite tokens of random networks, as fields of a row."""
  return dict(_favourites(config, num_sequences, other_length))


@functools.cache
def _favourites(config, num_sequences, other_length):
  # A few seconds' worth of networks. Few sequences cost as much as drawing the head.
  flops = 4 * max(num_sequences, 250) * config.vocab_size * config.width
  num_networks = min(300, max(5, round(2e12 / flops)))
  law = theory.preference_at_birth(config, config.length, num_sequences,
                                   other_length=other_length, num_networks=num_networks)
  return {'theory_top1_frequency': law.top1_frequency_N.mean(),
          'theory_top1_frequency_std': law.top1_frequency_N.std(),
          'theory_direction_agreement': law.direction_agrees_N.mean(),
          'theory_same_id': law.same_token_N.mean()}


def direction_agreement(rows: list[dict]) -> dict:
  """How often the contraction direction predicts the network's preferred token (Finding 2.2).

  Returns:
    `direction_agreement`, the share of rows, and `direction_agreement_ci95`,
    its exact binomial interval.
  """
  agree = sum(row['direction_top1_id'] == row['top1_id'] for row in rows)
  return {'direction_agreement': agree / len(rows),
          'direction_agreement_ci95': list(scipy.stats.binomtest(agree, len(rows)).proportion_ci())}
