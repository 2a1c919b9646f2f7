"""The spread of representations by position: where the attention sink begins (Fig 9, Eq 2)."""

import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.statistics import Statistic


def positional_std(name: str) -> Statistic:
  """Std over sequences of a channel of the intermediate `name`, [..., B, T, C], at each position.

  Results: `std` [..., T], the root of the variance averaged over channels.
  """

  def measure(outputs):
    x = outputs[name].astype(jnp.float32)
    return {'sum': x.sum(-3), 'squared': (x * x).sum((-3, -1)), 'count': jnp.int32(x.shape[-3])}

  def summarize(sums):
    count, channels = int(sums['count']), sums['sum'].shape[-1]
    mean_squared = np.sum((np.asarray(sums['sum'], np.float64) / count) ** 2, axis=-1)
    total = np.asarray(sums['squared'], np.float64) / count - mean_squared
    unbiased = count / (count - 1) if count > 1 else np.nan
    return {'std': np.sqrt(np.maximum(0, total) * unbiased / channels)}

  return Statistic((name,), measure, summarize)
