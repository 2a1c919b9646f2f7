"""SeedPrint as a test of independence, with a false-positive rate that holds.

It takes the hidden states of two models that read one probe: outputs of the final norm
at the last position, [n, D]. The test of the paper's Section 4 and
Algorithm 1 is in `published`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.comparison.permutation import diagonal_moments
from bornbiased_jax.lineage.comparison.rank_correlation import kendall_matrix, mean_ranks

# If a projection leaves less than this share of a channel's norm, it leaves only rounding errors.
ROUNDING = 1e-5


class CalibratedResult(NamedTuple):
  """The result of `calibrated_test`.

  Attributes:
    statistic: t, the mean of the diagonal of M: an effect size, 0 under independence.
    z: (t - leak - mean) / std, where mean and std are those of t over all permutations of the
      columns, in closed form.
    log10_p: log10 of the one-sided p-value of z under the normal distribution.
    std: std of t over all permutations.
    channel_D: the D diagonal elements whose mean is t.
    num_constant: number of channels that are constant in one of the models.
    leak: the part of t that the shared input may cause; it is subtracted.
  """

  statistic: float
  z: float
  log10_p: float
  std: float
  channel_D: np.ndarray
  num_constant: int
  leak: float


def calibrated_test(hidden_a: jax.Array | np.ndarray, hidden_b: jax.Array | np.ndarray,
                    shared_input: jax.Array | np.ndarray | None = None, *, kendall: bool = False
                    ) -> CalibratedResult:
  """Tests whether two models agree dimension by dimension, beyond what a shared input causes.

  1. Two models that read the same input carry it along their residual streams in
     the same coordinates, related or not. So [1, input] is projected out of the
     hidden states of each by least squares. What the final norms hide from this
     projection is subtracted from t (`norm_trace`).
  2. M [D, D] has the rank correlations of all dimensions of A with all of B.
  3. t = mean_i M_ii is compared with the same mean under permutations of B's
     dimensions. That has mean and variance in closed form (Hoeffding 1951):
     E = mean(M), Var = sum_ij d_ij² / (D² (D - 1)), where d is M doubly centred.

  Null hypothesis: given A, the dimensions of B are exchangeable. It holds for
  independent seeds, before and after training, because initialization and training
  commute with permutations of the residual basis. An input or embedding that the
  models share and that is not given here leads to false positives. A hidden
  rotation or permutation of B's basis leads to misses.

  Args:
    hidden_a: hidden states [n, D] of one model.
    hidden_b: hidden states of the other model, which read the same probe.
    shared_input: what entered both models at the last position, [n, D]: the
      vector of a Gaussian probe, or the embedding of the last token if both
      models have the same embedding. None if nothing is shared.
    kendall: whether step 2 uses Kendall's tau-b instead of Spearman's rho.

  Raises:
    InputError: shapes differ, values are not finite, or n < 3; or there is a shared
      input with another n, or with n <= 2 D, which leaves too little to compare.

  Example:
    >>> from bornbiased_jax import lineage
    >>> states = np.random.default_rng(0).standard_normal((100, 8))
    >>> lineage.calibrated_test(states, states).z > 5
    True
  """
  matrix_DD, leak = channel_correlations(hidden_a, hidden_b, shared_input, kendall=kendall)
  is_constant = np.isnan(matrix_DD).all(axis=1) | np.isnan(matrix_DD).all(axis=0)
  matrix_DD = np.nan_to_num(np.asarray(matrix_DD, np.float64))
  statistic, mean, std = map(float, diagonal_moments(matrix_DD))
  # A leak that is not known leaves no evidence.
  z = (statistic - leak - mean) / std if std > 0 and math.isfinite(leak) else 0.0
  return CalibratedResult(statistic, z, float(scipy.special.log_ndtr(-z)) / math.log(10), std,
                          np.diagonal(matrix_DD), int(is_constant.sum()), leak)


def channel_correlations(hidden_a: jax.Array | np.ndarray, hidden_b: jax.Array | np.ndarray,
                         shared_input: jax.Array | np.ndarray | None = None, *,
                         kendall: bool = False) -> tuple[np.ndarray, float]:
  """Steps 1 and 2 of `calibrated_test`: the matrix M [D, D], and the leak of a shared input."""
  hidden_a, hidden_b = _checked(hidden_a, hidden_b)
  leak = 0.0
  if shared_input is not None:
    shared_input, _ = _checked(shared_input, shared_input)
    if len(shared_input) != len(hidden_a):
      raise InputError(f'states of {len(hidden_a)} sequences and a shared input of '
                       f'{len(shared_input)} do not fit')
    left = without_shared_input(hidden_a, hidden_b, shared_input)
    leak = math.prod(float(norm_trace(*each, shared_input))
                     for each in zip((hidden_a, hidden_b), left, strict=True))
    hidden_a, hidden_b = left
  return np.asarray((kendall_matrix if kendall else correlations)(hidden_a, hidden_b)), leak


def without_shared_input(hidden_a: jax.Array, hidden_b: jax.Array,
                         shared_input: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The `residuals` of both models' hidden states, [n, D] each."""
  check_projectable(*shared_input.shape)
  return residuals(hidden_a, shared_input), residuals(hidden_b, shared_input)


