"""What may be wrong with a history of checkpoints.

Repeats are told by digests, a common origin by the tests of the lineage verdict, and places in the
history by distances between the entries that are kept of each matrix (trajectory.py).
"""

from collections.abc import Callable, Iterable, Iterator
import functools
import itertools
import math
import operator
from typing import NamedTuple

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import sentences, thresholds, verdict
from bornbiased_jax.lineage.comparison.order import order_tests
from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.evidence.tensors import Taker, Tensor, digest_of
from bornbiased_jax.storage.huggingface.tensors import is_finite
from bornbiased_jax.storage.layers import Layers

from .trajectory import distances, equal, finding, listed, off_path

# Weights are one network's if their typical tensor correlates so.
CONTINUED = 0.5


class Checkpoint(NamedTuple):
  """Digest, shape and 1,024 entries of each tensor, and the features that tests compare."""

  tensors: dict[str, Tensor]
  features: Features


class Line(NamedTuple):
  """A line of descent: its steps, and its first and latest checkpoint."""

  steps: list[int]
  ends: list[Checkpoint]


def survey(layers: Layers) -> Checkpoint:
  """Reads a checkpoint once, a layer at a time; raises InputError for what is not finite."""
  takers: dict[str, Taker] = {}
  found: list[dict] = []
  for name, piece in layers.leaves(
      lambda block: found.append(features.of_layer(layers.config, block))):
    shape = layers.shapes[name]
    if name.startswith('blocks/'):
      name = f'layer {len(found) + 1}/{name.removeprefix("blocks/")}'
      shape, piece = shape[1:], piece[0]
    if not is_finite(piece):
      raise InputError(f'{name} has NaN or infinities among its weights')
    # -0 and 0 are one number.
    takers.setdefault(name, Taker(name, shape)).see(piece + np.float32(0))
  return Checkpoint({name: taker.tensor() for name, taker in takers.items()},
                    features.stacked(layers.config, found))


def examine(history: Iterable[tuple[int, Callable[[], Checkpoint]]],
            tests: Callable = order_tests) -> dict:
  """All that is found in a history: `findings` and `checkpoints`, in JSON.

  `history` has for each step, ascending, what reads its checkpoint or raises InputError. A finding
  that is no fault is a note. Of a line of descent the features of its ends alone are in memory.
  """
  found, rows, lines, tensors = [], [], [], {}
  test = functools.partial(_tested, tests)
  for step, given in _readable(history, found):
    log10_p, likeness, _ = test(lines[0].ends[0], given) if lines else (None, None, False)
    rows.append({'step': step, 'digest': digest_of(given.tensors), 'likeness': likeness,
                 'p_value': thresholds.shown_p_value(log10_p)})
    _deal(lines, step, given, test)
    tensors[step] = given.tensors
  if len(rows) < 2:
    raise InputError(found[0]['what'] if found else 'the history has less than two checkpoints')
  rows = [row | own for row, own in zip(rows, distances(tensors), strict=True)]
  main = max(lines, key=lambda line: len(line.steps))
  on_path = _different([row for row in rows if row['step'] in main.steps])
  found += [*repeats(rows), *other_origins(lines, main, rows),
            *off_path({step: tensors[step] for step in on_path})]
  return {'findings': sorted(found, key=lambda each: (not each['is_fault'], each['steps'])),
          'checkpoints': rows}


def _readable(history, found) -> Iterator[tuple[int, Checkpoint]]:
  """The checkpoints of the first one's architecture; what others are is added to `found`."""
  shapes = None
  for step, read in history:
    try:
      given = read()
    except InputError as error:
      found.append(finding('unreadable', [step], error=error))
      continue
    own = {name: each.shape for name, each in given.tensors.items()}
    shapes = shapes or own
    if own == shapes:
      yield step, given
    else:
      found.append(finding('other architecture', [step]))


def _deal(lines, step, given, test):
  """Adds a checkpoint to the line whose latest or first member it is linked to, or to a new one."""
  for line in lines:
    if any(_linked(end, given, test) for end in line.ends[::-1]):
      line.steps.append(step)
      line.ends[1:] = [given]
      return
  lines.append(Line([step], [given]))


def _linked(a, b, test):
  """Whether two checkpoints have a common origin, or it cannot be told."""
  if _correlation(a.tensors, b.tensors) >= CONTINUED:
    return True
  log10_p, _, can_find = test(a, b)
  return not can_find or log10_p <= math.log10(thresholds.ALPHA)


def _correlation(a, b):
  """That of the entries of equal places, in the typical matrix."""
  samples = [(each.sample, b[name].sample) for name, each in a.items() if len(each.shape) > 1]
  found = [np.corrcoef(*both)[0, 1] for both in samples if min(map(np.ptp, both)) > 0]
  return np.median(found) if found else 0.0


def _tested(tests, a, b):
  """log10 p of a common origin, the largest likeness, whether descent would have been found."""
  results = tests(a.features, b.features)
  can_find = all(sentences.detectable(results, of) <= thresholds.DETECTABLE
                 for of in ('units', 'values'))
  found = [result.statistic for result in results.values() if result.counts]
  return verdict.familywise_log10_p(results), max(found, default=None), can_find


def repeats(rows: list[dict]) -> list[dict]:
  """Checkpoints that are the same as others; a warm-up from 0 begins with a rate of 0."""
  digests = {row['step']: row['digest'] for row in rows}
  return [finding('repeat', steps, digests[steps[0]][:16], is_fault=steps != [0, 1])
          for steps in equal(digests)]


def _different(rows):
  """The steps that no other repeats; neighbours that repeat each other count as the first."""
  kept = [next(same) for _, same in itertools.groupby(rows, operator.itemgetter('digest'))]
  digests = [row['digest'] for row in kept]
  return [row['step'] for row in kept if digests.count(row['digest']) == 1]


def other_origins(lines: list[Line], main: Line, rows: list[dict]) -> list[dict]:
  """Checkpoints that do not have the origin of most of them."""
  found = []
  for line in lines:
    # What each has been compared with is the first checkpoint.
    compared = main if line is lines[0] else line
    tested = [row for row in rows if row['step'] in compared.steps and row['p_value'] is not None]
    if line is not main:
      found.append(finding(
          'other origin', line.steps, max(row['likeness'] for row in tested),
          p_value=min(1.0, len(tested) * min(row['p_value'] for row in tested)),
          others=listed(main.steps)))
  return found
