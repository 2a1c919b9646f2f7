"""Kendall's tau-b beside a loop over scipy's.

It is measured column by column, and for every column with every other.
"""

import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.lineage.testing import rank_correlation

from . import timing


def run() -> list[dict]:
  return [tau(2000), tau(10_000), tau(10_000, ties=True),
          matrix(2000, 768), matrix(2000, 768, ties=True), matrix(10_000, 64)]


def columns(n, k, ties):
  """Two arrays [n, k] whose columns correlate; if `ties` is true they have about ten values."""
  shared, noise = np.random.default_rng(0).standard_normal((2, n, k))
  return [np.float32(np.floor(2 * x) if ties else x) for x in (shared, shared + noise)]


def tau(n, num_columns=8, ties=False, rounds=15):
  a, b = columns(n, num_columns, ties)
  on_device = jnp.asarray(a), jnp.asarray(b)
  seconds = timing.in_turn({
      'scipy': lambda: [scipy.stats.kendalltau(*pair) for pair in zip(a.T, b.T, strict=True)],
      'jax': lambda: rank_correlation.kendall_tau(*on_device)}, rounds)
  return {
      'benchmark': "Kendall's tau", 'n': n, 'columns': num_columns, 'ties': ties, 'rounds': rounds,
      'seconds_a_column': timing.spread(seconds['jax'] / num_columns),
      'scipy_seconds_a_column': timing.spread(seconds['scipy'] / num_columns),
      'peer': 'scipy, column by column',
      'peer_over_ours': timing.spread(seconds['scipy'] / seconds['jax']),
  }


def matrix(n, num_columns, ties=False, rounds=5, sample=500):
  """All pairs of columns, where the time of scipy's loop is extrapolated from a sample of them."""
  a, b = columns(n, num_columns, ties)
  pairs = np.random.default_rng(0).integers(num_columns, size=(sample, 2))
  on_device = jnp.asarray(a), jnp.asarray(b)
  seconds = timing.in_turn({
      'scipy': lambda: [scipy.stats.kendalltau(a[:, i], b[:, j]) for i, j in pairs],
      'jax': lambda: rank_correlation.kendall_matrix(*on_device)}, rounds)
  scipy_seconds = seconds['scipy'] / sample * num_columns**2
  memory = rank_correlation._matrix.lower(a.astype(int), b.astype(int)).compile().memory_analysis()
  return {
      'benchmark': "Kendall's tau, every pair", 'n': n, 'columns': num_columns, 'ties': ties,
      'rounds': rounds,
      'seconds': timing.spread(seconds['jax']),
      'scipy_seconds': timing.spread(scipy_seconds) | {'extrapolated_from_pairs': sample,
                                                       'to_pairs': num_columns**2},
      'peer': 'scipy, pair by pair (extrapolated)',
      'peer_over_ours': timing.spread(scipy_seconds / seconds['jax']),
      'temporary_bytes': memory.temp_size_in_bytes,
  }
