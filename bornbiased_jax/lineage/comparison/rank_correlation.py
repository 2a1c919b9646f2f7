"""Ranks of columns and Kendall's tau-b, from exact counts.

Two rows are concordant if both columns order them alike, discordant if they order
them oppositely, and neither if a column ties them. The score of two columns is the
number of concordant pairs of rows less the number of discordant ones, and

  tau-b = score / sqrt(untied pairs of one column * untied pairs of the other)

(Kendall 1945). NumPy counts them, by the method of Knight (1966), with blocks instead of his merge
sort: if rows are sorted by one column, the discordant pairs are the inversions of the other. It
sorts whole numbers with vector instructions, on a CPU about ten times as fast as XLA. So a number
and what belongs to it are packed into one word, and words are sorted.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError

MAX_ROWS = 2**16
# Rows of all pairs together that are counted at once: as many as stay in the cache.
_ROWS_AT_ONCE = 2**17


def mean_ranks(x_ND: jax.Array | np.ndarray) -> jax.Array:
  """Ranks [n, D] of each column of [n, D], float32, from 1; equal numbers share their mean rank."""
  key_ND = _keys(np.asarray(x_ND))
  rank_DN = np.empty(key_ND.shape[::-1], np.float32)
  place_N = np.arange(len(key_ND), dtype=np.uint32)
  for key_N, rank_N in zip(np.ascontiguousarray(key_ND.T), rank_DN, strict=True):
    is_new_N, sorted_place_N = _sort(key_N, place_N)
    rank_N[sorted_place_N] = _shared_ranks(is_new_N)
  return jnp.asarray(rank_DN.T)


def kendall_tau(a: jax.Array | np.ndarray, b: jax.Array | np.ndarray) -> jax.Array:
  """Tau-b of each column of `a` with the same column of `b`.

  A column costs about five sorts of n numbers, by the method of Knight (1966).

  Args:
    a: [n, k] or [n], 2 <= n <= 65,536: booleans, integers or floats, also infinite
      ones. NumPy's 64-bit numbers are compared exactly, not as JAX would round them.
    b: the same shape.

  Returns:
    [k] or a scalar, float32, within 1e-6 of scipy.stats.kendalltau; NaN if a column is constant.

  Raises:
    InputError: shapes differ, are not 1-d or 2-d, or have too few or too many
      rows; or numbers are not real, or NaN.

  Example:
    >>> from bornbiased_jax import lineage
    >>> round(float(lineage.kendall_tau([1, 2, 3, 4], [1, 3, 2, 4])), 3)
    0.667
  """
  a, b = _checked_keys('a', a), _checked_keys('b', b)
  if a.shape != b.shape or a.ndim > 2:
    raise InputError('a and b should both be [n, k] or both [n], but are '
                     f'{list(a.shape)} and {list(b.shape)}')
  if a.ndim == 1:
    return kendall_tau(a[:, None], b[:, None])[0]
  return jnp.asarray(_taus(a, b, *[np.arange(a.shape[1])] * 2))


def kendall_matrix(a: jax.Array | np.ndarray, b: jax.Array | np.ndarray) -> jax.Array:
  """Tau-b of every column of `a` with every column of `b`.

  It is what `calibrated_test(…, kendall=True)` reads instead of Spearman's rho. No program of
  this package asks for that. It costs D E times a column of `kendall_tau`.

  Args:
    a: [n, D], with n and numbers as `kendall_tau` takes them.
    b: [n, E].

  Returns:
    [D, E], float32; NaN where `kendall_tau` has it.

  Raises:
    InputError: shapes are not 2-d or differ in n; otherwise what `kendall_tau` raises.

  Example:
    >>> from bornbiased_jax import lineage
    >>> lineage.kendall_matrix([[1, 1], [2, 3], [3, 2]], [[1], [2], [3]]).shape
    (2, 1)
  """
  a, b = _checked_keys('a', a), _checked_keys('b', b)
  if (a.ndim, b.ndim) != (2, 2) or len(a) != len(b):
    raise InputError('a and b should be [n, D] and [n, E], but are '
                     f'{list(a.shape)} and {list(b.shape)}')
  shape = a.shape[1], b.shape[1]
  return jnp.asarray(_taus(a, b, *np.indices(shape).reshape(2, -1))).reshape(shape)


def _checked_keys(name, x) -> np.ndarray:
  """Whole numbers in the order of x (`_keys`)."""
  x = np.asarray(x)
  if not any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
    raise InputError(f'{name} should hold real numbers, but its type is {x.dtype}')
  if x.ndim == 0 or x.size == 0 or not 2 <= len(x) <= MAX_ROWS:
    raise InputError(f'{name} should have 2 to {MAX_ROWS:,} rows and a column, but its shape is '
                     f'{list(x.shape)}')
  if (x != x).any():
    raise InputError(f'{name} contains NaN')
  return _keys(x)


def _keys(x: np.ndarray) -> np.ndarray:
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


def _shared_ranks(is_new_N):
  """The mean ranks of sorted numbers."""
  if is_new_N.all():
    return np.arange(1, 1 + len(is_new_N))
  count_X = np.diff(np.flatnonzero(is_new_N), append=len(is_new_N))
  return np.repeat(np.cumsum(count_X) - (count_X - 1) / 2, count_X)


def _taus(key_a_ND, key_b_NE, of_a_K, of_b_K):
  """Tau-b [K], float32, of the columns of_a_K of a [n, D] with the columns of_b_K of b [n, E].

  A pair costs four sorts of n numbers and O(n^1.5) comparisons, and numpy makes
  dozens of those at a time.
  """
  tau_K = np.empty(len(of_a_K), np.float32)
  at_once = max(1, _ROWS_AT_ONCE // len(key_a_ND))
  for first in range(0, len(tau_K), at_once):
    part = slice(first, first + at_once)
    tau_K[part] = _tau_of_rows(key_a_ND[:, of_a_K[part]].T, key_b_NE[:, of_b_K[part]].T)
  return tau_K


def _tau_of_rows(key_a_KN, key_b_KN):
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
