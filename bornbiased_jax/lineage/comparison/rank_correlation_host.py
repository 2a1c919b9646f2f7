"""Ranks and Kendall's tau-b of columns, counted by numpy.

It sorts whole numbers with vector instructions, on a CPU about ten times as fast as XLA. So a
number and what belongs to it are packed into one word, and words are sorted.

Tau is counted by the method of Knight (1966), with blocks instead of his merge sort: if
rows are sorted by one column, the discordant pairs are the inversions of the other.
"""

import math

import jax.numpy as jnp
import numpy as np

# Rows of all pairs together that are counted at once: as many as stay in the cache.
ROWS_AT_ONCE = 2**17


def keys(x: np.ndarray) -> np.ndarray:
  """Whole numbers of 32 bits in the order of x, equal where x is equal; -0 equals 0."""
  if x.dtype.itemsize >= 8:
    return np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int32)
  is_float = jnp.issubdtype(x.dtype, jnp.floating)  # NumPy does not know bfloat16.
  if x.dtype.itemsize < 4:
    x = x.astype(np.float32 if is_float else np.int32)
  x = x.astype(x.dtype.newbyteorder('='), copy=False)
  if not is_float:
    return x
  bits = x.view(np.int32)
  sign = bits >> 31
  return ((bits & np.iinfo(np.int32).max) ^ sign) - sign


def mean_ranks(key_ND: np.ndarray) -> np.ndarray:
  """Ranks [n, D] of each column, float32, from 1; equal numbers share their mean rank."""
  rank_DN = np.empty(key_ND.shape[::-1], np.float32)
  place_N = np.arange(len(key_ND), dtype=np.uint32)
  for key_N, rank_N in zip(np.ascontiguousarray(key_ND.T), rank_DN, strict=True):
    is_new_N, sorted_place_N = _sort(key_N, place_N)
    rank_N[sorted_place_N] = _shared_ranks(is_new_N)
  return rank_DN.T


def _shared_ranks(is_new_N):
  """The mean ranks of sorted numbers."""
  if is_new_N.all():
    return np.arange(1, 1 + len(is_new_N))
  count_X = np.diff(np.flatnonzero(is_new_N), append=len(is_new_N))
  return np.repeat(np.cumsum(count_X) - (count_X - 1) / 2, count_X)


