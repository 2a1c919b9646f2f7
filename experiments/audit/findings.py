"""What may be wrong with a history of checkpoints.

Repeats are told by digests, a common origin by the tests of the lineage verdict, and places in the
history by distances between the entries that are kept of each matrix: checkpoints of one origin are
a path in weight space. Of three of them the first and the last are the farthest apart.
"""

from collections.abc import Callable, Iterable, Iterator
import itertools
import math
from typing import NamedTuple

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import sentences, thresholds, verdict
from bornbiased_jax.lineage.comparison.order import order_tests
from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.evidence.tensors import Taker, TensorSample, digest_of
from bornbiased_jax.storage.huggingface.tensors import is_finite
from bornbiased_jax.storage.layers import Layers

Tensors = dict[str, TensorSample]
# Weights are one network's if their typical tensor correlates so.
CONTINUED = 0.5
# Two steps are out of order if, by this factor in the typical matrix, the earlier one is farther
# from a step before both and nearer to one after both. Sound histories have at most 1.
EXCHANGED = 1.1
# A matrix is from elsewhere if it is so many times farther from the steps before and after than
# these are from each other, and than the typical matrix is. Sound histories have at most 0.8.
ELSEWHERE = 1.5
# The same of a whole checkpoint. An average at the end of a history may have 2.
OFF_PATH = 2.0
# What rounding to bfloat16 hides is no distance, whatever type the weights have.
UNIT = 2**-9
# An exact repeat cannot be rounding if other matrices moved by this.
MOVED = 4 * UNIT

SENTENCES = {
    'unreadable': '{error}',
    'other architecture': '{Steps} has tensors of other names or shapes.',
    'repeat': '{Steps} have the same weights in every tensor. They are one checkpoint, unless the '
              'learning rate was 0 between them.',
    'repeat in part': '{Where} of {steps}: the same numbers, while other tensors went on.',
    'other origin': '{Steps}: of another origin than {others}. No test finds descent, and those of '
                    'units and of values could have found it.',
    'order': '{Steps} look exchanged: the way through all steps is shorter with each in the place '
             'of the other, and three steps contradict their order by a factor of {value:.2f}.',
    'off the path': '{Steps} is {value:.1f} times farther from the steps before and after than '
                    'these are from each other.',
    'from elsewhere': '{Where} of {steps} is not of this place in the history: it lies {value:.1f} '
                      'times as far away as the steps around it do from each other.',
}


class Checkpoint(NamedTuple):
  """Digest, shape and 1,024 entries of each tensor, and the features that tests compare."""

  tensors: dict[str, TensorSample]
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


def finding(kind: str, steps: list[int], names: Iterable[str] = (), **said) -> dict:
  """A row with the sentence of its kind; `names` are of tensors."""
  # The parts of a model that the tensors are of: 'layer 3, embedding'.
  where = ', '.join(dict.fromkeys(name.partition('/')[0] for name in names))
  text = listed(steps)
  what = SENTENCES[kind].format(steps=text, Steps=text.capitalize(), where=where,
                                Where=where.capitalize(), **said)
  return {'kind': kind, 'steps': steps, 'where': where, 'what': what, 'tensors': list(names)}


def listed(steps: list[int]) -> str:
  """Steps in words."""
  return f'step{"s" * (len(steps) > 1)} {", ".join(map(str, steps))}'


def matrices(tensors: Tensors) -> list[str]:
  """Their names."""
  return [name for name, each in tensors.items() if len(each.shape) > 1]


def distances(history: dict[int, Tensors], names: list[str]) -> np.ndarray:
  """The distance of each matrix between two steps, relative to its norm [P, N, N]."""
  x_PNS = np.array([[own[name].sample for own in history.values()] for name in names], np.float64)
  norm_PN = np.linalg.norm(x_PNS, axis=2)
  gram_PNN = x_PNS @ x_PNS.swapaxes(1, 2)
  square_PNN = norm_PN[:, :, None]**2 + norm_PN[:, None]**2 - 2 * gram_PNN
  scale = np.maximum(norm_PN.max(axis=1), 1e-30)[:, None, None]
  return np.sqrt(np.maximum(square_PNN / scale**2, 0))


def from_previous(history: dict[int, Tensors]) -> dict[int, float | None]:
  """The distance of each step to the one before, in the typical matrix."""
  first, *_ = history.values()
  typical_NN = np.median(distances(history, matrices(first)), axis=0)
  return dict(zip(history, [None, *np.diagonal(typical_NN, 1).tolist()], strict=True))


