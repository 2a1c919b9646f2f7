"""Checkpoints of one origin as a path in weight space: which of them are not where they belong.

Of three checkpoints on a path the first and the last are the farthest apart, in every matrix.
"""

from collections.abc import Iterable, Iterator
import itertools

import jax.numpy as jnp
import numpy as np

from .history import Checkpoint

# Weights are one network's if their typical tensor correlates so.
CONTINUED = 0.5
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


# What the value of a finding is.
_MEASURES = {'repeat': 'digest', 'repeat in part': 'tensors', 'unchanged': 'tensors',
             'other origin': 'likeness', 'order in part': 'tensors'}


def finding(kind: str, steps: list[int], what: str, where: Iterable[str] = (),
            value: float | str | None = None, p_value: float | None = None,
            is_fault: bool = True) -> dict:
  """A row: `what` is a sentence, `where` are names of tensors; it is a note if it is no fault."""
  return {'kind': kind, 'steps': steps, 'where': places(where), 'what': what, 'value': value,
          'measure': _MEASURES.get(kind, 'distance ratio'), 'p_value': p_value,
          'is_fault': is_fault, 'tensors': list(where)}


def places(names: Iterable[str]) -> str:
  """The parts of a model that tensors are of: 'layer 3, embedding'."""
  return ', '.join(dict.fromkeys(name.partition('/')[0] for name in names))


def steps_text(steps: list[int]) -> str:
  """
  >>> steps_text([4]), steps_text([4, 8]), steps_text([0, 4, 8, 9])
  ('step 4', 'steps 4 and 8', 'steps 0, 4, 8, 9')
  """
  if len(steps) == 1:
    return f'step {steps[0]}'
  joint = ' and ' if len(steps) == 2 else ', '
  return f'steps {joint.join(map(str, steps))}'


def correlation(a: Checkpoint, b: Checkpoint) -> float:
  """That of the entries of equal places, in the typical matrix."""
  names = [name for name, each in a.tensors.items() if len(each.shape) > 1
           and name in b.tensors and np.ptp(each.sample) > 0 and np.ptp(b.tensors[name].sample) > 0]
  return float(np.median([np.corrcoef(a.tensors[name].sample, b.tensors[name].sample)[0, 1]
                          for name in names])) if names else 0.0


