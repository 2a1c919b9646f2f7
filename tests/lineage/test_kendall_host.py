"""Counts by numpy give scipy's tau, in many small cases and in some large ones."""

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.lineage import kendall_host
from random_columns import random_pair


def assert_scipys(a, b):
  pairs = np.arange(a.shape[1])
  tau = kendall_host.taus(a, b, pairs, pairs)
  expected = [stats.kendalltau(*pair).statistic for pair in zip(a.T, b.T, strict=True)]
  np.testing.assert_allclose(tau, expected, rtol=0, atol=1e-7)
  return tau


@pytest.mark.parametrize('part', range(10))
def test_ten_thousand_cases(part):
  """Of all sizes from 2 up, with ties, constants and infinities."""
  taus = np.concatenate([assert_scipys(*random_pair(n, 20, seed=100 * part + n))
                         for n in range(2 + part, 502, 10)])
  assert taus.size == 1000 and np.isnan(taus).any() and {-1, 1} <= set(taus)


@pytest.mark.parametrize('n, k', [(2000, 60), (10_000, 20), (65_536, 4), (65_537, 4)])
def test_large_cases(n, k):
  assert_scipys(*random_pair(n, k, seed=n))


def test_a_million_rows_do_not_overflow():
  n = 10**6
  up = np.arange(n, dtype=np.float32)
  tau = assert_scipys(np.stack([up, up // 2], axis=1), np.stack([-up, -(up // 3)], axis=1))
  assert tau[0] == -1


def test_pairs_of_columns():
  (a, _), (_, b) = random_pair(50, 3, seed=1), random_pair(50, 4, seed=2)
  of_a, of_b = [2, 0, 2, 1], [3, 3, 0, 1]
  np.testing.assert_array_equal(
      kendall_host.taus(a, b, np.array(of_a), np.array(of_b)),
      kendall_host.taus(a[:, of_a], b[:, of_b], np.arange(4), np.arange(4)))


@pytest.mark.parametrize('n', [2, 5, 16, 17, 300])
def test_inversions_are_those_of_all_pairs(n):
  random = np.random.default_rng(n)
  rank_KN = np.stack([random.integers(0, most, n) for most in (1, 2, n, n)]).astype(np.uint16)
  expected = np.triu(rank_KN[:, :, None] > rank_KN[:, None], 1).sum(axis=(1, 2))
  place_KN = np.argsort(rank_KN, axis=1, kind='stable').astype(np.uint16)
  np.testing.assert_array_equal(kendall_host.inversions(rank_KN, place_KN), expected)
