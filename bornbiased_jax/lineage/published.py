"""SeedPrint as published (Algorithm 1), for comparison; the one to trust is `seedprint.calibrated_test`.

It calls unrelated networks related: what both carry of a shared input
correlates in the same coordinate, and the tau of different dimensions, which
share their inputs, are counted as independent.
"""

from collections.abc import Iterator
import functools
import math
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.kendall import kendall_tau
from bornbiased_jax.models.initialization import stream_key

SIDES = ('low', 'high')
SUBSETS = ('coset', 'base')
SOFTMAXES = ('softmax', 'none')
TEMPERATURE = 10.0
NUM_TRIALS = 10
NUM_REPEATS = 10


class PublishedResult(NamedTuple):
  """Of `published_test`; NaN where fewer than two dimensions are compared.

  Attributes:
    p_value: of the t-test, the mean over repeats.
    p_value_u: of the Mann-Whitney U test, likewise.
    z: mean tau / (sigma / sqrt(|S|)), sigma² = 2 (2 n + 5) / (9 n (n - 1)).
    p_value_z: min(1, 2 sf(z)).
    statistic: mean tau.
    tau_S: tau of each dimension compared.
    dimensions_S: which these are.
  """

  p_value: float
  p_value_u: float
  z: float
  p_value_z: float
  statistic: float
  tau_S: np.ndarray
  dimensions_S: np.ndarray


def default_k(width: int) -> int:
  """Identity dimensions: 400 of 768 in the toys, a tenth of large models' (the companion's code)."""
  return round(width * 400 / 768) if width <= 768 else round(width / 10)


def published_test(hidden_a: jax.Array, hidden_b: jax.Array, *, k: int | None = None, side: str = 'low',
                   subset: str = 'coset', softmax: str = 'softmax', seed: int = 0,
                   null: list[np.ndarray] | None = None) -> PublishedResult:
  """Kendall's tau of identity dimensions against that of Gaussian noise.

  1. m: mean answers of each network; its k lowest (the companion's code) or
     highest (the paper) coordinates. S: those that both have ('coset'), or A's ('base').
  2. Row-wise softmax of the answers / 10 over S ('softmax'), or nothing ('none').
  3. tau_j of column j of A against column j of B, for j in S.
  4. The same on independent N(0, 1) matrices, 10 trials pooled: one-sided
     t-test and U test of tau_j against it; mean p over 10 such repeats.

  Args:
    hidden_a: answers [n, D] of the base model to a probe.
    hidden_b: answers [n, D] of the other.
    k: identity dimensions; None: `default_k(D)`.
    side: 'low' | 'high'.
    subset: 'coset' | 'base'.
    softmax: 'softmax' | 'none'.
    seed: of the null.
    null: `null_taus` of the same n, D and options, to spare its cost for many pairs.

  Raises:
    InputError: an unknown option, k that is not in 1 … D, or shapes that differ.

  Cost: 1 + 100 times the tau of at most k columns; with `null` once.
  """
  hidden_a, hidden_b = jnp.asarray(hidden_a, jnp.float32), jnp.asarray(hidden_b, jnp.float32)
  if hidden_a.ndim != 2 or hidden_a.shape != hidden_b.shape:
    raise InputError(f'answers of shapes {list(hidden_a.shape)} and {list(hidden_b.shape)} cannot be compared')
  n, D = hidden_a.shape
  options = _options(D, k, side, subset, softmax)
  null = null if null is not None else null_taus(n, D, k=k, side=side, subset=subset, softmax=softmax, seed=seed)
  tau_S, dimensions_S = _valid(_taus(hidden_a, hidden_b, *options))
  if len(tau_S) < 2:
    return PublishedResult(*[math.nan] * 5, tau_S, dimensions_S)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', RuntimeWarning)  # Of equal tau, which a network and itself have.
    p_value, p_value_u = np.mean([[stats.ttest_ind(tau_S, other, alternative='greater').pvalue,
                                   stats.mannwhitneyu(tau_S, other, alternative='greater').pvalue] for other in null],
                                 axis=0)
  z = tau_S.mean() / math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)) / len(tau_S))
  return PublishedResult(float(p_value), float(p_value_u), float(z), float(min(1.0, 2 * stats.norm.sf(z))),
                         float(tau_S.mean()), tau_S, dimensions_S)


def null_taus(n: int, D: int, *, k: int | None = None, side: str = 'low', subset: str = 'coset',
              softmax: str = 'softmax', seed: int = 0) -> list[np.ndarray]:
  """tau of noise against noise: an array of NUM_TRIALS pooled trials for each of NUM_REPEATS repeats.

  Arguments and errors as of `published_test`, of answers [n, D].
  """
  options = _options(D, k, side, subset, softmax)
  pooled = []
  for trials in noise(n, D, seed):
    pooled.append(np.concatenate([_valid(_taus(a, b, *options))[0] for a, b in trials]))
  return pooled


def noise(n: int, D: int, seed: int) -> Iterator[Iterator[tuple[jax.Array, jax.Array]]]:
  """For each repeat its trials' pairs of independent N(0, 1) matrices [n, D]."""
  def pairs(key):
    for trial in jax.random.split(key, NUM_TRIALS):
      yield tuple(jax.random.normal(part, (n, D)) for part in jax.random.split(trial))

  return map(pairs, jax.random.split(stream_key('published null', seed), NUM_REPEATS))


def _options(D, k, side, subset, softmax):
  k = default_k(D) if k is None else k
  if type(k) is not int or not 1 <= k <= D:
    raise InputError(f'k={k!r} is not a whole number from 1 to the width {D}')
  for name, value, choices in (('side', side, SIDES), ('subset', subset, SUBSETS), ('softmax', softmax, SOFTMAXES)):
    if value not in choices:
      raise InputError(f'{name}={value!r} is not one of {", ".join(choices)}')
  return k, side, subset, softmax


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _taus(hidden_a, hidden_b, k, side, subset, softmax):
  """tau [k] of A's identity dimensions, these [k], and which of them are in S [k]."""
  def identity(hidden_ND):
    mean_D = jnp.mean(hidden_ND, axis=0)
    return jax.lax.top_k(-mean_D if side == 'low' else mean_D, k)[1]

  own_K = identity(hidden_a)
  valid_K = jnp.isin(own_K, identity(hidden_b)) if subset == 'coset' else jnp.ones(k, bool)

  def answers(hidden_ND):
    hidden_NK = hidden_ND[:, own_K]
    if softmax == 'none':
      return hidden_NK
    return jax.nn.softmax(jnp.where(valid_K, hidden_NK / TEMPERATURE, -jnp.inf), axis=1)

  return kendall_tau(answers(hidden_a), answers(hidden_b)), own_K, valid_K


def _valid(result):
  tau_K, dimensions_K, valid_K = map(np.asarray, result)
  return tau_K[valid_K].astype(float), dimensions_K[valid_K]
