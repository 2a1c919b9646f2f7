"""Statistics of a network's outputs that add up over batches, devices and hosts.

A statistic's state is a pytree of counts and sums over sequences, so that the
state of a whole is the sum of its parts' states, in any grouping.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Sums = Any


class Statistic(NamedTuple):
  """An additive statistic.

  Attributes:
    reads: names of the intermediates it needs (transformer.READS).
    measure: outputs of a batch, a dict of arrays by name → sums over its
      sequences (counts int32, sums float32). Jittable.
    summarize: sums over all sequences, as numpy arrays → dict of results.
  """

  reads: tuple[str, ...]
  measure: Callable[[dict[str, jax.Array]], Sums]
  summarize: Callable[[Sums], dict[str, Any]]


def merge(a: Sums, b: Sums) -> Sums:
  """Sums over the sequences of both: exact for counts, to rounding for floats."""
  return jax.tree.map(jnp.add, a, b)


def combine(statistics: dict[str, Statistic]) -> Statistic:
  """Several statistics of one forward pass; sums and results by name."""
  return Statistic(
      reads=tuple(dict.fromkeys(name for statistic in statistics.values() for name in statistic.reads)),
      measure=lambda outputs: {name: statistic.measure(outputs) for name, statistic in statistics.items()},
      summarize=lambda sums: {name: statistic.summarize(sums[name]) for name, statistic in statistics.items()},
  )


def histogram(name: str, edges: np.ndarray) -> Statistic:
  """How the values of the intermediate `name` fall into the bins between `edges`.

  Values outside the edges are counted in the outermost bins; of all values
  fewer than 2^31 may be counted. Results: `density` [bins], per unit of the
  value.
  """
  edges = np.asarray(edges, np.float32)

  def measure(outputs):
    bin_of = jnp.clip(jnp.searchsorted(edges, outputs[name].ravel(), side='right') - 1, 0, edges.size - 2)
    return jnp.zeros(edges.size - 1, jnp.int32).at[bin_of].add(1)

  def summarize(count):
    return {'density': count / (count.sum() * np.diff(edges))}

  return Statistic((name,), measure, summarize)


def p_value_text(log10_p: float) -> str:
  """A p-value for eyes: nothing below 1e-12 is told apart, since no model of the null holds so far out."""
  return '< 1e-12' if log10_p < -12 else f'{10**log10_p:.2g}'
