"""Similarity of representations and their common direction, in one pass and O(n) time.

For unit vectors u_i the mean cosine over pairs is (|sum u_i|² - n) / (n (n - 1)),
so the sum of unit vectors is all that is kept (Fig 2, Findings 2.1 and 2.2).
"""

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.statistics import Statistic


def normalize(x: jax.Array) -> jax.Array:
  """Unit vectors along the last axis, in float32; a zero vector stays zero."""
  x = x.astype(jnp.float32)
  squared = jnp.sum(x * x, axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.where(squared == 0, 1.0, squared))


def mean_pairwise_cosine(unit_sum: np.ndarray, count: int) -> np.ndarray:
  """Mean cosine over pairs of `count` unit vectors whose sum is `unit_sum` [..., D]; NaN for count < 2."""
  squared = np.sum(np.asarray(unit_sum, np.float64) ** 2, axis=-1)
  return (squared - count) / (count * (count - 1)) if count > 1 else np.full_like(squared, np.nan)


def unit_vectors(name: str) -> Statistic:
  """Similarity over sequences of the intermediate `name`, [..., B, D].

  Results: `direction` [..., D], the mean of the unit vectors (for
  'hidden_last' the paper's contraction direction), and `cosine` [...], their
  mean pairwise cosine (for 'residual_last' by layer).
  """

  def measure(outputs):
    unit = normalize(outputs[name])
    return {'unit_sum': jnp.sum(unit, axis=-2), 'count': jnp.int32(unit.shape[-2])}

  def summarize(sums):
    count = int(sums['count'])
    return {'direction': sums['unit_sum'] / count, 'cosine': mean_pairwise_cosine(sums['unit_sum'], count)}

  return Statistic((name,), measure, summarize)
