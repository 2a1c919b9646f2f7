"""Causal attention: by the definition, or in blocks.

The functions `plain` and `blocked`, like those of attention_tiles.py and
attention_kernels.py, have the signature

    attend(query_BTHK, key_BSGK, value_BSGK, *, window, cap, slopes, sink)
        → value aggregate [B, T, H K]

with the heads concatenated. The queries belong to the last T of S positions, and the number of
key/value heads G divides the number of query heads H. A query sees the last `window` positions up
to its own. Scores s become cap tanh(s / cap), and fall by the slope of their head for each position
between query and key. The sink of a head is one more score, whose key no position has: it takes
weight and gives no value. By default there is none of these limits. The functions differ by
rounding, and in memory: O(T²) for `plain`, O(T) for the others. transformer.py explains letters of
shapes.
"""

from collections.abc import Callable
import math
from typing import Any

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig

# Queries per block, and the positions of a tile of a TPU's kernel.
TILE = 128

# The window of a layer that has none, larger than any sequence.
UNLIMITED = 2**30
Window = int | jax.Array | None
Slopes = np.ndarray | jax.Array | None
Sink = jax.Array | None  # [H]

# The intermediates of transformer.READS that need the attention weights.
WATCHED = ('attention_weights', 'attention_received')


def windows(config: ModelConfig) -> jax.Array | None:
  """The window [L] of each layer, UNLIMITED where it has none; None if no layer has one."""
  if not config.windows:
    return None
  return jnp.array([min(window or UNLIMITED, UNLIMITED) for window in config.windows], jnp.int32)


def alibi_slopes(config: ModelConfig) -> np.ndarray | None:
  """By how much the scores of each head [H] fall from one position to the next; None without ALiBi.

  Of H heads, a power of 2, it is 2^(-8 h / H) for h = 1, 2, … H. Of another number the first
  are those of the power of 2 below, and every second one of the power above follows (Press et
  al. 2022).
  """
  if config.positions != 'alibi':
    return None
  below = 2 ** int(math.log2(config.num_heads))
  of_power = lambda count: 2 ** (-8 * np.arange(1, count + 1) / count)
  slopes = np.append(of_power(below), of_power(2 * below)[::2])
  return slopes[:config.num_heads].astype(np.float32)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
  """x with a smooth bound, cap tanh(x / cap); x itself if there is none."""
  return x if cap is None else cap * jnp.tanh(x / cap)


