"""A comparison of two networks, its tests and their ranks; peers are scipy and numpy."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage import verdict
from bornbiased_jax.lineage.baselines import published
from bornbiased_jax.lineage.comparison import rank_correlation, seedprint
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.models.batches import default_batch_size
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import read

from . import timing


def kendall() -> list[dict]:
  """Kendall's tau-b, column by column."""
  return [tau(2000), tau(10_000), tau(10_000, ties=True)]


def statistics() -> list[dict]:
  """Both tests of SeedPrint."""
  return [calibrated(2000, 768), as_published(2000, 768)]


def comparison() -> list[dict]:
  """A whole comparison of two networks, and their bare forward passes."""
  return [compared('tiny_llama2', 2000, 64, rounds=5),
          compared('nano_llama2', 2000, 64, rounds=1)]


def columns(n, k, ties=False):
  """Two arrays [n, k] whose columns correlate; if `ties` is true they have about ten values."""
  shared, noise = np.random.default_rng(0).standard_normal((2, n, k))
  return [np.float32(np.floor(2 * x) if ties else x) for x in (shared, shared + noise)]


def both(ours: Callable, peer: Callable, rounds: int, of_all: float = 1):
  """Seconds of ours and of a peer that does only a share of the work."""
  seconds = timing.in_turn({'peer': peer, 'ours': ours}, rounds)
  return seconds['ours'], seconds['peer'] * of_all


def extrapolated(sample, count):
  return {'extrapolated_from_pairs': sample, 'to_pairs': count}


def tau(n, num_columns=8, ties=False, rounds=15):
  a, b = columns(n, num_columns, ties)
  on_device = jnp.asarray(a), jnp.asarray(b)
  ours, peer = both(
      lambda: rank_correlation.kendall_tau(*on_device),
      lambda: [scipy.stats.kendalltau(*pair) for pair in zip(a.T, b.T, strict=True)], rounds)
  return {
      'benchmark': "Kendall's tau", 'n': n, 'columns': num_columns, 'ties': ties, 'rounds': rounds,
      'seconds_a_column': timing.spread(ours / num_columns),
      'scipy_seconds_a_column': timing.spread(peer / num_columns),
      'peer': 'scipy, column by column', 'peer_over_ours': timing.spread(peer / ours)}


def calibrated(n, width, rounds=5) -> dict:
  """The calibrated test, and the mean diagonal of Spearman's rho under 10,000 permutations."""
  a, b = columns(n, width)
  on_device, generator = (jnp.asarray(a), jnp.asarray(b)), np.random.default_rng(0)

  def peer():
    matrix_DD = scipy.stats.spearmanr(a, b).statistic[:width, width:]
    return [matrix_DD[np.arange(width), generator.permutation(width)].mean() for _ in range(10_000)]

  return row('calibrated test', n, width, 'scipy and numpy',
             *both(lambda: seedprint.calibrated_test(*on_device).z, peer, rounds))


def as_published(n, width, rounds=3, sample=200) -> dict:
  """The published test, and the time of scipy, extrapolated from `sample` pairs of columns."""
  a, b = columns(n, width)
  on_device, sample = (jnp.asarray(a), jnp.asarray(b)), min(sample, width)
  count = published.default_k(width) * (1 + published.NUM_TRIALS * published.NUM_REPEATS)
  return extrapolated(sample, count) | row(
      'published test', n, width, 'scipy, column by column (extrapolated)', *both(
          lambda: published.published_test(*on_device, subset='base').p_value,
          lambda: [scipy.stats.kendalltau(a[:, i], b[:, i]) for i in range(sample)],
          rounds, count / sample))


def row(name, n, width, peer, seconds, peer_seconds) -> dict:
  return {'benchmark': f'SeedPrint, {name}', 'n': n, 'width': width, 'rounds': len(seconds),
          'seconds': timing.spread(seconds), 'peer': peer,
          'peer_over_ours': timing.spread(peer_seconds / seconds)}


def compared(name, n, length, rounds) -> dict:
  config, probe, size = configs.get(name), Probe('tokens', n, length), default_batch_size(n, length)
  networks = [init_params(config, seed) for seed in (1, 2)]
  # Like in a signature, the last batch wraps around, so that one program fits all batches.
  inputs = [probe.inputs(config, jnp.arange(first, first + size) % n)
            for first in range(0, n, size)]

  def compare():
    verdict.compare(*(signature.of_network(config, params, probe) for params in networks))
    return 0

  @jax.jit
  def forward(params, tokens_BT):
    with jax.default_matmul_precision('highest'):
      return read(config, params, tokens_BT, ('hidden_last',))

  read_all = lambda: [forward(params, batch) for params in networks for batch in inputs]
  seconds = timing.in_turn({'comparison': compare, 'forward': read_all}, rounds)
  return {'benchmark': f'comparison of two {name}', 'n': n, 'length': length, 'rounds': rounds,
          'seconds': timing.spread(seconds['comparison']),
          'comparison_over_forward': timing.spread(seconds['comparison'] / seconds['forward'])}
