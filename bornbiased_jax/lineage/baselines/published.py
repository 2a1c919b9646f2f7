"""SeedPrint as published (Algorithm 1), for comparison only.

It too often calls unrelated models related, for two reasons. Both models carry
a shared input along in the same coordinates, so these correlate. And it counts the
tau of different dimensions as independent, although they come from the same inputs.
The test to trust is `seedprint.calibrated_test`.
"""

from collections.abc import Iterator
import functools
import math
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.comparison.rank_correlation import kendall_tau
from bornbiased_jax.models.initialization import stream_key

SIDES = ('low', 'high')
SUBSETS = ('coset', 'base')
SOFTMAXES = ('softmax', 'none')
TEMPERATURE = 10.0
NUM_TRIALS = 10
NUM_REPEATS = 10


class PublishedResult(NamedTuple):
  """The result of `published_test`. Numbers are NaN if it compares fewer than two dimensions.

  Attributes:
    p_value: p-value of the one-sided t-test, the mean over repeats.
    p_value_u: p-value of the one-sided Mann-Whitney U test, the mean over repeats.
    z: mean tau / (sigma / sqrt(|S|)), sigma² = 2 (2 n + 5) / (9 n (n - 1)).
    p_value_z: min(1, 2 sf(z)), sf the survival function of the normal distribution.
    statistic: mean tau.
    tau_S: tau of each of the dimensions in S, which are compared.
    dimensions_S: the indices of these dimensions.
  """

  p_value: float
  p_value_u: float
  z: float
  p_value_z: float
  statistic: float
  tau_S: np.ndarray
  dimensions_S: np.ndarray


def default_k(width: int) -> int:
  """The number of identity dimensions in the code of the SeedPrint paper (arXiv 2509.26404).

  It takes 400 of the 768 dimensions of its small models and a tenth of large ones'.

  Example:
    >>> from bornbiased_jax import lineage
    >>> lineage.default_k(768), lineage.default_k(4096)
    (400, 410)
  """
  return round(width * 400 / 768) if width <= 768 else round(width / 10)


def published_test(hidden_a: jax.Array | np.ndarray, hidden_b: jax.Array | np.ndarray, *,
                   k: int | None = None, side: str = 'low', subset: str = 'coset',
                   softmax: str = 'softmax', seed: int = 0,
                   null: list[np.ndarray] | None = None) -> PublishedResult:
  """Compares Kendall's tau of the identity dimensions with tau of Gaussian noise.

  1. The identity dimensions of a model are the k lowest coordinates of its mean
     state (like the published code) or the k highest (like the paper). S are
     those that both models have ('coset'), or the base's ('base').
  2. The hidden states / 10 go through a softmax over S, row by row ('softmax'), or stay
     as they are ('none').
  3. For each j in S, tau_j compares column j of the base with column j of the other.
  4. Steps 1 to 3 on pairs of independent N(0, 1) matrices, 10 trials pooled, give
     the null. A one-sided t-test and U test compare the tau_j with it. The p-values
     are means over 10 such repeats.

  Args:
    hidden_a: hidden states [n, D] of the base to a probe.
    hidden_b: hidden states [n, D] of the other model.
    k: number of identity dimensions, by default `default_k(D)`.
    side: 'low' or 'high'.
    subset: 'coset' or 'base'.
    softmax: 'softmax' or 'none'.
    seed: seed of the null.
    null: `null_taus` of the same n, D and options, to pay for it once for many pairs.

  Raises:
    InputError: an option is unknown, k is not in 1 … D, or shapes differ.
  """
  hidden_a, hidden_b = jnp.asarray(hidden_a, jnp.float32), jnp.asarray(hidden_b, jnp.float32)
  if hidden_a.ndim != 2 or hidden_a.shape != hidden_b.shape:
    raise InputError(f'states of shapes {list(hidden_a.shape)} and {list(hidden_b.shape)} cannot '
                     'be compared')
  n, D = hidden_a.shape
  options = _options(D, k, side, subset, softmax)
  if null is None:
    null = null_taus(n, D, k=k, side=side, subset=subset, softmax=softmax, seed=seed)
  tau_S, dimensions_S = _taus(*_compared(hidden_a, hidden_b, *options))
  if len(tau_S) < 2:
    nan = math.nan
    return PublishedResult(nan, nan, nan, nan, nan, tau_S, dimensions_S)
  p_values = lambda noise_tau: [
      test(tau_S, noise_tau, alternative='greater').pvalue
      for test in (scipy.stats.ttest_ind, scipy.stats.mannwhitneyu)]
  with warnings.catch_warnings():
    # scipy warns of equal tau, which a network has with itself.
    warnings.simplefilter('ignore', RuntimeWarning)
    p_value, p_value_u = np.mean([p_values(noise_tau) for noise_tau in null], axis=0)
  z = tau_S.mean() / tau_std(n) * math.sqrt(len(tau_S))
  p_value_z = min(1.0, 2 * scipy.stats.norm.sf(z))
  return PublishedResult(float(p_value), float(p_value_u), float(z), float(p_value_z),
                         float(tau_S.mean()), tau_S, dimensions_S)


