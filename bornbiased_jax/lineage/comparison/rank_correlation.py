"""Ranks of columns and Kendall's tau-b, from exact counts.

Two rows are concordant if both columns order them alike, discordant if they order
them oppositely, and neither if a column ties them. The score of two columns is the
number of concordant pairs of rows less the number of discordant ones, and

  tau-b = score / sqrt(untied pairs of one column * untied pairs of the other)

(Kendall 1945). `rank_correlation_host` counts, by numpy.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.comparison import rank_correlation_host as host

MAX_ROWS = 2**16


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
  return jnp.asarray(host.taus(a, b, *[np.arange(a.shape[1])] * 2))


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
  return jnp.asarray(host.taus(a, b, *np.indices(shape).reshape(2, -1))).reshape(shape)


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
