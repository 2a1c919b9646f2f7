"""Which layers of two models correspond?

Layers may have been dropped, moved, repeated or taken from several models. What corresponds is
found by numbers that no exchange of features can change, and no rotation of the residual stream
(`evidence.invariants`). A layer and its descendant have almost the same; independent layers differ
by chance. As the order of features has no part in the choice, tests of that order need no
correction for it.
"""

from collections.abc import Collection
import itertools

import numpy as np

from bornbiased_jax.lineage.evidence.invariants import modes, names_of

# The first modes have most of what tells a layer from others, but for their mean, which a scale of
# the whole stream changes.
_MODES = slice(1, 9)
# Two layers correspond for sure if all others are so many times as far from each of them.
SURE_RATIO = 2.0


def describe(invariants: dict[str, np.ndarray], group: Collection[str]) -> np.ndarray:
  """What is compared of each layer to find those that correspond, [L, numbers].

  Args:
    invariants: those of `Features`.
    group: UNITS or VALUES; what is of other vectors is left out.
  """
  return np.concatenate([modes(invariants[name])[:, _MODES] for name in names_of(group)
                         if name in invariants], axis=1)


def align(a_LQ: np.ndarray, b_MQ: np.ndarray) -> tuple[list[tuple[int, int]], bool]:
  """The pairs of layers that correspond, as `describe` has them, and whether that is sure.

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
