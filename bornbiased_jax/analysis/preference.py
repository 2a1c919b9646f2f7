"""Extreme token preference: which token a network predicts, and how often (Fig 1, Table 1)."""

import functools

import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.analysis.statistics import Statistic
from bornbiased_jax.errors import InputError


@functools.lru_cache(maxsize=64)
def predictions(vocab_size: int) -> Statistic:
  """How often each token id is the argmax of the logits at the last position.

  Ties go to the lowest id.

  Args:
    vocab_size: number of token ids, V.

  Returns:
    A statistic with the results of `summarize`. It refuses networks with another
    vocabulary, and logits that are NaN, with an InputError.

  Example:
    >>> from bornbiased_jax import analysis
    >>> tokens = analysis.predictions(vocab_size=3)
    >>> tokens.measure({'logits_last': jnp.array([[0., 5., 1.], [0., 2., 9.]])})['count'].tolist()
    [0, 1, 1]
  """

  def measure(outputs):
    logits_BV = outputs['logits_last']
    if logits_BV.shape[-1] != vocab_size:
      raise InputError(f'vocab_size={vocab_size}, but the model has logits for '
                       f'{logits_BV.shape[-1]} ids')
    # The maximum is NaN if any logit is. Such a sequence gets an id outside the
    # vocabulary, which mode='drop' does not count.
    undefined_B = jnp.isnan(jnp.max(logits_BV, axis=-1))
    predicted_B = jnp.where(undefined_B, vocab_size, jnp.argmax(logits_BV, axis=-1))
    return {'count': jnp.zeros(vocab_size, jnp.int32).at[predicted_B].add(1, mode='drop'),
            'undefined': jnp.sum(undefined_B, dtype=jnp.int32)}

  def results(sums):
    undefined = sums['undefined']
    if undefined:
      raise InputError(f'logits are NaN for {undefined} of '
                       f'{undefined + sums["count"].sum()} sequences')
    return summarize(sums['count'])

  return Statistic(('logits_last',), measure, results)


def summarize(count_V: np.ndarray, num_ranks: int = 20) -> dict:
  """The preferred token of one network, from how often it predicted each id.

  Returns:
    A dict of
    - top1_id: the most predicted id, the lowest if several are equal.
    - top1_count, top1_frequency: number and share of sequences for which it was predicted.
    - log10_p: see the function of this name.
    - top_ids, top_counts: the `num_ranks` most predicted ids in descending order, and
      their counts.
  """
  count_V = np.asarray(count_V)
  # Stable, and of negative counts, so that the lowest id comes first among equals.
  top_ids = np.argsort(-count_V, kind='stable')[:num_ranks]
  top_counts, n = count_V[top_ids].tolist(), int(count_V.sum())
  return {
      'top1_id': int(top_ids[0]),
      'top1_count': top_counts[0],
      'top1_frequency': top_counts[0] / n,
      'log10_p': log10_p(top_counts[0], n, count_V.size),
      'top_ids': top_ids.tolist(),
      'top_counts': top_counts,
  }


def log10_p(count: int, num_sequences: int, vocab_size: int) -> float:
  """log10 of the p-value of a count, were every prediction uniform over the vocabulary.

  p = min(1, V P[Binomial(n, 1/V) >= count]), where the factor V is the Bonferroni
  correction for the choice of the most predicted of V ids (Table 1). The tail is summed
  in log space, where a p-value of 1e-40000 does not underflow.

  Args:
    count: number of sequences for which the token was predicted.
    num_sequences: number of sequences, n.
    vocab_size: number of token ids, V.

  Example:
    >>> from bornbiased_jax import analysis
    >>> round(analysis.log10_p(count=10, num_sequences=10, vocab_size=2), 3)  # p = 2 / 2^10
    -2.709
  """
  tail = np.arange(count, num_sequences + 1)
  log_tail = scipy.special.logsumexp(scipy.stats.binom.logpmf(tail, num_sequences, 1 / vocab_size))
  return float(min(0.0, (np.log(vocab_size) + log_tail) / np.log(10)))


def uniform_baseline(num_sequences: int, vocab_size: int, num_ranks: int = 20,
                     num_draws: int = 100) -> np.ndarray:
  """The largest counts that chance gives to the ids of a vocabulary.

  Args:
    num_sequences: number of ids that are drawn uniformly, n.
    vocab_size: number of token ids, V.
    num_ranks: number of largest counts to return.
    num_draws: number of repetitions over which they are averaged. The repetitions are
      the same in every call.

  Returns:
    Mean counts [num_ranks] in descending order. The first is the random baseline by
    which Table 1 divides the count of the preferred token.

  Example:
    >>> from bornbiased_jax import analysis
    >>> round(analysis.uniform_baseline(10_000, vocab_size=50257)[0])
    4
  """
  generator = np.random.default_rng(0)

  def largest_counts():
    ids = generator.integers(vocab_size, size=num_sequences)
    return np.sort(np.bincount(ids, minlength=vocab_size))[::-1][:num_ranks]

  return np.mean([largest_counts() for _ in range(num_draws)], axis=0)
