"""Attention sinks: how much weight a position receives, what stands out there, and what language models lose by it.

Fig 12 and Table 7 of the paper; the sink rate is Gu et al.'s (2024).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.ensemble import in_batches
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention
from bornbiased_jax.models.loss import token_losses
from bornbiased_jax.models.transformer import read

THRESHOLD = 0.3


class SinkRate(NamedTuple):
  """Of `sink_rate`.

  Attributes:
    rate: share of (sequence, layer, head) whose weight on the position exceeds the threshold.
    rate_N: the same for each sequence.
    rate_LH: the same for each layer and head.
    weight_NLH: mean attention weight on the position, over the queries from it on.
    floor: that weight under uniform attention, and the intervention.
  """

  rate: float
  rate_N: np.ndarray
  rate_LH: np.ndarray
  weight_NLH: np.ndarray
  floor: float


def sink_rate(config: ModelConfig, params: dict, tokens_NT: np.ndarray, position: int = 0,
              threshold: float = THRESHOLD) -> SinkRate:
  """How often a head attends to one position, whatever the text.

  Args:
    config: the architecture.
    params: as of `initialization.init_params`.
    tokens_NT: ids of the sequences.
    position: the candidate, from 0.
    threshold: mean weight above which a head is a sink.

  Raises:
    InputError: a position outside the sequences, or sequences longer than the model's.

  Cost: one forward pass without logits; see `received`.
  """
  tokens_NT = np.asarray(tokens_NT)
  if not 0 <= position < tokens_NT.shape[1]:
    raise InputError(f'position={position} is not one of sequences of length {tokens_NT.shape[1]}')
  return rate_of(received(config, params, tokens_NT), config, position, threshold)


def rate_of(weight_NLHT: np.ndarray, config: ModelConfig, position: int, threshold: float = THRESHOLD) -> SinkRate:
  """`sink_rate` from what `received` returned, for any number of positions and thresholds."""
  weight_NLH = weight_NLHT[..., position]
  sink_NLH, floor = weight_NLH > threshold, uniform_weight(weight_NLHT.shape[-1], position)
  if config.intervention == 'mask' and position == config.intervention_position:
    # It attends to itself alone, whatever the heads have learned.
    floor += (1 - 1 / (position + 1)) / (weight_NLHT.shape[-1] - position)
  return SinkRate(float(sink_NLH.mean()), sink_NLH.mean(axis=(1, 2)), sink_NLH.mean(axis=0), weight_NLH, floor)


def uniform_weight(length: int, position: int = 0) -> float:
  """Mean weight on a position under uniform attention: the mean of 1/i over i > position; H_T / T on the first."""
  return float(np.mean(1 / np.arange(position + 1, length + 1)))


def received(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> np.ndarray:
  """Mean attention weight [N, L, H, T] on every position, over the queries from it on; without [T, T] matrices."""
  return _in_batches(_received, config, params, tokens_NT)


def diagnostics(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> dict[str, np.ndarray]:
  """What stands out at the first position, and at which layer; means over sequences.

  Returns:
    disparity_L: largest over mean magnitude of the first token's residual coordinates;
    massive_L: largest over median magnitude of them;
    positional_std_LT: std over channels of the value aggregate that W_O reads.
  """
  measured = _in_batches(_diagnostics, config, params, tokens_NT)
  return {name: values.mean(axis=0) for name, values in measured.items()}


def effective_rank(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> np.ndarray:
  """By layer [L], exp of the entropy of the normalized singular values of a sequence's states [T, D]; their mean.

  Cost: a forward pass, and a singular value decomposition of every sequence and layer.
  """
  return _in_batches(_effective_rank, config, params, tokens_NT).mean(axis=0)


def super_neurons(config: ModelConfig, params: dict, tokens_NT: np.ndarray) -> dict[str, np.ndarray]:
  """Which MLP units make the first token stand out: an outlier activation, written to few channels.

  Returns:
    activation_LF: magnitude of each hidden unit at the first token over the mean of its layer's;
      mean over sequences.
    concentration_LF: share of the largest four in the squared norm of the column that writes it.
  """
  activation_NLF = _in_batches(_first_activation, config, params, tokens_NT)
  written_LFD = np.partition(np.square(params['blocks']['down']['kernel']), -4, axis=-1)
  return {'activation_LF': activation_NLF.mean(axis=0),
          'concentration_LF': written_LFD[..., -4:].sum(axis=-1) / written_LFD.sum(axis=-1)}


def strided_loss(config: ModelConfig, params: dict, ids: np.ndarray, length: int, stride: int | None = None) -> float:
  """Mean loss of a text, in nats a token; exp of it is the perplexity of Table 7.

  Windows of `length` + 1 ids, `stride` apart; of each but the first only the
  last `stride` predictions count, so that none is made twice and each has
  length - stride tokens before it at least. The rest of the text is left out.

  Args:
    config: the architecture.
    params: as of `initialization.init_params`.
    ids: the text.
    length: tokens read at once, T.
    stride: None: `length`, windows side by side.

  Raises:
    InputError: a stride that is not from 1 to length, or a text without one window.
  """
  stride = length if stride is None else stride
  if not 1 <= stride <= length:
    raise InputError(f'stride={stride} is not from 1 to length={length}')
  if len(ids) <= length:
    raise InputError(f'{len(ids)} tokens are no window of length {length} and the token after it')
  starts = np.arange(0, len(ids) - length, stride)
  windows_NT = np.lib.stride_tricks.sliding_window_view(np.asarray(ids), length + 1)[starts]
  losses_NT = _in_batches(_losses, config, params, windows_NT)
  return float((losses_NT[0].sum(dtype=np.float64) + losses_NT[1:, length - stride:].sum(dtype=np.float64))
               / (length + (len(starts) - 1) * stride))


def _in_batches(measure, config, params, tokens_NT):
  with jax.default_matmul_precision('highest'):
    return in_batches(lambda index_B: measure(config, params, tokens_NT[index_B]), *tokens_NT.shape)


def _read(config, params, tokens_BT, *names):
  """Intermediates by layer [B, L, …] in float32."""
  found = read(config, params, tokens_BT, names, attention.blocked)
  return [jnp.moveaxis(found[name], 1, 0).astype(jnp.float32) for name in names]


@functools.partial(jax.jit, static_argnums=0)
def _received(config, params, tokens_BT):
  return _read(config, params, tokens_BT, 'attention_received')[0]


@functools.partial(jax.jit, static_argnums=0)
def _diagnostics(config, params, tokens_BT):
  state_BLTD, aggregate_BLTF = _read(config, params, tokens_BT, 'residual', 'value_aggregate')
  first_BLD = jnp.abs(state_BLTD[:, :, 0])
  largest_BL = first_BLD.max(axis=-1)
  return {'disparity_L': largest_BL / first_BLD.mean(axis=-1), 'massive_L': largest_BL / jnp.median(first_BLD, axis=-1),
          'positional_std_LT': aggregate_BLTF.std(axis=-1)}


@functools.partial(jax.jit, static_argnums=0)
def _effective_rank(config, params, tokens_BT):
  state_BLTD, = _read(config, params, tokens_BT, 'residual')
  share_BLK = jnp.linalg.svd(state_BLTD, compute_uv=False)
  share_BLK /= share_BLK.sum(axis=-1, keepdims=True)
  return jnp.exp(jax.scipy.special.entr(share_BLK).sum(axis=-1))


@functools.partial(jax.jit, static_argnums=0)
def _first_activation(config, params, tokens_BT):
  magnitude_BLF = jnp.abs(_read(config, params, tokens_BT[:, :1], 'mlp_hidden')[0][:, :, 0])
  return magnitude_BLF / magnitude_BLF.mean(axis=-1, keepdims=True)


@functools.partial(jax.jit, static_argnums=0)
def _losses(config, params, tokens_BT):
  return token_losses(config, params, tokens_BT, attend=attention.blocked)
