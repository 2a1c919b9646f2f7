"""Kendall's tau-b of columns from exact counts: column by column, or every column with every other.

Two rows are concordant if both columns order them alike, discordant if they order
them oppositely, and neither if a column ties them. With n0 = n (n - 1) / 2 pairs
of rows, of which n1 and n2 are tied in the one and in the other column,

  tau-b = (concordant - discordant) / sqrt((n0 - n1) (n0 - n2))

(Kendall 1945). Counts are int32, which holds n0 up to n = 65,536.
"""

from functools import partial
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError

MAX_ROWS = 2**16
COLUMNS_AT_ONCE = 64
BLOCK = 128
WORD = 32
SCORES_AT_ONCE = 2**21


def kendall_tau(a: jax.Array, b: jax.Array) -> jax.Array:
  """Tau-b of each column of `a` with the same column of `b`.

  A column costs five sorts of n numbers and O(n^1.5) comparisons: the method
  of Knight (1966), with blocks in place of his merge sort. 64 columns at a
  time take some 200 n bytes each. Works inside jit and vmap.

  Args:
    a: [n, k] or [n], 2 <= n <= 65,536: booleans, integers or floats, infinite
      ones too. Numpy's 64-bit numbers are compared as they are, not as JAX
      would round them.
    b: the same shape.

  Returns:
    [k] or a scalar, float32, within 1e-6 of scipy.stats.kendalltau. NaN where
    a column is constant, and in traced code where one contains a NaN.

  Raises:
    InputError: shapes that differ, are neither 1-d nor 2-d, or have too few or
      too many rows; numbers that are not real; NaN, unless traced.
  """
  a, b = _checked('a', a), _checked('b', b)
  if a.shape != b.shape or a.ndim > 2:
    raise InputError(f'a and b should both be [n, k] or both [n], but are {list(a.shape)} and {list(b.shape)}')
  if a.ndim == 1:
    return kendall_tau(a[:, None], b[:, None])[0]
  return _tau(a, b, *[np.arange(a.shape[1])] * 2)


def kendall_matrix(a: jax.Array, b: jax.Array) -> jax.Array:
  """Tau-b of every column of `a` with every column of `b`.

  Costs O(n² D E), on CPU by words of 32 pairs of rows and elsewhere by matrix
  products of signs; or, for few columns of many rows, D E times `kendall_tau`.
  Holds a block of pairs of rows at a time. Works inside jit and vmap.

  Args:
    a: [n, D], with n and numbers as in `kendall_tau`.
    b: [n, E].

  Returns:
    [D, E], float32; NaN as in `kendall_tau`.

  Raises:
    InputError: shapes that are not 2-d or differ in n; else as in `kendall_tau`.
  """
  a, b = _checked('a', a), _checked('b', b)
  if (a.ndim, b.ndim) != (2, 2) or len(a) != len(b):
    raise InputError(f'a and b should be [n, D] and [n, E], but are {list(a.shape)} and {list(b.shape)}')
  D, E = a.shape[1], b.shape[1]
  if D * E < len(a) / 8:
    return _tau(a, b, *np.indices((D, E)).reshape(2, -1)).reshape(D, E)
  return _matrix(a, b)


def _checked(name, x):
  """x as a JAX array that holds the same numbers, or at least their order."""
  if not isinstance(x, jax.Array):
    x = np.asarray(x)
  if not any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
    raise InputError(f'{name} should hold real numbers, but its type is {x.dtype}')
  if x.ndim == 0 or x.size == 0 or not 2 <= len(x) <= MAX_ROWS:
    raise InputError(f'{name} should have 2 to {MAX_ROWS:,} rows and a column, but its shape is {list(x.shape)}')
  if not isinstance(x, jax.core.Tracer) and (x != x).any():
    raise InputError(f'{name} contains NaN')
  return x if isinstance(x, jax.Array) else jnp.asarray(_narrow(x))


def _narrow(x):
  """Of 64-bit numbers, which JAX would round, numbers in the same order that it holds."""
  if x.dtype.itemsize < 8:
    return x
  with np.errstate(over='ignore'):
    narrow = x.astype(np.float32 if np.issubdtype(x.dtype, np.floating) else np.int32)
  return narrow if np.array_equal(narrow, x) else np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int32)


# Columns: their ranks and ties, by sorting.


class _Column(NamedTuple):
  order_N: jax.Array  # That sorts it, equals by place.
  rank_N: jax.Array  # From 0; among equals the lowest.
  num_tied: jax.Array  # Pairs of equals.
  has_nan: jax.Array


def _columns(x_ND):
  return lax.map(_column, x_ND.T, batch_size=COLUMNS_AT_ONCE)


def _column(x_N):
  key_N = _key(x_N)
  order_N = _sorted_by(key_N, _iota(x_N))
  start_N = _run_starts(key_N[order_N])
  rank_N = jnp.zeros_like(start_N).at[order_N].set(start_N, unique_indices=True)
  return _Column(order_N, rank_N, _num_tied(start_N), _has_nan(x_N))


