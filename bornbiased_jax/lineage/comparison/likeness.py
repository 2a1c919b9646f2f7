"""How alike the hidden features of two models are, in blocks of neighbours."""

from collections.abc import Iterable

import numpy as np

from bornbiased_jax.lineage.comparison.permutation import in_blocks
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.layouts import UNITS

# The features of one layer: gate, up and down [N, B, D], or of E experts [N, B, E, D]; value
# [G, N, B, D] and output [G, N, B, H, D], where H query heads read a value. N counts blocks, of B
# neighbours each.
Blocks = dict[str, np.ndarray]
# What stands before the names if heads do not correspond, so that all are compared with all.
POOLED = 'pooled '


def layers_of(features: Features, group: tuple[str, ...], pooled: bool = False) -> list[Blocks]:
  """The features of a group, UNITS or VALUES, layer by layer; none if the model has no such."""
  arrays = {name: features.arrays[name] for name in group if name in features.arrays}
  in_heads = lambda x: np.stack([in_blocks(head) for head in x])
  split, prefix = in_blocks if group is UNITS else in_heads, POOLED if pooled else ''
  return [{prefix + name: split(x[i].astype(np.float32)) for name, x in arrays.items()}
          for i in range(min(map(len, arrays.values()), default=0))]


def block_shape(layer: Blocks) -> tuple[int, int, int]:
  """How many blocks there are of units, or of channels of a head; B; and D."""
  name, x = next((name, x) for name, x in layer.items() if not name.endswith('output'))
  N, B = x.shape[:2] if name in UNITS else x.shape[-3:-1]
  return N, B, x.shape[-1]


def common_part(a: list[Blocks], b: list[Blocks]) -> tuple[list[Blocks], list[Blocks]]:
  """Both without the last blocks that only one of them has, and the last stored
  heads, unless all are compared with all."""
  count = min(block_shape(layers[0])[0] for layers in (a, b))
  is_unit, is_pooled = 'up' in a[0], POOLED + 'value' in a[0]
  heads = None if is_unit or is_pooled else min(
      len(next(iter(layers[0].values()))) for layers in (a, b))
  cut = lambda x: x[:count] if is_unit else x[:heads, :count]
  first, second = ([{name: cut(x) for name, x in layer.items()} for layer in layers]
                   for layers in (a, b))
  return first, second


def likeness(a: Blocks, b: Blocks) -> np.ndarray:
  """Likeness [N, B, B] of the features of two layers, block by block; 1 if equal.

  Pooled ones are means over all heads of one model with all of the other.
  """
  if POOLED + 'value' in a:
    value = np.einsum('gnbd,encd->genbc', *(x[POOLED + 'value'] for x in (a, b)), optimize=True)
    written = [x[POOLED + 'output'].sum(axis=3) / x[POOLED + 'output'].shape[3]**0.5
               for x in (a, b)]
    return (value * np.einsum('gnbd,encd->genbc', *written, optimize=True)).mean(axis=(0, 1))
  return combine({name: flat(x, name) @ np.swapaxes(flat(b[name], name), -1, -2)
                  for name, x in a.items()})


def flat(x: np.ndarray, name: str) -> np.ndarray:
  """[N, B, …] with all blocks in one axis, and all that belongs to a feature in another."""
  shape = x.shape if name in UNITS else (x.shape[0] * x.shape[1], *x.shape[2:])
  return x.reshape(*shape[:2], -1)


def combine(cosine: dict[str, np.ndarray]) -> np.ndarray:
  """Likeness of features from the cosines of their vectors; an inner product of something.

  Vectors that can change their signs together, two by two, are compared by the product of their
  cosines. An activation is not odd, so what it reads keeps its sign.
  """
  if 'value' in cosine:
    return cosine['value'] * cosine['output']
  if 'gate' in cosine:
    return (cosine['gate'] + cosine['up'] * cosine['down']) / 2
  return (cosine['up'] + cosine['down']) / 2


def mean_of(matrices: Iterable[np.ndarray]) -> np.ndarray:
  """The mean of matrices; one of them is held at a time."""
  total: np.ndarray = np.zeros(())
  count = 0
  for count, matrix in enumerate(matrices, 1):  # noqa: B007
    total = total + matrix
  return total / count
