"""What makes features of equal number agree without descent, and by how much.

- A pattern that all layers share, such as weights near the identity: it also makes features of
  equal number agree in different layers of one model, which descent does not.
- Features that are alike in the same pairs in both models, as tiled units are, or units of one
  public factor of low rank.

One sparsity mask, or one pattern of scales, makes the diagonal vary more: `block_test` sees that,
if the mean of the weights is 0.
"""

import math

import numpy as np

from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison.likeness import (
  POOLED,
  Blocks,
  combine,
  flat,
  likeness,
  mean_of,
)
from bornbiased_jax.lineage.comparison.permutation import block_test, contributions

# `inflation` compares all pairs of so many blocks; others are like them.
_MOST_BLOCKS = 256


def distinct_layers(layers: list[Blocks], level: float = thresholds.COPY) -> list[Blocks]:
  """Those that are no copy of one before, as inserted or repeated layers are."""
  found: list[Blocks] = []
  for layer in layers:
    if all(mean_likeness([layer], [each]) < level for each in found):
      found.append(layer)
  return found


def mean_likeness(a: list[Blocks], b: list[Blocks]) -> float:
  """How much more alike features of equal number are than neighbours, in layers of equal number."""
  return float(contributions(mean_of(likeness(x, y) for x, y in zip(a, b, strict=True))).mean())


def unconnected_bound(a: list[Blocks], b: list[Blocks]) -> float:
  """How much the features of unrelated models with the patterns of these may agree.

  The likeness of two features is an inner product, φ(x)·φ(y). So what two models have in common
  in every layer is at most the geometric mean of what each has in common with itself (Cauchy and
  Schwarz): the likeness of features of equal number in layers that are 1, 2, … apart, none of them
  copies. Of each an upper bound is taken, which holds with the probability POWER. The largest
  product over the distances counts, up to half of the layers: so far apart are the layers of a
  model that was grown by stacking a smaller one. A pattern in only one of the models makes
  nothing agree. Where one has too few layers for a distance, as a pattern of every other layer
  does not show in two, it is taken to have what is found in the other.
  """
  both = [_of_unconnected(layers) for layers in (a, b)]
  in_both = _in_both(*both)
  in_deeper = max(both, key=len)[len(in_both):]
  return max(in_both + [found for found, is_clear in in_deeper if is_clear])


def recurring_bound(a: list[Blocks], b: list[Blocks]) -> float:
  """The same of all layers but exact copies, at distances that both models have.

  A strong pattern makes layers look like copies. In only `distinct_layers` it would not recur.
  """
  both = [_of_unconnected(distinct_layers(layers, thresholds.EXACT_COPY)) for layers in (a, b)]
  return max(_in_both(*both), default=0.0)


def _in_both(a, b):
  """The geometric mean of both bounds for each distance that both networks have."""
  return [math.sqrt(x * y) for (x, _), (y, _) in zip(a, b, strict=False)]


def _of_unconnected(layers):
  """The upper bound for each distance up to half of the layers, and up to 2 if there are 3.

  And whether chance seldom gives as much.
  """
  found = []
  most = min(len(layers) - 1, max(2, len(layers) // 2))
  for apart in range(1, 1 + most):
    result = block_test(mean_of(likeness(layers[i], layers[i + apart])
                                for i in range(len(layers) - apart)))
    most_likely = max(0.0, result.statistic + thresholds.level_z(1 - thresholds.POWER) * result.std)
    found.append((most_likely, result.log10_p <= math.log10(thresholds.UNRELATED_ABOVE)))
  return found


def inflation(pairs: list[tuple[Blocks, Blocks]],
              grams: dict[int, np.ndarray] | None = None) -> float:
  """How many times as wide as permutations say the mean likeness of equal features spreads.

  If one model is turned by a random rotation, Σ_i φ(a_i)·φ(b_i) has the variance Σ_ij A_ij B_ij,
  up to a factor, with the Gram matrices A and B of both, centred in their blocks. Were features
  independent, only i = j would count. Both sums are taken over the pairs of layers. Descendants
  spread more as well, but their z is larger still. Of pooled heads it is 1. `grams` keeps the
  matrices by the id of their layer.
  """
  if POOLED + 'value' in pairs[0][0]:
    return 1.0
  grams = {} if grams is None else grams
  for layer in (layer for pair in pairs for layer in pair):
    if id(layer) not in grams:
      grams[id(layer)] = _gram(layer)
  own = whole = 0.0
  for a, b in pairs:
    product = grams[id(a)] * grams[id(b)]
    diagonal = float(np.trace(product))
    own, whole = own + diagonal, whole + float(product.sum())
  num_blocks, B = flat(*_first(pairs[0][0])).shape[:2]
  # Of more blocks than were compared, the pairs are as many times as many.
  share = (num_blocks * B - 1) / max(1, len(product) - 1)
  expected = own * B / (B - 1)
  return math.sqrt(max(1.0, 1 + share * (whole - expected) / max(expected, 1e-30)))


def _gram(layer):
  """The likeness of features of one layer with each other, centred in blocks, [N B, N B]."""
  num_blocks, B = flat(*_first(layer)).shape[:2]
  chosen = np.random.default_rng(0).permutation(num_blocks)[:_MOST_BLOCKS]
  cosine = {}
  for name, x in layer.items():
    rows = flat(x, name)[chosen].reshape(len(chosen) * B, -1)
    cosine[name] = rows @ rows.T
  gram = combine(cosine).reshape(len(chosen), B, len(chosen), B)
  for axis in (1, 3):
    gram = gram - gram.mean(axis=axis, keepdims=True)
  return gram.reshape(len(chosen) * B, -1)


def _first(layer):
  name = next(iter(layer))
  return layer[name], name
