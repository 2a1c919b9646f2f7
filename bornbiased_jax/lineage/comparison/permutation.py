"""Is the diagonal of a matrix larger than chance makes it? The test on which all verdicts rest.

A matrix holds the likeness of each part of one model (row) to each part of another
(column). If only chance decides which part of the second model comes where, its diagonal
is like any other choice of one element per row and column.

`block_test` exchanges only neighbours: parts of one block. An order in which both models were
sorted differs little between neighbours, so it does not make the diagonal stand out, whatever the
key was. A descendant has each part in the very place that its ancestor has it in.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import scipy

from bornbiased_jax.lineage.thresholds import BLOCK

# What rounding makes of features that are all alike; a million others vary far more.
ROUNDING = 1e-9


class BlockResult(NamedTuple):
  """The result of `block_test`.

  Attributes:
    statistic: the mean of the diagonals less the mean of the other elements of their rows and
      columns, 0 under the null hypothesis. An effect size: 1 for copies whose parts are
      otherwise unlike each other.
    z: (statistic - bound) / std.
    log10_p: log10 of an upper bound of the one-sided p-value.
    std: the largest of three stds of the statistic (see `block_test`).
  """

  statistic: float
  z: float
  log10_p: float
  std: float


def block_test(matrix_NBB: np.ndarray, bound: float = 0.0, inflation: float = 1.0) -> BlockResult:
  """Tests whether the diagonals of N small matrices are larger than chance makes them.

  Null hypothesis: within each block, the columns are exchangeable, given the rows.

  Args:
    matrix_NBB: any measure of likeness, [N, B, B]; B is at most BLOCK.
    bound: how large the statistic may be without being evidence.
    inflation: how many times as wide as permutations say the statistic spreads, at least 1.

  Returns:
    The result. Its std is the largest of the std over all permutations within the blocks
    (closed form, Hoeffding 1951), that of the contributions that the N B places make to the mean,
    which is larger where the diagonal varies more than the matrix, like under one sparsity mask,
    and both times `inflation`. Its p-value is the larger one of the normal distribution's, at z,
    and of Chernoff's bound over all (B!)^N permutations, min_t E exp(t (T - T_observed)): a bound
    that holds for any matrix, however heavy its tail. Nothing is drawn at random.

  Example:
    >>> from bornbiased_jax.lineage.comparison import permutation
    >>> result = permutation.block_test(np.tile(np.eye(4), (5, 1, 1)))
    >>> result.statistic, round(result.log10_p, 2)  # All 5 blocks agree: 1 / 24^5.
    (1.0, -6.9)
  """
  N, B, _ = matrix_NBB.shape
  matrix_NBB = np.nan_to_num(np.asarray(matrix_NBB, np.float64))
  contribution_NB = contributions(matrix_NBB)
  statistic = float(contribution_NB.mean())
  # The excess of a diagonal over the other elements is B / (B - 1) of that over all elements.
  over_orders = B / (B - 1) * math.sqrt((centred(matrix_NBB)**2).sum() / (B - 1)) / (N * B)
  over_places = float(contribution_NB.std(ddof=1)) / math.sqrt(N * B)
  std = max(over_orders, over_places) * max(1.0, inflation)
  if not std > ROUNDING:  # Features that are all alike have no order.
    return BlockResult(statistic, 0.0, 0.0, 0.0)
  z = (statistic - bound) / std
  log10_p = max(float(scipy.special.log_ndtr(-z)) / math.log(10),
                chernoff_log10_p(matrix_NBB, statistic - bound))
  return BlockResult(statistic, z, log10_p, std)


def contributions(matrix_NBB: np.ndarray) -> np.ndarray:
  """The diagonals less the mean of the other elements of their rows and columns, [N, B]."""
  B = matrix_NBB.shape[-1]
  diagonal_NB = np.einsum('nbb->nb', matrix_NBB)
  cross_NB = matrix_NBB.sum(axis=1) + matrix_NBB.sum(axis=2) - 2 * diagonal_NB
  return diagonal_NB - cross_NB / max(1, 2 * (B - 1))


def chernoff_log10_p(matrix_NBB: np.ndarray, statistic: float) -> float:
  """log10 of Chernoff's bound of the share of permutations that reach a statistic."""
  N, B, _ = matrix_NBB.shape
  order_PB = np.array(list(itertools.permutations(range(B))))
  sum_NP = matrix_NBB[:, np.arange(B), order_PB].sum(axis=-1)
  sum_NP = sum_NP - sum_NP.mean(axis=1, keepdims=True)
  size = sum_NP.std()
  if not (size > 0 and statistic > 0):
    return 0.0
  reached = statistic * N * (B - 1) / size  # In the same units: over all, not over the others.

  # The largest sum of each block is taken out of its exponentials, which then cannot overflow.
  largest_N = sum_NP.max(axis=1)
  below_NP = (sum_NP - largest_N[:, None]) / size
  margin = largest_N.sum() / size - reached

  def exponent(t):
    return np.log(np.exp(t * below_NP).mean(axis=1)).sum() + t * margin

  # Any t gives a bound, so that it does not matter how well the best one was found.
  found = scipy.optimize.minimize_scalar(exponent, bounds=(0, 100), method='bounded')
  return min(0.0, float(found.fun)) / math.log(10)


def least_log10_p(num_blocks: int, size: int) -> float:
  """log10 of the smallest p-value that so many blocks can have: one order of all counts."""
  return -num_blocks * math.log10(math.factorial(size))


def in_blocks(x_F: np.ndarray) -> np.ndarray:
  """Parts [F, ...] in blocks of neighbours, [N, B, ...], without the few that fill no block."""
  size = max(1, min(BLOCK, len(x_F)))
  count = len(x_F) // size
  return x_F[:count * size].reshape(count, size, *x_F.shape[1:])


def diagonal_moments(matrix_DD: np.ndarray) -> tuple[float, float, float]:
  """The mean of the diagonal of [D, D], and that mean's mean and std over permutations.

  Hoeffding 1951: E = mean(M), Var = sum_ij d_ij² / (D² (D - 1)), where d is M doubly centred.
  """
  D = len(matrix_DD)
  std = ((centred(matrix_DD)**2).sum() / (D**2 * (D - 1)))**0.5
  return matrix_DD.diagonal().mean(), matrix_DD.mean(), std


def centred(matrix: np.ndarray) -> np.ndarray:
  """[..., D, E] less the means of its rows and columns, plus the mean of all."""
  rows, columns = (matrix.mean(axis=axis, keepdims=True) for axis in (-1, -2))
  return matrix - rows - columns + matrix.mean(axis=(-2, -1), keepdims=True)
