"""Signs that the order of hidden features agrees by a pattern, and not by descent.

`.orders` takes an order for random. It is not where weights have a pattern that goes with a
feature's place, whatever the seed: one sparsity mask, a public factor, tiled or sorted weights.
"""

import math

import numpy as np
import scipy

from bornbiased_jax.hosts import on_host
from bornbiased_jax.lineage.features import UNITS
from bornbiased_jax.lineage.likeness import (
  common_names,
  layers_of,
  likeness_of,
  living,
  mean_of,
  unit_likeness,
)
from bornbiased_jax.lineage.orders import unit_order, value_order
from bornbiased_jax.lineage.permutations import CalibratedResult, centred, permutation_test

# The z that one of four witnesses needs for a p-value of 1e-4, and that one alone needs.
ACCUSING_Z, LEAST_ACCUSING_Z = 4.06, 3.719
# The largest spread beyond that of permutations with which an order that does not agree counts.
MOST_SPREAD = 1.5
# |z| of features of equal number in different layers that chance seldom gives (p = 1e-3 for five
# tests), and how far apart these layers are at most.
ELSEWHERE_Z, MOST_APART = 3.72, 4


def pattern(a: dict, b: dict, group: tuple[str, ...]) -> str | None:
  """Why the order of features is no evidence, if a pattern could make it agree as much; else None.

  That is so

  - if features of equal number are alike in different layers (`elsewhere`), which descent does
    not make them;
  - if z, or its excess over what different layers have, is too small to accuse when it is divided
    by the `spread`, but z is not so by itself;
  - if the spread is more than MOST_SPREAD and three of its standard errors above 1.

  Arguments as in `spread`.

  Raises:
    InputError: what `unit_order` and `value_order` raise.
  """
  names = common_names(a, b, group, 'such features')
  if group is UNITS and a['up'].shape[1] != b['up'].shape[1]:
    # They are matched, which a pattern makes easy that the first units of both have in common.
    size = min(a['up'].shape[1], b['up'].shape[1])
    a, b = ({name: x[name][:, :size] for name in names} for x in (a, b))
  result = (unit_order if group is UNITS else value_order)(a, b, num_permutations=0)
  others = elsewhere(a, b, group)
  # Copied layers make one network alike in itself, a pattern both.
  if any(min(abs(each.z) for each in same) > ELSEWHERE_Z for same in others):
    return 'features of one number are alike in different layers'
  excess = min((max(_difference_z(result, each) for each in same) for same in others),
               default=result.z)
  factor = spread(a, b, group)
  if min(result.z, excess) / factor >= ACCUSING_Z:
    return None
  if result.z >= LEAST_ACCUSING_Z and excess < ACCUSING_Z:
    return 'features of equal number agree in different layers almost as much'
  by_chance = 1 + 3 / (2 * len(result.dimension_D))**0.5
  if result.z >= LEAST_ACCUSING_Z or factor > max(MOST_SPREAD, by_chance):
    return (f'features of equal number spread {factor:.1f} times as much as chance makes them, as '
            'under a pattern that strangers can have in common')
  return None


def elsewhere(a: dict, b: dict, group: tuple[str, ...]) -> list[list[CalibratedResult]]:
  """Do features of equal number agree in different layers, up to MOST_APART apart?

  A pattern that all layers have, as in weights near the identity, makes the order of strangers
  agree, and that of different layers as well. What a descendant keeps of a layer is in that layer.

  Args:
    a: `vectors` or `sketch` of one network.
    b: the same of the other.
    group: UNITS or VALUES.

  Returns:
    For each distance, and for all together, the test of layers of one network with others of the
    other network; if their depths differ, of each network that has such layers with itself.

  Raises:
    InputError: what `unit_order` and `value_order` raise.
  """
  names = common_names(a, b, group, 'such features')
  if group is UNITS:
    a, b = living(a, b, names)
  a, b = ({name: on_host(x[name]) for name in names} for x in (a, b))
  depths = [len(x[names[0]]) for x in (a, b)]
  compared = [(a, b)] if depths[0] == depths[1] else [(a, a), (b, b)]
  found: dict[int, list[CalibratedResult]] = {}
  for x, y in compared:
    for apart, matrix in _matrices(x, y, names, likeness_of(group)).items():
      found.setdefault(apart, []).append(permutation_test(matrix, 0))
  return list(found.values())


def _matrices(x, y, names, likeness):
  """Mean likeness of layers of x and y by how far they are apart; of all such layers by 0."""
  depth, found = len(x[names[0]]), {}
  layer = lambda z, i: {name: z[name][i] for name in names}
  for apart in range(1, min(MOST_APART, depth - 1) + 1):
    # Of two networks both are ahead in some pairs; within one a pair is the same either way.
    count = depth - apart if x is y else depth
    found[apart] = mean_of(likeness(layer(x, i), layer(y, (i + apart) % depth))
                           for i in range(count))
  return found | ({0: mean_of(found.values())} if found else {})


def _difference_z(one, other):
  """By how many standard errors the mean likeness of `one` exceeds that of `other`."""
  return float((one.z * one.null_std - other.z * other.null_std)
               / max(math.hypot(one.null_std, other.null_std), 1e-30))


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
  names = common_names(a, b, group, 'such features')
  if group is UNITS:
    a, b = living(a, b, names)
  likeness = likeness_of(group)
  layers = list(layers_of(a, b, names))
  matrix = centred(mean_of(likeness(*each) for each in layers))
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
    The logarithm; 0 if they have fewer than two such features, and minus infinity, as structure
    cannot be excluded, if neither network has a second layer.
  """
  names = [name for name in group if name in a and name in b]
  if group[-1] not in names or min(x[group[-1]].shape[-2] for x in (a, b)) < 2:
    return 0.0
  shapes = [{x[name].shape[:-1] for name in names} for x in (a, b)]
  if shapes[0] == shapes[1] and len(a[names[0]]) > 1:
    return _shared_log10_p(a, {name: np.roll(b[name], 1, axis=0) for name in names}, group, names)
  deep = [x for x in (a, b) if len(x[names[0]]) > 1]
  cut = lambda x, layers: {name: x[name][layers] for name in names}
  return max((_shared_log10_p(cut(x, slice(-1)), cut(x, slice(1, None)), group, names)
              for x in deep), default=-math.inf)


def _shared_log10_p(a, b, group, names):
  likeness = likeness_of(group)
  z = [permutation_test(likeness(*layers), 0).z for layers in layers_of(a, b, names)]
  log10_p = float(scipy.stats.chi2.logsf(np.sum(np.square(z)), len(z)) / math.log(10))
  return max(log10_p, -9999.0)  # It underflows to minus infinity.


def sortedness(found: dict) -> float:
  """|z| of the likeness of MLP units to their neighbours, over random orders; 0 of one or two.

  In an exchangeable order z is nearly N(0, 1). Units that were sorted, by their mean
  activation for instance, are more alike their neighbours than other units, and less
  so if they were dealt to several devices.
  """
  names = [name for name in UNITS if name in found]
  if not names or found[names[0]].shape[1] < 3:
    return 0.0
  matrix = mean_of(unit_likeness(*layers) for layers in layers_of(found, found, names))
  random, along = np.random.default_rng(0), lambda order: matrix[order[:-1], order[1:]].mean()
  drawn = [along(random.permutation(len(matrix))) for _ in range(199)]
  return float(abs(along(np.arange(len(matrix))) - np.mean(drawn)) / max(np.std(drawn), 1e-9))
