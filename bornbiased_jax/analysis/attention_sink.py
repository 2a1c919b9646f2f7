"""Attention sinks: the weight that a position receives, and what goes with it.

Fig 12 and Table 7 of the paper. The sink rate (Gu et al. 2024) is the share of attention heads
whose mean weight on a position exceeds a threshold.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.statistics import Statistic
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_ids
from bornbiased_jax.models import attention
from bornbiased_jax.models.batches import in_batches
from bornbiased_jax.models.transformer import read

# The mean weight above which Gu et al. call a head a sink.
THRESHOLD = 0.3


class SinkRate(NamedTuple):
  """What `sink_rate` returns for N sequences, L layers and H heads.

  Attributes:
    rate: share of all (sequence, layer, head) whose weight exceeds the threshold.
    rate_N, rate_LH: the same share for each sequence, and for each layer and head.
    weight_NLH: mean attention weight on the position, over the queries that see it.
    floor: that weight if attention were uniform, except as the 'mask' intervention
      prescribes; mean over layers, if they have windows.
  """

  rate: float
  rate_N: np.ndarray
  rate_LH: np.ndarray
  weight_NLH: np.ndarray
  floor: float


def sink_rate(config: ModelConfig, params: dict, tokens_NT: np.ndarray, position: int = 0,
              threshold: float = THRESHOLD) -> SinkRate:
  """How often attention heads prefer one position, whatever the text.

  Args:
    config, params: the model.
    tokens_NT: token ids of the sequences.
    position: the position in question, counted from 0.
    threshold: mean weight above which a head counts as a sink.

  Raises:
    InputError: a position outside the sequences, or sequences longer than config.length.
  """
  tokens_NT = np.asarray(tokens_NT)
  if not 0 <= position < tokens_NT.shape[1]:
    raise InputError(f'position={position} does not exist in sequences of length '
                     f'{tokens_NT.shape[1]}')
  return rate_of(received(config, params, tokens_NT), config, position, threshold)


def rate_of(weight_NLHT: np.ndarray, config: ModelConfig, position: int,
            threshold: float = THRESHOLD) -> SinkRate:
  """`sink_rate` from weights that `received` has returned, for any position and threshold.

  Example:
    >>> from bornbiased_jax import configs
    >>> weight_NLHT = np.array([[[[0.8, 0.2], [0.1, 0.9]]]])  # One sequence and layer, two heads.
    >>> rate_of(weight_NLHT, configs.get('tiny_gpt2'), position=0).rate
    0.5
  """
  weight_NLH, T = weight_NLHT[..., position], weight_NLHT.shape[-1]
  if np.isnan(weight_NLH).any():
    raise InputError('attention weights are NaN; the model has parameters that are not finite '
                     'numbers')
  sink_NLH = weight_NLH > threshold
  floors = [_floor(config, T, position, window) for window in config.windows or (None,)]
  return SinkRate(float(sink_NLH.mean()), sink_NLH.mean(axis=(1, 2)), sink_NLH.mean(axis=0),
                  weight_NLH, float(np.mean(floors)))


def _floor(config, length, position, window):
  floor, seen = uniform_weight(length, position, window), min(window or length, length)
  if config.intervention == 'mask' and position == config.intervention_position:
    # The position gives itself weight 1 instead of 1 / (position + 1), and it is one of
    # the T - position queries of the mean; with a window, both are at most its size.
    floor += (1 - 1 / min(position + 1, seen)) / min(length - position, seen)
  return floor


def uniform_weight(length: int, position: int = 0, window: int | None = None) -> float:
  """Mean weight that a position receives under uniform attention.

  The query at position i, counted from 1, gives 1/i to each position that it sees, or 1/w
  from position w on if it has a window of w positions.

  Args:
    length: number of positions, T.
    position: the position in question, counted from 0.
    window: the most positions that a query sees; None: no limit.

  Example:
    >>> from bornbiased_jax import analysis
    >>> analysis.uniform_weight(length=2)  # (1 + 1/2) / 2
    0.75
  """
  window = length if window is None else window
  viewer_Q = np.arange(position + 1, min(length, position + window) + 1)
  return float(np.mean(1 / np.minimum(viewer_Q, window)))


def received(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> np.ndarray:
  """Mean weight [N, L, H, T] on each position, over the queries that see it: itself and later ones.

  No [T, T] matrix of weights is held.
  """
  return _in_batches(_measure_received, config, params, tokens_NT)


def diagnostics(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> dict[str, np.ndarray]:
  """What stands out at the first position, by layer, averaged over sequences.

  Returns:
    A dict of
    - disparity_L, massive_L: the largest magnitude among the first token's residual
      coordinates, divided by their mean magnitude, and by their median.
    - residual_ratio_L: norm of the first token's residual state over the mean norm of later ones.
    - value_ratio_L: the same of the values, all heads together. Below 1 the first token brings
      little to whom attends to it: value drain. Both are NaN for sequences of one token.
    - positional_std_LT: standard deviation over channels, at each position, of the value
      aggregate that W_O reads.
  """
  measured = _in_batches(_diagnostics, config, params, tokens_NT)
  return {name: values.mean(axis=0) for name, values in measured.items()}


def first_weights(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> np.ndarray:
  """Attention weight [N, L, H, T] that each query gives to the first position."""
  return _in_batches(_first_weights, config, params, tokens_NT)


def effective_rank(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> np.ndarray:
  """Effective rank [L] of the residual states of a sequence, averaged over sequences.

  It is exp of the entropy of the singular values of the states [T, D], normalized to sum to 1.
  """
  return _in_batches(_effective_rank, config, params, tokens_NT).mean(axis=0)


def super_neurons(config: ModelConfig, params: dict,
                  tokens_NT: np.ndarray) -> dict[str, np.ndarray]:
  """Measures every hidden unit of the MLPs, to find super neurons.

  These make the first token stand out: their activation there is an outlier, and they write
  to few channels of the residual stream.

  Returns:
    A dict of
    - activation_LF: magnitude of each hidden unit at the first token, divided by the mean
      magnitude of its layer; mean over sequences.
    - concentration_LF: share of the four largest entries in the squared norm of the
      unit's column of the down-projection.
  """
  activation_NLF = _in_batches(_first_activation, config, params, tokens_NT)
  # Linen stores the down-projection as [F, D], so that a unit's column is a row here.
  written_LFD = np.partition(np.square(params['blocks']['down']['kernel']), -4, axis=-1)
  return {'activation_LF': activation_NLF.mean(axis=0),
          'concentration_LF': written_LFD[..., -4:].sum(axis=-1) / written_LFD.sum(axis=-1)}


def positional_std(name: str) -> Statistic:
  """How much a channel varies over sequences, at each position.

  Args:
    name: an intermediate of shape [..., B, T, C], such as 'value_aggregate'.

  Returns:
    A statistic with the result `std` [..., T]: the square root of the unbiased variance
    over sequences, averaged over the C channels. NaN for a single sequence.

  Example:
    >>> spread = positional_std('x')  # Two sequences of three positions, one channel:
    >>> sums = spread.measure({'x': jnp.array([[[0.], [3.], [7.]], [[2.], [3.], [7.]]])})
    >>> spread.summarize(sums)['std'].round(4).tolist()
    [1.4142, 0.0, 0.0]
  """

  def measure(outputs):
    x = outputs[name].astype(jnp.float32)  # Axes from the right: channels, positions, sequences.
    return {'sum': x.sum(-3), 'squared': (x * x).sum((-3, -1)), 'count': jnp.int32(x.shape[-3])}

  def summarize(sums):
    count, channels = int(sums['count']), sums['sum'].shape[-1]
    mean_squared = np.sum((np.asarray(sums['sum'], np.float64) / count) ** 2, axis=-1)
    total = np.asarray(sums['squared'], np.float64) / count - mean_squared
    unbiased = count / (count - 1) if count > 1 else np.nan
    return {'std': np.sqrt(np.maximum(0, total) * unbiased / channels)}

  return Statistic((name,), measure, summarize)


def _in_batches(measure, config, params, tokens_NT):
  tokens_NT = np.asarray(tokens_NT)
  check_ids(tokens_NT, config.vocab_size)
  with jax.default_matmul_precision('highest'):
    return in_batches(lambda index_B: measure(config, params, tokens_NT[index_B]), *tokens_NT.shape)


def _read(config, params, tokens_BT, *names):
  """Intermediates [B, L, …] in float32, with sequences first, as batches are joined."""
  found = read(config, params, tokens_BT, names, attention.blocked)
  return [jnp.moveaxis(found[name], 1, 0).astype(jnp.float32) for name in names]


@functools.partial(jax.jit, static_argnums=0)
def _measure_received(config, params, tokens_BT):
  return _read(config, params, tokens_BT, 'attention_received')[0]


@functools.partial(jax.jit, static_argnums=0)
def _diagnostics(config, params, tokens_BT):
  state_BLTD, value_BLTF, aggregate_BLTF = _read(
      config, params, tokens_BT, 'residual', 'value', 'value_aggregate')
  first_BLD = jnp.abs(state_BLTD[:, :, 0])
  largest_BL = first_BLD.max(axis=-1)
  return {'disparity_L': largest_BL / first_BLD.mean(axis=-1),
          'massive_L': largest_BL / jnp.median(first_BLD, axis=-1),
          'residual_ratio_L': _first_over_others(state_BLTD),
          'value_ratio_L': _first_over_others(value_BLTF),
          'positional_std_LT': aggregate_BLTF.std(axis=-1)}


def _first_over_others(x_BLTD):
  norm_BLT = jnp.linalg.norm(x_BLTD, axis=-1)
  return norm_BLT[..., 0] / norm_BLT[..., 1:].mean(axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def _first_weights(config, params, tokens_BT):
  return _read(config, params, tokens_BT, 'attention_weights')[0][..., 0]


@functools.partial(jax.jit, static_argnums=0)
def _effective_rank(config, params, tokens_BT):
  state_BLTD, = _read(config, params, tokens_BT, 'residual')
  share_BLK = jnp.linalg.svd(state_BLTD, compute_uv=False)
  share_BLK /= share_BLK.sum(axis=-1, keepdims=True)
  return jnp.exp(jax.scipy.special.entr(share_BLK).sum(axis=-1))


@functools.partial(jax.jit, static_argnums=0)
def _first_activation(config, params, tokens_BT):
  # Only the first token is needed, because nothing before it can change its activations.
  hidden_BLTF, = _read(config, params, tokens_BT[:, :1], 'mlp_hidden')
  magnitude_BLF = jnp.abs(hidden_BLTF[:, :, 0])
  return magnitude_BLF / magnitude_BLF.mean(axis=-1, keepdims=True)
