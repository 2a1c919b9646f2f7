"""Which checkpoints of a history go back to one birth, by the tests of the lineage verdict."""

from collections.abc import Callable
import math

import numpy as np

from bornbiased_jax.lineage import levels, sentences, verdict
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.testing.every_test import Results
from bornbiased_jax.lineage.testing.order import order_tests

from .history import Checkpoint

# Weights of which the typical tensor correlates so are one network's, whatever the tests say.
CONTINUED = 0.5

class Descent:
  """Deals checkpoints, which come in their order, to lines of descent.

  A checkpoint belongs to a line if it is linked to its first or its latest member: the deciding
  tests of the verdict find a common origin at its level, or the weights correlate. Memory holds
  the features of these two alone. `lines` has the steps of each line, and `rows` for each step
  its line and what was found against the first checkpoint of all.
  """

  def __init__(self, tests: Callable[[Features, Features], Results] = order_tests):
    self._tests = tests
    self.lines: list[list[int]] = []
    self.rows: dict[int, dict] = {}
    self._ends: list[list[Checkpoint]] = []

  def add(self, step: int, given: Checkpoint) -> None:
    """Deals the checkpoint of a step, which is later than those before."""
    birth = self._ends[0][0] if self._ends else given
    log10_p, likeness, _ = self._tested(birth, given) if self._ends else (None, None, False)
    line = next((i for i, ends in enumerate(self._ends)
                 if any(self._linked(each, given) for each in ends[::-1])), len(self.lines))
    if line == len(self.lines):
      self.lines.append([])
      self._ends.append([given])
    self.lines[line].append(step)
    self._ends[line][1:] = [given]
    self.rows[step] = {'line': line, 'likeness': likeness, 'correlation': correlation(birth, given),
                       'p_value': levels.shown_p_value(log10_p)}

  def _linked(self, a, b):
    """Whether two checkpoints have a common origin, or it cannot be told."""
    if correlation(a, b) >= CONTINUED:
      return True
    log10_p, _, can_find = self._tested(a, b)
    return not can_find or log10_p <= math.log10(levels.ALPHA)

  def _tested(self, a, b):
    """log10 p of a common origin, the largest likeness, whether descent would have been found."""
    results = self._tests(a.features, b.features)
    can_find = all(sentences.detectable(results, of) <= levels.DETECTABLE
                   for of in ('units', 'values'))
    found = [result.statistic for result in results.values() if result.counts]
    return verdict.familywise_log10_p(results), max(found, default=None), can_find


def correlation(a: Checkpoint, b: Checkpoint) -> float:
  """That of the entries of equal places, in the typical matrix."""
  names = [name for name, each in a.tensors.items() if len(each.shape) > 1
           and name in b.tensors and np.ptp(each.sample) > 0 and np.ptp(b.tensors[name].sample) > 0]
  return float(np.median([np.corrcoef(a.tensors[name].sample, b.tensors[name].sample)[0, 1]
                          for name in names])) if names else 0.0
