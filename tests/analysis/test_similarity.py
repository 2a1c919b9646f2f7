"""Similarity is that of the Gram matrix, and its law for isotropic directions that of samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from bornbiased_jax.analysis import similarity
from random_outputs import OUTPUTS, D, L, N, results


def cosines(x_ND):
  """Cosines of all pairs of different rows, in float64."""
  x_ND = x_ND.astype(np.float64)
  unit = x_ND / np.linalg.norm(x_ND, axis=-1, keepdims=True)
  return (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]


def inter_sequence(x, **options):
  return results(similarity.inter_sequence('x', **options), {'x': jnp.asarray(x)})


def intra_sequence(x):
  return results(similarity.intra_sequence('x'), {'x': jnp.asarray(x)})


@pytest.mark.parametrize('count', [2, 3, N])
def test_inter_sequence_against_the_gram_matrix(count):
  x = OUTPUTS['residual_last'][:, :count]
  expected = [cosines(layer) for layer in x]
  assert count < N or expected[0].mean() < 0.1 < 0.9 < expected[2].mean()
  actual = inter_sequence(x, pair_std=True)
  unit = x / np.linalg.norm(np.float64(x), axis=-1, keepdims=True)
  np.testing.assert_allclose(actual['direction'], unit.mean(1), rtol=0, atol=1e-6)
  np.testing.assert_allclose(actual['cosine'], np.mean(expected, axis=1), rtol=0, atol=1e-6)
  # The variance is the difference of two moments near 1, each known up to 1e-6.
  np.testing.assert_allclose(actual['cosine_std'] ** 2, np.var(expected, axis=1), rtol=0, atol=1e-6)
  along = [each @ each.mean(0) / np.linalg.norm(each.mean(0)) for each in unit]
  np.testing.assert_allclose(actual['direction_std'] ** 2, np.var(along, axis=1), rtol=0, atol=1e-6)
  np.testing.assert_array_equal(inter_sequence(x[1])['cosine'], inter_sequence(x)['cosine'][1])


def test_intra_sequence_against_the_gram_matrix():
  x = OUTPUTS['residual']
  expected = np.array([[cosines(sequence).mean() for sequence in layer] for layer in x])
  actual = intra_sequence(x)
  np.testing.assert_allclose(actual['cosine'], expected.mean(1), rtol=0, atol=1e-6)
  variance = expected.var(1, ddof=1) / N
  np.testing.assert_allclose(actual['standard_error'] ** 2, variance, rtol=0, atol=1e-6 / N)
  np.testing.assert_array_equal(intra_sequence(x[1])['cosine'], actual['cosine'][1])


def test_similarity_ignores_length():
  x = OUTPUTS['hidden_last']
  scaled = x * np.float32(2.0) ** np.arange(-N // 2, N // 2)[:, None]
  jax.tree.map(np.testing.assert_array_equal, inter_sequence(x), inter_sequence(scaled))


def test_opposite_and_equal_vectors():
  a = np.float32([[3, 4]])
  assert inter_sequence(np.concatenate((a, -2 * a)))['cosine'] == pytest.approx(-1, abs=1e-6)
  same = inter_sequence(np.repeat(a, 50, axis=0), pair_std=True)
  assert same['cosine'] == pytest.approx(1, abs=1e-6)
  assert same['cosine_std'] ** 2 == pytest.approx(0, abs=1e-6)
  assert intra_sequence(np.concatenate((a, -2 * a))[None])['cosine'] == pytest.approx(-1, abs=1e-6)


def test_more_pairs_than_an_int32():
  statistic = similarity.inter_sequence('x')
  sums = {'unit_sum': np.float32([100_000, 0]), 'count': np.int32(100_000),
          'nonzero': np.int32(100_000)}
  assert statistic.summarize(sums)['cosine'] == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize('shape', [(1, D), (L, 1, D)], ids=str)
def test_one_sequence_has_no_cosine(shape):
  result = inter_sequence(np.full(shape, 2, np.float32), pair_std=True)
  for name in ('cosine', 'cosine_std'):
    assert result[name].shape == shape[:-2]
    assert np.all(np.isnan(result[name]))
  np.testing.assert_allclose(result['direction'], np.full((*shape[:-2], D), D**-0.5), rtol=1e-6)


@pytest.mark.parametrize('shape', [(N, 1, D), (L, N, 1, D)], ids=str)
def test_one_position_has_no_cosine(shape):
  result = intra_sequence(np.full(shape, 2, np.float32))
  for leaf in result.values():
    assert leaf.shape == shape[:-3]
    assert np.all(np.isnan(leaf))


def test_normalize():
  x = np.array([[[3, 4, 0]], [[0, 0, 0]]], np.float32)
  np.testing.assert_allclose(similarity.normalize(x), [[[0.6, 0.8, 0]], [[0, 0, 0]]], rtol=1e-6)
  assert similarity.normalize(jnp.asarray(x, jnp.bfloat16)).dtype == jnp.float32


@pytest.mark.parametrize('scale', [1e-30, 1e-10, 1e10, 1e30])
def test_squares_that_float32_cannot_hold_change_no_direction(scale):
  x = np.random.default_rng(0).standard_normal((5, 8))
  expected = x / np.linalg.norm(x, axis=-1, keepdims=True)
  made = similarity.normalize(jnp.asarray(scale * x, jnp.float32))
  np.testing.assert_allclose(made, expected, rtol=1e-5)


def test_zero_vectors_in_the_direction():
  x = np.float32([[3, 4], [0, 0], [0, 0], [-4, 3]])
  np.testing.assert_allclose(inter_sequence(x)['direction'], [-0.05, 0.35], rtol=1e-6)


@pytest.mark.parametrize('cosine', [
    inter_sequence, lambda x: intra_sequence(x[None]),
], ids=['inter', 'intra'])
def test_zero_vectors_are_orthogonal_to_all(cosine):
  assert cosine(np.zeros((3, D), np.float32))['cosine'] == 0
  assert cosine(np.float32([[1, 0], [1, 0], [0, 0]]))['cosine'] == pytest.approx(1 / 3, abs=1e-6)


def test_zero_vectors_count_in_the_spread_over_pairs():
  """Of twelve ordered pairs two have the cosine 1, and all others 0."""
  x = np.float32([[1, 0], [1, 0], [0, 0], [0, 0]])
  assert inter_sequence(x, pair_std=True)['cosine_std'] == pytest.approx(5**0.5 / 6, abs=1e-6)


def test_isotropic_p_is_uniform():
  n, d = 60, 8
  unit = np.random.default_rng(1).standard_normal((3000, n, d))
  unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
  cosine = similarity.mean_off_diagonal(np.sum(unit.sum(1) ** 2, axis=-1), n, n)
  assert stats.kstest(10 ** similarity.isotropic_log10_p(cosine, n, d), 'uniform').pvalue > 1e-3
  squared = (cosine / similarity.isotropic_std(n, d)) ** 2
  assert abs(squared.mean() - 1) < 4 * stats.sem(squared)


def test_isotropic_std_of_one_pair():
  """The squared cosine of two isotropic directions has a beta distribution."""
  for d in (2, 3, 768):
    expected = stats.beta(1 / 2, (d - 1) / 2).mean()
    assert similarity.isotropic_std(2, d) ** 2 == pytest.approx(expected, rel=1e-12)
  assert np.isnan(similarity.isotropic_std(1, 3))


@pytest.mark.parametrize('d, cosine', [
    (2, 0.0), (2, 0.001), (2, 0.9), (128, 0.3), (768, 0.005), (768, 0.3), (2048, 1.0)])
def test_isotropic_p_does_not_underflow(d, cosine):
  """For an even number of dimensions the tail is a sum of Poisson probabilities."""
  n, k = 10_000, np.arange(d // 2)
  mean = d / 2 * (1 + (n - 1) * cosine)
  expected = special.logsumexp(stats.poisson.logpmf(k, mean)) / np.log(10)
  assert cosine < 0.005 or expected < -300
  np.testing.assert_allclose(similarity.isotropic_log10_p(cosine, n, d), expected, rtol=1e-9)
