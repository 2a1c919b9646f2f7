"""Kendall's tau-b of pairs of columns, counted by numpy on a CPU.

This is the method of Knight (1966), with blocks in place of his merge sort: if rows
are sorted by one column, the discordant pairs are the inversions of the other.
"""

import math
from typing import NamedTuple

import numpy as np

from bornbiased_jax.lineage import ranks

# Rows of all pairs together whose inversions are counted at once: as many as stay in the cache.
ROWS_AT_ONCE = 2**17


def taus(a_ND: np.ndarray, b_NE: np.ndarray, of_a_K: np.ndarray, of_b_K: np.ndarray) -> np.ndarray:
  """Tau-b [K], float32, of the columns of_a_K of a [n, D] with the columns of_b_K of b [n, E].

  A pair costs three sorts of n numbers and O(n^1.5) comparisons, of which numpy makes
  dozens at a time. Counts are int64, which holds them up to n = 2^31.

  Args:
    a_ND: real numbers of at most 32 bits without NaN, n >= 2.
    b_NE: the same.
    of_a_K: the column of a of each pair.
    of_b_K: the column of b of each pair.
  """
  key_DN, key_EN = ranks.host_keys(a_ND), ranks.host_keys(b_NE)
  tau_K, at_once = np.empty(len(of_a_K), np.float32), max(1, ROWS_AT_ONCE // len(a_ND))
  for first in range(0, len(tau_K), at_once):
    part = slice(first, first + at_once)
    tau_K[part] = _taus(key_DN[of_a_K[part]], key_EN[of_b_K[part]])
  return tau_K


def _taus(key_a_KN, key_b_KN):
  n = key_a_KN.shape[1]
  pairs = [_sorted_pair(*keys) for keys in zip(key_a_KN, key_b_KN, strict=True)]
  tied_3K = np.transpose([pair.tied for pair in pairs])
  untied_a, untied_b, untied = n * (n - 1) // 2 - tied_3K
  score_K = untied_a + untied_b - untied - 2 * _discordant(pairs)
  with np.errstate(invalid='ignore'):  # 0 / 0 if a column is constant.
    return score_K / np.sqrt(untied_a.astype(float) * untied_b)


class _Pair(NamedTuple):
  """Two columns, with rows sorted by a, and by b where a ties."""

  rank_N: np.ndarray  # Of b; equal numbers share it, and no ranks are left out.
  is_new_a_N: np.ndarray  # Whether a differs from the row before.
  num_different: tuple[int, int]  # How many different numbers a and b have.
  tied: tuple[int, int, int]  # Pairs of rows that a ties, that b ties, and that both tie.


def _sorted_pair(key_a_N, key_b_N):
  n, b = len(key_a_N), ranks.sort(key_b_N)
  place_N = np.empty(n, np.uint64)
  place_N[b.place_N] = np.arange(n, dtype=np.uint64)
  a = ranks.sort(key_a_N, place_N)
  num_different = np.count_nonzero(a.is_new_N), np.count_nonzero(b.is_new_N)
  if num_different[1] == n:
    return _Pair(a.place_N, a.is_new_N, num_different, (_num_tied(a.is_new_N), 0, 0))
  rank_N, is_new_N = b.dense_rank_N[a.place_N], a.is_new_N.copy()
  is_new_N[1:] |= rank_N[1:] != rank_N[:-1]
  return _Pair(rank_N, a.is_new_N, num_different,
               tuple(map(_num_tied, (a.is_new_N, b.is_new_N, is_new_N))))


def _num_tied(is_new_N):
  """Number of pairs of equal numbers, from where the runs of equal numbers start."""
  if is_new_N.all():
    return 0
  first = np.flatnonzero(np.append(is_new_N, True))
  length = first[1:] - first[:-1]
  return (length @ length - len(is_new_N)) // 2


def _discordant(pairs):
  """Number [K] of pairs of rows that the two columns order oppositely."""
  n = len(pairs[0].rank_N)
  discordant_K = np.empty(len(pairs), np.int64)
  is_table_K = np.array([math.prod(pair.num_different) <= n for pair in pairs])
  for k in np.flatnonzero(is_table_K):
    discordant_K[k] = _discordant_of_table(pairs[k])
  left = [pairs[k] for k in np.flatnonzero(~is_table_K)]
  rank_KN, place_KN = np.empty((2, len(left), n), np.uint16 if n <= 2**16 else np.uint32)
  for pair, rank_N, place_N in zip(left, rank_KN, place_KN, strict=True):
    rank_N[:] = pair.rank_N
    if pair.num_different[1] == n:
      place_N[pair.rank_N] = np.arange(n)
    else:
      place_N[:] = np.argsort(rank_N, kind='stable')
  discordant_K[~is_table_K] = inversions(rank_KN, place_KN)
  return discordant_K


def _discordant_of_table(pair):
  """The same of one pair with few different numbers, from how many rows have each two numbers."""
  cell_N = (np.cumsum(pair.is_new_a_N) - 1) * pair.num_different[1] + pair.rank_N
  count_X = np.bincount(cell_N, minlength=math.prod(pair.num_different))
  return _opposite(count_X.reshape(1, *pair.num_different))[0]


def inversions(rank_KN: np.ndarray, place_KN: np.ndarray) -> np.ndarray:
  """Number [K] of pairs i < j with rank_i > rank_j, int64.

  Places and ranks are cut into blocks of about sqrt(n). The places of an inversion
  share a block, or else its ranks do, or else the blocks alone show that it is one.

  Args:
    rank_KN: whole numbers below n.
    place_KN: the places sorted by rank, stably.
  """
  K, n = rank_KN.shape
  size = 2 ** math.ceil(math.log2(n) / 2)
  P = -(-n // size)
  padding_KN = np.broadcast_to(np.arange(n, P * size, dtype=rank_KN.dtype), (K, P * size - n))
  rank_KPB, place_KVB = (np.concatenate([x_KN, padding_KN], axis=1).reshape(K, P, size)
                         for x_KN in (rank_KN, place_KN))
  block_KVB = (place_KVB // size).astype(np.uint8 if P <= 256 else place_KVB.dtype)
  return (_inversions_in_blocks(rank_KPB) + _inversions_in_blocks(block_KVB)
          + _inversions_between_blocks(block_KVB))


def _inversions_in_blocks(x_KPB):
  K, P, size = x_KPB.shape
  x_BQ = np.ascontiguousarray(x_KPB.reshape(K * P, size).T)
  count_BQ = np.zeros(x_BQ.shape, np.uint8 if size <= 256 else np.uint16)
  is_inversion_BQ = np.empty(x_BQ.shape, bool)
  # One distance at a time, so that numpy compares long rows with each other.
  for distance in range(1, size):
    part_BQ = is_inversion_BQ[distance:]
    np.greater(x_BQ[:-distance], x_BQ[distance:], out=part_BQ)
    count_BQ[distance:] += part_BQ.view(np.uint8)
  return count_BQ.sum(axis=0, dtype=np.int64).reshape(K, P).sum(axis=1)


def _inversions_between_blocks(block_KVB):
  """Pairs whose ranks and places are both in different blocks, in the opposite order."""
  K, P, size = block_KVB.shape
  cell_KVB = np.arange(K * P).reshape(K, P, 1) * P + block_KVB
  return _opposite(np.bincount(cell_KVB.ravel(), minlength=K * P * P).reshape(K, P, P))


def _opposite(count_KXY):
  """Number [K] of pairs with a higher x and a lower y, from how many have each x and y."""
  lower_KXY, left_KXY = np.cumsum(count_KXY, axis=1), np.cumsum(count_KXY, axis=2)
  return np.einsum('kxy,kxy->k', lower_KXY[:, :-1, 1:], left_KXY[:, 1:, :-1])
