"""Whether two networks have their hidden features in the same order.

The MLP units of a layer, and the value channels of an attention head, have no order of
their own: initialization and training treat them all alike, whatever is learned. So in
an independent network their order is a random one, even if both networks share their
embeddings, their data or a teacher. This is a null hypothesis that training does not
break, and it is tested exactly. Weights with a public pattern, such as one sparsity mask, do
break it: `spread`, `structure_log10_p` and `sortedness` look for signs of that.

Features are compared by their vectors (features.py). Vectors of which two can change sign
together are compared by the product of their cosines.
"""

from collections.abc import Iterable
import math
import zlib

import numpy as np
import scipy

from bornbiased_jax.errors import InputError
from bornbiased_jax.hosts import on_host
from bornbiased_jax.lineage.features import UNITS, VALUES
from bornbiased_jax.lineage.permutations import (
  NUM_PERMUTATIONS,
  CalibratedResult,
  centred,
  permutation_test,
)

# The z that one of four witnesses needs for a p-value of 1e-4.
ACCUSING_Z = 4.06
# The largest spread beyond that of permutations with which an order that does not agree counts.
MOST_SPREAD = 1.5


def unit_order(a: dict, b: dict, num_permutations: int = NUM_PERMUTATIONS) -> CalibratedResult:
  """Do MLP units of two networks correspond to each other in their order?

  Null hypothesis: given all else, the order of the units is random in at least one of
  the networks. One permutation is applied to all layers.

  Args:
    a: `vectors` or `sketch` of one network.
    b: the same of the other. If it has other layers, all are compared with all. If it
      has other units, the test is Spearman's, of the best matching. Layers without living
      units are left out, and so are units that are dead (0) in a layer: their places may
      have a meaning.
    num_permutations: as in `permutation_test`.

  Raises:
    InputError: a network has no MLP or no living units, only one has a gate, or widths
      differ.
  """
  names = _common(a, b, UNITS, 'MLP units')
  a, b = _without_dead_units(a, b, names)
  if a['up'].shape[1] != b['up'].shape[1]:
    matrix = _mean(_matched_ranks(*layers) for layers in _layers(a, b, names))
  else:
    matrix = _mean(_unit_likeness(*layers) for layers in _layers(a, b, names))
  return permutation_test(matrix, num_permutations)


def value_order(a: dict, b: dict, num_permutations: int = NUM_PERMUTATIONS) -> CalibratedResult:
  """Do the value channels within the heads correspond to each other in their order?

  Null hypothesis and arguments as in `unit_order`; one permutation is applied to all
  heads of all layers. An order of whole heads is not tested.

  Raises:
    InputError: a network has no attention, or heads differ in number or size.
  """
  names = _common(a, b, VALUES, 'value channels')
  if a['value'].shape[1:3] != b['value'].shape[1:3]:
    raise InputError('their heads differ in number or size')
  return permutation_test(_mean(_value_likeness(*layers) for layers in _layers(a, b, names)),
                          num_permutations)


def structure_log10_p(a: dict, b: dict, group: tuple[str, ...]) -> float:
  """log10 p of the order of features being one that all layers of two networks share.

  Features of a layer of one network have nothing to do with those of the next layer of
  the other, related or not, unless their place itself has a meaning: in weights that are
  tiled, near the identity or a Hadamard matrix, or sorted in one direction. Such weights
  make the order of independent networks agree. The squares of z of all layers with
  the next one are added (chi-squared). If the networks have other numbers of layers or
  features, each is compared with itself, and the larger value counts: copied layers make
  one network alike in itself, structure both.

  Args:
    a: `vectors` or `sketch` of one network.
    b: the same of the other.
    group: UNITS or VALUES.

  Returns:
    The logarithm; 0 if they have no such features, and minus infinity, as structure cannot
    be excluded, if neither network has a second layer.
  """
  names = [name for name in group if name in a and name in b]
  if group[-1] not in names:
    return 0.0
  shapes = [{x[name].shape[:-1] for name in names} for x in (a, b)]
  if shapes[0] == shapes[1] and len(a[names[0]]) > 1:
    return _shared_log10_p(a, {name: np.roll(b[name], 1, axis=0) for name in names}, group, names)
  deep = [x for x in (a, b) if len(x[names[0]]) > 1]
  cut = lambda x, layers: {name: x[name][layers] for name in names}
  return max((_shared_log10_p(cut(x, slice(-1)), cut(x, slice(1, None)), group, names)
              for x in deep), default=-math.inf)


