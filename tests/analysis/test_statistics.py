"""Statistics add up over sequences, and similarity is what the Gram matrix says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.analysis import positions, preference, similarity
from bornbiased_jax.analysis.statistics import Statistic, combine, histogram, merge

V, L, N, T, D = 13, 3, 24, 5, 6
GENERATOR = np.random.default_rng(0)
EDGES = np.linspace(-2, 2, 9)


def around(mean, shape):
  return (mean + GENERATOR.standard_normal(shape)).astype(np.float32)


OUTPUTS = {
    # Whole numbers, so that many logits tie.
    'logits_last': GENERATOR.integers(4, size=(N, V)).astype(np.float32),
    'hidden': around(0.5, (N, T, D)),
    'hidden_last': around(0.5, (N, D)),
    'residual': around(np.reshape([0, 1, 9], (L, 1, 1, 1)), (L, N, T, D)),
    'residual_last': around(np.reshape([0, 1, 9], (L, 1, 1)), (L, N, D)),
}
SEQUENCE_AXIS = {name: int(name.startswith('residual')) for name in OUTPUTS}

SINGLE = {
    'predictions': preference.predictions(V),
    'inter_sequence': similarity.inter_sequence('hidden_last'),
    'inter_sequence_by_layer': similarity.inter_sequence('residual_last', pair_std=True),
    'intra_sequence': similarity.intra_sequence('hidden'),
    'intra_sequence_by_layer': similarity.intra_sequence('residual'),
    'positional_std': positions.positional_std('residual'),
    'histogram': histogram('residual', EDGES),
}
STATISTICS = SINGLE | {
    'combined': combine(SINGLE),
    'nested': combine({'a': combine({'b': SINGLE['predictions']}), 'c': SINGLE['inter_sequence']}),
}
every_statistic = pytest.mark.parametrize('statistic', STATISTICS.values(), ids=STATISTICS.keys())


def measure(statistic, first=0, last=N):
  """Sums over sequences first … last, given no more than what the statistic says it reads."""
  part = {name: np.take(OUTPUTS[name], range(first, last), SEQUENCE_AXIS[name]) for name in statistic.reads}
  return jax.jit(statistic.measure)(part)


def results(statistic, outputs):
  return statistic.summarize(jax.tree.map(np.asarray, statistic.measure(outputs)))


def assert_same_sums(actual, expected):
  def check(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if np.issubdtype(a.dtype, np.integer):
      np.testing.assert_array_equal(a, b)
    else:
      # Each of N additions rounds by 2^-24 of what there is.
      np.testing.assert_allclose(a, b, rtol=0, atol=N * 2**-24 * np.max(np.abs(b)))

  jax.tree.map(check, actual, expected)


@every_statistic
@pytest.mark.parametrize('cuts', [(0, 12, 24), (0, 8, 9, 24)], ids=str)
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
  types = lambda sums: jax.tree.map(lambda leaf: leaf.dtype.name, sums)
  in_float32 = types(measure(statistic))
  assert set(jax.tree.leaves(in_float32)) <= {'int32', 'float32'}
  assert 'int32' in jax.tree.leaves(in_float32)
  halves = {name: jnp.asarray(OUTPUTS[name], jnp.bfloat16) for name in statistic.reads}
  assert types(jax.eval_shape(statistic.measure, halves)) == in_float32


def test_merge_counts_past_float32():
  """2^24 + 1 is no float32."""
  assert merge({'count': jnp.int32(2**24)}, {'count': jnp.int32(1)})['count'] == 2**24 + 1


def test_combine():
  together = results(STATISTICS['combined'], OUTPUTS)
  assert list(together) == list(SINGLE)
  jax.tree.map(np.testing.assert_array_equal, together, {name: results(one, OUTPUTS) for name, one in SINGLE.items()})


def test_combine_reads_a_name_once():
  one = Statistic(('a', 'b'), lambda outputs: outputs['a'], lambda sums: {})
  two = Statistic(('b', 'c'), lambda outputs: outputs['b'], lambda sums: {})
  assert combine({'one': one, 'two': two}).reads == ('a', 'b', 'c')


def test_histogram():
  values = OUTPUTS['residual']
  inside = np.clip(values, -1.99, 1.99)
  expected = np.histogram(inside, EDGES, density=True)[0]
  np.testing.assert_allclose(results(histogram('residual', EDGES), OUTPUTS)['density'], expected, rtol=1e-12)
  assert not np.array_equal(inside, values)


def test_histogram_of_uneven_bins_and_of_edges():
  edges = [0, 1, 4, 5]
  x = {'x': np.float32([0, 0.5, 1, 3.9, 4, 5, 9, -1])}
  np.testing.assert_array_equal(results(histogram('x', edges), x)['density'], np.array([3, 2 / 3, 3]) / 8)


def test_positional_std():
  expected = np.sqrt(np.var(OUTPUTS['residual'].astype(np.float64), axis=1, ddof=1).mean(-1))
  np.testing.assert_allclose(results(positions.positional_std('residual'), OUTPUTS)['std'], expected, rtol=1e-4)


# Similarity.


def cosines(x_ND):
  """Between all pairs of different rows, in float64."""
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
  actual = inter_sequence(x, pair_std=True)
  np.testing.assert_allclose(actual['cosine'], np.mean(expected, axis=1), rtol=0, atol=1e-6)
  # The variance is the difference of two moments near 1, each to 1e-6.
  np.testing.assert_allclose(actual['cosine_std'] ** 2, np.var(expected, axis=1), rtol=0, atol=1e-6)
  np.testing.assert_array_equal(inter_sequence(x[1])['cosine'], inter_sequence(x)['cosine'][1])


def test_inter_sequence_spans_its_range():
  by_layer = [cosines(layer).mean() for layer in OUTPUTS['residual_last']]
  assert by_layer[0] < 0.1 < 0.9 < by_layer[2]


def test_direction():
  x = OUTPUTS['residual_last'].astype(np.float64)
  unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
  np.testing.assert_allclose(inter_sequence(x)['direction'], unit.mean(1), rtol=0, atol=1e-6)


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
  sums = {'unit_sum': np.float32([100_000, 0]), 'count': np.int32(100_000), 'nonzero': np.int32(100_000)}
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


def test_zero_vectors_in_the_direction():
  x = np.float32([[3, 4], [0, 0], [0, 0], [-4, 3]])
  np.testing.assert_allclose(inter_sequence(x)['direction'], [-0.05, 0.35], rtol=1e-6)


@pytest.mark.parametrize('cosine', [inter_sequence, lambda x: intra_sequence(x[None])], ids=['inter', 'intra'])
def test_zero_vectors_are_orthogonal_to_all(cosine):
  assert cosine(np.zeros((3, D), np.float32))['cosine'] == 0
  assert cosine(np.float32([[1, 0], [1, 0], [0, 0]]))['cosine'] == pytest.approx(1 / 3, abs=1e-6)


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
    assert similarity.isotropic_std(2, d) ** 2 == pytest.approx(stats.beta(1 / 2, (d - 1) / 2).mean(), rel=1e-12)
  assert np.isnan(similarity.isotropic_std(1, 3))


def test_isotropic_p_of_two_dimensions():
  """There the sum's tail is exponential: P[|sum|² / n >= r] = exp(-r)."""
  n, cosine = 100, np.array([0, 0.01, 0.1])
  expected = -(1 + (n - 1) * cosine) / np.log(10)
  np.testing.assert_allclose(similarity.isotropic_log10_p(cosine, n, 2), expected, rtol=1e-12)
