"""SeedPrint: does one network descend from another? The published test, and one whose false-positive rate holds.

Both take the answers of two networks to one probe (`fingerprint`): final-norm
outputs at the last position, [n, D]. Section 4 and Algorithm 1 of the paper.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.fingerprints import fingerprint
from bornbiased_jax.lineage.kendall import kendall_matrix
from bornbiased_jax.lineage.published import published_test
from bornbiased_jax.models.initialization import stream_key

__all__ = ['CalibratedResult', 'calibrated_test', 'check_projectable', 'correlations', 'diagonal_moments',
           'fingerprint', 'norm_trace', 'permutation_test', 'published_test', 'residuals', 'unit_ranks',
           'without_shared_input']

NUM_PERMUTATIONS = 9999
# Share of a channel's norm below which what a projection leaves is none of its own.
ROUNDING = 1e-5


class CalibratedResult(NamedTuple):
  """Of `calibrated_test`.

  Attributes:
    statistic: t, the mean rank correlation of dimension i of one network with
      dimension i of the other: an effect size, 0 under independence.
    z: (t - leak - mean) / null_std of t over permutations of the dimensions, in closed form.
    log10_p: one-sided, of z under the normal law; no evidence beyond -12.
    p_value: one-sided, over random permutations; never below 1 / (their number + 1).
    null_std: std of t over permutations.
    dimension_D: the D rank correlations whose mean t is.
    num_degenerate: dimensions that are constant in one of the networks; they correlate with nothing.
    leak: of t, what a shared input may have left in both (`norm_trace`).
  """

  statistic: float
  z: float
  log10_p: float
  p_value: float
  null_std: float
  dimension_D: np.ndarray
  num_degenerate: int
  leak: float


def calibrated_test(hidden_a: jax.Array, hidden_b: jax.Array, shared_input: jax.Array | None = None, *,
                    kendall: bool = False, num_permutations: int = NUM_PERMUTATIONS, seed: int = 0) -> CalibratedResult:
  """Are the dimensions of two networks paired, beyond what they were shown in common?

  1. Both networks carry a shared input along their residual stream in the same
     coordinates, related or not: [1, input] is projected out of each by least
     squares, and what their final norms hide from that is subtracted from t (`norm_trace`).
  2. M [D, D]: rank correlations of every dimension of A with every one of B.
  3. t = mean_i M_ii against the same with B's dimensions permuted, of which
     mean and variance have a closed form (Hoeffding 1951):
     E = mean(M), Var = sum_ij d_ij² / (D² (D - 1)), d doubly centred M.

  Null hypothesis: B's dimensions are exchangeable given A. It holds for
  independent seeds, before and after training, since initialization and
  training commute with permuting the residual basis. What breaks it: an input
  or embedding that both share and that is not given here (false positives);
  a hidden rotation or permutation of B's basis (misses).

  Args:
    hidden_a: answers of one network, [n, D].
    hidden_b: answers of the other to the same probe, [n, D].
    shared_input: what entered both networks at the last position, [n, D]: a
      Gaussian probe's vector, or the embedding of the last token where both
      networks have the same; None: nothing is shared.
    kendall: tau-b instead of Spearman's rho in step 2.
    num_permutations: of the Monte-Carlo p-value.
    seed: of the permutations.

  Raises:
    InputError: shapes that differ, values that are not finite, n < 3, or with
      a shared input another n than its, or n <= 2 D, which leaves too little to compare.

  Cost: two sorts of [n, D] and one matrix product, 2 n D² FLOPs (with
  `kendall` n² D² / 2 comparisons); with a shared input a QR, about 8 n D².
  """
  hidden_a, hidden_b = _checked(hidden_a, hidden_b)
  leak = 0.0
  if shared_input is not None:
    shared_input, _ = _checked(shared_input, shared_input)
    if len(shared_input) != len(hidden_a):
      raise InputError(f'answers to {len(hidden_a)} sequences and a shared input of {len(shared_input)} do not fit')
    left = without_shared_input(hidden_a, hidden_b, shared_input)
    leak = math.prod(float(norm_trace(*each, shared_input)) for each in zip((hidden_a, hidden_b), left, strict=True))
    hidden_a, hidden_b = left
  matrix_DE = np.asarray((kendall_matrix if kendall else correlations)(hidden_a, hidden_b))
  return permutation_test(matrix_DE, num_permutations, seed, leak)


def without_shared_input(hidden_a: jax.Array, hidden_b: jax.Array,
                         shared_input: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Residuals of both [n, D] after least squares on [1, shared_input].

  Raises:
    InputError: n <= 2 D.
  """
  check_projectable(*shared_input.shape)
  return residuals(hidden_a, shared_input), residuals(hidden_b, shared_input)


def check_projectable(n: int, D: int) -> None:
  """Raises InputError if n sequences are too few to project out an input of D channels: n <= 2 D."""
  if n <= 2 * D:
    raise InputError(f'n={n} sequences are too few to project out an input of D={D} channels; '
                     f'more than {2 * D} are needed')


