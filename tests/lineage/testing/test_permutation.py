"""Permutation tests of a diagonal agree with brute force, and keep their level."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import permutations, seedprint
from random_answers import noise


def test_moments_are_those_over_all_permutations():
  matrix = noise(3, 6, 6).astype(float)
  means = [matrix[np.arange(6), list(order)].mean() for order in itertools.permutations(range(6))]
  np.testing.assert_allclose(permutations.diagonal_moments(matrix),
                             (matrix.diagonal().mean(), np.mean(means), np.std(means)))


def test_drawn_and_normal_p_values_agree():
  a = noise(4, 500, 40)
  b = noise(5, 500, 40) + 0.025 * a
  result = seedprint.calibrated_test(a, b)
  assert 1.5 < result.z < 4.5
  assert 10**result.normal_log10_p == pytest.approx(result.permutation_p_value, rel=0.5)
  assert result.log10_p == max(result.normal_log10_p, math.log10(result.permutation_p_value))
  np.testing.assert_allclose(result.statistic, result.dimension_D.mean())
  assert seedprint.calibrated_test(a, b).permutation_p_value == result.permutation_p_value


@pytest.mark.parametrize('count', [300, 700])
def test_the_p_value_is_that_of_all_permutations(count):
  """Stopped early or not, it is an unbiased estimate of the share that reaches the diagonal."""
  matrix = noise(7, 6, 6).astype(float)
  means = np.array([matrix[np.arange(6), list(order)].mean()
                    for order in itertools.permutations(range(6))])
  expected = np.mean(means >= matrix.diagonal().mean() - 1e-9)
  drawn = [permutations.permutation_test(matrix, count, seed).permutation_p_value
           for seed in range(100)]
  assert np.mean(drawn) == pytest.approx(expected, rel=0.15)
  assert permutations.permutation_test(matrix, 719).permutation_p_value == expected


def test_p_values_of_independent_networks_are_never_too_small():
  """Heavy tails: one channel has most of the likeness, where the normal law accuses too often."""
  random = np.random.default_rng(1)
  matrices = random.standard_normal((2000, 12, 12))
  matrices[:, 0, :] *= 30 * random.standard_normal((2000, 12))
  results = [permutations.permutation_test(matrix, 2000) for matrix in matrices]
  for alpha in (0.05, 0.01):
    rate = np.mean([each.log10_p <= math.log10(alpha) for each in results])
    assert rate < alpha + 3 * math.sqrt(alpha / 2000)
  drawn = np.array([each.permutation_p_value for each in results])
  assert abs(np.mean(drawn <= 0.05) - 0.05) < 0.02


def test_without_permutations_the_normal_law_is_all():
  result = permutations.permutation_test(np.eye(8), 0)
  assert result.permutation_p_value is None
  assert result.log10_p == pytest.approx(stats.norm.logsf(result.z) / math.log(10))


def test_few_permutations_are_taken_once_each():
  """Each of the permutations of three columns has its own mean, so that the share of it shows."""
  matrix = np.float64([[0, 1, 3], [9, 0, 27], [81, 243, 0]])
  means = {matrix[np.arange(3), list(order)].mean() for order in itertools.permutations(range(3))}
  assert len(means) == 6
  # The leak moves the bound below each of the means in turn, from the highest on.
  shares = [permutations.permutation_test(
      matrix, 59_999, leak=matrix.diagonal().mean() - mean).permutation_p_value
      for mean in sorted(means, reverse=True)]
  np.testing.assert_allclose(shares, np.arange(1, 7) / 6)


@pytest.mark.parametrize('D, count', [(7, 999), (300, 5000)])
def test_the_rank_of_the_diagonal_is_uniform(D, count):
  """In a null without ties every rank is as likely, also if shifts of the columns are alike."""
  random, drawn = np.random.default_rng(2), []
  near = np.subtract.outer(np.arange(D), np.arange(D)) % D
  for seed in range(400):
    matrix = np.exp(-near[:, random.permutation(D)] / 20) + 1e-3 * random.standard_normal((D, D))
    drawn.append(permutations.permutation_test(matrix, count, seed).permutation_p_value)
  assert stats.kstest(drawn, 'uniform').pvalue > 0.001


def test_the_number_of_permutations_is_rounded_up_to_whole_groups():
  p_value = lambda D, count: permutations.permutation_test(np.eye(D), count).permutation_p_value
  assert p_value(40, 998) == p_value(40, 999) == 1 / 1000
  assert p_value(40, 1000) == 1 / 1040
  assert p_value(128, permutations.NUM_PERMUTATIONS) <= 1e-5


def test_a_copy_has_the_smallest_p_value_and_nothing_has_none():
  assert permutations.permutation_test(np.eye(40), 999).permutation_p_value == 1 / 1000
  empty = permutations.permutation_test(np.full((8, 8), np.nan), 99)
  assert (empty.z, empty.num_degenerate) == (0.0, 8)
  assert empty.permutation_p_value == 1.0


def test_an_unknown_leak_leaves_no_evidence():
  found = permutations.permutation_test(np.eye(20), num_permutations=999, leak=math.nan)
  assert (found.z, found.permutation_p_value) == (0.0, 1.0)
  assert found.log10_p == 0


def test_one_feature_has_no_order():
  with pytest.raises(InputError, match='but one'):
    permutations.permutation_test(np.ones((1, 1)))
