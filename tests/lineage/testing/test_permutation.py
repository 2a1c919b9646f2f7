"""The test of diagonals keeps its level, and its bound is above the share of all permutations."""

import itertools
import math

import numpy as np
import pytest

from bornbiased_jax.lineage.testing import permutation


def all_statistics(matrix_NBB):
  """The statistic of every permutation within the blocks."""
  N, B, _ = matrix_NBB.shape
  orders = list(itertools.permutations(range(B)))
  return np.array([permutation.contributions(
      np.stack([block[:, list(order)] for block, order in zip(matrix_NBB, chosen, strict=True)])
  ).mean() for chosen in itertools.product(orders, repeat=N)])


def test_moments_are_those_over_all_permutations():
  matrix = np.random.default_rng(3).standard_normal((6, 6))
  means = [matrix[np.arange(6), list(order)].mean() for order in itertools.permutations(range(6))]
  np.testing.assert_allclose(permutation.diagonal_moments(matrix),
                             (matrix.diagonal().mean(), np.mean(means), np.std(means)))


@pytest.mark.parametrize('seed', range(6))
def test_the_p_value_is_at_least_the_share_of_permutations(seed):
  random = np.random.default_rng(seed)
  matrix = random.standard_t(2, (3, 3, 3)) + 2 * np.eye(3)  # Heavy tails.
  result = permutation.block_test(matrix)
  every = all_statistics(matrix)
  share = np.mean(every >= result.statistic - 1e-9)
  assert 10**permutation.chernoff_log10_p(matrix, result.statistic) >= share * (1 - 1e-9)
  assert result.std >= every.std() - 1e-9


def test_level_holds_and_z_is_normal():
  random = np.random.default_rng(0)
  results = [permutation.block_test(random.standard_normal((24, 4, 4))) for _ in range(1500)]
  z = np.array([each.z for each in results])
  assert abs(z.mean()) < 0.1 and 0.9 < z.std() < 1.1
  for alpha in (0.05, 0.01):
    rate = np.mean([each.log10_p <= math.log10(alpha) for each in results])
    assert rate < alpha + 3 * math.sqrt(alpha / 1500)


def test_a_diagonal_that_varies_more_is_no_evidence():
  """As under one sparsity mask; the std over orders alone would find too much."""
  random, found, over_orders = np.random.default_rng(1), [], []
  for _ in range(600):
    matrix = random.standard_normal((30, 4, 4))
    matrix[:, range(4), range(4)] *= 4
    result = permutation.block_test(matrix)
    found.append(result.z)
    d = permutation.centred(matrix)
    over_orders.append(result.statistic / (4 / 3 * math.sqrt((d**2).sum() / 3) / 120))
  assert np.std(found) < 1.15 < 1.3 < np.std(over_orders)


def test_a_bound_takes_evidence_away():
  matrix = np.tile(np.eye(4), (20, 1, 1)) * 0.5 + np.random.default_rng(0).normal(
      0, 0.3, (20, 4, 4))
  z = [permutation.block_test(matrix, bound).z for bound in (0.0, 0.2, 0.5)]
  assert z[0] > z[1] > z[2] and abs(z[2]) < 3