def _shared_log10_p(a, b, group, names):
  likeness = _unit_likeness if group is UNITS else _value_likeness
  z = [permutation_test(likeness(*layers), 0).z for layers in _layers(a, b, names)]
  log10_p = float(scipy.stats.chi2.logsf(np.sum(np.square(z)), len(z)) / math.log(10))
  return max(log10_p, -9999.0)  # It underflows to minus infinity.


def spread(a: dict, b: dict, group: tuple[str, ...]) -> float:
  """How many times as wide as permutations say the mean likeness of equal numbers spreads.

  Permutations take the diagonal for entries like all others. It is not where both networks have
  a pattern that goes with the place of a feature, whatever the seed. Two signs are looked for:

  - The diagonal varies more than the matrix, as under one sparsity mask.
  - The same pairs of features are alike in both networks, as in tiled weights, or where a factor
    of low rank is public. If one network is turned by a random rotation, Σ_i a_i · b_i has the
    variance Σ_ij A_ij B_ij, up to a factor, with the Gram matrices A and B of the features.

  Descendants spread more as well, but their z is larger still.

  Args:
    a: `vectors` or `sketch` of one network.
    b: the same of the other.
    group: UNITS or VALUES.

  Returns:
    The product of the stds that both signs give, in units of that of permutations, each at least 1.

  Raises:
    InputError: what `unit_order` and `value_order` raise.
  """
  names = _common(a, b, group, 'such features')
  if group is UNITS:
    a, b = _without_dead_units(a, b, names)
  likeness = _unit_likeness if group is UNITS else _value_likeness
  layers = list(_layers(a, b, names))
  matrix = centred(_mean(likeness(*each) for each in layers))
  varied = matrix.diagonal().std() / max(matrix.std(), 1e-30)
  rotated, permuted = np.sum([_variances(_grams(x), _grams(y)) for x, y in layers], axis=0)
  return float(max(1.0, varied) * max(1.0, rotated / max(permuted, 1e-30))**0.5)


def _grams(layer):
  """The features' products with each other that count most in their likeness, centred."""
  cosine = {name: x @ np.swapaxes(x, -1, -2) for name, x in layer.items()}
  if 'value' in cosine:
    return [centred(cosine['value'] * cosine['output'])]
  return [centred(x) for x in ([cosine['gate']] if 'gate' in cosine else cosine.values())]


def _variances(a, b):
  """Of the sum of a diagonal, up to a factor, if networks are rotated, and if they are permuted."""
  trace = lambda x: np.trace(x, axis1=-2, axis2=-1)
  return np.sum([(np.sum(A * B), np.sum(trace(A) * trace(B)) / (A.shape[-1] - 1))
                 for A, B in zip(a, b, strict=True)], axis=0)


def pattern(a: dict, b: dict, group: tuple[str, ...]) -> str | None:
  """Why the order of features is no evidence, if a pattern could make it agree as much; else None.

  That is so if z, divided by the `spread`, is too small to accuse, but is not so by itself, or if
  the spread is more than MOST_SPREAD and three of its standard errors above 1. Arguments as in
  `spread`.

  Raises:
    InputError: what `unit_order` and `value_order` raise.
  """
  names = _common(a, b, group, 'such features')
  if group is UNITS and a['up'].shape[1] != b['up'].shape[1]:
    # They are matched, which a pattern makes easy that the first units of both have in common.
    size = min(a['up'].shape[1], b['up'].shape[1])
    a, b = ({name: x[name][:, :size] for name in names} for x in (a, b))
  result = (unit_order if group is UNITS else value_order)(a, b, num_permutations=0)
  factor = spread(a, b, group)
  if result.z / factor >= ACCUSING_Z:
    return None
  by_chance = 1 + 3 / (2 * len(result.dimension_D))**0.5
  if result.z >= ACCUSING_Z or factor > max(MOST_SPREAD, by_chance):
    return (f'features of equal number spread {factor:.1f} times as much as chance makes them, as '
            'under a pattern that strangers can have in common')
  return None