def taus(key_a_ND: np.ndarray, key_b_NE: np.ndarray, of_a_K: np.ndarray,
         of_b_K: np.ndarray) -> np.ndarray:
  """Tau-b [K], float32, of the columns of_a_K of a [n, D] with the columns of_b_K of b [n, E].

  A pair costs four sorts of n numbers and O(n^1.5) comparisons, and numpy makes
  dozens of those at a time.
  """
  tau_K = np.empty(len(of_a_K), np.float32)
  at_once = max(1, ROWS_AT_ONCE // len(key_a_ND))
  for first in range(0, len(tau_K), at_once):
    part = slice(first, first + at_once)
    tau_K[part] = _taus(key_a_ND[:, of_a_K[part]].T, key_b_NE[:, of_b_K[part]].T)
  return tau_K


def _taus(key_a_KN, key_b_KN):
  """The same of each row of a with the same row of b."""
  place_N = np.arange(key_b_KN.shape[1], dtype=np.uint16)
  is_new_b_KN, place_KN = _sort(key_b_KN, place_N)
  rank_KN = np.cumsum(is_new_b_KN, axis=1, dtype=np.uint16) - np.uint16(1)
  _, rank_KN = _sort(place_KN, rank_KN)  # In the order of rows.
  is_new_a_KN, rank_KN = _sort(key_a_KN, rank_KN)
  untied_a_K, untied_b_K, untied_K = (
      _starts(is_new_KN).sum(axis=1, dtype=np.int64)
      for is_new_KN in (is_new_a_KN, is_new_b_KN, is_new_a_KN | _is_new(rank_KN)))
  score_K = untied_a_K + untied_b_K - untied_K - 2 * _num_discordant(is_new_a_KN, rank_KN)
  with np.errstate(invalid='ignore'):  # 0 / 0 if a column is constant.
    return score_K / np.sqrt(untied_a_K.astype(float) * untied_b_K)


def _sort(high_KN, low_KN):
  """Sorts rows of pairs of numbers; the low ones are whole and fit into half a word.

  Returns whether each high number differs from the one before it, and the low numbers.
  """
  dtype = high_KN.dtype
  word_KN = high_KN.astype(f'{dtype.kind}{2 * dtype.itemsize}', order='C')
  word_KN <<= 8 * dtype.itemsize
  word_KN |= low_KN
  word_KN.sort(axis=-1)
  return _is_new(word_KN >> 8 * dtype.itemsize), word_KN.astype(low_KN.dtype)


def _is_new(sorted_KN):
  """Whether each number differs from the one before it in its row."""
  is_new_KN = np.ones(sorted_KN.shape, bool)
  np.not_equal(sorted_KN[..., 1:], sorted_KN[..., :-1], out=is_new_KN[..., 1:])
  return is_new_KN


def _starts(is_new_KN):
  """Where the run of equal numbers starts to which each of sorted ones belongs."""
  start_KN = is_new_KN * np.arange(is_new_KN.shape[-1], dtype=np.uint32)
  if not is_new_KN.all():
    np.maximum.accumulate(start_KN, axis=-1, out=start_KN)
  return start_KN


def _num_discordant(is_new_a_KN, rank_b_KN):
  """Number [K] of pairs of rows that the two columns order oppositely, if sorted by both."""
  n = rank_b_KN.shape[1]
  if np.count_nonzero(is_new_a_KN, axis=1).max() * (int(rank_b_KN.max()) + 1) <= n:
    return _num_opposite(np.cumsum(is_new_a_KN, axis=1) - 1, rank_b_KN)
  return num_inversions(rank_b_KN)


def num_inversions(rank_KN: np.ndarray) -> np.ndarray:
  """Number [K] of pairs i < j with rank_i > rank_j, int64.

  Places and ranks, below n, are cut into blocks of about sqrt(n). The places of an inversion
  share a block, or else its ranks do, or else the blocks by themselves show that it is one.
  """
  place_N = np.arange(rank_KN.shape[1], dtype=np.uint16)
  size = 2 ** math.ceil(math.log2(len(place_N)) / 2)
  _, place_KN = _sort(rank_KN, place_N)
  block_KN = (place_KN // size).astype(np.uint8)
  return (_num_in_blocks(rank_KN, size) + _num_in_blocks(block_KN, size)
          + _num_opposite(place_N[None] // size, block_KN))


def _num_in_blocks(x_KN, size):
  """Number [K] of inversions whose places share a block of this size, at most 256."""
  K, n = x_KN.shape
  x_KP = np.full((K, n + -n % size), np.iinfo(x_KN.dtype).max, x_KN.dtype)
  x_KP[:, :n] = x_KN
  x_BQ = np.ascontiguousarray(x_KP.reshape(-1, size).T)
  count_BQ = np.zeros(x_BQ.shape, np.uint8)
  is_inversion_BQ = np.empty(x_BQ.shape, bool)
  # One distance at a time, so that numpy compares long rows with each other.
  for distance in range(1, size):
    part_BQ = is_inversion_BQ[distance:]
    np.greater(x_BQ[:-distance], x_BQ[distance:], out=part_BQ)
    count_BQ[distance:] += part_BQ.view(np.uint8)
  return count_BQ.sum(axis=0, dtype=np.int64).reshape(K, -1).sum(axis=1)


def _num_opposite(x_KN, y_KN):
  """Number [K] of pairs with a higher x and a lower y, for few different x and y."""
  K, X, Y = len(y_KN), int(x_KN.max()) + 1, int(y_KN.max()) + 1
  cell_KN = (np.arange(K)[:, None] * X + x_KN) * Y + y_KN
  count_KXY = np.bincount(cell_KN.ravel(), minlength=K * X * Y).reshape(K, X, Y)
  lower_KXY, left_KXY = np.cumsum(count_KXY, axis=1), np.cumsum(count_KXY, axis=2)
  return np.einsum('kxy,kxy->k', lower_KXY[:, :-1, 1:], left_KXY[:, 1:, :-1])
