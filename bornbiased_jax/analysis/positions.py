"""The spread of representations at each position, where attention sinks begin (Fig 9, Eq 2)."""

import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.statistics import Statistic


def positional_std(name: str) -> Statistic:
  """How much a channel varies over sequences, at each position.

  Args:
    name: an intermediate of shape [..., B, T, C], such as 'value_aggregate'.

  Returns:
    A statistic with the result `std` [..., T]: the square root of the unbiased variance
    over sequences, averaged over the C channels. NaN for a single sequence.

  Example:
    >>> spread = positional_std('x')  # Two sequences of three positions, one channel:
    >>> sums = spread.measure({'x': jnp.array([[[0.], [3.], [7.]], [[2.], [3.], [7.]]])})
    >>> spread.summarize(sums)['std'].round(4).tolist()
    [1.4142, 0.0, 0.0]
  """

  def measure(outputs):
    x = outputs[name].astype(jnp.float32)  # Axes from the right: channels, positions, sequences.
    return {'sum': x.sum(-3), 'squared': (x * x).sum((-3, -1)), 'count': jnp.int32(x.shape[-3])}

  def summarize(sums):
    count, channels = int(sums['count']), sums['sum'].shape[-1]
    mean_squared = np.sum((np.asarray(sums['sum'], np.float64) / count) ** 2, axis=-1)
    total = np.asarray(sums['squared'], np.float64) / count - mean_squared
    unbiased = count / (count - 1) if count > 1 else np.nan
    return {'std': np.sqrt(np.maximum(0, total) * unbiased / channels)}

  return Statistic((name,), measure, summarize)
