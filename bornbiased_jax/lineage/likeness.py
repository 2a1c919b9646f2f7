"""How alike the hidden features of two networks are, from their vectors (`.features`).

Vectors of which two can change sign together are compared by the product of their cosines.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.hosts import on_host
from bornbiased_jax.lineage.features import UNITS


def likeness_of(group: tuple[str, ...]) -> Callable:
  """What compares the features of a group, UNITS or VALUES."""
  return unit_likeness if group is UNITS else value_likeness


def unit_likeness(a: dict, b: dict) -> np.ndarray:
  """Likeness [U, U] of all units of a layer of one network with all of another's, 1 if equal.

  An activation is not odd, so what it reads keeps its sign. Up and down of a gated
  unit can change theirs together.
  """
  cosine = {name: a[name] @ b[name].T for name in a}
  if 'gate' in cosine:
    return (cosine['gate'] + cosine['up'] * cosine['down']) / 2
  return (cosine['up'] + cosine['down']) / 2


def value_likeness(a: dict, b: dict) -> np.ndarray:
  """Likeness [K, K] of the value channels, mean over heads of equal number."""
  cosine = {name: a[name] @ np.swapaxes(b[name], 1, 2) for name in a}
  return (cosine['value'] * cosine['output']).mean(axis=0)


def common_names(a: dict, b: dict, names: Sequence[str], what: str) -> list[str]:
  """Which of `names` two networks have, of features called `what`.

  Raises:
    InputError: a network has no such features, only one has a gate, or widths differ.
  """
  if names[-1] not in a or names[-1] not in b:
    raise InputError(f'a network has no {what}')
  if a.keys() & set(names) != b.keys() & set(names):
    raise InputError('only one of them has gated units')
  names = [name for name in names if name in a]
  if any(a[name].shape[-1] != b[name].shape[-1] for name in names):
    raise InputError('they differ in width or in heads per group')
  return names


def layers_of(a: dict, b: dict, names: list[str]) -> Iterable[tuple[dict, dict]]:
  """Layers to compare: each with its own, or all with all if their numbers differ."""
  L, M = len(a[names[0]]), len(b[names[0]])
  pairs = zip(range(L), range(L), strict=True) if L == M else np.ndindex(L, M)
  a, b = ({name: on_host(each[name]) for name in names} for each in (a, b))
  for i, j in pairs:
    yield {name: x[i] for name, x in a.items()}, {name: x[j] for name, x in b.items()}


def living(a: dict, b: dict, names: list[str]) -> list[dict]:
  """Both networks without layers that are dead, and without units that are dead in a layer.

  Raises:
    InputError: a network has no living layer, or fewer than two living units.
  """
  alive = [np.all([np.any(on_host(x[name]), axis=-1) for name in names], axis=0) for x in (a, b)]
  kept = [alive_LU.any(axis=1) for alive_LU in alive]
  if len(a[names[0]]) == len(b[names[0]]):
    kept = [kept[0] & kept[1]] * 2
  units = [alive_LU[kept_L].all(axis=0) for alive_LU, kept_L in zip(alive, kept, strict=True)]
  if len(units[0]) == len(units[1]):
    units = [units[0] & units[1]] * 2
  if not min(each.sum() for each in kept) or min(each.sum() for each in units) < 2:
    raise InputError('a network has too few living MLP units')
  return [{name: on_host(x[name])[kept_L][:, unit_U] for name in names}
          for x, kept_L, unit_U in zip((a, b), kept, units, strict=True)]


def mean_of(matrices: Iterable[np.ndarray]) -> np.ndarray:
  """The mean of matrices, of which but one is held at a time."""
  total: np.ndarray = np.zeros(())
  count = 0
  for count, matrix in enumerate(matrices, 1):  # noqa: B007
    total = total + matrix
  return total / count
