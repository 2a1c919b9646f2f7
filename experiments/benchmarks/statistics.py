"""The tests on two fingerprints against a straightforward transcription: scipy's correlations, a pair at a time."""

import jax.numpy as jnp
import numpy as np
from scipy import stats

from bornbiased_jax import published, seedprint
from experiments.benchmarks import timing
from experiments.benchmarks.kendall import columns

N, D = 2000, 768
SAMPLE = 300


def run() -> list[dict]:
  return [calibrated(), as_published()]


def calibrated(rounds=5) -> dict:
  """Spearman's rho of every dimension with every other, and the diagonal's mean under 10,000 permutations."""
  a, b = columns(N, D, ties=False)
  on_device = jnp.asarray(a), jnp.asarray(b)
  generator = np.random.default_rng(0)
  pairs, matrix_DD = generator.integers(D, size=(SAMPLE, 2)), generator.standard_normal((D, D))
  seconds = timing.in_turn({
      'correlations': lambda: [stats.spearmanr(a[:, i], b[:, j]) for i, j in pairs],
      'permutations': lambda: [matrix_DD[np.arange(D), generator.permutation(D)].mean() for _ in range(10_000)],
      'ours': lambda: seedprint.calibrated_test(*on_device).z}, rounds)
  return row('calibrated test', seconds['correlations'] / SAMPLE * D**2 + seconds['permutations'], seconds['ours'],
             extrapolated_from_pairs=SAMPLE, to_pairs=D**2)


def as_published(rounds=3) -> dict:
  """Kendall's tau of k dimensions of the two networks, and of 100 pairs of noise."""
  a, b = columns(N, D, ties=False)
  on_device = jnp.asarray(a), jnp.asarray(b)
  k = published.default_k(D)
  times = 1 + published.NUM_TRIALS * published.NUM_REPEATS
  seconds = timing.in_turn({
      'peer': lambda: [stats.kendalltau(a[:, i], b[:, i]) for i in range(SAMPLE)],
      'ours': lambda: published.published_test(*on_device, subset='base').p_value}, rounds)
  return row('published test', seconds['peer'] / SAMPLE * k * times, seconds['ours'],
             extrapolated_from_pairs=SAMPLE, to_pairs=k * times)


def row(name, peer_seconds, seconds, **sample) -> dict:
  return {'benchmark': f'SeedPrint, {name}', 'n': N, 'width': D, 'rounds': len(seconds),
          'seconds': timing.spread(seconds), 'peer': 'scipy, a pair of dimensions at a time',
          'peer_over_ours': timing.spread(peer_seconds / seconds), **sample}