def check_projectable(n: int, D: int) -> None:
  """Raises InputError if n <= 2 D, too few sequences to project out an input of D channels."""
  if n <= 2 * D:
    raise InputError(f'n={n} sequences are too few to project out an input of D={D} channels; '
                     f'more than {2 * D} are needed')


@jax.jit
def residuals(hidden_ND: jax.Array, input_ND: jax.Array) -> jax.Array:
  """What least squares on [1, input_ND] leaves of hidden_ND.

  Channels that are constant or linear in the input become exactly 0: rounding
  errors of a common basis would correlate.
  """
  norm_D = jnp.linalg.norm(hidden_ND, axis=0)
  with jax.default_matmul_precision('highest'):
    basis_NE, _ = jnp.linalg.qr(jnp.concatenate((jnp.ones_like(input_ND[:, :1]), input_ND), axis=1))
    for _ in range(2):  # The second time removes what rounding left.
      hidden_ND = hidden_ND - basis_NE @ (basis_NE.T @ hidden_ND)
  return jnp.where(jnp.linalg.norm(hidden_ND, axis=0) > ROUNDING * norm_D, hidden_ND, 0)


@jax.jit
def norm_trace(hidden_ND: jax.Array, left_ND: jax.Array, input_ND: jax.Array) -> jax.Array:
  """How much the residuals of hidden states may still follow the input: a correlation, at most.

  Least squares cannot remove all of an input x, because the final norm
  (x + f) / |x + f| is not linear in it. If x makes up the share s of their
  variance, -x s δ / 2 remains, where δ is the fluctuation of |x|² over its mean. To
  first order this is a share s³ var(δ) / (4 (1 - s)) of the remaining variance, and
  its root is returned. Two unrelated models correlate by the product of their
  traces: below 0.001 as models are used (s < 0.3), but by 0.2 if embeddings have a
  std of 1.

  Example:
    >>> from bornbiased_jax.lineage.comparison import seedprint
    >>> hidden, x = np.random.default_rng(0).standard_normal((2, 500, 8))
    >>> bool(seedprint.norm_trace(hidden, seedprint.residuals(hidden, x), x) < 0.01)
    True
  """
  kept_D = left_ND.var(axis=0) / hidden_ND.var(axis=0)
  share = jnp.clip(1 - jnp.nanmean(kept_D), 0, 1 - ROUNDING)
  size_N = jnp.square(input_ND - input_ND.mean(axis=0, keepdims=True)).sum(axis=1)
  return share**1.5 * size_N.std() / size_N.mean() / (2 * jnp.sqrt(1 - share))


def correlations(hidden_a: jax.Array, hidden_b: jax.Array) -> jax.Array:
  """Spearman's rho [D, E] of all columns of [n, D] with all of [n, E]; NaN if one is constant."""
  return _products(unit_ranks(hidden_a), unit_ranks(hidden_b))


@jax.jit
def _products(a_ND, b_NE):
  with jax.default_matmul_precision('highest'):
    return a_ND.T @ b_NE


def unit_ranks(x_ND: jax.Array) -> jax.Array:
  """The ranks of each column, centred and of length 1: inner products are Spearman's rho."""
  return _unit(mean_ranks(x_ND))


@jax.jit
def _unit(rank_ND):
  rank_ND = rank_ND - (rank_ND.shape[0] + 1) / 2
  return rank_ND / jnp.linalg.norm(rank_ND, axis=0, keepdims=True)


def _checked(a, b) -> tuple[jax.Array, jax.Array]:
  a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
  if a.ndim != 2 or a.shape != b.shape:
    raise InputError(f'states of shapes {list(a.shape)} and {list(b.shape)} cannot be compared; '
                     'both must be [sequences, width] of one probe and width')
  if len(a) < 3 or a.shape[1] < 2:
    raise InputError(f'states of shape {list(a.shape)} are too few; at least 3 sequences and 2 '
                     'channels are needed')
  if not bool(jnp.isfinite(a).all() & jnp.isfinite(b).all()):
    raise InputError('hidden states that are not finite numbers cannot be compared')
  return a, b
