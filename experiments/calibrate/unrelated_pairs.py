"""Tests of all pairs of unrelated networks at once, and how often they find something."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax.lineage.baselines import published
from bornbiased_jax.lineage.comparison import seedprint
from bornbiased_jax.lineage.comparison.permutation import diagonal_moments

ALPHAS = (0.05, 0.01, 0.001)
LEVELS = np.logspace(-4, 0, 81)
NUM_BOOTSTRAPS = 1000


def project(hidden_SND, input_ND):
  """`seedprint.residuals` and `seedprint.norm_trace` of all networks, which read the same."""
  left_SND = jax.lax.map(lambda hidden_ND: seedprint.residuals(hidden_ND, input_ND), hidden_SND)
  trace_S = jax.lax.map(lambda both: seedprint.norm_trace(*both, input_ND), (hidden_SND, left_SND))
  return left_SND, trace_S


def all_pairs(count: int) -> np.ndarray:
  """The numbers i < j of all pairs of networks, [P, 2]."""
  return np.stack(np.triu_indices(count, 1), axis=1)


def pairwise_z(hidden_SND, trace_S=None) -> np.ndarray:
  """z of `seedprint.calibrated_test` for all pairs i < j; ranks are computed once a network."""
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


def moments(z: Iterable[float]) -> dict:
  """Mean, sd and largest of z over pairs; NaN is no z."""
  z_P = np.array([each for each in z if not np.isnan(each)])
  return {'mean': float(z_P.mean()), 'sd': float(z_P.std(ddof=1)) if len(z_P) > 1 else None,
          'max': float(z_P.max())}


def rates(p_values: dict[str, Iterable[float]], pairs: np.ndarray) -> dict:
  """For each test how many pairs [P, 2] have a p-value of at most each level: false positives.

  NaN, where a test has no result, is above all levels.
  """
  row = {}
  for test, p_P in p_values.items():
    p_P = np.asarray(p_P, float)
    for alpha in ALPHAS:
      row[f'{test}_{alpha}'] = float(np.mean(p_P <= alpha))
      row[f'{test}_{alpha}_ci95'] = bootstrap(p_P <= alpha, pairs)
    row[f'{test}_share_below_level'] = np.mean(p_P[:, None] <= LEVELS, axis=0).round(5)
  return row


def bootstrap(found_P: np.ndarray, pairs: np.ndarray) -> list[float]:
  """95 % interval of a rate over pairs [P, 2] of networks, by drawing networks with replacement.

  If all pairs agree there is nothing to draw. The interval is then Clopper and Pearson's, for as
  many pairs as share no network.
  """
  num_networks = int(pairs.max()) + 1
  if found_P.all() or not found_P.any():
    disjoint = min(num_networks // 2, *(len(np.unique(side)) for side in pairs.T))
    return list(scipy.stats.binomtest(disjoint * int(found_P.all()), disjoint).proportion_ci())
  return np.percentile(resampled(found_P, pairs), (2.5, 97.5)).tolist()


def resampled(values_P: np.ndarray, pairs: np.ndarray) -> np.ndarray:
  """Means over pairs [P, 2] of networks that are drawn with replacement, NUM_BOOTSTRAPS times."""
  num_networks = int(pairs.max()) + 1
  share_S = np.full(num_networks, 1 / num_networks)
  draws_BS = np.random.default_rng(0).multinomial(num_networks, share_S, NUM_BOOTSTRAPS)
  weight_BP = draws_BS[:, pairs[:, 0]] * draws_BS[:, pairs[:, 1]]
  return weight_BP @ values_P / np.maximum(1, weight_BP.sum(axis=1))
