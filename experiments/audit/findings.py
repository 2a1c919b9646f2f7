"""What may be wrong with a history of checkpoints.

Repeats are told by digests, a common origin by the tests of the lineage verdict, and places in the
history by distances between the entries that are kept of each matrix (trajectory.py).
"""

from collections.abc import Callable, Iterable, Iterator
import math
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

from .trajectory import equal, finding, from_previous, listed, matrices, off_path

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


def examine(history: Iterable[tuple[int, Callable[[], Checkpoint]]]) -> dict:
  """All that is found in a history: `findings` and `checkpoints`, in JSON.

  `history` has for each step, ascending, what reads its checkpoint or raises InputError. Of a line
  of descent the features of its ends alone are in memory.
  """
  found, lines, tensors = [], [], {}
  for step, given in _readable(history, found):
    _deal(lines, step, given)
    tensors[step] = given.tensors
  if len(tensors) < 2:
    raise InputError(found[0]['what'] if found else 'the history has less than two checkpoints')
  digests = {step: digest_of(each) for step, each in tensors.items()}
  same = equal(digests)
  # A warm-up from 0 begins with a rate of 0.
  found += [finding('repeat', steps) for steps in same if steps != [0, 1]]
  main = max(lines, key=lambda line: len(line.steps))
  found += [finding('other origin', line.steps, others=listed(main.steps))
            for line in lines if line is not main]
  # It is not known which of equal steps has its place.
  on_path = set(main.steps).difference(*same)
  if on_path:
    found += off_path({step: each for step, each in tensors.items() if step in on_path})
  return {'findings': sorted(found, key=lambda each: each['steps']),
          'checkpoints': [{'step': step, 'digest': digests[step], 'from_previous': distance}
                          for step, distance in from_previous(tensors).items()]}


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


def _deal(lines, step, given):
  """Adds a checkpoint to the line whose latest or first member it is linked to, or to a new one."""
  for line in lines:
    if any(_linked(end, given) for end in line.ends[::-1]):
      line.steps.append(step)
      line.ends[1:] = [given]
      return
  lines.append(Line([step], [given]))


def _linked(a, b):
  """Whether two checkpoints have a common origin, or it cannot be told."""
  if _correlation(a.tensors, b.tensors) >= CONTINUED:
    return True
  results = order_tests(a.features, b.features)
  can_find = all(sentences.detectable(results, of) <= thresholds.DETECTABLE
                 for of in ('units', 'values'))
  return not can_find or verdict.familywise_log10_p(results) <= math.log10(thresholds.ALPHA)


def _correlation(a, b):
  """That of the entries of equal places, in the typical matrix."""
  samples = [(a[name].sample, b[name].sample) for name in matrices(a)]
  found = [np.corrcoef(*both)[0, 1] for both in samples if min(map(np.ptp, both)) > 0]
  return np.median(found) if found else 0.0
