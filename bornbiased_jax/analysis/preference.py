"""Extreme token preference: which token a random network predicts, and how often (Fig 1, Table 1)."""

import jax.numpy as jnp
import numpy as np
from scipy import special, stats

from bornbiased_jax.analysis.statistics import Statistic
from bornbiased_jax.errors import InputError


def predictions(vocab_size: int) -> Statistic:
  """How often each id is the argmax of the logits at the last position.

  Ties go to the lowest id. Results: those of `summarize`; logits that are
  not numbers predict nothing, and raise InputError there.
  """

  def measure(outputs):
    logits_BV = outputs['logits_last']
    if logits_BV.shape[-1] != vocab_size:
      raise InputError(f'vocab_size={vocab_size}, but the network has logits for {logits_BV.shape[-1]} ids')
    undefined_B = jnp.isnan(jnp.max(logits_BV, axis=-1))
    predicted_B = jnp.where(undefined_B, vocab_size, jnp.argmax(logits_BV, axis=-1))
    return {'count': jnp.zeros(vocab_size, jnp.int32).at[predicted_B].add(1, mode='drop'),
            'undefined': jnp.sum(undefined_B, dtype=jnp.int32)}

  def results(sums):
    if sums['undefined']:
      raise InputError(f"logits are NaN for {sums['undefined']} of {sums['undefined'] + sums['count'].sum()} sequences")
    return summarize(sums['count'])

  return Statistic(('logits_last',), measure, results)


def summarize(count_V: np.ndarray, num_ranks: int = 20) -> dict:
  """The preferred token of one network, from its prediction counts [V].

  Returns:
    top1_id (the lowest among equals), top1_count, top1_frequency in [0, 1],
    log10_p (see there), and top_ids and top_counts, the `num_ranks` most
    predicted ids in descending order.
  """
  count_V = np.asarray(count_V)
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
  """log10 of p = min(1, V P[Binomial(n, 1/V) >= count]), Bonferroni over the vocabulary.

  The tail is summed in log space, where a p-value of 1e-40000 does not underflow.
  """
  tail = np.arange(count, num_sequences + 1)
  log_tail = special.logsumexp(stats.binom.logpmf(tail, num_sequences, 1 / vocab_size))
  return float(min(0.0, (np.log(vocab_size) + log_tail) / np.log(10)))


def uniform_baseline(num_sequences: int, vocab_size: int, num_ranks: int = 20, num_draws: int = 100) -> np.ndarray:
  """Largest counts [num_ranks] when `num_sequences` ids are drawn uniformly: the mean of `num_draws` draws.

  Its first entry is the random baseline to which Table 1's ratio is taken.
  The draws are the same in every call.
  """
  generator = np.random.default_rng(0)
  draw = lambda: np.bincount(generator.integers(vocab_size, size=num_sequences), minlength=vocab_size)
  return np.mean([np.sort(draw())[::-1][:num_ranks] for _ in range(num_draws)], axis=0)
