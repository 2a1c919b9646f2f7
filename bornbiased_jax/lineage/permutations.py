"""Is the diagonal of a matrix larger than chance makes it? The test on which all verdicts rest.

A matrix holds the likeness of each part of one network (row) to each part of another
(column): of channels, MLP units or value channels. If nothing but chance decides which
part of the second network comes where, its diagonal is like any other choice of one
element per row and column.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy

# Enough that a p-value of 1e-5 can be seen.
NUM_PERMUTATIONS = 199_999
# Drawing stops when so many permutations have reached the statistic.
ENOUGH_REACHED = 20
_AT_ONCE = 2000


class CalibratedResult(NamedTuple):
  """The result of a permutation test of a diagonal.

  Attributes:
    statistic: t, the mean of the diagonal. It is an effect size, 0 under independence
      if the matrix holds correlations.
    z: (t - leak - mean) / null_std, where mean and null_std are those of t over all
      permutations of the columns, in closed form.
    normal_log10_p: log10 of the one-sided p-value of z under the normal law.
    permutation_p_value: one-sided p-value over random permutations, at least
      1 / (their number + 1). None if none were drawn.
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
    seed: seed of these permutations.
    leak: the part of the diagonal's mean that is no evidence.

  Cost: up to `num_permutations` times D random numbers, about 0.5 seconds for D = 128.
  If the pair is unrelated, a few hundred permutations are enough.

  Example:
    >>> from bornbiased_jax.lineage import permutations
    >>> permutations.permutation_test(np.eye(8), num_permutations=99).permutation_p_value
    0.01
  """
  degenerate = np.isnan(matrix_DD).all(axis=1) | np.isnan(matrix_DD).all(axis=0)
  matrix_DD = np.nan_to_num(np.asarray(matrix_DD, np.float64))
  statistic, mean, std = map(float, diagonal_moments(matrix_DD))
  z = (statistic - leak - mean) / std if std > 0 else 0.0
  # Permutations that give the diagonal itself must count, so rounding gets a margin.
  bound = statistic - leak - 1e-6 * (abs(mean) + std)
  drawn = _p_value(matrix_DD, bound, num_permutations, seed) if num_permutations else None
  return CalibratedResult(statistic, z, float(scipy.stats.norm.logsf(z) / math.log(10)), drawn, std,
                          np.diagonal(matrix_DD), int(degenerate.sum()), leak)


def diagonal_moments(matrix_DD: np.ndarray) -> tuple[float, float, float]:
  """The mean of the diagonal of [D, D], and that mean's mean and std over permutations.

  All permutations of the columns count (Hoeffding 1951): E = mean(M) and
  Var = sum_ij d_ij² / (D² (D - 1)), where d is M doubly centred.
  """
  D, mean = len(matrix_DD), matrix_DD.mean()
  centred_DD = (matrix_DD - matrix_DD.mean(axis=1, keepdims=True)
                - matrix_DD.mean(axis=0, keepdims=True) + mean)
  return matrix_DD.diagonal().mean(), mean, ((centred_DD**2).sum() / (D**2 * (D - 1)))**0.5


def _p_value(matrix_DD, bound, count, seed):
  """The exact p-value of random permutations, drawn until it is known well enough.

  If the k-th permutation that reaches the bound is the l-th drawn, it is k / l
  (Besag and Clifford 1991); otherwise (1 + reached) / (1 + drawn).
  """
  random, row_D = np.random.default_rng(seed), np.arange(len(matrix_DD))
  reached = drawn = 0
  while drawn < count:
    order_SD = np.tile(row_D, (min(_AT_ONCE, count - drawn), 1))
    random.permuted(order_SD, axis=1, out=order_SD)
    hit_S = np.flatnonzero(matrix_DD[row_D, order_SD].mean(axis=1) >= bound)
    if reached + len(hit_S) >= ENOUGH_REACHED:
      return ENOUGH_REACHED / float(drawn + 1 + hit_S[ENOUGH_REACHED - 1 - reached])
    reached, drawn = reached + len(hit_S), drawn + len(order_SD)
  return (1 + reached) / (1 + drawn)