def _has_nan(x_N):
  return jnp.any(x_N != x_N)


def _sorted_by(key_N, order_N):
  """An order sorted by a key, stably."""
  # Low bits first, 16 at a time: on CPU, XLA sorts single words nine times as fast as words with their places.
  for shift in range(0, key_N.dtype.itemsize * 8, 16):
    order_N = order_N[_argsort(key_N[order_N] >> shift)]
  return order_N


def _key(x):
  """Unsigned integers in the order of x, and equal where x is, as -0 and 0 are."""
  if x.dtype.itemsize < 4:
    x = x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32)
  if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
    return x
  num_bits = x.dtype.itemsize * 8
  if jnp.issubdtype(x.dtype, jnp.floating):
    x = lax.bitcast_convert_type(x, f'int{num_bits}')
    x = jnp.where(x < 0, -(x & jnp.iinfo(x.dtype).max), x)
  return lax.bitcast_convert_type(x ^ jnp.iinfo(x.dtype).min, f'uint{num_bits}')


def _argsort(x_N):
  """The stable order of the lowest 16 bits of unsigned integers."""
  return lax.sort(x_N.astype(jnp.uint32) << 16 | _iota(x_N)) & 0xFFFF


def _iota(x_N):
  return jnp.arange(x_N.size, dtype=jnp.uint32)


def _run_starts(sorted_N):
  """Where the run of equals that each belongs to starts."""
  starts_N = jnp.concatenate([jnp.array([True]), sorted_N[1:] != sorted_N[:-1]])
  return lax.associative_scan(jnp.maximum, jnp.where(starts_N, _iota(sorted_N), 0))


def _num_tied(start_N):
  return jnp.sum(_iota(start_N) - start_N, dtype=jnp.uint32).astype(jnp.int32)


