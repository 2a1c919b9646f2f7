"""Ranks of columns and Kendall's tau-b, from exact counts: column by column, or all with all.

Two rows are concordant if both columns order them alike, discordant if they order
them oppositely, and neither if a column ties them. The score of two columns is the
number of concordant pairs of rows less that of discordant ones, and

  tau-b = score / sqrt(untied pairs of one column * untied pairs of the other)

(Kendall 1945). Numpy counts column by column (`rank_correlation_host`), and XLA all with all, in
int32, which holds the n (n - 1) / 2 pairs of rows up to n = 65,536.
"""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.comparison import rank_correlation_host as host

MAX_ROWS = 2**16
BLOCK = 128
WORD = 32
SCORES_AT_ONCE = 2**21


def mean_ranks(x_ND: jax.Array | np.ndarray) -> jax.Array:
  """Ranks [n, D] of each column of [n, D], float32, from 1; equal numbers share their mean rank."""
  return jnp.asarray(host.mean_ranks(host.keys(np.asarray(x_ND))))


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
    InputError: shapes differ, are neither 1-d nor 2-d, or have too few or too many
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
  return jnp.asarray(host.taus(a, b, *[np.arange(a.shape[1])] * 2))


def kendall_matrix(a: jax.Array | np.ndarray, b: jax.Array | np.ndarray) -> jax.Array:
  """Tau-b of every column of `a` with every column of `b`.

  It is what `calibrated_test(…, kendall=True)` reads instead of Spearman's rho. No program of
  this package asks for that. Costs O(n² D E), by words of 32 pairs of rows, one block of pairs
  at a time. For few columns of many rows it costs D E times a column of `kendall_tau` instead.

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
  D, E = a.shape[1], b.shape[1]
  if D * E < len(a) / 8:
    return jnp.asarray(host.taus(a, b, *np.indices((D, E)).reshape(2, -1))).reshape(D, E)
  return _matrix(host.lower_ranks(a), host.lower_ranks(b))


def _checked_keys(name, x) -> np.ndarray:
  """Whole numbers in the order of x (`host.keys`)."""
  x = np.asarray(x)
  if not any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
    raise InputError(f'{name} should hold real numbers, but its type is {x.dtype}')
  if x.ndim == 0 or x.size == 0 or not 2 <= len(x) <= MAX_ROWS:
    raise InputError(f'{name} should have 2 to {MAX_ROWS:,} rows and a column, but its shape is '
                     f'{list(x.shape)}')
  if (x != x).any():
    raise InputError(f'{name} contains NaN')
  return host.keys(x)


@jax.jit
def _matrix(rank_ND, rank_NE):
  """Tau-b [D, E], from tiles of pairs of rows; ranks say how many numbers are lower."""
  score_DE = _sum_of_tiles(rank_ND, rank_NE)
  untied = [jnp.sum(x, axis=0, dtype=jnp.int32).astype(jnp.float32) for x in (rank_ND, rank_NE)]
  return score_DE.astype(jnp.float32) / jnp.sqrt(untied[0][:, None] * untied[1][None])


def _sum_of_tiles(a_ND, b_NE):
  """Scores [D, E], int32, over all rows i < j, by tiles of WORD i's and BLOCK j's."""
  n = len(a_ND)
  i_T, j_T = np.meshgrid(np.arange(0, n, WORD), np.arange(0, n, BLOCK))
  firsts = [jnp.asarray(x_T[i_T < j_T + BLOCK], jnp.int32) for x_T in (i_T, j_T)]

  def add_tile(score_DE, first):
    i_I, j_J = (start + jnp.arange(size, dtype=jnp.int32)
                for start, size in zip(first, (WORD, BLOCK), strict=True))
    is_pair_IJ = (i_I[:, None] < j_J[None]) & (j_J[None] < n)
    rows = [x[place] for x in (a_ND, b_NE) for place in (i_I, j_J)]
    return score_DE + _score(*rows, is_pair_IJ), None

  return lax.scan(add_tile, jnp.zeros((a_ND.shape[1], b_NE.shape[1]), jnp.int32), firsts)[0]


def _score(a_ID, a_JD, b_IE, b_JE, is_pair_IJ):
  """Counts of bits, for so many columns of a at a time that the scores stay in the cache."""
  words_a, words_b = _words(a_ID, a_JD, is_pair_IJ), _words(b_IE, b_JE, is_pair_IJ)
  firsts = range(0, a_ID.shape[1], max(1, SCORES_AT_ONCE // b_IE.shape[1]))
  part = lambda first: [words_JD[:, first:first + firsts.step] for words_JD in words_a]
  return jnp.concatenate([_score_of_words(part(first), words_b) for first in firsts])


def _score_of_words(words_a, words_b):
  """Scores: the pairs that neither column ties, less twice the discordant ones."""
  D, E = words_a[0].shape[1], words_b[0].shape[1]
  # With few scores, several words per step, so that the step's work outweighs its start.
  step = 16 if 16 * D * E <= SCORES_AT_ONCE else 1

  def add_words(score_SDE, words):
    less_SD, differs_SD, less_SE, differs_SE = words
    untied_SDE = differs_SD[:, :, None] & differs_SE[:, None]
    discordant_SDE = untied_SDE & (less_SD[:, :, None] ^ less_SE[:, None])
    counts = lax.population_count(untied_SDE) - 2 * lax.population_count(discordant_SDE)
    return score_SDE + counts, None

  steps = [words_JX.reshape(-1, step, words_JX.shape[1]) for words_JX in (*words_a, *words_b)]
  score_SDE, _ = lax.scan(add_words, jnp.zeros((step, D, E), jnp.int32), steps)
  return jnp.sum(score_SDE, axis=0, dtype=jnp.int32)


def _words(x_ID, x_JD, is_pair_IJ):
  """Words [J, D] of WORD pairs i, j, int32: bits for x_i < x_j, and for x_i != x_j in pairs."""
  pack = lambda bits: sum(bit_JD.astype(jnp.int32) << i for i, bit_JD in enumerate(bits))
  return (pack(x_D[None] < x_JD for x_D in x_ID),
          pack((x_D[None] != x_JD) & is_pair_J[:, None]
               for x_D, is_pair_J in zip(x_ID, is_pair_IJ, strict=True)))
