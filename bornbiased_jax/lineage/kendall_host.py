"""Kendall's tau-b of pairs of columns, counted by numpy on a CPU.

This is the method of Knight (1966), with blocks in place of his merge sort: if rows
are sorted by one column, the discordant pairs are the inversions of the other.
"""

import math

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
  key_DN, key_EN = ranks.keys(a_ND), ranks.keys(b_NE)
  tau_K, at_once = np.empty(len(of_a_K), np.float32), max(1, ROWS_AT_ONCE // len(a_ND))
  for first in range(0, len(tau_K), at_once):
    part = slice(first, first + at_once)
    tau_K[part] = _taus(key_DN[of_a_K[part]], key_EN[of_b_K[part]])
  return tau_K


def _taus(key_a_KN, key_b_KN):
  K, n = key_a_KN.shape
  rank_KN, place_KN = np.empty((2, K, n), np.uint16 if n <= 2**16 else np.uint32)
  tied_3K = np.empty((3, K), np.int64)
  for k, keys in enumerate(zip(key_a_KN, key_b_KN, strict=True)):
    rank_KN[k], tied_3K[:, k] = _ranks_in_order(*keys)
    place_KN[k] = np.argsort(rank_KN[k], kind='stable')
  untied_a, untied_b, untied = n * (n - 1) // 2 - tied_3K
  score_K = untied_a + untied_b - untied - 2 * inversions(rank_KN, place_KN)
  with np.errstate(invalid='ignore'):  # 0 / 0 if a column is constant.
    return score_K / np.sqrt(untied_a.astype(float) * untied_b)


def _ranks_in_order(key_a_N, key_b_N):
  """The ranks of b if rows are sorted by a, and by b where a ties. Equal numbers share the lowest.

  Also the numbers of pairs of rows that a ties, that b ties and that both tie.
  """
  b = ranks.sort(key_b_N)
  place_N = np.empty(len(key_a_N), np.uint64)
  place_N[b.place_N] = np.arange(len(key_a_N), dtype=np.uint64)
  a = ranks.sort(key_a_N, place_N)
  if not b.has_ties:
    return a.place_N, (_num_tied(a.is_new_N), 0, 0)
  rank_N, is_new_N = b.start_N[a.place_N], a.is_new_N
  tied = _num_tied(is_new_N), _num_tied(b.is_new_N)
  is_new_N[1:] |= rank_N[1:] != rank_N[:-1]
  return rank_N, (*tied, _num_tied(is_new_N))


def _num_tied(is_new_N):
  """Number of pairs of equal numbers, from where the runs of equal numbers start."""
  if is_new_N.all():
    return 0
  length = np.diff(np.flatnonzero(is_new_N), append=len(is_new_N))
  return (length * (length - 1) // 2).sum()


def inversions(rank_KN: np.ndarray, place_KN: np.ndarray) -> np.ndarray:
  """Number [K] of pairs i < j with rank_i > rank_j, int64.

  Places and ranks are cut into blocks of about sqrt(n). The places of an inversion
  share a block, or else its ranks do, or else the blocks alone show that it is one.

  Args:
    rank_KN: whole numbers below n.
    place_KN: the places sorted by rank, stably.
  """
  K, n = rank_KN.shape
  size = 2 ** max(1, round(math.log2(n) / 2))
  P = -(-n // size)
  padding_KN = np.broadcast_to(np.arange(n, P * size, dtype=rank_KN.dtype), (K, P * size - n))
  rank_KPB, place_KVB = (np.concatenate([x_KN, padding_KN], axis=1).reshape(K, P, size)
                         for x_KN in (rank_KN, place_KN))
  block_KVB = place_KVB // size
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
  count_KVP = np.bincount(cell_KVB.ravel(), minlength=K * P * P).reshape(K, P, P)
  lower_KVP, earlier_KVP = np.cumsum(count_KVP, axis=1), np.cumsum(count_KVP, axis=2)
  return np.einsum('kvp,kvp->k', lower_KVP[:, :-1, 1:], earlier_KVP[:, 1:, :-1])
