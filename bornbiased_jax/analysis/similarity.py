"""Similarity of representations and their common direction, in one pass and O(n) time.

For unit vectors u_i the mean cosine over pairs is (|sum u_i|² - n) / (n (n - 1)),
so the sum of unit vectors is all that is kept (Fig 2, Findings 2.1 and 2.2).
A zero vector counts as orthogonal to all.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from bornbiased_jax.analysis.statistics import Statistic


def normalize(x: jax.Array) -> jax.Array:
  """Unit vectors along the last axis, in float32; a zero vector stays zero."""
  x = x.astype(jnp.float32)
  squared = jnp.sum(x * x, axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.where(squared == 0, 1.0, squared))


def inter_sequence(name: str, pair_std: bool = False) -> Statistic:
  """Similarity of different sequences in the intermediate `name`, [..., B, D].

  Results: `direction` [..., D], the mean of the unit vectors (for
  'hidden_last' the paper's contraction direction); `cosine` [...], their mean
  pairwise cosine (for 'residual_last' by layer); and with `pair_std`
  `cosine_std` [...], the std of the cosine over pairs, from the second
  moment of the unit vectors, [..., D, D].
  """

  def measure(outputs):
    unit = normalize(outputs[name])
    sums = {'unit_sum': jnp.sum(unit, axis=-2), 'nonzero': jnp.sum(jnp.any(unit != 0, axis=-1), axis=-1),
            'count': jnp.int32(unit.shape[-2])}
    return sums | ({'moment': jnp.einsum('...bd,...be->...de', unit, unit)} if pair_std else {})

  def summarize(sums):
    count = int(sums['count'])
    cosine = mean_off_diagonal(np.sum(_float64(sums['unit_sum']) ** 2, axis=-1), sums['nonzero'], count)
    results = {'direction': sums['unit_sum'] / count, 'cosine': cosine}
    if pair_std:
      squared = mean_off_diagonal(np.sum(_float64(sums['moment']) ** 2, axis=(-2, -1)), sums['nonzero'], count)
      results['cosine_std'] = np.sqrt(np.maximum(0, squared - cosine**2))
    return results

  return Statistic((name,), measure, summarize)


def intra_sequence(name: str) -> Statistic:
  """Similarity of the positions of one sequence in the intermediate `name`, [..., B, T, D] (Fig 8).

  Results, over sequences: `cosine` [...], the mean cosine over pairs of
  distinct positions (NaN for T = 1), and its `standard_error` [...].
  """

  def measure(outputs):
    unit = normalize(outputs[name])
    T = unit.shape[-2]
    own = jnp.sum(unit * unit, axis=(-2, -1))
    pairs = jnp.sum(jnp.sum(unit, axis=-2) ** 2, axis=-1) - own
    cosine = pairs / (T * (T - 1)) if T > 1 else jnp.full_like(pairs, jnp.nan)
    return {'cosine': cosine.sum(-1), 'squared': (cosine**2).sum(-1), 'count': jnp.int32(cosine.shape[-1])}

  def summarize(sums):
    count = int(sums['count'])
    mean = _float64(sums['cosine']) / count
    variance = np.maximum(0, _float64(sums['squared']) / count - mean**2)
    return {'cosine': mean, 'standard_error': np.sqrt(variance / max(1, count - 1))}

  return Statistic((name,), measure, summarize)


def mean_off_diagonal(total: np.ndarray, diagonal: np.ndarray, count: int) -> np.ndarray:
  """Mean over the ordered pairs i != j, from the sum over all pairs and over those with i = j; NaN for count < 2."""
  return (total - diagonal) / (count * (count - 1)) if count > 1 else np.full_like(total, np.nan)


def isotropic_std(count: int, width: int) -> float:
  """Std of the mean pairwise cosine of `count` independent isotropic directions in `width` dimensions."""
  return (2 / (width * count * (count - 1))) ** 0.5 if count > 1 else float('nan')


def isotropic_log10_p(cosine: np.ndarray, count: int, width: int) -> np.ndarray:
  """log10 P that `count` independent isotropic directions in `width` dimensions are as similar (Tables 2 and 3).

  The sum of n independent isotropic unit vectors is nearly N(0, n/d), so that
  d |sum|² / n is chi-squared with d degrees of freedom. Good for n of tens
  and more; -inf where the probability is below the smallest float.
  """
  squared_sum = count + count * (count - 1) * np.asarray(cosine, np.float64)
  return stats.chi2.logsf(width * squared_sum / count, width) / np.log(10)


def _float64(x):
  return np.asarray(x, np.float64)
