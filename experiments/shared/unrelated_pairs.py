"""Tests of all pairs of unrelated networks at once, and how often they accuse."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax.lineage import published, seedprint
from bornbiased_jax.lineage.permutations import diagonal_moments

ALPHAS = (0.05, 0.01, 0.001)
LEVELS = np.logspace(-4, 0, 81)
NUM_BOOTSTRAPS = 1000


def project(hidden_SND, input_ND):
  """`seedprint.residuals` and `seedprint.norm_trace` of all networks, which read the same."""
  left_SND = jax.lax.map(lambda hidden_ND: seedprint.residuals(hidden_ND, input_ND), hidden_SND)
  trace_S = jax.lax.map(lambda both: seedprint.norm_trace(*both, input_ND), (hidden_SND, left_SND))
  return left_SND, trace_S


def pairwise_z(hidden_SND, trace_S=None) -> np.ndarray:
  """z of `seedprint.calibrated_test` for all pairs i < j.

  The ranks of a network are computed once, not for each of its pairs.
  """
  ranks_SND = jnp.stack([seedprint.unit_ranks(hidden_ND) for hidden_ND in hidden_SND])
  trace_S = jnp.zeros(len(hidden_SND)) if trace_S is None else trace_S

  @jax.jit
  def against_all(rank_ND, trace):
    def z_of(other):
      with jax.default_matmul_precision('highest'):
        statistic, mean, std = diagonal_moments(rank_ND.T @ other[0])
      return (statistic - trace * other[1] - mean) / std
    return jax.lax.map(z_of, (ranks_SND, trace_S))

  z_SS = np.stack([against_all(*each) for each in zip(ranks_SND, trace_S, strict=True)])
  return z_SS[np.triu_indices(len(z_SS), 1)]


def published_p_values(hidden_SND, k: int | None) -> dict[str, list[float]]:
  """p-values of the three published tests for all pairs i < j; slow."""
  null = published.null_taus(*hidden_SND.shape[1:], k=k)
  indices = list(zip(*np.triu_indices(len(hidden_SND), 1), strict=True))
  bar = tqdm(indices, desc='published', unit='pair', leave=False)
  pairs = [published.published_test(hidden_SND[i], hidden_SND[j], k=k, null=null) for i, j in bar]
  return {'published_t': [pair.p_value for pair in pairs],
          'published_u': [pair.p_value_u for pair in pairs],
          'published_z': [pair.p_value_z for pair in pairs]}


def rates(z_P, p_values: dict[str, np.ndarray], num_networks: int) -> dict:
  """Moments of z over pairs, and for each test how many pairs it accuses at each level."""
  row = {'networks': num_networks, 'pairs': len(z_P), 'mean_z': float(np.nanmean(z_P)),
         'sd_z': float(np.nanstd(z_P, ddof=1)), 'max_z': float(np.nanmax(z_P))}
  for test, p_P in p_values.items():
    for alpha in ALPHAS:
      accused_P = np.asarray(p_P) <= alpha  # NaN, where a test has no answer, accuses nobody.
      row[f'{test}_{alpha}'] = float(accused_P.mean())
      row[f'{test}_{alpha}_ci95'] = bootstrap(accused_P)
    share_of_levels = np.mean(np.asarray(p_P)[:, None] <= LEVELS, axis=0)
    row[f'{test}_share_below_level'] = share_of_levels.round(5)
  return row


def bootstrap(accused_P: np.ndarray) -> list[float]:
  """95 % interval of a rate over pairs, by drawing networks with replacement.

  If all pairs agree there is nothing to draw. The interval is then Clopper and
  Pearson's, for as many pairs as share no network.
  """
  num_networks = round((1 + math.sqrt(1 + 8 * len(accused_P))) / 2)
  if accused_P.all() or not accused_P.any():
    disjoint = num_networks // 2
    return list(scipy.stats.binomtest(disjoint * int(accused_P.all()), disjoint).proportion_ci())
  share_S = np.full(num_networks, 1 / num_networks)
  draws_BS = np.random.default_rng(0).multinomial(num_networks, share_S, NUM_BOOTSTRAPS)
  i, j = np.triu_indices(num_networks, 1)
  weight_BP = draws_BS[:, i] * draws_BS[:, j]
  rate_B = weight_BP @ accused_P / np.maximum(1, weight_BP.sum(axis=1))
  return np.percentile(rate_B, (2.5, 97.5)).tolist()
