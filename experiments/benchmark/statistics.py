"""The tests of hidden states beside a straightforward transcription with scipy and numpy."""

import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.lineage.baselines import published
from bornbiased_jax.lineage.testing import seedprint

from . import timing
from .kendall import columns


def run() -> list[dict]:
  return [calibrated(2000, 768), as_published(2000, 768)]


def calibrated(n, width, rounds=5) -> dict:
  """The calibrated test, beside the mean diagonal of Spearman's rho under 10,000 permutations."""
  a, b = columns(n, width, ties=False)
  on_device, generator = (jnp.asarray(a), jnp.asarray(b)), np.random.default_rng(0)

  def peer():
    matrix_DD = scipy.stats.spearmanr(a, b).statistic[:width, width:]
    return [matrix_DD[np.arange(width), generator.permutation(width)].mean() for _ in range(10_000)]

  ours = lambda: seedprint.calibrated_test(*on_device).z
  seconds = timing.in_turn({'peer': peer, 'ours': ours}, rounds)
  return row('calibrated test', n, width, 'scipy and numpy', seconds['peer'], seconds['ours'])


def as_published(n, width, rounds=3, sample=200) -> dict:
  """The published test, beside the time of scipy, extrapolated from `sample` pairs of columns."""
  a, b = columns(n, width, ties=False)
  on_device, sample = (jnp.asarray(a), jnp.asarray(b)), min(sample, width)
  count = published.default_k(width) * (1 + published.NUM_TRIALS * published.NUM_REPEATS)
  seconds = timing.in_turn({
      'peer': lambda: [scipy.stats.kendalltau(a[:, i], b[:, i]) for i in range(sample)],
      'ours': lambda: published.published_test(*on_device, subset='base').p_value}, rounds)
  peer_seconds = seconds['peer'] / sample * count
  measured = row('published test', n, width, 'scipy, column by column (extrapolated)',
                 peer_seconds, seconds['ours'])
  return measured | {'extrapolated_from_pairs': sample, 'to_pairs': count}


def row(name, n, width, peer, peer_seconds, seconds) -> dict:
  return {'benchmark': f'SeedPrint, {name}', 'n': n, 'width': width, 'rounds': len(seconds),
          'seconds': timing.spread(seconds), 'peer': peer,
          'peer_over_ours': timing.spread(peer_seconds / seconds)}
