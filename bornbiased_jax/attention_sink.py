"""Attention sinks: how much weight a position receives, what stands out there, and what language models lose by it.

Fig 12 and Table 7 of the paper; the sink rate is Gu et al.'s (2024).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.ensemble import in_batches
from bornbiased_jax.errors import InputError
from bornbiased_jax.loss import token_losses
from bornbiased_jax.transformer import Transformer

THRESHOLD = 0.3


class SinkRate(NamedTuple):
  """Of `sink_rate`.

  Attributes:
    rate: share of (sequence, layer, head) whose weight on the position exceeds the threshold.
    rate_N: the same for each sequence.
    rate_LH: the same for each layer and head.
    weight_NLH: mean attention weight on the position, over the queries from it on.
    floor: that weight under uniform attention.
  """

  rate: float
  rate_N: np.ndarray
  rate_LH: np.ndarray
  weight_NLH: np.ndarray
  floor: float


def sink_rate(params: dict, config: ModelConfig, tokens_NT: np.ndarray, position: int = 0,
              threshold: float = THRESHOLD) -> SinkRate:
  """How often a head attends to one position, whatever the text.

  Args:
    params: as of `initialization.init_params`.
    config: the architecture.
    tokens_NT: ids of the sequences.
    position: the candidate, from 0.
    threshold: mean weight above which a head is a sink.

  Raises:
    InputError: a position outside the sequences, or sequences longer than the model's.

  Cost: one forward pass, and the attention weights a second time, a block of queries at once.
  """
  tokens_NT = np.asarray(tokens_NT)
  if not 0 <= position < tokens_NT.shape[1]:
    raise InputError(f'position={position} is not one of sequences of length {tokens_NT.shape[1]}')
  weight_NLH = received(params, config, tokens_NT)[..., position]
  sink_NLH = weight_NLH > threshold
  return SinkRate(float(sink_NLH.mean()), sink_NLH.mean(axis=(1, 2)), sink_NLH.mean(axis=0), weight_NLH,
                  uniform_weight(tokens_NT.shape[1], position))


def uniform_weight(length: int, position: int = 0) -> float:
  """Mean weight on a position under uniform attention: the mean of 1/i over i > position; H_T / T on the first."""
  return float(np.mean(1 / np.arange(position + 1, length + 1)))


def received(params: dict, config: ModelConfig, tokens_NT: np.ndarray) -> np.ndarray:
  """Mean attention weight [N, L, H, T] on every position, over the queries from it on."""
  return _in_batches(_received, params, config, tokens_NT)


def diagnostics(params: dict, config: ModelConfig, tokens_NT: np.ndarray) -> dict[str, np.ndarray]:
  """What stands out at the first position, and at which layer; means over sequences.

  Returns:
    disparity_L: largest over mean magnitude of the first token's residual coordinates;
    massive_L: largest over median magnitude of them;
    effective_rank_L: exp of the entropy of a sequence's normalized singular values of its states [T, D];
    positional_std_LT: std over channels of the value aggregate that W_O reads.

  Cost: a forward pass, and a singular value decomposition of every sequence and layer.
  """
  measured = _in_batches(_diagnostics, params, config, tokens_NT)
  return {name: values.mean(axis=0) for name, values in measured.items()}


def super_neurons(params: dict, config: ModelConfig, tokens_NT: np.ndarray) -> dict[str, np.ndarray]:
  """Which MLP units make the first token stand out: an outlier activation, written to few channels.

  Returns:
    activation_LF: magnitude of each hidden unit at the first token over the median of its layer's;
      mean over sequences.
    concentration_LF: share of the largest four in the squared norm of the column that writes it.
  """
  activation_NLF = _in_batches(_first_activation, params, config, tokens_NT)
  written_LFD = np.sort(np.square(np.asarray(params['blocks']['down']['kernel'], np.float64)), axis=-1)
  return {'activation_LF': activation_NLF.mean(axis=0),
          'concentration_LF': written_LFD[..., -4:].sum(axis=-1) / written_LFD.sum(axis=-1)}


def strided_loss(params: dict, config: ModelConfig, ids: np.ndarray, length: int, stride: int | None = None) -> float:
  """Mean loss of a text, in nats a token; exp of it is the perplexity of Table 7.

  Windows of `length` + 1 ids, `stride` apart; of each but the first only the
  last `stride` predictions count, so that none is made twice and each has
  length - stride tokens before it at least. The rest of the text is left out.

  Args:
    params: as of `initialization.init_params`.
    config: the architecture.
    ids: the text.
    length: tokens read at once, T.
    stride: None: `length`, windows side by side.

  Raises:
    InputError: a stride that is not from 1 to length, or a text without one window.
  """
  stride = stride or length
  if not 1 <= stride <= length:
    raise InputError(f'stride={stride} is not from 1 to length={length}')
  if len(ids) <= length:
    raise InputError(f'{len(ids)} tokens are no window of length {length} and the token after it')
  starts = np.arange(0, len(ids) - length, stride)
  windows_NT = np.lib.stride_tricks.sliding_window_view(np.asarray(ids), length + 1)[starts]
  losses_NT = _in_batches(_losses, params, config, windows_NT)
  return float((losses_NT[0].sum() + losses_NT[1:, length - stride:].sum(dtype=np.float64))
               / (length + (len(starts) - 1) * stride))


def _in_batches(measure, params, config, tokens_NT):
  return in_batches(lambda index_B: measure(config, params, tokens_NT[index_B]), *tokens_NT.shape)


@functools.partial(jax.jit, static_argnums=0)
def _received(config, params, tokens_BT):
  read = Transformer(config).apply({'params': params}, tokens_BT, ('attention_received',), method='read')
  return jnp.moveaxis(read['attention_received'], 1, 0)


@functools.partial(jax.jit, static_argnums=0)
def _diagnostics(config, params, tokens_BT):
  read = Transformer(config).apply({'params': params}, tokens_BT, ('residual', 'value_aggregate'), method='read')
  state_BLTD = jnp.moveaxis(read['residual'], 1, 0).astype(jnp.float32)
  first_BLD = jnp.abs(state_BLTD[:, :, 0])
  largest_BL = first_BLD.max(axis=-1)
  return {'disparity_L': largest_BL / first_BLD.mean(axis=-1), 'massive_L': largest_BL / jnp.median(first_BLD, axis=-1),
          'effective_rank_L': _effective_rank(state_BLTD),
          'positional_std_LT': jnp.moveaxis(read['value_aggregate'].astype(jnp.float32).std(axis=-1), 1, 0)}


def _effective_rank(state_BLTD):
  share_BLK = jnp.linalg.svd(state_BLTD, compute_uv=False)
  share_BLK /= share_BLK.sum(axis=-1, keepdims=True)
  return jnp.exp(jax.scipy.special.entr(share_BLK).sum(axis=-1))


@functools.partial(jax.jit, static_argnums=0)
def _first_activation(config, params, tokens_BT):
  read = Transformer(config).apply({'params': params}, tokens_BT[:, :1], ('mlp_hidden',), method='read')
  magnitude_BLF = jnp.abs(jnp.moveaxis(read['mlp_hidden'][:, :, 0], 1, 0).astype(jnp.float32))
  return magnitude_BLF / jnp.median(magnitude_BLF, axis=-1, keepdims=True)


@functools.partial(jax.jit, static_argnums=0)
def _losses(config, params, tokens_BT):
  return token_losses(config, params, tokens_BT)
