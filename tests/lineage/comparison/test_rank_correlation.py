"""Kendall's tau-b is scipy's for all columns, sizes and types."""

import jax
import jax.numpy as jnp
import numpy as np
from oldest import JAX_IS_OLD
import pytest
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.comparison import rank_correlation as kendall
from random_columns import random_pair


def scipys(a, b):
  return np.array([stats.kendalltau(*columns).statistic for columns in zip(a.T, b.T, strict=True)])


def scipys_matrix(a, b):
  return np.array([[stats.kendalltau(one, other).statistic for other in b.T] for one in a.T])


def assert_same(actual, expected):
  assert actual.dtype == jnp.float32
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize('n, k', [
    (2, 256), (128, 256), (129, 512), (20_000, 12)])
def test_equals_scipy(n, k):
  a, b = random_pair(n, k, seed=n)
  expected = scipys(a, b)
  assert_same(kendall.kendall_tau(a, b), expected)
  extremes = {-1, 1} <= set(expected[~np.isnan(expected)].round(6))
  assert k < 100 or extremes and np.isnan(expected).any()


def test_the_most_rows_that_counts_hold():
  n = kendall.MAX_ROWS
  up, (noisy, _) = np.arange(n, dtype=np.float32), random_pair(n, 1)
  pairs = [(up, up), (up, -up), (up, np.ones(n)), (up // 2, -(up // 2)), (up, up // (n // 2)),
           (noisy[:, 0], up)]
  a, b = (np.stack(columns, axis=1).astype(np.float32) for columns in zip(*pairs, strict=True))
  tau = kendall.kendall_tau(a, b)
  assert_same(tau, scipys(a, b))
  np.testing.assert_array_equal(tau[:4], [1, -1, np.nan, -1])


def test_one_column():
  a, b = random_pair(17, 8)
  taus = [kendall.kendall_tau(x, y) for x, y in zip(a.T, b.T, strict=True)]
  assert {tau.shape for tau in taus} == {()}
  assert_same(jnp.stack(taus), scipys(a, b))


@pytest.mark.parametrize('n, D, E', [(2, 5, 3), (300, 6, 6), (1501, 16, 13)])
def test_matrix_equals_scipy(n, D, E):
  (a, _), (_, b) = random_pair(n, D, seed=1), random_pair(n, E, seed=2)
  b[:, 0] = a[:, 0]
  assert_same(kendall.kendall_matrix(a, b), scipys_matrix(a, b))


@pytest.mark.parametrize('dtype', ['>f4', '>f8', '>i4', '>i8'])
def test_byte_order_does_not_matter(dtype):
  a, b = np.random.default_rng(5).integers(-9, 9, (2, 40, 6)).astype(dtype)
  native = [x.astype(x.dtype.newbyteorder('=')) for x in (a, b)]
  np.testing.assert_array_equal(kendall.kendall_tau(a, b), kendall.kendall_tau(*native))
  np.testing.assert_array_equal(kendall.kendall_matrix(a, b), kendall.kendall_matrix(*native))


@pytest.mark.parametrize('dtype', ['bool', 'uint8', 'int32', 'uint32', 'bfloat16'])
def test_types(dtype):
  generator = np.random.default_rng(0)
  if 'float' in dtype:
    x = generator.standard_normal((40, 6))
  else:
    x = generator.integers(-2**39, 2**39, (40, 6))
  a = jnp.asarray(x.astype(jnp.dtype(dtype)))
  b = generator.permuted(a, axis=0)
  assert_same(kendall.kendall_tau(a, b), scipys(np.float64(a), np.float64(b)))
  assert_same(kendall.kendall_matrix(a, b), scipys_matrix(np.float64(a), np.float64(b)))


@pytest.mark.parametrize('x', [
    2**53 + np.arange(40) % 7, 2**31 + np.arange(40),
    np.uint64(2**63) + np.arange(40, dtype=np.uint64) % 7,
    1 + 1e-12 * (np.arange(40) % 11), np.arange(40) * 1e300, np.arange(40), np.arange(40) / 8,
], ids=lambda x: f'{x.dtype} from {x[0]}')
def test_64_bits_are_compared_as_they_are(x):
  shuffle = np.random.default_rng(0).permutation(40)
  a, b = np.stack([x, x[shuffle]], axis=1), np.stack([x[::-1], np.roll(x, 3)], axis=1)
  order = lambda x: np.unique(x, return_inverse=True)[1]
  expected = [stats.kendalltau(order(one), order(other)).statistic
              for one, other in zip(a.T, b.T, strict=True)]
  assert_same(kendall.kendall_tau(a, b), np.array(expected))


def test_arrays_of_64_bits():
  with jax.experimental.enable_x64() if JAX_IS_OLD else jax.enable_x64(True):
    x = 1 + 1e-12 * jnp.asarray(np.random.default_rng(0).integers(-9, 9, (40, 12)), jnp.float64)
    a, b = x[:, :6], x[:, 6:]
    assert_same(kendall.kendall_tau(a, b), scipys(np.asarray(a), np.asarray(b)))
    assert_same(kendall.kendall_matrix(a, b), scipys_matrix(np.asarray(a), np.asarray(b)))


GOOD = np.zeros((4, 3), np.float32)


@pytest.mark.parametrize('bad, message', [
    (np.zeros((5, 3)), 'but are'), (np.zeros((4, 3, 2)), 'but are'), (np.zeros(4), 'but are'),
    (1.0, '2 to 65,536 rows'), (np.zeros((1, 3)), '2 to 65,536 rows'),
    (np.zeros((0, 3)), '2 to 65,536 rows'),
    (np.zeros((65_537, 3), bool), '2 to 65,536 rows'), (np.zeros((4, 0)), 'and a column'),
    (np.zeros((4, 3), complex), 'complex128'),
    (np.full((4, 3), 'x'), 'real numbers'), (np.full((4, 3), None), 'real numbers'),
    (np.full((4, 3), np.nan), 'b contains NaN'), (jnp.full((4, 3), jnp.nan), 'b contains NaN'),
], ids=lambda x: x if isinstance(x, str) else f'{type(x).__name__}{list(np.shape(x))}')
@pytest.mark.parametrize('function', [kendall.kendall_tau, kendall.kendall_matrix])
def test_refusals(function, bad, message):
  with pytest.raises(InputError, match=message):
    function(GOOD, bad)


def test_inversions_are_those_of_all_pairs():
  rank_KN = np.array([np.random.default_rng(i).permutation(50) for i in range(3)], np.uint16)
  expected = [sum(row[i] > row[j] for i in range(50) for j in range(i + 1, 50)) for row in rank_KN]
  np.testing.assert_array_equal(kendall.num_inversions(rank_KN), expected)


def test_ranks_are_scipys():
  x, _ = random_pair(100, 8, seed=1)
  np.testing.assert_array_equal(kendall.mean_ranks(x), stats.rankdata(x, axis=0))
