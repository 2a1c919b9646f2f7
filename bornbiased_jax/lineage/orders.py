"""Whether two networks have their hidden features in the same order.

The MLP units of a layer, and the value channels of an attention head, have no order of
their own: initialization and training treat them all alike, whatever is learned. So in
an independent network their order is a random one, even if both networks share their
embeddings, their data or a teacher. This is a null hypothesis that training does not
break, and it is tested exactly. Weights with a public pattern, such as one sparsity mask, do
break it; `.patterns` looks for signs of that.

Features are compared by their vectors (`.features`, `.likeness`).
"""

import zlib

import numpy as np
import scipy

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.features import UNITS, VALUES
from bornbiased_jax.lineage.likeness import (
  common_names,
  layers_of,
  living,
  mean_of,
  unit_likeness,
  value_likeness,
)
from bornbiased_jax.lineage.permutations import (
  NUM_PERMUTATIONS,
  CalibratedResult,
  permutation_test,
)


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
  names = common_names(a, b, UNITS, 'MLP units')
  a, b = living(a, b, names)
  if a['up'].shape[1] != b['up'].shape[1]:
    matrix = mean_of(_matched_ranks(*layers) for layers in layers_of(a, b, names))
  else:
    matrix = mean_of(unit_likeness(*layers) for layers in layers_of(a, b, names))
  return permutation_test(matrix, num_permutations)


def value_order(a: dict, b: dict, num_permutations: int = NUM_PERMUTATIONS) -> CalibratedResult:
  """Do the value channels within the heads correspond to each other in their order?

  Null hypothesis and arguments as in `unit_order`; one permutation is applied to all
  heads of all layers. An order of whole heads is not tested.

  Raises:
    InputError: a network has no attention, or heads differ in number or size.
  """
  names = common_names(a, b, VALUES, 'value channels')
  if a['value'].shape[1:3] != b['value'].shape[1:3]:
    raise InputError('their heads differ in number or size')
  return permutation_test(mean_of(value_likeness(*layers) for layers in layers_of(a, b, names)),
                          num_permutations)


def _matched_ranks(a, b):
  """Products of ranks whose diagonal mean is Spearman's rho of the best matching of units.

  Units are shuffled first: where likenesses tie, as those of dead units do, the
  assignment would otherwise pair equal numbers.
  """
  likeness = unit_likeness(a, b)
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