class Trajectory:
  """Checkpoints of one origin, each different from the others, as a path in weight space.

  `findings` puts `steps` in the order that is found. `places` has for each step the distances to
  the first one and to the one before, relative to the norm.
  """

  def __init__(self, history: dict[int, Checkpoint]):
    self.steps = list(history)
    first = history[self.steps[0]]
    self.names = [name for name, each in first.tensors.items() if len(each.shape) > 1]
    self.digests = [[history[step].tensors[name].digest for step in self.steps]
                    for name in self.names]
    x_PNS = np.array([[history[step].tensors[name].sample for step in self.steps]
                      for name in self.names], np.float64)
    self.unit_N = np.array([_unit(x_PNS[:, i]) for i in range(len(self.steps))])
    norm_PN = np.linalg.norm(x_PNS, axis=2)
    gram_PNN = x_PNS @ x_PNS.swapaxes(1, 2)
    square_PNN = norm_PN[:, :, None]**2 + norm_PN[:, None]**2 - 2 * gram_PNN
    scale = np.maximum(norm_PN.max(axis=1), 1e-30)[:, None, None]
    # What rounding hides is no distance.
    unit_NN = np.maximum(self.unit_N[:, None], self.unit_N)
    self.far_PNN = np.sqrt(np.maximum(square_PNN / scale**2, unit_NN**2))
    typical = np.median(self.far_PNN, axis=0)
    self.places = {step: {'from_first': float(typical[0, i]),
                          'from_previous': float(typical[i - 1, i]) if i else None}
                   for i, step in enumerate(self.steps)}

  def findings(self) -> list[dict]:
    """What is wrong with the path, and notes."""
    if len(self.steps) < 2:
      return []
    found = list(self.partial_repeats())
    # What has a fault already, and what does not move, has no place on a path.
    repeated = {name for each in found if each['is_fault'] for name in each['tensors']}
    moves = [len(set(each)) > 1 and name not in repeated
             for name, each in zip(self.names, self.digests, strict=True)]
    if not any(moves):
      return found
    self._choose(np.flatnonzero(moves), range(len(self.steps)))
    found += self.exchanges()
    return found + self.partial_exchange() + self.from_elsewhere()

  def _choose(self, tensors, order):
    self.steps = [self.steps[i] for i in order]
    self.names = [self.names[p] for p in tensors]
    self.digests = [[self.digests[p][i] for i in order] for p in tensors]
    self.far_PNN = self.far_PNN[np.ix_(tensors, order, order)]

  def partial_repeats(self) -> Iterator[dict]:
    """Matrices that are the same in several steps, where not all are."""
    groups: dict[tuple, list[str]] = {}
    for p, of_step in enumerate(self.digests):
      for digest in dict.fromkeys(of_step):
        same = [i for i, each in enumerate(of_step) if each == digest]
        if len(same) > 1:
          groups.setdefault((tuple(same), self._is_fault(p, same)), []).append(self.names[p])
    for (same, is_fault), names in groups.items():
      steps = [self.steps[i] for i in same]
      what = (f'{places(names)} of {steps_text(steps)}: the same numbers, while other tensors '
              'went on' if is_fault else
              f'{places(names)}: unchanged from step {steps[0]} to step {steps[-1]}')
      yield finding('repeat in part' if is_fault else 'unchanged', steps,
                    f'{what[0].upper()}{what[1:]}.', names, len(names), is_fault=is_fault)

  def _is_fault(self, p, same):
    """Whether training cannot have left a matrix as it was in the steps in which it is same."""
    moved = ROUNDING * self.unit_N[same].max()
    if same[-1] - same[0] >= len(same):  # It changed between them, and came back.
      return bool(self.far_PNN[p, same[0], same[0]:same[-1]].max() > moved)
    if same[0] == 0 or same[-1] == len(self.steps) - 1:  # Frozen at first, or in the end.
      return False
    others = np.delete(self.far_PNN[:, same[0], same[-1]], p)
    return bool(np.median(others) > moved) if len(others) else False

  def exchanges(self) -> list[dict]:
    """Steps that change places to make the history a path; they are, for what follows."""
    order, claimed, largest = list(range(len(self.steps))), self.steps, 0.0
    typical_NN = np.median(self.far_PNN / np.median(self.far_PNN, axis=(1, 2), keepdims=True),
                           axis=0)
    for _ in claimed:
      now_NN = typical_NN[np.ix_(order, order)]
      ratio_NN = exchange_ratios(now_NN[None])[0]
      if ratio_NN.max() <= EXCHANGED:
        break
      worst = np.unravel_index(ratio_NN.argmax(), ratio_NN.shape)
      i, j = shortening_exchange(now_NN) or worst
      order[i], order[j], largest = order[j], order[i], max(largest, float(ratio_NN.max()))
    if not largest:
      return []
    self._choose(range(len(self.names)), order)
    moved = [step for step, now in zip(claimed, self.steps, strict=True) if step != now]
    return [finding('order', moved, value=largest, what=(
        f'{steps_text(moved).capitalize()} are in the wrong order. One is {largest:.2f} times '
        'farther from a step before than the next one, and nearer to a step after. The order '
        f'{", ".join(map(str, self.steps))} would be a path.'))]

  def partial_exchange(self) -> list[dict]:
    """The two steps that look exchanged in most matrices, where most matrices are in order."""
    is_odd_PNN = exchange_ratios(self.far_PNN) > EXCHANGED
    count_NN = is_odd_PNN.sum(axis=0)
    i, j = np.unravel_index(count_NN.argmax(), count_NN.shape)
    if count_NN[i, j] < LEAST_EXCHANGED:
      return []
    names = [name for name, is_odd in zip(self.names, is_odd_PNN[:, i, j], strict=True) if is_odd]
    steps = [self.steps[i], self.steps[j]]
    return [finding('order in part', sorted(steps), where=names, value=len(names), what=(
        f'{steps_text(steps).capitalize()} look exchanged in {len(names)} of {len(self.names)} '
        f'matrices ({places(names)}): one of these steps has them from another step.'))]

  def from_elsewhere(self) -> list[dict]:
    """Matrices, or whole checkpoints, that leave the path and come back to it."""
    found = []
    for t in range(1, len(self.steps) - 1):
      detour_P = detours(self.far_PNN, t)
      typical = float(np.median(detour_P))
      if typical > OFF_PATH:
        found.append(finding('off the path', [self.steps[t]], value=typical, what=(
            f'Step {self.steps[t]} is {typical:.1f} times farther from the steps before and after '
            'than these are from each other.')))
        continue
      is_odd_P = (detour_P > ELSEWHERE) & (detour_P > ELSEWHERE * typical)
      if is_odd_P.any():
        found.append(self._odd(t, is_odd_P, float(detour_P[is_odd_P].max())))
    return found

  def _odd(self, t, is_odd_P, value):
    names = [name for name, is_odd in zip(self.names, is_odd_P, strict=True) if is_odd]
    where = places(names)
    return finding('from elsewhere', [self.steps[t]], where=names, value=value, what=(
        f'{where[0].upper()}{where[1:]} of step {self.steps[t]} is not of this place in the '
        f'history: it lies {value:.1f} times as far away as the steps around it do '
        'from each other.'))


def _unit(x):
  """That of the coarsest type which holds all these numbers."""
  return max(unit for dtype, unit in _UNITS.items()
             if dtype is np.float32 or np.array_equal(x, x.astype(dtype)))


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
