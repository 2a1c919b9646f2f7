"""Checkpoints of one origin as a path in weight space: which of them are not where they belong.

Of three checkpoints on a path the first and the last are the farthest apart, in every matrix.
"""

from collections.abc import Iterable
import itertools
from typing import NamedTuple

import numpy as np

from bornbiased_jax.lineage.evidence.tensors import Tensor

Tensors = dict[str, Tensor]
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
    'order': '{Steps} are in the wrong order: with each in the place of the other, the way through '
             'all steps is shorter.',
    'off the path': '{Steps} is {value:.1f} times farther from the steps before and after than '
                    'these are from each other.',
    'from elsewhere': '{Where} of {steps} is not of this place in the history: it lies {value:.1f} '
                      'times as far away as the steps around it do from each other.',
}


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


class Path(NamedTuple):
  """The way of some matrices through weight space.

  far_PNN is the distance of each matrix between two steps, relative to its norm.
  """

  steps: list[int]
  names: list[str]
  far_PNN: np.ndarray


def path_of(history: dict[int, Tensors]) -> Path:
  """That of all matrices."""
  first, *_ = history.values()
  names = [name for name, each in first.items() if len(each.shape) > 1]
  x_PNS = np.array([[own[name].sample for own in history.values()] for name in names], np.float64)
  norm_PN = np.linalg.norm(x_PNS, axis=2)
  gram_PNN = x_PNS @ x_PNS.swapaxes(1, 2)
  square_PNN = norm_PN[:, :, None]**2 + norm_PN[:, None]**2 - 2 * gram_PNN
  scale = np.maximum(norm_PN.max(axis=1), 1e-30)[:, None, None]
  return Path(list(history), names, np.sqrt(np.maximum(square_PNN / scale**2, 0)))


def from_previous(history: dict[int, Tensors]) -> dict[int, float | None]:
  """The distance of each step to the one before, in the typical matrix."""
  typical_NN = np.median(path_of(history).far_PNN, axis=0)
  return dict(zip(history, [None, *np.diagonal(typical_NN, 1).tolist()], strict=True))


def off_path(history: dict[int, Tensors]) -> list[dict]:
  """What is wrong with the path of different checkpoints."""
  if not history:
    return []
  path = path_of(history)
  digests = {name: [own[name].digest for own in history.values()] for name in path.names}
  found = partial_repeats(path, digests)
  # What has a fault already, and what does not move, has no place on a path.
  repeated = {name for each in found for name in each['tensors']}
  moves = [p for p, name in enumerate(path.names)
           if len(set(digests[name])) > 1 and name not in repeated]
  if not moves:
    return found
  path = path._replace(names=[path.names[p] for p in moves],
                       far_PNN=np.maximum(path.far_PNN[moves], UNIT))
  return found + (out_of_order(path) or from_elsewhere(path))


def partial_repeats(path: Path, digests: dict[str, list[str]]) -> list[dict]:
  """Matrices that are the same in several steps, where not all are."""
  groups: dict[tuple, list[str]] = {}
  for p, name in enumerate(path.names):
    for same in equal(dict(enumerate(digests[name]))):
      if _is_repeat(path, p, same):
        groups.setdefault(tuple(path.steps[i] for i in same), []).append(name)
  return [finding('repeat in part', list(steps), names) for steps, names in groups.items()]


def equal(digests: dict[int, str]) -> list[list[int]]:
  """The steps, or their places, whose digest others have too, by digest."""
  groups = [[step for step, each in digests.items() if each == digest]
            for digest in dict.fromkeys(digests.values())]
  return [steps for steps in groups if len(steps) > 1]


def _is_repeat(path, p, same):
  """Whether training cannot have left a matrix as it was in the steps in which it is same."""
  first, last = same[0], same[-1]
  if last - first >= len(same):  # It changed between them, and came back.
    return bool(path.far_PNN[p, first, first:last].max() > MOVED)
  if first == 0 or last == len(path.steps) - 1:  # Frozen at first, or in the end.
    return False
  others = np.delete(path.far_PNN[:, first, last], p)
  return bool(np.median(others) > MOVED) if len(others) else False


def out_of_order(path: Path) -> list[dict]:
  """The two steps that look exchanged in the typical matrix, if any do."""
  size_PNN = np.median(path.far_PNN, axis=(1, 2), keepdims=True)
  typical_NN = np.median(path.far_PNN / size_PNN, axis=0)
  exchange = shortening_exchange(typical_NN)
  if exchange is None or exchange_ratio(typical_NN) <= EXCHANGED:
    return []
  return [finding('order', [path.steps[i] for i in exchange])]


def from_elsewhere(path: Path) -> list[dict]:
  """Matrices, or whole checkpoints, that leave the path and come back to it."""
  found = []
  for t, step in list(enumerate(path.steps))[1:-1]:
    detour_P = detours(path.far_PNN, t)
    typical = np.median(detour_P)
    is_odd_P = (detour_P > ELSEWHERE) & (detour_P > ELSEWHERE * typical)
    if typical > OFF_PATH:
      found.append(finding('off the path', [step], value=typical))
    elif is_odd_P.any():
      names = list(itertools.compress(path.names, is_odd_P))
      found.append(finding('from elsewhere', [step], names, value=detour_P.max()))
  return found


def exchange_ratio(far_NN: np.ndarray) -> float:
  """By which factor two steps i < j look exchanged, at most.

  It is min(max_s d(s, i) / d(s, j), max_u d(j, u) / d(i, u)) over steps s < i and u > j.
  """
  largest = 0.0
  for i, j in itertools.combinations(range(1, len(far_NN) - 1), 2):
    before, after = far_NN[:i], far_NN[:, j + 1:]
    ratio = min((before[:, i] / before[:, j]).max(), (after[j] / after[i]).max())
    largest = max(largest, float(ratio))
  return largest


def shortening_exchange(far_NN: np.ndarray) -> tuple[int, int] | None:
  """The two steps whose exchange makes the way through all steps shortest, if any does."""
  order = np.arange(len(far_NN))
  lengths: dict[tuple[int, int] | None, float] = {None: far_NN[order[:-1], order[1:]].sum()}
  for i, j in itertools.combinations(order, 2):
    other = order.copy()
    other[[i, j]] = j, i
    lengths[i, j] = far_NN[other[:-1], other[1:]].sum()
  return min(lengths, key=lengths.__getitem__)


def detours(far_PNN: np.ndarray, t: int) -> np.ndarray:
  """For each matrix, how much farther step t is from steps around it than these from each other."""
  around = [(t - k, t + k) for k in (1, 2) if t >= k and t + k < far_PNN.shape[1]]
  return np.min([np.minimum(far_PNN[:, s, t], far_PNN[:, t, u]) / far_PNN[:, s, u]
                 for s, u in around], axis=0)
