"""How alike the hidden features of two models are, in blocks, and which of their layers correspond.

Layers may have been dropped, moved, repeated or taken from several models. What corresponds is
found by numbers that no exchange of features can change, and no rotation of the residual stream:
the singular values of products of a layer's features, and the cosine between the vectors that a
feature reads and writes. A layer and its descendant have almost the same; independent layers
differ by chance. As the order of features has no part in the choice, tests of that order need no
correction for it.
"""

from collections.abc import Iterable
import itertools

import numpy as np
import scipy

from bornbiased_jax.lineage.comparison.permutation import in_blocks
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.layouts import UNITS

# The features of one layer: gate, up and down [N, B, D], or of E experts [N, B, E, D]; value
# [G, N, B, D] and output [G, N, B, H, D], where H query heads read a value. N counts blocks, of B
# neighbours each.
Blocks = dict[str, np.ndarray]
# What stands before the names if heads do not correspond, so that all are compared with all.
POOLED = 'pooled '
# Spectra are described by their first modes, as so many quantiles have them: each mode has
# fluctuations of its own.
_QUANTILES, _MODES = (np.arange(64) + 0.5) / 64, 8
# Two layers correspond for sure if all others are so many times as far from each of them.
SURE_RATIO = 2.0


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


def layer_spectra(layers: list[Blocks]) -> np.ndarray:
  """What exchanging features, or turning the stream, cannot change of each layer, [L, numbers]."""
  modes = lambda x: scipy.fft.dct(np.quantile(x, _QUANTILES), norm='ortho')[:_MODES]
  return np.stack([np.concatenate([modes(x) for x in _spectra(layer)]) for layer in layers])


def _spectra(layer):
  """For each two kinds of vectors the singular values of all their products, and their cosines."""
  # Of a value that several query heads read, the vectors that these write are taken together.
  rows = {name: (x.sum(axis=-2) if name.endswith('output') else x) for name, x in layer.items()}
  rows = {name: x.reshape(-1, x.shape[-1]) for name, x in rows.items()}
  small = {name: _root(x) for name, x in rows.items()}
  for a, b in itertools.combinations_with_replacement(rows, 2):
    product = small[a] @ small[b].T
    if a == b:
      yield np.linalg.eigvalsh(product)[::-1]
    else:
      # In a quarter of the time of an SVD. What is lost is far below the quantiles' fluctuations.
      yield np.sqrt(np.maximum(np.linalg.eigvalsh(product.T @ product)[::-1], 0))
      cosine = np.sum(rows[a] * rows[b], axis=-1)
      # What a unit writes and reads may change its sign, but for the gate.
      yield np.abs(cosine) if a == 'gate' else cosine


def _root(x_ND):
  """R of D rows at most with Rᵀ R = Xᵀ X, and a little more along all axes, so that it exists."""
  if len(x_ND) <= x_ND.shape[1]:
    return x_ND
  gram_DD = x_ND.T @ x_ND
  gram_DD += 1e-6 * max(1, gram_DD.trace()) * np.eye(len(gram_DD), dtype=gram_DD.dtype)
  try:
    return np.linalg.cholesky(gram_DD).T
  except np.linalg.LinAlgError:  # Of many rows in few directions, rounding is more than this.
    values, vectors = np.linalg.eigh(gram_DD)
    return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T


def align(a_LQ: np.ndarray, b_MQ: np.ndarray) -> tuple[list[tuple[int, int]], bool]:
  """The pairs of layers that correspond, by their `layer_spectra`, and whether that is sure.

  Only pairs that are sure (SURE_RATIO) are taken if they are two at least and a third of the
  layers of the shorter model, and if, of models of one depth, half of them, or some where all
  layers are sure, have other numbers. Else layers of equal number correspond, or for models of
  different depths the layers of the monotone alignment with the smallest sum of distances.
  """
  distance_LM = _distances(a_LQ, b_MQ)
  found = [(int(i), int(j)) for i, j in enumerate(distance_LM.argmin(axis=1))
           if _is_sure(distance_LM, i, j)]
  is_square = len(a_LQ) == len(b_MQ)
  moved = sum(i != j for i, j in found)
  enough = max(2, min(distance_LM.shape) / 3)
  is_whole = len(found) == len(a_LQ) == len({j for _, j in found})
  if len(found) >= enough and (not is_square or 2 * moved >= len(found) or moved and is_whole):
    # In an order that does not depend on which network comes first.
    return sorted(found, key=lambda pair: distance_LM[pair]), True
  if is_square:
    return [(i, i) for i in range(len(a_LQ))], False
  return _monotone(distance_LM), False


def _distances(a_LQ, b_MQ):
  """Mean squares of differences, in units of what they are between layers."""
  both = np.concatenate((a_LQ, b_MQ))
  variance_Q = both.var(axis=0)
  kept_Q = variance_Q > 0
  squares_LMQ = (a_LQ[:, None, kept_Q] - b_MQ[:, kept_Q])**2 / variance_Q[kept_Q]
  return squares_LMQ.sum(axis=-1) / max(1, kept_Q.sum())


def _is_sure(distance_LM, i, j):
  others = np.concatenate((np.delete(distance_LM[i], j), np.delete(distance_LM[:, j], i)))
  return others.size > 0 and bool(others.min() > SURE_RATIO * distance_LM[i, j])


def _monotone(distance_LM):
  """The alignment i₁ < i₂ < …, j₁ < j₂ < … of all layers of the shorter network."""
  if len(distance_LM) > len(distance_LM.T):
    return [(i, j) for j, i in _monotone(distance_LM.T)]
  L, M = distance_LM.shape
  # best[i, j]: the smallest sum of the first i layers, among the first j of the other network.
  best = np.full((L + 1, M + 1), np.inf)
  best[0] = 0
  for i, j in itertools.product(range(L), range(M)):
    best[i + 1, j + 1] = min(best[i + 1, j], best[i, j] + distance_LM[i, j])
  pairs, i, j = [], L, M
  while i:
    if best[i, j] < best[i, j - 1]:
      i -= 1
      pairs.append((i, j - 1))
    j -= 1
  return pairs[::-1]
