"""Statistics add up over sequences, and similarity is what the Gram matrix says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import preference, similarity
from bornbiased_jax.statistics import Statistic, combine, merge

V, L, N, D = 13, 3, 24, 6
GENERATOR = np.random.default_rng(0)
OUTPUTS = {
    # Whole numbers, so that many logits tie.
    'logits_last': GENERATOR.integers(4, size=(N, V)).astype(np.float32),
    'hidden_last': GENERATOR.standard_normal((N, D)).astype(np.float32) + 0.5,
    'residual_last': GENERATOR.standard_normal((L, N, D)).astype(np.float32) + np.float32([[[0]], [[1]], [[9]]]),
}
SEQUENCE_AXIS = {'logits_last': 0, 'hidden_last': 0, 'residual_last': 1}

SINGLE = {
    'predictions': preference.predictions(V),
    'similarity': similarity.unit_vectors('hidden_last'),
    'similarity_by_layer': similarity.unit_vectors('residual_last'),
}
STATISTICS = SINGLE | {
    'combined': combine(SINGLE),
    'nested': combine({'a': combine({'b': SINGLE['predictions']}), 'c': SINGLE['similarity']}),
}
every_statistic = pytest.mark.parametrize('statistic', STATISTICS.values(), ids=STATISTICS.keys())


def measure(statistic, first=0, last=N):
  """Sums over sequences first … last, given no more than what the statistic says it reads."""
  part = {name: np.take(OUTPUTS[name], range(first, last), SEQUENCE_AXIS[name]) for name in statistic.reads}
  return jax.jit(statistic.measure)(part)


def assert_same_sums(actual, expected):
  def check(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if np.issubdtype(a.dtype, np.integer):
      np.testing.assert_array_equal(a, b)
    else:
      # Each of N additions of numbers of at most 1 rounds a sum of at most N by 2^-24 of it.
      np.testing.assert_allclose(a, b, rtol=0, atol=N * N * 2 ** -24)

  jax.tree.map(check, actual, expected)


@every_statistic
@pytest.mark.parametrize('cuts', [(0, 12, 24), (0, 1, 24), (0, 5, 17, 24), (0, 7, 8, 9, 24)], ids=str)
def test_parts_merge_to_the_whole(statistic, cuts):
  parts = [measure(statistic, *ends) for ends in zip(cuts, cuts[1:], strict=False)]
  forwards, backwards = parts[0], parts[-1]
  for part, other in zip(parts[1:], parts[-2::-1], strict=True):
    forwards, backwards = merge(forwards, part), merge(other, backwards)
  whole = measure(statistic)
  assert_same_sums(forwards, whole)
  assert_same_sums(backwards, whole)


@every_statistic
def test_sums_are_counts_or_float32(statistic):
  sums = measure(statistic)
  assert {leaf.dtype.name for leaf in jax.tree.leaves(sums)} <= {'int32', 'float32'}
  halves = {name: jnp.asarray(OUTPUTS[name], jnp.bfloat16) for name in statistic.reads}
  assert jax.tree.map(jnp.dtype, jax.eval_shape(statistic.measure, halves)) == jax.tree.map(jnp.dtype, sums)


def test_merge_counts_past_float32():
  """2^24 + 1 is no float32."""
  assert merge({'count': jnp.int32(2**24)}, {'count': jnp.int32(1)})['count'] == 2**24 + 1


def test_combine():
  together = STATISTICS['combined']
  assert together.reads == ('logits_last', 'hidden_last', 'residual_last')
  results = together.summarize(jax.tree.map(np.asarray, measure(together)))
  assert list(results) == list(SINGLE)
  for name, statistic in SINGLE.items():
    alone = statistic.summarize(jax.tree.map(np.asarray, measure(statistic)))
    assert alone.keys() == results[name].keys()
    jax.tree.map(np.testing.assert_array_equal, results[name], alone)


def test_combine_reads_a_name_once():
  one = Statistic(('a', 'b'), lambda outputs: outputs['a'], lambda sums: {})
  two = Statistic(('b', 'c'), lambda outputs: outputs['b'], lambda sums: {})
  assert combine({'one': one, 'two': two}).reads == ('a', 'b', 'c')


# Similarity.


def similarity_of(x):
  statistic = similarity.unit_vectors('x')
  return statistic.summarize(jax.tree.map(np.asarray, statistic.measure({'x': jnp.asarray(x)})))


def gram_cosine(x_BD):
  """Mean of all cosines between two different rows."""
  x_BD = x_BD.astype(np.float64)
  unit = x_BD / np.linalg.norm(x_BD, axis=-1, keepdims=True)
  return np.mean((unit @ unit.T)[~np.eye(len(unit), dtype=bool)])


@pytest.mark.parametrize('count', [2, 3, N])
def test_cosine_against_the_gram_matrix(count):
  flat, by_layer = OUTPUTS['hidden_last'][:count], OUTPUTS['residual_last'][:, :count]
  np.testing.assert_allclose(similarity_of(flat)['cosine'], gram_cosine(flat), rtol=0, atol=1e-6)
  expected = [gram_cosine(layer) for layer in by_layer]
  np.testing.assert_allclose(similarity_of(by_layer)['cosine'], expected, rtol=0, atol=1e-6)
  assert expected[0] < 0.1 < 0.9 < expected[2]


def test_direction():
  x = OUTPUTS['residual_last']
  unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True)
  np.testing.assert_allclose(similarity_of(x)['direction'], unit.mean(1), rtol=0, atol=1e-6)


def test_similarity_ignores_length():
  x = OUTPUTS['hidden_last']
  scaled = x * np.float32(2.0) ** np.arange(-N // 2, N // 2)[:, None]
  jax.tree.map(np.testing.assert_array_equal, similarity_of(x), similarity_of(scaled))


def test_opposite_and_equal_vectors():
  a = np.float32([[3, 4]])
  assert similarity_of(np.concatenate((a, -2 * a)))['cosine'] == pytest.approx(-1, abs=1e-6)
  assert similarity_of(np.repeat(a, 50, axis=0))['cosine'] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize('count', [50_000, np.int32(50_000)])
def test_cosine_of_many(count):
  """Pairs of more than 46,340 are no int32."""
  assert similarity.mean_pairwise_cosine(np.float32([50_000, 0]), int(count)) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize('shape', [(1, D), (L, 1, D)], ids=str)
def test_one_vector_has_no_cosine(shape):
  result = similarity_of(np.full(shape, 2, np.float32))
  assert result['cosine'].shape == shape[:-2]
  assert np.all(np.isnan(result['cosine']))
  np.testing.assert_allclose(result['direction'], np.full((*shape[:-2], D), D ** -0.5), rtol=1e-6)


def test_normalize():
  x = np.array([[[3, 4, 0]], [[0, 0, 0]]], np.float32)
  np.testing.assert_allclose(similarity.normalize(x), [[[0.6, 0.8, 0]], [[0, 0, 0]]], rtol=1e-6)
  assert similarity.normalize(jnp.asarray(x, jnp.bfloat16)).dtype == jnp.float32


def test_zero_vectors_in_the_direction():
  x = np.float32([[3, 4], [0, 0], [0, 0], [-4, 3]])
  np.testing.assert_allclose(similarity_of(x)['direction'], [-0.05, 0.35], rtol=1e-6)


@pytest.mark.xfail(strict=True, reason='mean_pairwise_cosine takes the square of a zero vector for 1')
def test_zero_vectors_are_orthogonal_to_all():
  assert similarity_of(np.zeros((3, D), np.float32))['cosine'] == 0
  assert similarity_of(np.float32([[1, 0], [1, 0], [0, 0]]))['cosine'] == pytest.approx(1 / 3, abs=1e-6)