def _tau_b(score, n, num_tied_a, num_tied_b):
  """From the score, which is concordant less discordant pairs."""
  untied_a, untied_b = (jnp.float32(n * (n - 1) // 2 - num_tied) for num_tied in (num_tied_a, num_tied_b))
  return score / jnp.sqrt(untied_a * untied_b)


# Column by column: the disorder of the one in the order of the other.


@jax.jit
def _tau(a_ND, b_NE, of_a_K, of_b_K):
  """Tau-b [K] of columns of_a_K of a with columns of_b_K of b."""
  columns_b = _columns(b_NE)

  def tau(pair):
    of_a, of_b = pair
    return _tau_of_column(a_ND[:, of_a], jax.tree.map(lambda leaf: leaf[of_b], columns_b))

  return lax.map(tau, (jnp.asarray(of_a_K), jnp.asarray(of_b_K)), batch_size=COLUMNS_AT_ONCE)


def _tau_of_column(a_N, b):
  n, key_N = a_N.size, _key(a_N)
  # With rows in the order of a, and in that of b where a ties, b's inversions are the discordant pairs.
  order_N = _sorted_by(key_N, b.order_N)
  start_N, rank_N = _run_starts(key_N[order_N]), b.rank_N[order_N]
  num_tied, num_tied_in_both = _num_tied(start_N), _num_tied(_run_starts(start_N << 16 | rank_N))
  num_untied = n * (n - 1) // 2 - num_tied - b.num_tied + num_tied_in_both
  tau = _tau_b(num_untied - 2 * _num_inversions(_argsort(rank_N)), n, num_tied, b.num_tied)
  return jnp.where(_has_nan(a_N) | b.has_nan, jnp.nan, tau)


def _num_inversions(p_N):
  """Pairs i < j with p_i > p_j of a permutation, int32.

  Places and values are cut into blocks. Of an inversion either the places
  share a block, or else the values do, or else the blocks tell that it is one.
  """
  p_N = jnp.concatenate([p_N, jnp.arange(p_N.size, -(-p_N.size // BLOCK) * BLOCK, dtype=p_N.dtype)])
  place_N = jnp.zeros_like(p_N).at[p_N].set(_iota(p_N), unique_indices=True)
  value_PB, place_VB = (x_N.astype(jnp.uint16).reshape(-1, BLOCK) for x_N in (p_N, place_N))
  count_PV = jnp.zeros((len(value_PB),) * 2, jnp.int32).at[_iota(p_N) // BLOCK, p_N // BLOCK].add(1)
  higher_PV = jnp.cumsum(count_PV[:, ::-1], axis=1)[:, ::-1] - count_PV
  earlier_higher_PV = jnp.cumsum(higher_PV, axis=0) - higher_PV
  return _num_inversions_in_rows(value_PB) + _num_inversions_in_rows(place_VB // BLOCK) + jnp.sum(
      count_PV * earlier_higher_PV, dtype=jnp.int32)


def _num_inversions_in_rows(x_PB):
  is_earlier_BB = np.triu(np.ones((BLOCK, BLOCK), bool), 1)
  # Counts below BLOCK fit bytes, 64 of which CPUs add at a time; int32 takes 30 times as long.
  inversions_PB = jnp.sum((x_PB[:, :, None] > x_PB[:, None]) & is_earlier_BB, axis=1, dtype=jnp.uint8)
  return jnp.sum(inversions_PB, dtype=jnp.int32)


# Every column with every other: signs of differences between rows, a tile of pairs of rows at a time.


@jax.jit
def _matrix(a_ND, b_NE):
  """Tau-b [D, E]."""
  score_DE = lax.platform_dependent(
      _key(a_ND), _key(b_NE), cpu=partial(_sum_of_tiles, _score_by_bits, WORD),
      default=partial(_sum_of_tiles, _score_by_products, BLOCK))
  a, b = _columns(a_ND), _columns(b_NE)
  tau_DE = _tau_b(score_DE, len(a_ND), a.num_tied[:, None], b.num_tied)
  return jnp.where(a.has_nan[:, None] | b.has_nan, jnp.nan, tau_DE)


def _sum_of_tiles(score_of_tile, height, a_ND, b_NE):
  """Score [D, E] over all pairs of rows i < j, in tiles of `height` i's and BLOCK j's."""
  n = len(a_ND)
  a_ND, b_NE = (jnp.pad(x, ((0, -n % BLOCK), (0, 0))) for x in (a_ND, b_NE))
  i_T, j_T = np.meshgrid(np.arange(0, n, height), np.arange(0, n, BLOCK))
  has_pairs_T = i_T < j_T + BLOCK
  starts = jnp.asarray(i_T[has_pairs_T], jnp.int32), jnp.asarray(j_T[has_pairs_T], jnp.int32)

  def add_tile(score_DE, start):
    rows = [lax.dynamic_slice_in_dim(x, first, size) for x in (a_ND, b_NE)
            for first, size in zip(start, (height, BLOCK), strict=True)]
    i_I, j_J = start[0] + jnp.arange(height), start[1] + jnp.arange(BLOCK)
    is_pair_IJ = (i_I[:, None] < j_J) & (j_J < n)
    return score_DE + score_of_tile(*rows, is_pair_IJ), None

  return lax.scan(add_tile, jnp.zeros((a_ND.shape[1], b_NE.shape[1]), jnp.int32), starts)[0]


def _score_by_products(a_ID, a_JD, b_IE, b_JE, is_pair_IJ):
  """Sums of products of signs; float32 holds those over fewer than 2^24 pairs."""

  def signs(x_ID, x_JD):
    select = lambda is_IJD: (is_IJD & is_pair_IJ[..., None]).astype(jnp.bfloat16)
    return (select(x_ID[:, None] < x_JD) - select(x_ID[:, None] > x_JD)).reshape(is_pair_IJ.size, -1)

  product_DE = jnp.einsum('pd,pe->de', signs(a_ID, a_JD), signs(b_IE, b_JE), preferred_element_type=jnp.float32)
  return product_DE.astype(jnp.int32)


def _score_by_bits(a_ID, a_JD, b_IE, b_JE, is_pair_IJ):
  """Counts of bits, for as many columns of `a` at a time as let the scores stay in the cache."""
  words_a, words_b = _words(a_ID, a_JD, is_pair_IJ), _words(b_IE, b_JE, is_pair_IJ)
  D, width = a_ID.shape[1], max(1, SCORES_AT_ONCE // b_IE.shape[1])
  part = lambda first: [words_JD[:, first:first + width] for words_JD in words_a]
  return jnp.concatenate([_score_of_words(part(first), words_b) for first in range(0, D, width)])


def _score_of_words(words_a, words_b):
  """Of the pairs that neither column ties, all less twice the discordant ones."""
  D, E = words_a[0].shape[1], words_b[0].shape[1]
  # Several words a step, where scores are few, so that its work outweighs its start.
  step = next(step for step in (16, 8, 4, 2, 1) if step * D * E <= SCORES_AT_ONCE or step == 1)

  def add_words(score_SDE, words):
    less_SD, differs_SD, less_SE, differs_SE = words
    untied_SDE = differs_SD[:, :, None] & differs_SE[:, None]
    discordant_SDE = untied_SDE & (less_SD[:, :, None] ^ less_SE[:, None])
    count = lambda words: lax.population_count(words).astype(jnp.int32)
    return score_SDE + count(untied_SDE) - 2 * count(discordant_SDE), None

  steps = [words_JX.reshape(-1, step, words_JX.shape[1]) for words_JX in (*words_a, *words_b)]
  return jnp.sum(lax.scan(add_words, jnp.zeros((step, D, E), jnp.int32), steps)[0], axis=0, dtype=jnp.int32)


def _words(x_ID, x_JD, is_pair_IJ):
  """Words [J, D] of WORD pairs each, uint32: where x_i < x_j, and where they differ and are a pair."""
  pack = lambda bits: sum(bit_JD.astype(jnp.uint32) << i for i, bit_JD in enumerate(bits))
  return (pack(x_D < x_JD for x_D in x_ID),
          pack((x_D != x_JD) & is_pair_J[:, None] for x_D, is_pair_J in zip(x_ID, is_pair_IJ, strict=True)))