@jax.jit
def residuals(hidden_ND: jax.Array, input_ND: jax.Array) -> jax.Array:
  """What least squares on [1, input_ND] leaves of hidden_ND: 0 of channels that are constant or linear in the input."""
  norm_D = jnp.linalg.norm(hidden_ND, axis=0)
  with jax.default_matmul_precision('highest'):
    basis_NE, _ = jnp.linalg.qr(jnp.concatenate((jnp.ones_like(input_ND[:, :1]), input_ND), axis=1))
    for _ in range(2):  # The second time takes what rounding left.
      hidden_ND = hidden_ND - basis_NE @ (basis_NE.T @ hidden_ND)
  # Rounding of a common basis correlates.
  return jnp.where(jnp.linalg.norm(hidden_ND, axis=0) > ROUNDING * norm_D, hidden_ND, 0)


@jax.jit
def norm_trace(hidden_ND: jax.Array, left_ND: jax.Array, input_ND: jax.Array) -> jax.Array:
  """How much of what is left of a network still follows its input through the final norm: a correlation, at most.

  Of an input x that makes up the share s of the answers' variance, the norm
  (x + f) / |x + f| leaves -x s δ / 2 after least squares, δ the fluctuation of
  |x|² over its mean: to first order a share s³ var(δ) / (4 (1 - s)) of the
  variance, of which this is the root. Two unrelated networks correlate by the
  product of their traces: below .001 as networks are used (s < .3), but by .2
  where embeddings have a std of 1.

  Args:
    hidden_ND: answers.
    left_ND: their `residuals`.
    input_ND: x.
  """
  kept_D = left_ND.var(axis=0) / hidden_ND.var(axis=0)
  share = jnp.clip(1 - jnp.nanmean(kept_D), 0, 1 - ROUNDING)
  size_N = jnp.square(input_ND - input_ND.mean(axis=0)).sum(axis=1)
  return share**1.5 * size_N.std() / size_N.mean() / (2 * jnp.sqrt(1 - share))


@jax.jit
def correlations(hidden_a: jax.Array, hidden_b: jax.Array) -> jax.Array:
  """Spearman's rho [D, E] of every column of [n, D] with every column of [n, E]; NaN for a constant one."""
  with jax.default_matmul_precision('highest'):
    return unit_ranks(hidden_a).T @ unit_ranks(hidden_b)


def unit_ranks(x_ND: jax.Array) -> jax.Array:
  """Each column's ranks (of equals their mean), centred and of length 1: products of two are Spearman's rho."""
  rank_ND = jax.scipy.stats.rankdata(x_ND, axis=0) - (x_ND.shape[0] + 1) / 2
  return rank_ND / jnp.linalg.norm(rank_ND, axis=0)


def permutation_test(matrix_DD: np.ndarray, num_permutations: int = NUM_PERMUTATIONS, seed: int = 0,
                     leak: float = 0.0) -> CalibratedResult:
  """Is the diagonal of a matrix [D, D] larger than chance, its columns being exchangeable (`calibrated_test`, 3)?

  Args:
    matrix_DD: of any association; NaN counts as none.
    num_permutations: of the Monte-Carlo p-value.
    seed: of the permutations.
    leak: how much of the diagonal's mean is no evidence.
  """
  degenerate = np.isnan(matrix_DD).all(axis=1) | np.isnan(matrix_DD).all(axis=0)
  matrix_DD = np.nan_to_num(np.asarray(matrix_DD, np.float64))
  statistic, mean, std = map(float, diagonal_moments(matrix_DD))
  z = (statistic - leak - mean) / std if std > 0 else 0.0
  permuted = _permuted_means(jnp.float32(matrix_DD), stream_key('permutation', seed), num_permutations)
  # A permutation that gives the diagonal itself must count, whatever rounding says.
  reached = int(np.sum(np.asarray(permuted) >= statistic - leak - 1e-6 * (1 + std)))
  return CalibratedResult(
      statistic, z, log10_p=float(stats.norm.logsf(z) / math.log(10)), p_value=(1 + reached) / (num_permutations + 1),
      null_std=std, dimension_D=np.diagonal(matrix_DD), num_degenerate=int(degenerate.sum()), leak=leak)


def diagonal_moments(matrix_DD):
  """Mean of the diagonal of [D, D]; and its mean and std over permutations of the columns (Hoeffding 1951)."""
  D, mean = len(matrix_DD), matrix_DD.mean()
  centred_DD = matrix_DD - matrix_DD.mean(axis=1, keepdims=True) - matrix_DD.mean(axis=0) + mean
  return matrix_DD.diagonal().mean(), mean, ((centred_DD**2).sum() / (D**2 * (D - 1)))**0.5


@functools.partial(jax.jit, static_argnums=2)
def _permuted_means(matrix_DD, key, count):
  D = len(matrix_DD)
  one = lambda key: jnp.mean(matrix_DD[jnp.arange(D), jax.random.permutation(key, D)])
  return jax.lax.map(one, jax.random.split(key, count), batch_size=256)


def _checked(a, b):
  a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
  if a.ndim != 2 or a.shape != b.shape:
    raise InputError(f'answers of shapes {list(a.shape)} and {list(b.shape)} cannot be compared; '
                     'both must be [sequences, width] of one probe and width')
  if len(a) < 3 or a.shape[1] < 2:
    raise InputError(f'{list(a.shape)} answers are too few; at least 3 sequences of 2 channels are needed')
  if not bool(jnp.isfinite(a).all() & jnp.isfinite(b).all()):
    raise InputError('answers that are not finite numbers cannot be compared')
  return a, b