def attention_weights(query_BTHK: jax.Array, key_BSGK: jax.Array,
                      first: int | jax.Array | None = None, *, window: Window = None,
                      cap: float | None = None, slopes: Slopes = None,
                      sink: Sink = None) -> jax.Array:
  """Causal softmax weights [B, H, T, S] in float32; `first` is the position of the first query."""
  (B, T, H, K), (S, G) = query_BTHK.shape, key_BSGK.shape[1:3]
  first = S - T if first is None else first
  query_BTGNK = query_BTHK.reshape(B, T, G, H // G, K)
  scores_BGNTS = jnp.einsum('BTGNK,BSGK->BGNTS', query_BTGNK, key_BSGK,
                            preferred_element_type=jnp.float32) / math.sqrt(K)
  visible_TS = jnp.arange(S)[None] <= first + jnp.arange(T)[:, None]
  if window is not None:
    # Padding queries behind the last position see what it sees: without any key, their
    # weights would be NaN, and so would gradients.
    position_T1 = jnp.minimum(first + jnp.arange(T), S - 1)[:, None]
    visible_TS &= jnp.arange(S)[None] > position_T1 - window
  scores_BGNTS = soft_cap(scores_BGNTS, cap)
  if slopes is not None:
    behind_TS = (first + jnp.arange(T)[:, None] - jnp.arange(S)[None]).astype(jnp.float32)
    scores_BGNTS -= slopes.reshape(1, G, -1, 1, 1) * behind_TS[None, None, None]
  scores_BGNTS = jnp.where(visible_TS, scores_BGNTS, -jnp.inf)
  if sink is not None:
    sink_BGNT1 = jnp.broadcast_to(sink.reshape(1, G, -1, 1, 1), (*scores_BGNTS.shape[:-1], 1))
    scores_BGNTS = jnp.concatenate((scores_BGNTS, sink_BGNT1), axis=-1)
  return nn.softmax(scores_BGNTS)[..., :S].reshape(B, H, T, S)


def aggregate_values(weights_BHTS: jax.Array, value_BSGK: jax.Array) -> jax.Array:
  """The value aggregate o_i = sum_j a_ij v_j [B, T, H K], with the heads concatenated."""
  (B, H, T, S), (G, K) = weights_BHTS.shape, value_BSGK.shape[2:]
  weights_BGNTS = weights_BHTS.reshape(B, G, H // G, T, S).astype(value_BSGK.dtype)
  return jnp.einsum('BGNTS,BSGK->BTGNK', weights_BGNTS, value_BSGK).reshape(B, T, H * K)


def streamed(query_BTHK: jax.Array, key_BTGK: jax.Array, value_BTGK: jax.Array,
             change: Callable[[jax.Array, int], jax.Array] = lambda weights, first: weights,
             block: int = TILE, **limits: Any) -> tuple[jax.Array, jax.Array]:
  """Attention computed for one block of queries at a time, so that no [T, T] matrix exists.

  `change` is a function (weights [B, H, block, T], first) → weights, applied to the weights of
  each block of queries; `first` is its first position.

  Returns:
    The value aggregate [B, T, H K], and the mean weight [B, H, T] on each position
    in float32. The mean is over the queries that see the position: itself and later.
  """
  B, T, H, K = query_BTHK.shape
  block = min(block, T)
  # -T % block more queries make whole blocks; what they give is dropped below.
  padded_BTHK = jnp.pad(query_BTHK, ((0, 0), (0, -T % block), (0, 0), (0, 0)))
  query_MBTHK = jnp.moveaxis(padded_BTHK.reshape(B, -1, block, H, K), 1, 0)

  def of_block(total_BHS, part):
    first, query_BTHK = part
    weights_BHTS = change(attention_weights(query_BTHK, key_BTGK, first, **limits), first)
    is_padding_T1 = first + jnp.arange(block)[:, None] >= T
    total_BHS += jnp.where(is_padding_T1, 0, weights_BHTS).sum(axis=2)
    return total_BHS, aggregate_values(weights_BHTS, value_BTGK)

  starts_M = block * jnp.arange(len(query_MBTHK))
  total_BHT, aggregate_MBTF = lax.scan(of_block, jnp.zeros((B, H, T)), (starts_M, query_MBTHK))
  aggregate_BTF = jnp.moveaxis(aggregate_MBTF, 0, 1).reshape(B, -1, H * K)[:, :T]
  return aggregate_BTF, total_BHT / _num_viewers(T, **limits)[None, None]


def _num_viewers(length, window=None, **_):
  """How many queries see each of `length` positions: its own and later ones."""
  later_T = length - jnp.arange(length)
  return (later_T if window is None else jnp.minimum(later_T, window)).astype(jnp.float32)


def watched(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array,
            names: tuple[str, ...], change: Callable[[jax.Array, int], jax.Array],
            **limits: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The value aggregate, and those of WATCHED that are in `names`: weights or their means.

  All weights are in memory at once only if 'attention_weights' is among `names`. For `change` see
  `streamed`.
  """
  if 'attention_weights' not in names:
    aggregate_BTF, received_BHT = streamed(query_BTHK, key_BSGK, value_BSGK, change, **limits)
    return aggregate_BTF, {'attention_received': received_BHT}
  T, S = query_BTHK.shape[1], key_BSGK.shape[1]
  weights_BHTS = change(attention_weights(query_BTHK, key_BSGK, **limits), S - T)
  received_BHS = weights_BHTS.sum(axis=2) / _num_viewers(S, **limits)[None, None]
  return (aggregate_values(weights_BHTS, value_BSGK),
          {'attention_weights': weights_BHTS, 'attention_received': received_BHS})


def plain(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array,
          **limits: Any) -> jax.Array:
  """Attention by its definition, with all weights in memory: the default, the same everywhere."""
  return aggregate_values(attention_weights(query_BTHK, key_BSGK, **limits), value_BSGK)


def blocked(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array,
            **limits: Any) -> jax.Array:
  """`plain` for one block of queries at a time, in full float32 and O(T) memory."""
  # Fewer queries than keys are only a last position, which needs no blocks.
  if query_BTHK.shape[1] != key_BSGK.shape[1]:
    return plain(query_BTHK, key_BSGK, value_BSGK, **limits)
  return streamed(query_BTHK, key_BSGK, value_BSGK, **limits)[0]
