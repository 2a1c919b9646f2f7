"""Do two models have their hidden features in the same order? The tests that decide.

The MLP units of a layer, and the value channels of an attention head, have no order of
their own: initialization and training treat them all alike, whatever is learned. So in
an independent model their order is a random one, even if both models share their
embeddings, their data or a teacher. A descendant keeps the order of its ancestor.

The likeness of features of equal number is tested against exchanges of neighbours
(`permutation.block_test`): as they are, in the layers that correspond (`align`) and in any, and in
a fitted basis, which needs no equal width and no embeddings (`fitted_test`). The units that experts
have at one place are one feature, so that copies of an expert count once. Mixtures are compared
with MLPs, or with mixtures of another number of experts, by the mean of their experts, and with
others by it as well.
"""

from collections.abc import Iterable
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison import shared_patterns
from bornbiased_jax.lineage.comparison.likeness import (
  POOLED,
  Blocks,
  align,
  block_shape,
  common_part,
  layer_spectra,
  layers_of,
  likeness,
  mean_of,
)
from bornbiased_jax.lineage.comparison.permutation import (
  block_test,
  contributions,
  least_log10_p,
)
from bornbiased_jax.lineage.comparison.result import TestResult, does_not_apply
from bornbiased_jax.lineage.evidence.features import Features, average_experts
from bornbiased_jax.lineage.layouts import UNITS, VALUES

GROUPS = {'unit order': UNITS, 'value order': VALUES}
FITTED = ', fitted basis'
# Below the first p-value a test has found something (there are two tests of each group). Below the
# second, what is found in place is so clear that moved layers are not looked for.
_LEVEL = math.log10(thresholds.UNRELATED_ABOVE / (2 * len(GROUPS)))
_DECIDED = math.log10(thresholds.ALPHA) - 1
# What p-value a test must be able to have, as p-values are doubled and counted for all tests.
_DECISIVE = math.log10(thresholds.ALPHA / (4 * len(GROUPS)))


class Public(NamedTuple):
  """What two models may have in common without descent, found once for all tests.

  Attributes:
    bound: `shared_patterns.unconnected_bound`, or `recurring_bound` if that is larger.
    copy: how much more alike features are with themselves than with neighbours, in the model
      where that is less: 1, but for features that are all alike.
    grams: the Gram matrices that `shared_patterns.inflation` has needed so far.
  """

  bound: float
  copy: float
  grams: dict[int, np.ndarray]


def order_tests(a: Features, b: Features) -> dict[str, TestResult]:
  """The deciding tests of two models, by name: each of GROUPS, and the same in a FITTED basis.

  Null hypothesis: given all else, the places of neighbouring features are random in at least one
  of the models.
  """
  means = average_experts(a), average_experts(b)
  if a.config.num_experts != b.config.num_experts:
    return _tests_of(*means, GROUPS)
  found = _tests_of(a, b, GROUPS)
  if a.config.num_experts > 1:  # Experts may stand in another order, which means hide.
    others = _tests_of(*means, {name: group for name, group in GROUPS.items() if group is UNITS})
    found |= {name: _better(found[name], other) for name, other in others.items()}
  return found


def _better(first, second):
  """The one with the smaller p-value, which is doubled; a result that counts goes first."""
  log10_p = lambda result: (not result.counts, 0.0 if result.log10_p is None else result.log10_p)
  best = min(first, second, key=log10_p)
  return best if best.log10_p is None else _doubled(best)


def _doubled(result):
  """The better one of two results, corrected for the choice."""
  twice = lambda log10_p: min(0.0, log10_p + math.log10(2))
  return dataclasses.replace(result, log10_p=twice(result.log10_p),
                             log10_p_of_rest=twice(result.log10_p_of_rest))


def _tests_of(a, b, groups):
  found: dict[str, TestResult] = {}
  for name, group in groups.items():
    unlike = _unlike_heads(a, b) if group is VALUES else None
    whole = [layers_of(each, group, bool(unlike)) for each in (a, b)]
    both = [shared_patterns.distinct_layers(layers) for layers in whole]
    why = _obstacle(both)
    if why:
      found |= dict.fromkeys((name, name + FITTED), does_not_apply(why))
    else:
      first, second = common_part(*both)
      bound = shared_patterns.unconnected_bound(first, second)
      if [*map(len, whole)] != [*map(len, both)]:
        bound = max(bound, shared_patterns.recurring_bound(*common_part(*whole)))
      copy = min(shared_patterns.mean_likeness(layers, layers) for layers in (first, second))
      public = Public(bound, copy, {})
      pairs, is_sure = align(*map(_spectra, (a, b), both))
      aligned = [(first[i], second[j]) for i, j in pairs]
      found[name] = plain_test(first, second, aligned, public, is_sure)
      found[name + FITTED] = does_not_apply(unlike) if unlike else fitted_test(aligned, public)
  return found


def _spectra(features, layers):
  """`layer_spectra` of a network, kept for its other pairs."""
  key = (*layers[0], len(layers))
  if key not in features.kept:
    features.kept[key] = layer_spectra(layers)
  return features.kept[key]


def _unlike_heads(a, b):
  """Which heads two networks have in other numbers, or None."""
  counts = {'query': (a.config.num_heads, b.config.num_heads),
            'key/value': (a.config.num_kv_heads, b.config.num_kv_heads)}
  unlike = [f'{x} and {y} {kind} heads' for kind, (x, y) in counts.items() if x != y]
  return (f'they have {", ".join(unlike)}, and which of them correspond is not known'
          if unlike else None)


