"""The published test equals a plain transcription of its definition."""

import math

import numpy as np
import pytest
from scipy import special, stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.baselines import published
from small_signatures import noise


def transcribed(a, b, k, side, subset, softmax, null):
  """The paper's Algorithm 1 in numpy and scipy, with a loop for everything."""
  def taus(a, b):
    mean_a, mean_b = a.mean(axis=0), b.mean(axis=0)
    own = np.argsort(mean_a if side == 'low' else -mean_a)[:k]
    other = np.argsort(mean_b if side == 'low' else -mean_b)[:k]
    chosen = [j for j in own if j in other] if subset == 'coset' else list(own)
    a, b = a[:, chosen], b[:, chosen]
    if softmax == 'softmax':
      a, b = special.softmax(a / 10, axis=1), special.softmax(b / 10, axis=1)
    return np.array([stats.kendalltau(a[:, j], b[:, j]).statistic for j in range(len(chosen))])

  own, p_t, p_u = taus(a, b), [], []
  for trials in null:
    pooled = np.concatenate([taus(np.asarray(x), np.asarray(y)) for x, y in trials])
    p_t.append(stats.ttest_ind(own, pooled, alternative='greater').pvalue)
    p_u.append(stats.mannwhitneyu(own, pooled, alternative='greater').pvalue)
  n = len(a)
  z = own.mean() / (math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1))) / math.sqrt(len(own)))
  return np.mean(p_t), np.mean(p_u), z, min(1, 2 * stats.norm.sf(z)), own.mean()


@pytest.mark.parametrize('side, subset, softmax', [
    ('low', 'coset', 'softmax'), ('high', 'base', 'none')])
def test_the_published_test_is_its_transcription(side, subset, softmax):
  a = noise(25, 40, 24)
  b = noise(26, 40, 24) + 0.3 * a
  options = dict(k=12, side=side, subset=subset, softmax=softmax)
  result = published.published_test(a, b, **options, seed=3)
  expected = transcribed(a, b, 12, side, subset, softmax, published.noise(40, 24, 3))
  np.testing.assert_allclose(result[:5], expected, atol=1e-6)
  null = published.null_taus(40, 24, **options, seed=3)
  again = published.published_test(a, b, **options, null=null)
  assert again.p_value == result.p_value


def test_no_two_matrices_of_the_null_are_equal():
  pairs = [pair for trials in published.noise(3, 2, 1) for pair in trials]
  drawn = np.array(pairs).reshape(-1, 6)
  assert len(drawn) == 2 * 10 * 10 and len(np.unique(drawn, axis=0)) == len(drawn)


def test_nothing_in_common_has_no_p_value():
  a = np.arange(8) + noise(28, 30, 8) / 100
  result = published.published_test(a, -a, k=3)
  assert math.isnan(result.p_value) and len(result.tau_S) == 0


def test_states_that_are_not_numbers_have_no_p_value():
  a, b = noise(31, 30, 8), noise(32, 30, 8)
  a[3, 2] = np.nan
  result = published.published_test(a, b, k=8, softmax='none')
  np.testing.assert_array_equal(np.isnan(result.tau_S), result.dimensions_S == 2)
  assert math.isnan(result.p_value) and math.isnan(result.statistic)


@pytest.mark.parametrize('options, message', [
    (dict(k=0), 'k=0'), (dict(k=9), 'k=9'), (dict(side='left'), "side='left'"),
    (dict(subset='all'), "subset='all'"), (dict(softmax='hard'), "softmax='hard'"),
])
def test_unknown_options_of_the_published_test(options, message):
  with pytest.raises(InputError, match=message):
    published.published_test(noise(29, 10, 8), noise(30, 10, 8), **options)
