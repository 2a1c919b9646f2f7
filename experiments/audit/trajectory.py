"""Checkpoints of one origin as a path in weight space: which of them are not where they belong.

Of three checkpoints on a path the first and the last are the farthest apart, in every matrix.
"""

from collections.abc import Iterable
import itertools

import numpy as np

from bornbiased_jax.lineage.evidence.tensors import Tensor

Tensors = dict[str, Tensor]
# Two steps are out of order if, by this factor in the typical matrix, the way to them and from them
# is longer than with each in the place of the other. In order it is at most 1.
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
    'order': '{Steps} are in the wrong order: the way to them and from them is {value:.2f} times '
             'longer than with each in the place of the other.',
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
  ratio, *places = best_exchange(np.median(far_PNN / size_PNN, axis=0))
  if ratio <= EXCHANGED:
    return []
  return [finding('order', [steps[i] for i in places], value=ratio)]


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
  """By which factor the exchange of two steps shortens the way to and from them, and which two.

  Left out are the first two and the last two, as a last step that is an average looks exchanged,
  and the first and the last, which look like their neighbours in a reversed history.
  """
  found, end = [(0.0, 0, 0)], len(far_NN) - 1
  for i, j in itertools.combinations(range(end + 1), 2):
    if (i, j) not in ((0, 1), (end - 1, end), (0, end)):
      exchanged = np.arange(end + 1)
      exchanged[[i, j]] = j, i
      from_S = np.array([s for s in {i - 1, i, j - 1, j} if 0 <= s < end])
      way = far_NN[from_S, from_S + 1].sum()
      other = far_NN[exchanged[from_S], exchanged[from_S + 1]].sum()
      found.append((way / other, i, j))
  return max(found)


def detours(far_PNN: np.ndarray, t: int) -> np.ndarray:
  """For each matrix, how much farther step t is from steps around it than these from each other."""
  around = [(t - k, t + k) for k in (1, 2) if t >= k and t + k < far_PNN.shape[1]]
  return np.min([np.minimum(far_PNN[:, s, t], far_PNN[:, t, u]) / far_PNN[:, s, u]
                 for s, u in around], axis=0)