def tau_std(n: int) -> float:
  """Standard deviation of Kendall's tau of n pairs of independent numbers without ties."""
  return math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))


def null_taus(n: int, D: int, *, k: int | None = None, side: str = 'low', subset: str = 'coset',
              softmax: str = 'softmax', seed: int = 0) -> list[np.ndarray]:
  """The null of `published_test` of states [n, D]: for each repeat the tau of NUM_TRIALS trials."""
  options = _options(D, k, side, subset, softmax)
  pooled = []
  for trials in noise(n, D, seed):
    compared = _one_ahead(_compared(a, b, *options) for a, b in trials)
    pooled.append(np.concatenate([_taus(*each)[0] for each in compared]))
  return pooled


def _one_ahead(items):
  """The same items, each begun before the last one is used: XLA draws noise while numpy counts."""
  items = iter(items)
  last = next(items)
  for item in items:
    yield last
    last = item
  yield last


def noise(n: int, D: int, seed: int) -> Iterator[Iterator[tuple[jax.Array, jax.Array]]]:
  """For each repeat and each of its trials, two independent N(0, 1) matrices [n, D]."""
  def pairs(key):
    for trial in jax.random.split(key, NUM_TRIALS):
      yield tuple(jax.random.normal(part, (n, D)) for part in jax.random.split(trial))

  return map(pairs, jax.random.split(stream_key('published null', seed), NUM_REPEATS))


def _options(D, k, side, subset, softmax):
  k = default_k(D) if k is None else k
  if type(k) is not int or not 1 <= k <= D:
    raise InputError(f'k={k!r} is not a whole number from 1 to the width {D}')
  for name, value, choices in (('side', side, SIDES), ('subset', subset, SUBSETS),
                               ('softmax', softmax, SOFTMAXES)):
    if value not in choices:
      raise InputError(f'{name}={value!r} is not one of {", ".join(choices)}')
  return k, side, subset, softmax


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _compared(hidden_a, hidden_b, k, side, subset, softmax):
  """The hidden states of both networks in A's identity dimensions [n, k], and these dimensions [k].

  Also whether these are in S, [k]. If not, or if an answer is NaN, hidden states are 0, whose
  tau is NaN.
  """
  def identity(hidden_ND):
    mean_D = jnp.mean(hidden_ND, axis=0)
    return jax.lax.top_k(-mean_D if side == 'low' else mean_D, k)[1]

  own_K = identity(hidden_a)
  valid_K = jnp.isin(own_K, identity(hidden_b)) if subset == 'coset' else jnp.ones(k, bool)

  def states(hidden_ND):
    hidden_NK = hidden_ND[:, own_K]
    if softmax == 'none':
      return hidden_NK
    return jax.nn.softmax(jnp.where(valid_K, hidden_NK / TEMPERATURE, -jnp.inf), axis=1)

  pair = states(hidden_a), states(hidden_b)
  comparable_K = valid_K & ~(jnp.isnan(pair[0]) | jnp.isnan(pair[1])).any(axis=0)
  return *(jnp.where(comparable_K, x_NK, 0) for x_NK in pair), own_K, valid_K


def _taus(a_NK, b_NK, dimensions_K, valid_K):
  """tau of the dimensions in S, and these dimensions, from `_compared`."""
  tau_K, dimensions_K, valid_K = map(np.asarray, (kendall_tau(a_NK, b_NK), dimensions_K, valid_K))
  return tau_K[valid_K].astype(float), dimensions_K[valid_K]
