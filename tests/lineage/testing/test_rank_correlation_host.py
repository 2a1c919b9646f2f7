"""Counts by numpy on a CPU are scipy's."""

import numpy as np
from scipy import stats

from bornbiased_jax.lineage.testing import rank_correlation_host as host
from random_columns import random_pair


def test_inversions_are_those_of_all_pairs():
  rank_KN = np.array([np.random.default_rng(i).permutation(50) for i in range(3)], np.uint16)
  expected = [sum(row[i] > row[j] for i in range(50) for j in range(i + 1, 50)) for row in rank_KN]
  np.testing.assert_array_equal(host.num_inversions(rank_KN), expected)


def test_mean_ranks_are_scipys():
  x, _ = random_pair(100, 8, seed=1)
  key_ND = np.asarray(host.keys(host.narrow(x)))
  np.testing.assert_array_equal(host.mean_ranks(key_ND.T).T, stats.rankdata(x, axis=0))