def _obstacle(both):
  """Why the features of two networks cannot be compared, or None."""
  if not all(both):
    return 'one of the models has no such features'
  if both[0][0].keys() != both[1][0].keys():
    return 'only one of the models has gated units'
  sizes = [block_shape(layers[0])[1] for layers in both]
  if sizes[0] != sizes[1] or sizes[0] < 2:
    return 'one of the models has too few of them to have an order'
  if min(map(len, both)) < 2:
    return ('one of the models has only one layer, or copies of one, so that descent cannot be '
            'told from a pattern that all such models share')
  return None


def plain_test(a: list[Blocks], b: list[Blocks], aligned: list[tuple[Blocks, Blocks]],
               public: Public, is_sure: bool) -> TestResult:
  """The test of features as they are: in layers that correspond, and of all layers with all.

  The second one finds layers that were moved and changed so much that it is not sure which
  correspond. It counts if the first one finds nothing, and p-values are doubled. Its numbers are
  per layer: each layer of one model has one counterpart at most.
  """
  widths = [block_shape(layers[0])[2] for layers in (a, b)]
  if widths[0] != widths[1]:
    return does_not_apply(f'they have {widths[0]} and {widths[1]} residual channels')
  in_place = _judge(aligned, public)
  if is_sure:
    return in_place
  anywhere = _judge([(x, y) for x in a for y in b], public)
  anywhere = anywhere.scaled(max(len(a), len(b)))
  is_moved = anywhere.log10_p < min(in_place.log10_p, _LEVEL) and in_place.log10_p > _DECIDED
  # Where layers were matched wrongly, only the second one sees that several agree.
  of_rest = min(in_place.log10_p_of_rest, anywhere.log10_p_of_rest)
  return _doubled(dataclasses.replace(anywhere if is_moved else in_place, log10_p_of_rest=of_rest))


def fitted_test(pairs: list[tuple[Blocks, Blocks]], public: Public) -> TestResult:
  """The test in a basis that was fitted to other layers.

  Pairs of layers are dealt to two halves. From one half, with features paired by their number,
  W [D, E] with orthonormal rows or columns is fitted (Procrustes); in the other half the order of
  features is tested, with x W for each vector x of the first model. Then the halves are
  exchanged, and the larger p-value counts. The null hypothesis holds whatever W is, if the order is
  random given the layers to which W was fitted.
  """
  found = []
  for half in (0, 1):
    change_DE, tested = fit_basis(pairs[half::2]), pairs[1 - half::2]
    turned = [({name: x @ change_DE for name, x in layer.items()}, other)
              for layer, other in tested]
    found.append(_judge(turned, public, own_bases=tested))
  return max(found, key=lambda result: result.log10_p)


def fit_basis(pairs: Iterable[tuple[Blocks, Blocks]]) -> np.ndarray:
  """The W [D, E] of `fitted_test`, for which x W of one model is closest to y of the other."""
  product_DE = sum(unit_rows(a[name]).T @ unit_rows(b[name]) for a, b in pairs for name in a)
  return orthonormal(product_DE)


def orthonormal(product_DE: np.ndarray) -> np.ndarray:
  """The orthonormal factor of a matrix; directions in which it is 0 are left out.

  By the Gram matrix of its shorter side, in half of the time of an SVD of large matrices. What is
  left out in float32 has squares far above the rounding of float64.
  """
  if product_DE.shape[0] < product_DE.shape[1]:
    return orthonormal(product_DE.T).T
  square, right = np.linalg.eigh(product_DE.T.astype(np.float64) @ product_DE)
  is_known = square > 1e-10 * square[-1]
  right = right[:, is_known]
  change_DE = product_DE @ (right / np.sqrt(square[is_known])) @ right.T
  return change_DE.astype(product_DE.dtype)


def unit_rows(x: np.ndarray) -> np.ndarray:
  """All vectors [..., D] as rows of length 1, or 0."""
  rows = x.reshape(-1, x.shape[-1])
  return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def _judge(pairs, public, own_bases=None):
  """The test of pairs of layers; in a fitted basis, `own_bases` are the same layers as they are."""
  matrices = [likeness(*pair) for pair in pairs]
  matrix_NBB = mean_of(matrices)
  bound, inflation = public.bound, shared_patterns.inflation(own_bases or pairs, public.grams)
  result, plain = block_test(matrix_NBB, bound, inflation), block_test(matrix_NBB)
  reason = None
  if plain.log10_p <= _LEVEL < result.log10_p:
    reason = ('features of equal number agree almost as much in layers that descent does not '
              'connect' if bound > (inflation - 1) * plain.std else
              'the same features are alike in both models, as with a public pattern')
  of_rest = result.log10_p
  if own_bases is None:
    del matrices[int(np.argmax([contributions(each).mean() for each in matrices]))]
    of_rest = block_test(mean_of(matrices), bound, inflation).log10_p
  # Of a few blocks not even a copy is evidence: then there is a result, and no power.
  std = result.std if least_log10_p(*matrix_NBB.shape[:2]) <= _DECISIVE else None
  # A head has one counterpart at most, so that pooled heads of a copy agree 1 / heads.
  heads = max((len(layer[POOLED + 'value']) for layer in pairs[0] if POOLED + 'value' in layer),
              default=1)
  return TestResult(result.statistic, bound, std, result.z, result.log10_p, of_rest,
                    heads * public.copy, reason=reason).scaled(heads)
