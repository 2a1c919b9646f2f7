"""The test of diagonals agrees with all permutations, and keeps its level."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from bornbiased_jax.lineage.comparison import permutation
from bornbiased_jax.lineage.comparison.permutation import block_test


def test_moments_are_those_over_all_permutations():
  matrix = np.random.default_rng(3).standard_normal((6, 6))
  means = [matrix[np.arange(6), list(order)].mean() for order in itertools.permutations(range(6))]
  np.testing.assert_allclose(permutation.diagonal_moments(matrix),
                             (matrix.diagonal().mean(), np.mean(means), np.std(means)))


def excess(matrix):
  """Of a diagonal over the other elements of its rows and columns, element by element."""
  others = [[matrix[i, j] for j in range(len(matrix)) if j != i]
            + [matrix[j, i] for j in range(len(matrix)) if j != i] for i in range(len(matrix))]
  return np.array([matrix[i, i] - np.mean(each) for i, each in enumerate(others)])


def all_statistics(matrix_NBB):
  """The statistic of every permutation within the blocks; the first one is that of the blocks."""
  orders = list(itertools.permutations(range(matrix_NBB.shape[1])))
  of_block = [[excess(block[:, list(order)]).mean() for order in orders] for block in matrix_NBB]
  return np.array([np.mean(chosen) for chosen in itertools.product(*of_block)])


@pytest.mark.parametrize('draw', [
    lambda random, shape: random.standard_normal(shape),
    lambda random, shape: random.standard_t(1, shape),
    lambda random, shape: random.standard_t(2, shape) + 2 * np.eye(shape[-1]),
    lambda random, shape: np.exp(3 * random.standard_normal(shape)),
], ids=['normal', 'Cauchy', 'heavy tails and a likeness', 'log-normal'])
@pytest.mark.parametrize('N, B', [(2, 3), (3, 3), (2, 4), (3, 4)])
def test_all_permutations(draw, N, B):
  """The statistic and its std are theirs, and no p-value is below their share."""
  matrix = draw(np.random.default_rng(10 * N + B), (N, B, B))
  every, found = all_statistics(matrix), block_test(matrix)
  contribution = np.concatenate([excess(block) for block in matrix])
  assert found.statistic == pytest.approx(every[0]) and abs(every.mean()) < 1e-9 * every.std()
  assert found.std == pytest.approx(
      max(every.std(), contribution.std(ddof=1) / math.sqrt(N * B)))
  for reached in (every[0], *np.quantile(every, [0.5, 0.9, 0.99, 1])):
    share = np.mean(every >= reached - 1e-9)
    assert 10**permutation.chernoff_log10_p(matrix, reached) >= share * (1 - 1e-9)
  assert 10**found.log10_p >= np.mean(every >= every[0] - 1e-9) * (1 - 1e-9)


def test_the_bound_is_that_of_chernoff():
  """The smallest over t of E exp(t S) / exp(t s), where S are the sums of all orders."""
  matrix = np.random.default_rng(4).standard_normal((5, 4, 4)) + 0.7 * np.eye(4)
  orders = list(itertools.permutations(range(4)))  # The first is the one that is observed.
  sum_NP = np.array([[block[np.arange(4), list(order)].sum() for order in orders]
                     for block in matrix])
  above_NP = sum_NP - sum_NP.mean(axis=1, keepdims=True)
  exponents = [(special.logsumexp(t * above_NP, axis=1) - np.log(24)).sum()
               - t * above_NP[:, 0].sum() for t in np.linspace(0, 5, 5001)]
  statistic = np.mean([excess(block) for block in matrix])
  assert permutation.chernoff_log10_p(matrix, statistic) == pytest.approx(
      min(exponents) / np.log(10), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('tail', ['normal', 'heavy'])
def test_z_is_standard_and_no_level_is_exceeded(tail):
  random = np.random.default_rng(0)
  matrices = random.standard_normal((1500, 24, 4, 4))
  if tail == 'heavy':  # A few blocks have most of the likeness.
    matrices *= np.exp(2 * random.standard_normal((1500, 24, 1, 1)))
  results = [block_test(matrix) for matrix in matrices]
  z = np.array([each.z for each in results])
  assert abs(z.mean()) < 0.07 and 0.9 < z.std() < 1.05
  for alpha in (0.1, 0.01, 0.001):
    rate = np.mean([each.log10_p <= math.log10(alpha) for each in results])
    assert rate <= alpha + 3 * math.sqrt(alpha / 1500)


def test_a_diagonal_that_varies_more_is_no_evidence():
  """As under one sparsity mask; the std over orders alone would find too much."""
  random, found, over_orders = np.random.default_rng(1), [], []
  orders = np.argsort(random.random((100, 30, 4)), axis=-1)
  for _ in range(300):
    matrix = random.standard_normal((30, 4, 4))
    matrix[:, range(4), range(4)] *= 4
    found.append(block_test(matrix).z)
    drawn = matrix[np.arange(30)[:, None], np.arange(4), orders].mean(axis=(1, 2))
    over_orders.append((matrix.trace(axis1=1, axis2=2).mean() / 4 - drawn.mean()) / drawn.std())
  assert np.std(found) < 1.15 < 1.3 < np.std(over_orders)


def test_a_bound_and_an_inflation_take_evidence_away():
  matrix = np.eye(4) / 2 + np.random.default_rng(0).normal(0, 0.3, (20, 4, 4))
  plain, bounded, inflated = (
      block_test(matrix, *given) for given in ((), (0.2,), (0.2, 3.0)))
  assert bounded.z == pytest.approx((plain.statistic - 0.2) / plain.std)
  assert inflated.std == 3 * plain.std and inflated.z == pytest.approx(bounded.z / 3)
  assert plain.log10_p < bounded.log10_p < inflated.log10_p


@pytest.mark.parametrize('value', [0.0, 1.0, np.nan])
def test_what_is_constant_is_no_evidence(value):
  assert block_test(np.full((5, 4, 4), value)) == (0.0, 0.0, 0.0, 0.0)


def test_blocks_are_neighbours():
  assert permutation.in_blocks(np.arange(11)).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
  assert permutation.in_blocks(np.arange(3)).tolist() == [[0, 1, 2]]
  assert permutation.in_blocks(np.zeros((8, 5, 2))).shape == (2, 4, 5, 2)
