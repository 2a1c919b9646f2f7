"""Ranks are scipy's, by numpy and inside jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.lineage import ranks
from random_columns import random_pair


@pytest.mark.parametrize('n', [2, 3, 100, 5000])
def test_mean_ranks_are_scipys(n):
  for x in random_pair(n, 40, seed=n):
    np.testing.assert_array_equal(ranks.mean_ranks(jnp.asarray(x)), stats.rankdata(x, axis=0))
    # To XLA, subnormal numbers equal 0.
    x = np.where(abs(x) < np.finfo(np.float32).tiny, 0, x)
    rank = jax.jit(ranks.mean_ranks)(x)
    np.testing.assert_array_equal(rank, stats.rankdata(x, axis=0))
    assert rank.dtype == ranks.mean_ranks(x).dtype == jnp.float32


@pytest.mark.parametrize('x', [
    [-np.inf, -3e38, -1, -1e-40, -0.0, 0.0, 1e-40, 1e-30, 2, np.inf],
    [False, True, False], [-2**31, -1, 0, 0, 2**31 - 1],
    np.uint32([0, 1, 2**31, 2**32 - 1]), np.uint8([0, 255, 7]), np.int8([-128, 127, 0]),
    jnp.bfloat16([-2, -1, 0, 3]),
], ids=lambda x: str(np.asarray(x).dtype))
def test_keys_are_in_the_order_of_the_numbers(x):
  x = np.asarray(x) if np.asarray(x).dtype != float else np.float32(x)
  x = np.int32(x) if x.dtype == int else x
  key_N, = ranks.host_keys(x[:, None])
  assert key_N.dtype == np.uint32
  expected = stats.rankdata(x.astype(float))
  np.testing.assert_array_equal(stats.rankdata(key_N), expected)
  np.testing.assert_array_equal(stats.rankdata(jax.jit(ranks.key)(x)), expected)


def test_equal_words_are_sorted_by_their_places():
  random = np.random.default_rng(0)
  key_N, place_N = random.integers(5, size=300, dtype=np.uint32), random.permutation(300)
  column = ranks.sort(key_N, place_N.astype(np.uint64))
  np.testing.assert_array_equal(column.place_N, place_N[np.lexsort((place_N, key_N))])
  np.testing.assert_array_equal(column.dense_rank_N, stats.rankdata(np.sort(key_N), 'dense') - 1)
  assert column.is_new_N.sum() == 5 and column.has_ties


def test_what_runs_on_the_host():
  """A program for a CPU has the sort of XLA, not a call of numpy."""
  x = jnp.ones((4, 2))
  assert ranks.on_host(x, np.ones(3))
  text = jax.jit(ranks.mean_ranks).lower(x).as_text()
  assert 'sort' in text and 'callback' not in text


def test_the_order_of_bytes_does_not_matter():
  x_N1 = np.array([[1], [2], [2**31 + 5], [2**32 - 1]], np.uint32)
  for order in '<>':
    given_N1 = x_N1.astype(x_N1.dtype.newbyteorder(order))
    assert ranks.mean_ranks(given_N1).ravel().tolist() == [1, 2, 3, 4]
