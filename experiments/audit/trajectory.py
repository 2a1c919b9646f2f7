"""Checkpoints of one origin as a path in weight space: which of them are not where they belong.

Of three checkpoints on a path the first and the last are the farthest apart, in every matrix.
"""

from collections.abc import Iterable
import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bornbiased_jax.lineage.evidence.tensors import Tensor

Tensors = dict[str, Tensor]
# Two steps are out of order if, by this factor in the typical matrix, the earlier one is farther
# from a step before both and nearer to one after both. Sound histories have at most 1.
EXCHANGED = 1.1
# So many matrices at least must look exchanged where the others do not.
LEAST_EXCHANGED = 2
# A matrix is from elsewhere if it is so many times farther from the steps before and after than
# these are from each other, and than the typical matrix is. Sound histories have at most 0.8.
ELSEWHERE = 1.5
# The same of a whole checkpoint. An average at the end of a history may have 2.
OFF_PATH = 2.0
# An exact repeat cannot be rounding if other matrices moved by so many units of their type.
ROUNDING = 4
_UNITS = {jnp.bfloat16: 2**-9, np.float16: 2**-12, np.float32: 2**-25}

SENTENCES = {
    'unreadable': '{error}',
    'other architecture': '{Steps} has tensors of other names or shapes.',
    'repeat': '{Steps} have the same weights in every tensor. They are one checkpoint, unless the '
              'learning rate was 0 between them.',
    'repeat in part': '{Where} of {steps}: the same numbers, while other tensors went on.',
    'unchanged': '{Where}: unchanged from step {first} to step {last}.',
    'other origin': '{Steps}: of another origin than {others}. No test finds descent, and those of '
                    'units and of values could have found it.',
    'order': '{Steps} are in the wrong order. One is {value:.2f} times farther from a step before '
             'than the next one, and nearer to a step after. The order {order} would be a path.',
    'order in part': '{Steps} look exchanged in {value} of {count} matrices ({where}): one of '
                     'these steps has them from another step.',
    'off the path': '{Steps} is {value:.1f} times farther from the steps before and after than '
                    'these are from each other.',
    'from elsewhere': '{Where} of {steps} is not of this place in the history: it lies {value:.1f} '
                      'times as far away as the steps around it do from each other.',
}
# What the value of a finding is.
_MEASURES = {'repeat': 'digest', 'repeat in part': 'tensors', 'unchanged': 'tensors',
             'other origin': 'likeness', 'order in part': 'tensors'}


def finding(kind: str, steps: list[int], value: float | str | None = None,
            names: Iterable[str] = (), p_value: float | None = None, is_fault: bool = True,
            **said) -> dict:
  """A row with the sentence of its kind; `names` are of tensors. What is no fault is a note."""
  # The parts of a model that the tensors are of: 'layer 3, embedding'.
  where = ', '.join(dict.fromkeys(name.partition('/')[0] for name in names))
  text = listed(steps)
  what = SENTENCES[kind].format(steps=text, Steps=text.capitalize(), where=where,
                                Where=where.capitalize(), value=value, first=steps[0],
                                last=steps[-1], **said)
  return {'kind': kind if is_fault else 'unchanged', 'steps': sorted(steps), 'where': where,
          'what': what, 'value': value, 'measure': _MEASURES.get(kind, 'distance ratio'),
          'p_value': p_value, 'is_fault': is_fault, 'tensors': list(names)}


def listed(steps: list[int]) -> str:
  """
  >>> listed([4]), listed([4, 8]), listed([0, 4, 8, 9])
  ('step 4', 'steps 4 and 8', 'steps 0, 4, 8, 9')
  """
  joint = ' and ' if len(steps) == 2 else ', '
  return f'step{"s" * (len(steps) > 1)} {joint.join(map(str, steps))}'


class Path(NamedTuple):
  """The way of some matrices through weight space.

  far_PNN is the distance of each matrix between two steps, relative to its norm; unit_N is how
  coarse the numbers of a step are.
  """

  steps: list[int]
  names: list[str]
  far_PNN: np.ndarray
  unit_N: np.ndarray


def path_of(history: dict[int, Tensors]) -> Path:
  """That of all matrices."""
  first, *_ = history.values()
  names = [name for name, each in first.items() if len(each.shape) > 1]
  x_PNS = np.array([[own[name].sample for own in history.values()] for name in names], np.float64)
  unit_N = np.array([_unit(x_PNS[:, i]) for i in range(len(history))])
  norm_PN = np.linalg.norm(x_PNS, axis=2)
  gram_PNN = x_PNS @ x_PNS.swapaxes(1, 2)
  square_PNN = norm_PN[:, :, None]**2 + norm_PN[:, None]**2 - 2 * gram_PNN
  scale = np.maximum(norm_PN.max(axis=1), 1e-30)[:, None, None]
  # What rounding hides is no distance.
  unit_NN = np.maximum(unit_N[:, None], unit_N)
  far_PNN = np.sqrt(np.maximum(square_PNN / scale**2, unit_NN**2))
  return Path(list(history), names, far_PNN, unit_N)


def _unit(x):
  """That of the coarsest type which holds all these numbers."""
  return max(unit for dtype, unit in _UNITS.items()
             if dtype is np.float32 or np.array_equal(x, x.astype(dtype)))


def distances(history: dict[int, Tensors]) -> list[dict]:
  """Those of each step to the first one and to the one before, in the typical matrix."""
  typical_NN = np.median(path_of(history).far_PNN, axis=0).tolist()
  return [{'from_first': own_N[0], 'from_previous': own_N[i - 1] if i else None}
          for i, own_N in enumerate(typical_NN)]