def off_path(history: dict[int, Tensors]) -> list[dict]:
  """What is wrong with the path of different checkpoints."""
  steps, (first, *_) = list(history), history.values()
  digests = {name: {step: own[name].digest for step, own in history.items()}
             for name in matrices(first)}
  found = partial_repeats(digests, distances(history, list(digests)))
  # What has a fault already, and what does not move, has no place on a path.
  repeated = {name for each in found for name in each['tensors']}
  moving = [name for name, own in digests.items()
            if len(set(own.values())) > 1 and name not in repeated]
  if not moving:
    return found
  far_PNN = np.maximum(distances(history, moving), UNIT)
  return found + (out_of_order(steps, far_PNN) or from_elsewhere(steps, moving, far_PNN))


def partial_repeats(digests: dict[str, dict[int, str]], far_PNN: np.ndarray) -> list[dict]:
  """Matrices that are the same in several steps, where not all are."""
  groups: dict[tuple, list[str]] = {}
  for p, (name, own) in enumerate(digests.items()):
    for same in equal(own):
      if _is_repeat([list(own).index(step) for step in same], p, far_PNN):
        groups.setdefault(tuple(same), []).append(name)
  return [finding('repeat in part', list(steps), names) for steps, names in groups.items()]


def equal(digests: dict[int, str]) -> list[list[int]]:
  """The steps, or their places, whose digest others have too, by digest."""
  groups = [[step for step, each in digests.items() if each == digest]
            for digest in dict.fromkeys(digests.values())]
  return [steps for steps in groups if len(steps) > 1]


def _is_repeat(same, p, far_PNN):
  """Whether training cannot have left matrix p as it was at the places in which it is same."""
  first, last = same[0], same[-1]
  if last - first >= len(same):  # It changed between them, and came back.
    return far_PNN[p, first, first:last].max() > MOVED
  # It may be frozen at first, or in the end.
  others = np.delete(far_PNN[:, first, last], p)
  return 0 < first and last < len(far_PNN[p]) - 1 and np.median(others) > MOVED


def out_of_order(steps: list[int], far_PNN: np.ndarray) -> list[dict]:
  """The two steps that look most exchanged, in the typical matrix."""
  size_PNN = np.median(far_PNN, axis=(1, 2), keepdims=True)
  ratio, i, j = best_exchange(np.median(far_PNN / size_PNN, axis=0))
  if ratio <= EXCHANGED or i == j:
    return []
  return [finding('order', [steps[i], steps[j]], value=ratio)]


def from_elsewhere(steps: list[int], names: list[str], far_PNN: np.ndarray) -> list[dict]:
  """Matrices, or whole checkpoints, that leave the path and come back to it."""
  found = []
  for t, step in list(enumerate(steps))[1:-1]:
    detour_P = detours(far_PNN, t)
    typical = np.median(detour_P)
    is_odd_P = (detour_P > ELSEWHERE) & (detour_P > ELSEWHERE * typical)
    if typical > OFF_PATH:
      found.append(finding('off the path', [step], value=typical))
    elif is_odd_P.any():
      odd = list(itertools.compress(names, is_odd_P))
      found.append(finding('from elsewhere', [step], odd, value=detour_P.max()))
  return found


def best_exchange(far_NN: np.ndarray) -> tuple[float, int, int]:
  """By which factor steps look exchanged, and the exchange that makes the way through all shortest.

  The factor is the largest min(max_s d(s, i) / d(s, j), max_u d(j, u) / d(i, u)) of steps
  s < i < j < u. If no exchange shortens the way, it is that of a step with itself.
  """
  ratios, lengths, order = [0.0], {}, np.arange(len(far_NN))
  for i, j in itertools.combinations_with_replacement(order, 2):
    if 0 < i and j < order[-1]:
      before, after = far_NN[:i], far_NN[:, j + 1:]
      ratios.append(min((before[:, i] / before[:, j]).max(), (after[j] / after[i]).max()))
    exchanged = order.copy()
    exchanged[[i, j]] = j, i
    lengths[i, j] = far_NN[exchanged[:-1], exchanged[1:]].sum()
  return max(ratios), *min(lengths, key=lengths.__getitem__)


def detours(far_PNN: np.ndarray, t: int) -> np.ndarray:
  """For each matrix, how much farther step t is from steps around it than these from each other."""
  around = [(t - k, t + k) for k in (1, 2) if t >= k and t + k < far_PNN.shape[1]]
  return np.min([np.minimum(far_PNN[:, s, t], far_PNN[:, t, u]) / far_PNN[:, s, u]
                 for s, u in around], axis=0)
