"""Whether two networks have their hidden features in the same order.

The MLP units of a layer, and the value channels of an attention head, have no order of
their own: initialization and training treat them all alike, whatever is learned. So in
an independent network their order is a random one, even if both networks share their
embeddings, their data or a teacher. This is a null hypothesis that training does not
break, and it is tested exactly.

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
from bornbiased_jax.lineage.permutations import NUM_PERMUTATIONS, CalibratedResult, permutation_test

# Units of this likeness are copies of each other.
REPEATED = 0.9


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


def repeated_share(found: dict) -> float:
  """The share of MLP units that have a near copy in their layer, as tiled weights have."""
  names = [name for name in UNITS if name in found]
  if not names:
    return 0.0
  shares = []
  for layer, _ in _layers(found, found, names):
    likeness = _unit_likeness(layer, layer)
    np.fill_diagonal(likeness, 0)
    shares.append(np.mean(likeness.max(axis=1) > REPEATED))
  return float(np.mean(shares))


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