def off_path(history: dict[int, Tensors]) -> list[dict]:
  """What is wrong with the path of different checkpoints, and notes."""
  if not history:
    return []
  path = path_of(history)
  digests = {name: [own[name].digest for own in history.values()] for name in path.names}
  found = partial_repeats(path, digests)
  # What has a fault already, and what does not move, has no place on a path.
  repeated = {name for each in found if each['is_fault'] for name in each['tensors']}
  moves = [p for p, name in enumerate(path.names)
           if len(set(digests[name])) > 1 and name not in repeated]
  if not moves:
    return found
  path = path._replace(names=[path.names[p] for p in moves], far_PNN=path.far_PNN[moves])
  path, exchanges = in_order(path)
  return found + exchanges + partial_exchange(path) + from_elsewhere(path)


def partial_repeats(path: Path, digests: dict[str, list[str]]) -> list[dict]:
  """Matrices that are the same in several steps, where not all are."""
  groups: dict[tuple, list[str]] = {}
  for p, name in enumerate(path.names):
    for same in equal(dict(enumerate(digests[name]))):
      groups.setdefault((*same, _is_repeat(path, p, same)), []).append(name)
  return [finding('repeat in part' if is_fault else 'unchanged', [path.steps[i] for i in same],
                  len(names), names, is_fault=is_fault)
          for (*same, is_fault), names in groups.items()]


def equal(digests: dict[int, str]) -> list[list[int]]:
  """The steps, or their places, whose digest others have too.

  >>> equal({0: 'a', 4: 'b', 8: 'a', 9: 'c'})
  [[0, 8]]
  """
  groups = [[step for step, each in digests.items() if each == digest]
            for digest in dict.fromkeys(digests.values())]
  return [steps for steps in groups if len(steps) > 1]


def _is_repeat(path, p, same):
  """Whether training cannot have left a matrix as it was in the steps in which it is same."""
  moved, first, last = ROUNDING * path.unit_N[same].max(), same[0], same[-1]
  if last - first >= len(same):  # It changed between them, and came back.
    return bool(path.far_PNN[p, first, first:last].max() > moved)
  if first == 0 or last == len(path.steps) - 1:  # Frozen at first, or in the end.
    return False
  others = np.delete(path.far_PNN[:, first, last], p)
  return bool(np.median(others) > moved) if len(others) else False


def in_order(path: Path) -> tuple[Path, list[dict]]:
  """The path after exchanges of steps that look exchanged, and the finding if there are any."""
  typical_NN = np.median(path.far_PNN / np.median(path.far_PNN, axis=(1, 2), keepdims=True), axis=0)
  order, largest = list(range(len(path.steps))), 0.0
  for _ in path.steps:
    now_NN = typical_NN[np.ix_(order, order)]
    ratio_NN = exchange_ratios(now_NN[None])[0]
    if ratio_NN.max() <= EXCHANGED:
      break
    worst = np.unravel_index(ratio_NN.argmax(), ratio_NN.shape)
    i, j = shortening_exchange(now_NN) or worst
    order[i], order[j], largest = order[j], order[i], max(largest, float(ratio_NN.max()))
  if not largest:
    return path, []
  steps = [path.steps[i] for i in order]
  moved = [step for step, now in zip(path.steps, steps, strict=True) if step != now]
  return path._replace(steps=steps, far_PNN=path.far_PNN[:, order][:, :, order]), [
      finding('order', moved or steps, largest, order=', '.join(map(str, steps)))]


def partial_exchange(path: Path) -> list[dict]:
  """The two steps that look exchanged in most matrices, where most matrices are in order."""
  is_odd_PNN = exchange_ratios(path.far_PNN) > EXCHANGED
  count_NN = is_odd_PNN.sum(axis=0)
  i, j = np.unravel_index(count_NN.argmax(), count_NN.shape)
  if count_NN[i, j] < LEAST_EXCHANGED:
    return []
  names = list(itertools.compress(path.names, is_odd_PNN[:, i, j]))
  return [finding('order in part', [path.steps[i], path.steps[j]], len(names), names,
                  count=len(path.names))]


def from_elsewhere(path: Path) -> list[dict]:
  """Matrices, or whole checkpoints, that leave the path and come back to it."""
  found = []
  for t, step in list(enumerate(path.steps))[1:-1]:
    detour_P = detours(path.far_PNN, t)
    typical, farthest = float(np.median(detour_P)), float(detour_P.max())
    is_odd_P = (detour_P > ELSEWHERE) & (detour_P > ELSEWHERE * typical)
    if typical > OFF_PATH:
      found.append(finding('off the path', [step], typical))
    elif is_odd_P.any():
      names = list(itertools.compress(path.names, is_odd_P))
      found.append(finding('from elsewhere', [step], farthest, names))
  return found


def exchange_ratios(far_PNN: np.ndarray) -> np.ndarray:
  """For each matrix and steps i < j by which factor they look exchanged [P, N, N]; elsewhere 0.

  It is min(max_s d(s, i) / d(s, j), max_u d(j, u) / d(i, u)) over steps s < i and u > j.
  """
  ratio_PNN = np.zeros_like(far_PNN)
  n = far_PNN.shape[1]
  for i, j in itertools.combinations(range(1, n - 1), 2):
    before_P = np.max(far_PNN[:, :i, i] / far_PNN[:, :i, j], axis=1)
    after_P = np.max(far_PNN[:, j, j + 1:] / far_PNN[:, i, j + 1:], axis=1)
    ratio_PNN[:, i, j] = np.minimum(before_P, after_P)
  return ratio_PNN


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
