"""What the experiments on ensembles measure of a network, and which rows they keep of it."""

import functools

import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.analysis import Probe, inter_sequence, predictions, similarity, theory
from bornbiased_jax.analysis.statistics import Statistic, combine
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.transformer import head_of, unembed

from .cells import Cell
from .tables import mean_ci95

# A few seconds' worth of networks that are drawn for theory of preferred tokens.
FLOPS_OF_THEORY = 2e12


def preference(config: ModelConfig, pair_std: bool = False) -> Statistic:
  """Which tokens the network predicts, the contraction direction, and similarity by layer."""
  return combine({
      'preference': predictions(config.vocab_size),
      'direction': inter_sequence('hidden_last'),
      'layers': inter_sequence('residual_last', pair_std=pair_std),
  })


def contraction(config: ModelConfig) -> Statistic:
  """`preference`, with the std of the similarities over pairs of sequences."""
  return preference(config, pair_std=True)


def direction_token(config: ModelConfig):
  """The readout of the token that the contraction direction predicts (Finding 2.2)."""

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


def contraction_summary(rows: list[dict], theory_L: np.ndarray, num_sequences: int,
                        width: int) -> dict:
  """What several such rows say of the similarity of sequences, beside theory."""
  cosines = [row['inter_sequence_cosine'] for row in rows]
  return {
      'networks': len(rows), **mean_ci95(rows, 'inter_sequence_cosine'),
      'theory_cosine': theory_L[-1],
      'layer_cosine': np.mean([row['layer_cosine'] for row in rows], axis=0),
      'layer_theory': theory_L,
      'pair_std': np.mean([row['layer_cosine_std'][-1] for row in rows]),
      'median_log10_p_isotropic': median_log10_p(cosines, num_sequences, width)}


def layers_row(measured: dict) -> dict:
  """Similarity of sequences after each layer, and its std over pairs."""
  return {'layer_cosine': measured['cosine'], 'layer_cosine_std': measured['cosine_std']}


def median_log10_p(cosines: list[float], num_sequences: int, width: int) -> float:
  """Median over networks of log10 p that isotropic vectors are as similar (Tables 2 and 3)."""
  return float(np.median(similarity.isotropic_log10_p(cosines, num_sequences, width)))


def predicted_similarity(cell: Cell):
  """What theory says of the similarity of sequences; with finite width up to 1,300 tokens."""
  config, probe = cell.network.config, cell.probe
  return theory.finite_width(config, probe.length, read(probe))


def read(probe: Probe) -> str | Probe:
  """What theory reads of a probe: of random sequences their kind alone, so that it asks once."""
  return probe if probe.text else probe.kind


def predicted_cosine(cell: Cell) -> np.ndarray:
  """The cosine of sequences after each layer, [L]."""
  return np.asarray(predicted_similarity(cell).inter_cosine_L)


def preferred_tokens(config: ModelConfig, num_sequences: int, other_length: int | None = None,
                     probe: str | Probe = 'tokens') -> dict:
  """What theory says of the preferred tokens of random networks, as fields of a row."""
  return dict(_preferred_tokens(config, num_sequences, other_length, probe))


@functools.cache
def _preferred_tokens(config, num_sequences, other_length, probe):
  # Few sequences cost as much as drawing the head.
  flops = 4 * max(num_sequences, 250) * config.vocab_size * config.width
  num_networks = min(300, max(5, round(FLOPS_OF_THEORY / flops)))
  found = theory.preference_at_initialization(config, config.length, num_sequences, probe,
                                              other_length=other_length, num_networks=num_networks)
  return {'theory_top1_frequency': found.top1_frequency_N.mean(),
          'theory_top1_frequency_std': found.top1_frequency_N.std(),
          'theory_direction_agreement': found.direction_agrees_N.mean(),
          'theory_same_id': found.same_token_N.mean()}


def direction_agreement(rows: list[dict]) -> dict:
  """How often the direction predicts the preferred token, with an exact binomial interval."""
  agree = sum(row['direction_top1_id'] == row['top1_id'] for row in rows)
  return {'direction_agreement': agree / len(rows),
          'direction_agreement_ci95': list(scipy.stats.binomtest(agree, len(rows)).proportion_ci())}
