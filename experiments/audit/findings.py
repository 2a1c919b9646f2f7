"""What may be wrong with a history of checkpoints.

Repeats are told by digests, a common origin by the tests of the lineage verdict, and places in the
history by distances between the entries that are kept of each matrix (trajectory.py).
"""

from collections.abc import Callable, Iterable
import math

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import sentences, thresholds, verdict
from bornbiased_jax.lineage.comparison.order import order_tests
from bornbiased_jax.lineage.evidence.tensors import digest_of

from .history import Checkpoint
from .trajectory import CONTINUED, Trajectory, correlation, finding, steps_text


def examine(history: Iterable[tuple[int, Checkpoint | InputError]],
            tests: Callable = order_tests) -> dict:
  """All that is found in a history: `findings` and `checkpoints`, in JSON.

  `history` has for each step, ascending, its checkpoint, or why it cannot be read. A finding that
  is no fault is a note.
  """
  read: dict[int, Checkpoint] = {}
  found, descent = [], Descent(tests)
  for step, given in history:
    first = next(iter(read.values()), None)
    if isinstance(given, InputError):
      found.append(finding('unreadable', [step], str(given)))
    elif first and _shapes(given) != _shapes(first):
      found.append(finding('other architecture', [step],
                           f'Step {step} has tensors of other names or shapes.'))
    else:
      read[step] = given._replace(features=None)
      descent.add(step, given)
  if len(read) < 2:
    raise InputError(next((str(each['what']) for each in found),
                          'the history has less than two checkpoints'))
  digests = {step: digest_of(given.tensors) for step, given in read.items()}
  found += repeats(digests) + descent.findings()
  in_path = _distinct(digests, max(descent.lines, key=len))
  found += Trajectory({step: read[step] for step in in_path}).findings()
  places = Trajectory(read).places
  return {'findings': sorted(found, key=lambda each: (not each['is_fault'], each['steps'])),
          'checkpoints': [{'step': step, 'digest': digests[step]} | descent.rows[step]
                          | places[step] for step in read]}


def _shapes(given):
  return {name: each.shape for name, each in given.tensors.items()}


def repeats(digests: dict[int, str]) -> list[dict]:
  """Checkpoints that are the same as others."""
  of_digest: dict[str, list[int]] = {}
  for step, digest in digests.items():
    of_digest.setdefault(digest, []).append(step)
  # A warm-up from 0 takes its first step at a rate of 0.
  return [finding('unchanged' if steps == [0, 1] else 'repeat', steps, (
      f'{steps_text(steps).capitalize()} have the same weights in every tensor. They are one '
      'checkpoint, unless the learning rate was 0 between them.'), value=digest[:16],
                  is_fault=steps != [0, 1])
          for digest, steps in of_digest.items() if len(steps) > 1]


def _distinct(digests, steps):
  """Those of some steps that no other repeats; of neighbours that repeat each other the first."""
  kept = [step for before, step in zip([None, *steps], steps, strict=False)
          if before is None or digests[step] != digests[before]]
  kept_digests = [digests[step] for step in kept]
  return [step for step in kept if kept_digests.count(digests[step]) == 1]


class Descent:
  """Deals checkpoints, which come in their order, to lines of descent.

  A checkpoint belongs to a line if it is linked to its first or its latest member: the deciding
  tests of the verdict find a common origin at its level, or the weights correlate. Memory holds
  only the features of these two. `lines` has the steps of each line, and `rows` for each step
  what was found against the first checkpoint of all.
  """

  def __init__(self, tests: Callable = order_tests):
    self._tests = tests
    self.lines: list[list[int]] = []
    self.rows: dict[int, dict] = {}
    self._ends: list[list[Checkpoint]] = []

  def add(self, step: int, given: Checkpoint) -> None:
    """Deals the checkpoint of a step, which is later than those before."""
    first = self._ends[0][0] if self._ends else given
    log10_p, likeness, _ = self._tested(first, given) if self._ends else (None, None, False)
    line = next((i for i, ends in enumerate(self._ends)
                 if any(self._linked(each, given) for each in ends[::-1])), len(self.lines))
    if line == len(self.lines):
      self.lines.append([])
      self._ends.append([given])
    self.lines[line].append(step)
    self._ends[line][1:] = [given]
    self.rows[step] = {'likeness': likeness, 'p_value': thresholds.shown_p_value(log10_p)}

  def findings(self) -> list[dict]:
    """Checkpoints that do not have the origin of most of them."""
    main = max(self.lines, key=len)
    found = []
    for steps in self.lines:
      if steps is main:
        continue
      # What each has been compared with is the first checkpoint.
      compared = main if self.lines[0] is steps else steps
      tested = [self.rows[step] for step in compared if self.rows[step]['p_value'] is not None]
      found.append(finding('other origin', steps, (
          f'{steps_text(steps).capitalize()}: of another origin than {steps_text(main)}. '
          'No test finds descent, and those of units and of values could have found it.'),
          value=max(row['likeness'] for row in tested),
          p_value=min(1.0, len(tested) * min(row['p_value'] for row in tested))))
    return found

  def _linked(self, a, b):
    """Whether two checkpoints have a common origin, or it cannot be told."""
    if correlation(a, b) >= CONTINUED:
      return True
    log10_p, _, can_find = self._tested(a, b)
    return not can_find or log10_p <= math.log10(thresholds.ALPHA)

  def _tested(self, a, b):
    """log10 p of a common origin, the largest likeness, whether descent would have been found."""
    results = self._tests(a.features, b.features)
    can_find = all(sentences.detectable(results, of) <= thresholds.DETECTABLE
                   for of in ('units', 'values'))
    found = [result.statistic for result in results.values() if result.counts]
    return verdict.familywise_log10_p(results), max(found, default=None), can_find
