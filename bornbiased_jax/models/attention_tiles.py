"""Causal attention for CPUs: in tiles that fit into the cache, with a gradient of its own.

A tile is what some queries make of the keys that they may see; what lies behind them is not
computed. Of the forward pass the gradient keeps two numbers per query, from which it computes the
weights again (as FlashAttention does, Dao et al. 2022). Differentiating `attention.plain` would
transpose [T, T] matrices instead, which XLA does slowly on a CPU.

In names of shapes, N groups of M heads follow each other; the heads of a group are computed
together. For the other letters see transformer.py.
"""

import math

import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax.models.attention import TILE, UNLIMITED, Sink, Slopes, Window, plain, soft_cap

# Scores of one tile of all heads of a group, 1 MiB of them.
_CACHED = 2**18
# Tiles are written out one by one, so that more of them take longer to compile.
_MOST_TILES = 16


def tiled(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *,
          window: Window = None, cap: float | None = None, slopes: Slopes = None,
          sink: Sink = None) -> jax.Array:
  """`attention.plain`, tile by tile; it can be differentiated in reverse mode only.

  In memory at once are the scores of one tile of one head, a sixteenth of its T² or, if that is
  more, 1 MiB.
  """
  B, T, H, K = query_BTHK.shape
  # The gradient knows caps and slopes, but not both at once.
  if T != key_BSGK.shape[1] or cap is not None and slopes is not None:
    return plain(query_BTHK, key_BSGK, value_BSGK, window=window, cap=cap, slopes=slopes,
                 sink=sink)
  tile = _tile(T)
  together = math.gcd(B * H, 2**int(math.log2(max(1, _CACHED // (tile * T)))))

  def group(x_BTGK):
    x_BTHK = jnp.repeat(x_BTGK, H // x_BTGK.shape[2], axis=2)
    return jnp.swapaxes(x_BTHK, 1, 2).reshape(-1, together, T, K)

  scaled_BTHK = (query_BTHK.astype(jnp.float32) / math.sqrt(K)).astype(query_BTHK.dtype)
  heads = map(group, (scaled_BTHK, key_BSGK, value_BSGK))
  limits = jnp.int32(UNLIMITED if window is None else window), cap
  slopes_NM, sink_NM = (None if each is None else jnp.tile(each, B).reshape(-1, together)
                        for each in (slopes, sink))
  aggregate_NMTK = _attend(limits, slopes_NM, sink_NM, *heads)
  return jnp.swapaxes(aggregate_NMTK.reshape(B, H, T, K), 1, 2).reshape(B, T, H * K)


def _tile(length):
  """Queries per tile."""
  return max(TILE, -(-length // _MOST_TILES))


@jax.custom_vjp
def _attend(limits, slopes_NM, sink_NM, query_NMTK, key_NMTK, value_NMTK):
  return _forward(limits, slopes_NM, sink_NM, query_NMTK, key_NMTK, value_NMTK)[0]


def _forward(limits, *heads):
  aggregate_NMTK, *softmax_NMT1 = lax.map(lambda heads: _of_heads(limits, *heads), heads)
  return aggregate_NMTK, (limits, heads, softmax_NMT1)


def _backward(saved, gradient_NMTK):
  limits, heads, softmax_NMT1 = saved
  of_heads = lambda parts: _gradient_of_heads(limits, *parts)
  return None, None, *lax.map(of_heads, (*heads, *softmax_NMT1, gradient_NMTK))


_attend.defvjp(_forward, _backward)


def _of_heads(limits, slopes_M, sink_M, query_MTK, key_MTK, value_MTK):
  """The value aggregate of a group of heads; of each softmax the largest score and the total."""
  aggregates, peaks, totals = [], [], []
  for first, end in _tiles(query_MTK.shape[1]):
    scores_MTS, visible_TS = _scores(limits, slopes_M, query_MTK, key_MTK, first, end)
    peak_MT1 = jnp.where(visible_TS, scores_MTS, -jnp.inf).max(axis=2, keepdims=True)
    if sink_M is not None:
      peak_MT1 = jnp.maximum(peak_MT1, sink_M[:, None, None])
    weights_MTS = jnp.where(visible_TS, jnp.exp(scores_MTS - peak_MT1), 0)
    total_MT1 = weights_MTS.sum(axis=2, keepdims=True)
    if sink_M is not None:
      total_MT1 += jnp.exp(sink_M[:, None, None] - peak_MT1)
    aggregate_MTK = _product(weights_MTS.astype(value_MTK.dtype), value_MTK[:, :end], 2, 1)
    aggregates.append((aggregate_MTK / total_MT1).astype(value_MTK.dtype))
    peaks.append(peak_MT1)
    totals.append(total_MT1)
  return tuple(jnp.concatenate(each, axis=1) for each in (aggregates, peaks, totals))


def _gradient_of_heads(limits, slopes_M, sink_M, query_MTK, key_MTK, value_MTK, peak_MT1,
                       total_MT1, gradient_MTK):
  """The gradients of sink, query, key and value; of the last two they are computed as [K, S]."""
  (_, cap), dtype = limits, query_MTK.dtype
  query_MKT, gradient_MKT = (jnp.swapaxes(x, 1, 2) for x in (query_MTK, gradient_MTK))
  of_query = []
  of_sink_M = None if sink_M is None else jnp.zeros_like(sink_M)
  of_key_MKS = of_value_MKS = jnp.zeros(query_MKT.shape, jnp.float32)
  for first, end in _tiles(query_MTK.shape[1]):
    own = slice(first, end)
    scores_MTS, visible_TS = _scores(limits, slopes_M, query_MTK, key_MTK, first, end)
    weights_MTS = jnp.where(visible_TS, jnp.exp(scores_MTS - peak_MT1[:, own]), 0)
    weights_MTS /= total_MT1[:, own]
    of_weights_MTS = _product(gradient_MTK[:, own], value_MTK[:, :end], 2, 2)
    mean_MT1 = (weights_MTS * of_weights_MTS).sum(axis=2, keepdims=True)
    of_scores_MTS = weights_MTS * (of_weights_MTS - mean_MT1)
    if sink_M is not None:  # Its own weight, which multiplies a value of 0.
      sink_MT1 = jnp.exp(sink_M[:, None, None] - peak_MT1[:, own]) / total_MT1[:, own]
      of_sink_M -= (sink_MT1 * mean_MT1).sum(axis=(1, 2))
    if cap is not None:
      of_scores_MTS *= 1 - (scores_MTS / cap)**2
    weights_MTS, of_scores_MTS = weights_MTS.astype(dtype), of_scores_MTS.astype(dtype)
    of_query.append(_product(of_scores_MTS, key_MTK[:, :end], 2, 1))
    of_key_MKS = of_key_MKS.at[:, :, :end].add(_product(query_MKT[:, :, own], of_scores_MTS, 2, 1))
    of_value_MKS = of_value_MKS.at[:, :, :end].add(
        _product(gradient_MKT[:, :, own], weights_MTS, 2, 1))
  of_query_MTK = jnp.concatenate(of_query, axis=1).astype(dtype)
  of_others = (jnp.swapaxes(x, 1, 2).astype(dtype) for x in (of_key_MKS, of_value_MKS))
  return of_sink_M, of_query_MTK, *of_others


def _tiles(length):
  """The first query of each tile, and the one behind its last."""
  tile = _tile(length)
  return [(first, min(first + tile, length)) for first in range(0, length, tile)]


def _scores(limits, slopes_M, query_MTK, key_MTK, first, end):
  """Scores of the queries from `first` on with all keys before `end`, and which of them count."""
  window, cap = limits
  scores_MTS = _product(query_MTK[:, first:end], key_MTK[:, :end], 2, 2)
  behind_TS = jnp.arange(first, end)[:, None] - jnp.arange(end)[None]
  scores_MTS = soft_cap(scores_MTS, cap)
  if slopes_M is not None:
    scores_MTS -= slopes_M[:, None, None] * behind_TS[None].astype(jnp.float32)
  return scores_MTS, ((behind_TS >= 0) & (behind_TS < window))[None]


def _product(a, b, axis_of_a, axis_of_b):
  """Products in float32 of the matrices of each head, summed over these axes."""
  axes = ((axis_of_a,), (axis_of_b,)), ((0,), (0,))
  return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)
