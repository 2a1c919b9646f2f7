"""What experiments.text_sinks measures of one network."""

import numpy as np

from bornbiased_jax.analysis import attention_sink
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data import Corpus, windows
from bornbiased_jax.models import strided_loss

from ..shared.tables import ci95

# The singular values of more sequences would take longer than all else.
RANK_SEQUENCES = 8


def measure(config: ModelConfig, params: dict, texts: dict[str, Corpus], settings,
            is_last: bool) -> dict:
  """Sinks at the first position and at --position by length; what stands out at the longest.

  Before the last step of a training, only the longest sequences are read. Super neurons are those
  of one MLP, which mixtures lack.
  """
  tokens_NT = draw_sequences(next(iter(texts.values())).tokens, settings)
  lengths = settings.lengths if is_last else settings.lengths[-1:]
  received = [attention_sink.received(config, params, tokens_NT[:, :length]) for length in lengths]
  row = {'lengths': lengths}
  chosen = {} if settings.position is None else {'position': settings.position}
  for name, position in ({'first': 0} | chosen).items():
    sinks = [attention_sink.rate_of(weight_NLHT, config, position) for weight_NLHT in received]
    row |= {f'{name}_rate': [sink.rate for sink in sinks],
            f'{name}_rate_ci95': [ci95(sink.rate_N) for sink in sinks],
            f'{name}_weight': [float(sink.weight_NLH.mean()) for sink in sinks],
            f'{name}_floor': [sink.floor for sink in sinks],
            f'{name}_rate_LH': sinks[-1].rate_LH,
            f'{name}_weight_LH': sinks[-1].weight_NLH.mean(axis=0)}
  row |= by_position(received[-1], attention_sink.diagnostics(config, params, tokens_NT))
  if is_last:
    row['effective_rank_L'] = attention_sink.effective_rank(
        config, params, tokens_NT[:RANK_SEQUENCES])
  has_neurons = config.num_experts == 1 and config.sublayers != 'attention_only'
  return row | (strongest_neurons(config, params, tokens_NT) if has_neurons else {})


def by_position(weight_NLHT: np.ndarray, found: dict) -> dict:
  """Of curves by position those at 0, 1, 3, 7, …, and the strongest sink but the first.

  That is sought in the first half of a sequence, whose positions many queries see.
  """
  positions = 2 ** np.arange(weight_NLHT.shape[-1].bit_length()) - 1
  others_NLHT = weight_NLHT[..., 1:weight_NLHT.shape[-1] // 2]
  return {name: value for name, value in found.items() if name != 'positional_std_LT'} | {
      'positions': positions, 'positional_std_LP': found['positional_std_LT'][:, positions],
      'weight_LP': weight_NLHT[..., positions].mean(axis=(0, 2)),
      'elsewhere_rate': (others_NLHT > attention_sink.THRESHOLD).any(axis=-1).mean(),
      'elsewhere_weight_LH': others_NLHT.mean(axis=0).max(axis=-1, initial=0.0)}


def strongest_neurons(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> dict:
  """The MLP unit of each layer that the first token excites most."""
  neurons = attention_sink.super_neurons(config, params, tokens_NT)
  top_L = neurons['activation_LF'].argmax(axis=-1)
  at_top = lambda name: np.take_along_axis(neurons[name], top_L[:, None], axis=-1)[:, 0]
  return {'super_neuron_L': top_L, 'super_activation_L': at_top('activation_LF'),
          'super_concentration_L': at_top('concentration_LF')}


def draw_sequences(tokens: np.ndarray, settings) -> np.ndarray:
  """Ids [num_sequences, longest] from random places of a text."""
  longest = settings.lengths[-1]
  random = np.random.default_rng(settings.probe_seed)
  start_N = random.integers(0, len(tokens) - longest, settings.num_sequences)
  drawn_NT = np.stack([tokens[start:start + longest] for start in start_N]).astype(np.int32)
  return windows.begin(drawn_NT, settings.start_id)


def losses(config: ModelConfig, params: dict, texts: dict[str, Corpus],
           settings) -> dict[str, float]:
  """Mean loss on each text, in nats per token."""
  most = settings.loss_sequences * settings.length + 1
  strided = lambda tokens: strided_loss(config, params, tokens, settings.length,
                                        start_id=settings.start_id)
  return {name: strided(text.tokens[:most]) for name, text in texts.items()}
