"""Similarity of representations and the direction they share (Fig 2, Findings 2.1 and 2.2).

The mean cosine over all pairs of n unit vectors u_i is (|sum u_i|² - n) / (n (n - 1)).
The sum of the unit vectors is therefore all that has to be kept, one pass over the
sequences is enough, and the time is O(n). A zero vector counts as orthogonal to all.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.analysis.statistics import Statistic


def normalize(x: jax.Array) -> jax.Array:
  """Scales vectors along the last axis to length 1, in float32. A zero vector stays zero."""
  x = x.astype(jnp.float32)
  # Squares of very small and very large numbers would leave float32.
  largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
  x = x / jnp.where(largest == 0, 1.0, largest)
  squared = jnp.sum(x * x, axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.where(squared == 0, 1.0, squared))


# One statistic for equal arguments, so that what measures it is compiled once.
@functools.lru_cache(maxsize=64)
def inter_sequence(name: str, pair_std: bool = False) -> Statistic:
  """How similar the representations of different sequences are.

  Args:
    name: an intermediate of shape [..., B, D], one vector per sequence, such as
      'hidden_last', or 'residual_last' for one value per layer.
    pair_std: also measure how the cosine varies over pairs, and sequences along the direction.
      This needs the second moment of the unit vectors, [..., D, D].

  Returns:
    A statistic with the results
    - direction [..., D]: the mean of the unit vectors; for 'hidden_last' it is the
      paper's contraction direction.
    - cosine [...]: the mean cosine over pairs of different sequences.
    - cosine_std [...], with `pair_std`: the standard deviation of the cosine over pairs.
    - direction_std [...], with `pair_std`: the standard deviation of the unit vectors'
      component along the direction; NaN where the direction is zero.

  Example:
    >>> alike = inter_sequence('hidden_last')
    >>> sums = alike.measure({'hidden_last': jnp.array([[1., 0.], [1., 0.], [0., 1.]])})
    >>> round(float(alike.summarize(sums)['cosine']), 4)  # One pair of three is alike.
    0.3333
  """

  def measure(outputs):
    unit = normalize(outputs[name])
    # A nonzero vector has cosine 1 with itself, which is no pair; a zero vector has 0.
    nonzero = jnp.sum(jnp.any(unit != 0, axis=-1), axis=-1)
    sums = {'unit_sum': jnp.sum(unit, axis=-2), 'nonzero': nonzero,
            'count': jnp.int32(unit.shape[-2])}
    return sums | ({'moment': jnp.einsum('...bd,...be->...de', unit, unit)} if pair_std else {})

  def summarize(sums):
    count, nonzero = int(sums['count']), sums['nonzero']
    total = np.sum(_float64(sums['unit_sum']) ** 2, axis=-1)
    cosine = mean_off_diagonal(total, nonzero, count)
    results = {'direction': sums['unit_sum'] / count, 'cosine': cosine}
    if pair_std:
      # The squared norm of the moment is the sum of squared cosines over all pairs.
      total_squared = np.sum(_float64(sums['moment']) ** 2, axis=(-2, -1))
      squared = mean_off_diagonal(total_squared, nonzero, count)
      results['cosine_std'] = np.sqrt(np.maximum(0, squared - cosine**2))
      sum_D = _float64(sums['unit_sum'])
      along = np.einsum('...d,...de,...e->...', sum_D, _float64(sums['moment']), sum_D)
      with np.errstate(invalid='ignore'):  # Σ (u · s)² / s², for the sum s of n vectors u.
        squared = along / total / count - total / count**2
      results['direction_std'] = np.sqrt(np.maximum(0, squared))
    return results

  return Statistic((name,), measure, summarize)


@functools.lru_cache(maxsize=64)
def intra_sequence(name: str) -> Statistic:
  """How similar the representations of one sequence's positions are (Fig 8).

  Args:
    name: an intermediate of shape [..., B, T, D], such as 'residual'.

  Returns:
    A statistic with the results
    - cosine [...]: the mean over sequences of the mean cosine over pairs of different
      positions; NaN for T = 1.
    - standard_error [...]: the standard error of that mean over sequences.

  Example:
    >>> alike = intra_sequence('hidden')
    >>> sums = alike.measure({'hidden': jnp.array([[[1., 0.], [1., 0.], [0., 1.]]])})
    >>> round(float(alike.summarize(sums)['cosine']), 4)
    0.3333
  """

  def measure(outputs):
    unit = normalize(outputs[name])
    T = unit.shape[-2]
    own = jnp.sum(unit * unit, axis=(-2, -1))
    pairs = jnp.sum(jnp.sum(unit, axis=-2) ** 2, axis=-1) - own
    cosine = pairs / (T * (T - 1)) if T > 1 else jnp.full_like(pairs, jnp.nan)
    return {'cosine': cosine.sum(-1), 'squared': (cosine**2).sum(-1),
            'count': jnp.int32(cosine.shape[-1])}

  def summarize(sums):
    count = int(sums['count'])
    mean = _float64(sums['cosine']) / count
    variance = np.maximum(0, _float64(sums['squared']) / count - mean**2)
    return {'cosine': mean, 'standard_error': np.sqrt(variance / max(1, count - 1))}

  return Statistic((name,), measure, summarize)


def mean_off_diagonal(total: np.ndarray, diagonal: np.ndarray, count: int) -> np.ndarray:
  """The mean over the n (n - 1) ordered pairs of different items; NaN for n < 2.

  Args:
    total: the sum over all ordered pairs (i, j).
    diagonal: the part of it that belongs to pairs with i = j.
    count: number of items, n.
  """
  return (total - diagonal) / (count * (count - 1)) if count > 1 else np.full_like(total, np.nan)


def isotropic_std(count: int, width: int) -> float:
  """Standard deviation of the mean pairwise cosine of independent random directions.

  It is sqrt(2 / (d n (n - 1))) for n isotropic directions in d dimensions.

  Args:
    count: number of directions, n; NaN is returned for n < 2.
    width: number of dimensions, d.

  Example:
    >>> from bornbiased_jax import analysis
    >>> analysis.isotropic_std(count=2, width=100)  # One cosine varies by 1 / sqrt(d).
    0.1
  """
  return (2 / (width * count * (count - 1))) ** 0.5 if count > 1 else float('nan')


def isotropic_log10_p(cosine: np.ndarray, count: int, width: int) -> np.ndarray:
  """log10 of the probability that random directions are at least as similar (Tables 2, 3).

  Each coordinate of the sum of n independent isotropic unit vectors in d dimensions is
  nearly N(0, n/d), so that d |sum|² / n is chi-squared with d degrees of freedom. The
  approximation is good for n of a few tens and more.

  Args:
    cosine: mean pairwise cosines, any shape, which the result has too.
    count: number of directions, n.
    width: number of dimensions, d.
  """
  squared_sum = count + count * (count - 1) * np.asarray(cosine, np.float64)
  statistic = width * squared_sum / count
  with np.errstate(divide='ignore'):
    log_p = scipy.stats.chi2.logsf(statistic, width)
  # scipy takes the logarithm of the probability, which is 0 below the smallest float.
  return np.where(np.isfinite(log_p), log_p, _far_tail(statistic / 2, width / 2)) / np.log(10)


def _far_tail(x, a):
  """log Q(a, x), the incomplete gamma function far above a, by Legendre's continued fraction."""
  fraction = np.zeros_like(x)
  for k in range(100, 0, -1):
    fraction = k * (a - k) / (x - a + 2 * k + 1 + fraction)
  with np.errstate(divide='ignore', invalid='ignore'):  # It is not used where x is near a.
    return a * np.log(x) - x - scipy.special.gammaln(a) - np.log(x - a + 1 + fraction)


def _float64(x):
  return np.asarray(x, np.float64)
