"""Statistics of a network's outputs that add up over batches, devices and hosts.

A statistic first reduces each batch to counts and sums over its sequences. Adding up the
sums of all batches gives the sums over all sequences, however these were divided into
batches. Results are computed from the sums only at the end.
"""

from collections.abc import Callable, Iterable
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.layers import chosen

# A pytree of arrays that are counts or sums over sequences.
Sums = Any


class Statistic(NamedTuple):
  """A statistic that adds up over sequences.

  Attributes:
    reads: names of the intermediates that it needs (transformer.READS).
    measure: turns a batch's intermediates, a dict of arrays by name, into sums over
      its sequences. Counts are int32 and sums float32. Can be jitted.
    summarize: turns the sums over all sequences, as numpy arrays, into a dict of results.
  """

  reads: tuple[str, ...]
  measure: Callable[[dict[str, jax.Array]], Sums]
  summarize: Callable[[Sums], dict[str, Any]]


def merge(a: Sums, b: Sums) -> Sums:
  """The sums over the sequences of two parts: exact for counts, up to rounding for floats.

  Example:
    >>> from bornbiased_jax import analysis
    >>> int(analysis.merge({'count': 2}, {'count': 3})['count'])
    5
  """
  return jax.tree.map(jnp.add, a, b)


def combine(statistics: dict[str, Statistic]) -> Statistic:
  """Several statistics of one forward pass, as one whose results are dicts by their names.

  Example:
    >>> from bornbiased_jax import analysis
    >>> hidden = analysis.inter_sequence('hidden_last')
    >>> analysis.combine({'token': analysis.predictions(2048), 'hidden': hidden}).reads
    ('logits_last', 'hidden_last')
  """
  each = statistics.items()
  # A dict drops duplicates and keeps the order, unlike a set.
  reads = dict.fromkeys(read for statistic in statistics.values() for read in statistic.reads)
  return Statistic(
      reads=tuple(reads),
      measure=lambda outputs: {name: statistic.measure(outputs) for name, statistic in each},
      summarize=lambda sums: {name: statistic.summarize(sums[name]) for name, statistic in each},
  )


def histogram(name: str, edges: np.ndarray) -> Statistic:
  """A histogram of all values of one intermediate.

  Args:
    name: the intermediate.
    edges: increasing edges of the bins, one more than there are bins. Values outside
      are counted in the outermost bins. If one is NaN, so is the result.

  Returns:
    A statistic with the result `density` [bins], the share of values per unit of the
    value. Counts are int32, which limits it to fewer than 2^31 values.

  Example:
    >>> values = histogram('hidden', edges=[0, 1, 2])
    >>> counts = values.measure({'hidden': jnp.array([0.5, 1.2, 1.7, 9.0])})
    >>> values.summarize(counts)['density'].tolist()
    [0.25, 0.75]
  """
  edges = np.asarray(edges, np.float32)

  def measure(outputs):
    values = outputs[name].ravel().astype(jnp.float32)
    bin_of = jnp.clip(jnp.searchsorted(edges, values, side='right') - 1, 0, edges.size - 2)
    # The last one counts NaN.
    bin_of = jnp.where(jnp.isnan(values), edges.size - 1, bin_of)
    return jnp.zeros(edges.size, jnp.int32).at[bin_of].add(1)

  def summarize(count):
    *counted, unknown = count
    total = np.nan if unknown else np.sum(counted)
    return {'density': np.array(counted) / (total * np.diff(edges))}

  return Statistic((name,), measure, summarize)


def p_value_text(log10_p: float) -> str:
  """A p-value as text for readers, from its logarithm.

  Below 1e-12 no digits are given: no model of the null hypothesis is accurate so far out.

  Example:
    >>> from bornbiased_jax import analysis
    >>> analysis.p_value_text(-2.0), analysis.p_value_text(-40.0)
    ('0.01', '< 1e-12')
  """
  return '< 1e-12' if log10_p < -12 else f'{10**log10_p:.2g}'


def frame(rows: Iterable[dict] | str | os.PathLike) -> Any:
  """Rows of `measure`, or of a results.json or the folder that holds it, as a DataFrame of pandas.

  A dict in a row, as of `combine`, becomes columns like 'token.top1_id'. An array is one entry.
  Raises InputError if there are no such results.

  Example:
    >>> table = frame([{'seed': 0, 'token': {'top1_id': 7}}])  # doctest: +SKIP
    >>> list(table.columns)  # doctest: +SKIP
    ['seed', 'token.top1_id']
  """
  try:
    import pandas
  except ImportError:
    raise InputError("analysis.frame needs pandas: pip install 'bornbiased_jax[frame]'") from None
  return pandas.json_normalize(list(_stored(Path(rows)) if isinstance(rows, str | os.PathLike)
                                    else rows))


def _stored(path):
  """The rows of a results.json, or of that in a folder."""
  path = path / 'results.json' if path.is_dir() else path
  try:
    return json.loads(path.read_text())['rows']
  except (OSError, ValueError, LookupError, TypeError):
    raise InputError(f'{path} is no results.json of an experiment, or cannot be read') from None


def expert_loads(num_chosen: int) -> Statistic:
  """The share of choices that falls on each expert, as 'share' [layers, experts].

  `num_chosen` is the number of experts that a token chooses.
  """

  def count(outputs):
    logits_LBTE = outputs['router_logits']
    return {'chosen': chosen(logits_LBTE, num_chosen).sum(axis=(1, 2)),
            'choices': jnp.float32(num_chosen * logits_LBTE.shape[1] * logits_LBTE.shape[2])}

  return Statistic(('router_logits',), count,
                   lambda sums: {'share': sums['chosen'] / sums['choices']})
