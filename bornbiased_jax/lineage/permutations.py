"""Is the diagonal of a matrix larger than chance makes it? The test on which all verdicts rest.

A matrix holds the likeness of each part of one network (row) to each part of another
(column): of channels, MLP units or value channels. If nothing but chance decides which
part of the second network comes where, its diagonal is like any other choice of one
element per row and column.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
import scipy

from bornbiased_jax.errors import InputError

# Enough that a p-value of 1e-5 can be seen.
NUM_PERMUTATIONS = 199_999
# Drawing stops when so many permutations have reached the statistic.
ENOUGH_REACHED = 20
# Permutations between two looks at how many have reached it.
PART = 2048
# Numbers that are added at once: as many as stay in the cache.
NUMBERS_AT_ONCE = 2**17


class CalibratedResult(NamedTuple):
  """The result of a permutation test of a diagonal.

  Attributes:
    statistic: t, the mean of the diagonal. It is an effect size, 0 under independence
      if the matrix holds correlations.
    z: (t - leak - mean) / null_std, where mean and null_std are those of t over all
      permutations of the columns, in closed form.
    normal_log10_p: log10 of the one-sided p-value of z under the normal law.
    permutation_p_value: one-sided p-value over m random permutations, (1 + number of
      them whose t is as large) / (1 + m). None if none were drawn.
    null_std: std of t over all permutations.
    dimension_D: the D diagonal elements whose mean is t.
    num_degenerate: number of rows or columns without any likeness (NaN), such as
      channels that are constant in one of the networks.
    leak: the part of t that is no evidence.
  """

  statistic: float
  z: float
  normal_log10_p: float
  permutation_p_value: float | None
  null_std: float
  dimension_D: np.ndarray
  num_degenerate: int
  leak: float

  @property
  def log10_p(self) -> float:
    """log10 of the larger of both p-values, on which verdicts rest.

    A sum of few large terms has heavier tails than the normal law says.
    """
    if self.permutation_p_value is None:
      return self.normal_log10_p
    return max(self.normal_log10_p, math.log10(self.permutation_p_value))


def permutation_test(matrix_DD: np.ndarray, num_permutations: int = NUM_PERMUTATIONS,
                     seed: int = 0, leak: float = 0.0) -> CalibratedResult:
  """Tests whether the diagonal of a matrix is larger than chance makes it.

  Null hypothesis: the columns are exchangeable, given the rows.

  Args:
    matrix_DD: any measure of likeness, [D, D]; NaN counts as 0.
    num_permutations: most random permutations for `permutation_p_value`; 0 for none.
      With the identity they are rounded up to a multiple of D. If all D! permutations
      are no more than these, each is taken once, whatever the seed.
    seed: seed of these permutations.
    leak: the part of the diagonal's mean that is no evidence; if it is not known (NaN), no
      part of it is evidence: z is 0 and the p-value over permutations 1.

  Raises:
    InputError: D is below 2, so that there is no order to test.

  Cost: up to `num_permutations` times D additions. If the pair is unrelated, some 2,000
  permutations are enough.

  Example:
    >>> from bornbiased_jax.lineage import permutations
    >>> permutations.permutation_test(np.eye(20), num_permutations=99).permutation_p_value
    0.01
  """
  if len(matrix_DD) < 2:
    raise InputError('features of which there is but one have no order')
  degenerate = np.isnan(matrix_DD).all(axis=1) | np.isnan(matrix_DD).all(axis=0)
  matrix_DD = np.nan_to_num(np.asarray(matrix_DD, np.float64))
  statistic, mean, std = map(float, diagonal_moments(matrix_DD))
  known = math.isfinite(leak)
  z = (statistic - leak - mean) / std if std > 0 and known else 0.0
  # Permutations that give the diagonal itself must count, so rounding gets a margin.
  bound = statistic - leak - 1e-6 * (abs(mean) + std) if known else -math.inf
  drawn = _p_value(matrix_DD, bound, num_permutations, seed) if num_permutations else None
  return CalibratedResult(statistic, z, float(scipy.stats.norm.logsf(z) / math.log(10)), drawn, std,
                          np.diagonal(matrix_DD), int(degenerate.sum()), leak)


def diagonal_moments(matrix_DD: np.ndarray) -> tuple[float, float, float]:
  """The mean of the diagonal of [D, D], and that mean's mean and std over permutations.

  All permutations of the columns count (Hoeffding 1951): E = mean(M) and
  Var = sum_ij d_ij² / (D² (D - 1)), where d is M doubly centred.
  """
  D = len(matrix_DD)
  std = ((centred(matrix_DD)**2).sum() / (D**2 * (D - 1)))**0.5
  return matrix_DD.diagonal().mean(), matrix_DD.mean(), std


def centred(matrix: np.ndarray) -> np.ndarray:
  """[..., D, E] less the means of its rows and columns, plus that of all."""
  rows, columns = (matrix.mean(axis=axis, keepdims=True) for axis in (-1, -2))
  return matrix - rows - columns + matrix.mean(axis=(-2, -1), keepdims=True)


def _p_value(matrix_DD, bound, count, seed):
  """The share of permutations that reach the bound, the identity among them, in whole groups.

  A group has all D cyclic shifts of one order of the columns, so that numpy adds
  rows, not single numbers: the first group those of the identity, all others those of
  a random order. All groups are alike under the null hypothesis, if what counts as a
  shift is drawn at random too, by one shuffle of rows and columns together. Then the
  identity is like any other member of any group, and its rank is uniform.

  Drawing stops after a part in which more than ENOUGH_REACHED reached the bound, a
  share of more than c = ENOUGH_REACHED / drawn, which falls from part to part. A result
  of at most alpha needs such a share in the first part whose c is below alpha. That
  has a probability of at most alpha, so stopping keeps the level.
  """
  random, D = np.random.default_rng(seed), len(matrix_DD)
  shuffle_D = random.permutation(D)
  matrix_DD = matrix_DD[np.ix_(shuffle_D, shuffle_D)]
  # windows[i, j, s] is the element of row i and column j + s, cyclically.
  windows_DDD = sliding_window_view(np.hstack((matrix_DD, matrix_DD[:, :-1])), D, axis=1)
  if math.factorial(min(D, 20)) <= count + 1:
    # The shifts of all orders that leave the first column where it is are all permutations.
    column_GD = np.array([(0, *order) for order in itertools.permutations(range(1, D))])
    return float(np.mean(_sums(windows_DDD, column_GD) >= bound * D))
  reached = drawn = 0
  while drawn <= count and reached <= ENOUGH_REACHED:
    num_groups = min(max(1, PART // D), -(-(count + 1 - drawn) // D))
    column_GD = random.permuted(np.tile(np.arange(D), (num_groups, 1)), axis=1)
    if not drawn:
      column_GD[0] = np.arange(D)
    reached += np.count_nonzero(_sums(windows_DDD, column_GD) >= bound * D)
    drawn += column_GD.size
  return float(reached / drawn)


def _sums(windows_DDD, column_GD):
  """Sums [G, D] of the elements that each member of each group chooses."""
  G, D = column_GD.shape
  sum_GD, height = np.zeros((G, D)), max(1, NUMBERS_AT_ONCE // (G * D))
  for first in range(0, D, height):
    row_R = np.arange(first, min(first + height, D))
    sum_GD += windows_DDD[row_R, column_GD[:, row_R]].sum(axis=1)
  return sum_GD