def sortedness(found: dict) -> float:
  """|z| of the likeness of MLP units to their neighbours, over random orders; 0 without an MLP.

  In an exchangeable order z is nearly N(0, 1). Units that were sorted, by their mean
  activation for instance, are more alike their neighbours than other units, and less
  so if they were dealt to several devices.
  """
  names = [name for name in UNITS if name in found]
  if not names:
    return 0.0
  matrix = _mean(_unit_likeness(*layers) for layers in _layers(found, found, names))
  random, along = np.random.default_rng(0), lambda order: matrix[order[:-1], order[1:]].mean()
  drawn = [along(random.permutation(len(matrix))) for _ in range(199)]
  return float(abs(along(np.arange(len(matrix))) - np.mean(drawn)) / max(np.std(drawn), 1e-9))


def _common(a, b, names, what):
  if names[-1] not in a or names[-1] not in b:
    raise InputError(f'a network has no {what}')
  if a.keys() & set(names) != b.keys() & set(names):
    raise InputError('only one of them has gated units')
  names = [name for name in names if name in a]
  if any(a[name].shape[-1] != b[name].shape[-1] for name in names):
    raise InputError('they differ in width or in heads per group')
  return names


def _layers(a, b, names) -> Iterable[tuple[dict, dict]]:
  """Layers to compare: each with its own, or all with all if their numbers differ."""
  L, M = len(a[names[0]]), len(b[names[0]])
  pairs = zip(range(L), range(L), strict=True) if L == M else np.ndindex(L, M)
  a, b = ({name: on_host(each[name]) for name in names} for each in (a, b))
  for i, j in pairs:
    yield {name: x[i] for name, x in a.items()}, {name: x[j] for name, x in b.items()}


def _without_dead_units(a, b, names):
  """Both networks without layers that are dead, and without units that are dead in a layer."""
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


def _mean(matrices):
  total, count = 0.0, 0
  for count, matrix in enumerate(matrices, 1):  # noqa: B007
    total = total + matrix
  return total / count


def _unit_likeness(a, b):
  """Likeness [U, U] of all units of a layer of one network with all of another's, 1 if equal.

  An activation is not odd, so what it reads keeps its sign. Up and down of a gated
  unit can change theirs together.
  """
  cosine = {name: a[name] @ b[name].T for name in a}
  if 'gate' in cosine:
    return (cosine['gate'] + cosine['up'] * cosine['down']) / 2
  return (cosine['up'] + cosine['down']) / 2


def _value_likeness(a, b):
  """Likeness [K, K] of the value channels, mean over heads of equal number."""
  cosine = {name: a[name] @ np.swapaxes(b[name], 1, 2) for name in a}
  return (cosine['value'] * cosine['output']).mean(axis=0)


def _matched_ranks(a, b):
  """Products of ranks whose diagonal mean is Spearman's rho of the best matching of units.

  Units are shuffled first: where likenesses tie, as those of dead units do, the
  assignment would otherwise pair equal numbers.
  """
  likeness = _unit_likeness(a, b)
  # The smaller network gives the rows, so that the k-th pair is of the same unit in all layers.
  likeness = likeness.T if likeness.shape[0] > likeness.shape[1] else likeness
  random = np.random.default_rng(zlib.crc32(likeness.tobytes()))
  rows, columns = (random.permutation(size) for size in likeness.shape)
  row, column = scipy.optimize.linear_sum_assignment(likeness[np.ix_(rows, columns)], maximize=True)
  matched = np.empty(len(rows), int)
  matched[rows[row]] = columns[column]
  rank = scipy.stats.rankdata(matched)
  centred = [(each - each.mean()) / each.std() for each in (np.arange(len(rank)), rank)]
  return np.outer(*centred)
