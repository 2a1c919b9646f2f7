"""Kendall's tau-b of columns, from exact counts: column by column, or all with all.

Two rows are concordant if both columns order them alike, discordant if they order
them oppositely, and neither if a column ties them. With n0 = n (n - 1) / 2 pairs
of rows, of which n1 are tied in one column and n2 in the other,

  tau-b = (concordant - discordant) / sqrt((n0 - n1) (n0 - n2))

(Kendall 1945). On a CPU numpy counts them column by column (`kendall_host`), except in
traced code. All other counts are those of XLA, in int32, which holds n0 up to n = 65,536.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import kendall_host, kendall_signs, ranks

MAX_ROWS = 2**16
COLUMNS_AT_ONCE = 64
BLOCK = 128


def kendall_tau(a: jax.Array | np.ndarray, b: jax.Array | np.ndarray) -> jax.Array:
  """Tau-b of each column of `a` with the same column of `b`. Works inside jit and vmap.

  This is the method of Knight (1966), with blocks in place of his merge sort. A
  column costs three to five sorts of n numbers and O(n^1.5) comparisons. Outside of
  traced code numpy does it on a CPU. Elsewhere 64
  columns at a time take some 200 n bytes each.

  Args:
    a: [n, k] or [n], 2 <= n <= 65,536: booleans, integers or floats, also infinite
      ones. NumPy's 64-bit numbers are compared exactly, not as JAX would round them.
    b: the same shape.

  Returns:
    [k] or a scalar, float32, within 1e-6 of scipy.stats.kendalltau. NaN if a column
    is constant and, in traced code, if it contains a NaN.

  Raises:
    InputError: shapes differ, are neither 1-d nor 2-d, or have too few or too many
      rows; numbers are not real; or one is NaN, except in traced code.

  Example:
    >>> from bornbiased_jax import lineage
    >>> round(float(lineage.kendall_tau([1, 2, 3, 4], [1, 3, 2, 4])), 3)
    0.667
  """
  a, b = _checked('a', a), _checked('b', b)
  if a.shape != b.shape or a.ndim > 2:
    raise InputError('a and b should both be [n, k] or both [n], but are '
                     f'{list(a.shape)} and {list(b.shape)}')
  if a.ndim == 1:
    return kendall_tau(a[:, None], b[:, None])[0]
  return _taus(a, b, *[np.arange(a.shape[1])] * 2)


def kendall_matrix(a: jax.Array | np.ndarray, b: jax.Array | np.ndarray) -> jax.Array:
  """Tau-b of every column of `a` with every column of `b`. Works inside jit and vmap.

  Costs O(n² D E), on CPU by words of 32 pairs of rows and elsewhere by matrix
  products of signs, one block of pairs at a time. For few columns of many rows it
  costs D E times a column of `kendall_tau` instead.

  Args:
    a: [n, D], with n and numbers as in `kendall_tau`.
    b: [n, E].

  Returns:
    [D, E], float32; NaN as in `kendall_tau`.

  Raises:
    InputError: shapes are not 2-d or differ in n; otherwise as in `kendall_tau`.

  Example:
    >>> from bornbiased_jax import lineage
    >>> lineage.kendall_matrix([[1, 1], [2, 3], [3, 2]], [[1], [2], [3]]).shape
    (2, 1)
  """
  a, b = _checked('a', a), _checked('b', b)
  if (a.ndim, b.ndim) != (2, 2) or len(a) != len(b):
    raise InputError('a and b should be [n, D] and [n, E], but are '
                     f'{list(a.shape)} and {list(b.shape)}')
  D, E = a.shape[1], b.shape[1]
  if D * E < len(a) / 8:
    return _taus(a, b, *np.indices((D, E)).reshape(2, -1)).reshape(D, E)
  return _matrix(a, b)


def _checked(name, x) -> jax.Array | np.ndarray:
  """x with the same numbers, or with others in the same order; by numpy if it is on the host."""
  if not isinstance(x, jax.Array) or ranks.on_host(x):
    x = np.asarray(x)
    x = x.astype(x.dtype.newbyteorder('='), copy=False)
  if not any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
    raise InputError(f'{name} should hold real numbers, but its type is {x.dtype}')
  if x.ndim == 0 or x.size == 0 or not 2 <= len(x) <= MAX_ROWS:
    raise InputError(f'{name} should have 2 to {MAX_ROWS:,} rows and a column, but its shape is '
                     f'{list(x.shape)}')
  if not isinstance(x, jax.core.Tracer) and (x != x).any():
    raise InputError(f'{name} contains NaN')
  return x if isinstance(x, jax.Array) else _narrow(x)


def _narrow(x):
  """Replaces 64-bit numbers, which JAX would round, by 32-bit numbers in the same order."""
  if x.dtype.itemsize < 8:
    return x
  with np.errstate(over='ignore'):
    narrow = x.astype(np.float32 if np.issubdtype(x.dtype, np.floating) else np.int32)
  if np.array_equal(narrow, x):
    return narrow
  return np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int32)


# Columns: their ranks and ties, by sorting.


class _Column(NamedTuple):
  order_N: jax.Array  # Sorts the column; equal numbers stay in the order of their rows.
  rank_N: jax.Array  # From 0; equal numbers share the lowest of their ranks.
  num_tied: jax.Array  # Pairs of equal numbers.
  has_nan: jax.Array


def _columns(x_ND):
  return lax.map(_column, x_ND.T, batch_size=COLUMNS_AT_ONCE)


def _column(x_N):
  key_N = ranks.key(x_N)
  order_N = _sorted_by(key_N, _iota(x_N))
  start_N = _run_starts(key_N[order_N])
  rank_N = jnp.zeros_like(start_N).at[order_N].set(start_N, unique_indices=True)
  return _Column(order_N, rank_N, _num_tied(start_N), _has_nan(x_N))


def _has_nan(x_N):
  return jnp.any(x_N != x_N)


def _sorted_by(key_N, order_N):
  """Sorts an order by a key, stably."""
  # 16 bits at a time, the lowest first, since they fit into one word with their places:
  # on CPU, XLA sorts single words nine times as fast as words with places beside them.
  for shift in range(0, key_N.dtype.itemsize * 8, 16):
    order_N = order_N[_argsort(key_N[order_N] >> shift)]
  return order_N


def _argsort(x_N):
  """The stable order of the lowest 16 bits of unsigned integers."""
  return lax.sort(x_N.astype(jnp.uint32) << 16 | _iota(x_N)) & 0xFFFF


def _iota(x_N):
  return jnp.arange(x_N.size, dtype=jnp.uint32)


def _run_starts(sorted_N):
  """For each number, where the run of numbers equal to it starts."""
  starts_N = jnp.concatenate([jnp.array([True]), sorted_N[1:] != sorted_N[:-1]])
  return lax.associative_scan(jnp.maximum, jnp.where(starts_N, _iota(sorted_N), 0))


def _num_tied(start_N):
  return jnp.sum(_iota(start_N) - start_N, dtype=jnp.uint32).astype(jnp.int32)


def _tau_b(score, n, num_tied_a, num_tied_b):
  """Tau-b from the score, the concordant pairs less the discordant ones."""
  untied_a, untied_b = (jnp.float32(n * (n - 1) // 2 - num_tied)
                        for num_tied in (num_tied_a, num_tied_b))
  return score / jnp.sqrt(untied_a * untied_b)


# Column by column: how far one column is out of order when rows are sorted by the other.


def _taus(a_ND, b_NE, of_a_K, of_b_K):
  """Tau-b [K] of the columns of_a_K of a with the columns of_b_K of b."""
  if ranks.on_host(a_ND, b_NE):
    return jnp.asarray(kendall_host.taus(a_ND, b_NE, of_a_K, of_b_K))
  return _tau(a_ND, b_NE, of_a_K, of_b_K)


@jax.jit
def _tau(a_ND, b_NE, of_a_K, of_b_K):
  """The same by XLA."""
  columns_b = _columns(b_NE)

  def tau(pair):
    of_a, of_b = pair
    return _tau_of_column(a_ND[:, of_a], jax.tree.map(lambda leaf: leaf[of_b], columns_b))

  return lax.map(tau, (jnp.asarray(of_a_K), jnp.asarray(of_b_K)), batch_size=COLUMNS_AT_ONCE)


def _tau_of_column(a_N, b):
  n, key_N = a_N.size, ranks.key(a_N)
  # If rows are sorted by a, and by b where a ties, the inversions of b are the discordant pairs.
  order_N = _sorted_by(key_N, b.order_N)
  start_N, rank_N = _run_starts(key_N[order_N]), b.rank_N[order_N]
  num_tied, num_tied_in_both = _num_tied(start_N), _num_tied(_run_starts(start_N << 16 | rank_N))
  num_untied = n * (n - 1) // 2 - num_tied - b.num_tied + num_tied_in_both
  tau = _tau_b(num_untied - 2 * _num_inversions(_argsort(rank_N)), n, num_tied, b.num_tied)
  return jnp.where(_has_nan(a_N) | b.has_nan, jnp.nan, tau)


def _num_inversions(p_N):
  """Number of pairs i < j with p_i > p_j in a permutation, int32.

  Places and values are cut into blocks. The places of an inversion share a block,
  or else its values do, or else the blocks alone show that it is an inversion.
  """
  padding = jnp.arange(p_N.size, -(-p_N.size // BLOCK) * BLOCK, dtype=p_N.dtype)
  p_N = jnp.concatenate([p_N, padding])
  place_N = jnp.zeros_like(p_N).at[p_N].set(_iota(p_N), unique_indices=True)
  value_PB, place_VB = (x_N.astype(jnp.uint16).reshape(-1, BLOCK) for x_N in (p_N, place_N))
  count_PV = jnp.zeros((len(value_PB),) * 2, jnp.int32).at[_iota(p_N) // BLOCK, p_N // BLOCK].add(1)
  higher_PV = jnp.cumsum(count_PV[:, ::-1], axis=1)[:, ::-1] - count_PV
  earlier_higher_PV = jnp.cumsum(higher_PV, axis=0) - higher_PV
  return (_num_inversions_in_rows(value_PB) + _num_inversions_in_rows(place_VB // BLOCK)
          + jnp.sum(count_PV * earlier_higher_PV, dtype=jnp.int32))


def _num_inversions_in_rows(x_PB):
  is_earlier_BB = np.triu(np.ones((BLOCK, BLOCK), bool), 1)
  # Counts below BLOCK fit into bytes, of which CPUs add 64 at a time; int32 takes 30 times as long.
  is_inversion_PBB = (x_PB[:, :, None] > x_PB[:, None]) & is_earlier_BB[None]
  inversions_PB = jnp.sum(is_inversion_PBB, axis=1, dtype=jnp.uint8)
  return jnp.sum(inversions_PB, dtype=jnp.int32)


# All columns with all.


@jax.jit
def _matrix(a_ND, b_NE):
  """Tau-b [D, E]."""
  score_DE = kendall_signs.scores(ranks.key(a_ND), ranks.key(b_NE))
  a, b = _columns(a_ND), _columns(b_NE)
  tau_DE = _tau_b(score_DE, len(a_ND), a.num_tied[:, None], b.num_tied[None])
  return jnp.where(a.has_nan[:, None] | b.has_nan[None], jnp.nan, tau_DE)
