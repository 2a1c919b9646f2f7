"""Token preference is counted from raw logits, and its p-value is that of exact arithmetic."""

from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
import math

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.analysis import preference
from bornbiased_jax.errors import InputError

V, N = 30, 200


def logits_with_ties(seed):
  """Two in three rows have several largest logits."""
  return np.random.default_rng(seed).integers(7, size=(N, V)).astype(np.float32)


def sums(logits):
  measure = jax.jit(preference.predictions(logits.shape[1]).measure)
  return jax.tree.map(np.asarray, measure({'logits_last': logits}))


def counts(logits):
  return sums(logits)['count']


@pytest.mark.parametrize('seed', [0, 1])
def test_counts_with_ties(seed):
  logits = logits_with_ties(seed)
  assert np.mean(np.sum(logits == logits.max(1, keepdims=True), axis=1) > 1) > 0.5
  lowest = [min(i for i in range(V) if row[i] == max(row)) for row in logits.tolist()]
  count_V = counts(logits)
  assert count_V.dtype == np.int32
  assert dict(enumerate(count_V)) == {i: lowest.count(i) for i in range(V)}


@pytest.mark.parametrize('seed', [0, 1])
def test_summary(seed):
  logits = logits_with_ties(seed)
  logits[:, 17] += 2
  count = Counter(int(np.flatnonzero(row == row.max())[0]) for row in logits)
  summary = preference.predictions(V).summarize(sums(logits))
  assert summary.keys() == {'top1_id', 'top1_count', 'top1_frequency', 'log10_p', 'top_ids',
                            'top_counts'}
  assert (summary['top1_id'], summary['top1_count']) == (17, count[17]) == count.most_common(1)[0]
  assert summary['top1_frequency'] == count[17] / N
  assert summary['log10_p'] == preference.log10_p(count[17], N, V)
  assert summary['top_counts'] == sorted((count[i] for i in range(V)), reverse=True)[:20]
  assert summary['top_ids'] == sorted(range(V), key=lambda i: (-count[i], i))[:20]
  assert isinstance(summary['top1_id'], int) and isinstance(summary['top1_count'], int)


def test_logits_that_are_not_numbers_are_refused():
  logits = logits_with_ties(0)
  logits[3, 5] = np.nan
  assert counts(logits).sum() == N - 1
  with pytest.raises(InputError, match=f'NaN for 1 of {N} sequences'):
    preference.predictions(V).summarize(sums(logits))


def test_another_vocabulary_than_the_network_s_is_refused():
  message = f'vocab_size={V + 1}, but the model has logits for {V} ids'
  with pytest.raises(InputError, match=message):
    preference.predictions(V + 1).measure({'logits_last': logits_with_ties(0)})


def test_summary_of_equals_and_of_few_ids():
  summary = preference.summarize(np.array([1, 5, 0, 5], np.int32))
  assert (summary['top1_id'], summary['top1_count'], summary['top_counts']) == (1, 5, [5, 5, 1, 0])
  assert preference.summarize(np.array([1, 5, 0, 5]), num_ranks=2)['top_counts'] == [5, 5]


# p = min(1, V P[Binomial(n, 1/V) >= c]).


@pytest.mark.parametrize('vocab_size', [50, 2048, 50257])
@pytest.mark.parametrize('num_sequences', [20, 500, 10_000])
def test_log10_p_against_scipy(num_sequences, vocab_size):
  compared = 0
  for count in np.unique(np.geomspace(1, num_sequences, 40).astype(int)):
    p = vocab_size * stats.binom.sf(count - 1, num_sequences, 1 / vocab_size)
    if 1e-280 < p < 0.9:
      compared += 1
      actual = preference.log10_p(int(count), num_sequences, vocab_size)
      assert actual == pytest.approx(math.log10(p), rel=1e-9)
  assert compared >= 5


def exact_log10_p(count, num_sequences, vocab_size):
  tail = sum(math.comb(num_sequences, k) * (vocab_size - 1) ** (num_sequences - k)
             for k in range(count, num_sequences + 1))
  p = min(Fraction(1), Fraction(tail * vocab_size, vocab_size ** num_sequences))
  with localcontext(prec=30):
    return float(Decimal(p.numerator).log10() - Decimal(p.denominator).log10())


@pytest.mark.parametrize('count, num_sequences, vocab_size', [
    (2, 3, 5), (3, 4, 7), (3, 10, 30), (5, 5, 2), (20, 20, 2048), (150, 1000, 50257),
    (400, 1000, 2048), (1000, 1000, 50257), (999, 1000, 151936), (700, 1500, 32000),
])
def test_log10_p_is_that_of_exact_arithmetic_also_where_p_underflows(count, num_sequences,
                                                                    vocab_size):
  exact = exact_log10_p(count, num_sequences, vocab_size)
  assert exact < -60 or num_sequences <= 10 and -4 < exact < 0
  assert preference.log10_p(count, num_sequences, vocab_size) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize('count, num_sequences, vocab_size', [
    (0, 10, 5), (1, 1, 5), (1, 10, 50257), (1, 1000, 50257), (20, 1000, 50), (10, 10, 1),
])
def test_p_is_at_most_one(count, num_sequences, vocab_size):
  assert exact_log10_p(count, num_sequences, vocab_size) == 0
  # One prediction for one sequence has V (1 / V) = 1, up to rounding.
  assert -1e-15 < preference.log10_p(count, num_sequences, vocab_size) <= 0


# The uniform baseline.


def test_uniform_baseline_is_deterministic():
  first = preference.uniform_baseline(100, 50)
  np.random.default_rng(0).random(10)
  np.testing.assert_array_equal(preference.uniform_baseline(100, 50), first)


def test_uniform_baseline_against_monte_carlo():
  num_sequences, vocab_size, ranks = 300, 40, 6
  generator = np.random.default_rng(123)
  draws = generator.multinomial(num_sequences, [1 / vocab_size] * vocab_size, size=4000)
  largest = -np.sort(-draws, axis=1)[:, :ranks]
  baseline = preference.uniform_baseline(num_sequences, vocab_size, ranks, num_draws=1000)
  assert baseline.shape == (ranks,)
  standard_error = largest.std(0) * math.sqrt(1 / 1000 + 1 / 4000)
  assert np.all(np.abs(baseline - largest.mean(0)) < 4 * standard_error)


def test_uniform_baseline_of_all_ranks():
  baseline = preference.uniform_baseline(60, 7)
  assert baseline.shape == (7,)
  assert baseline.sum() == pytest.approx(60, rel=1e-12)
  assert np.all(np.diff(baseline) <= 0)
