"""The calibrated test behind a change of basis: the residual stream of a suspect may have been rotated or permuted.

The change is found from the two embedding matrices alone and undone before the
test (`aligned_test`); and a test on weights, which finds permuted MLP units
(`matched_units_test`; Zhu et al. 2025).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, stats

from bornbiased_jax.analysis.ensemble import in_batches
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.fingerprints import exact
from bornbiased_jax.lineage.seedprint import NUM_PERMUTATIONS, CalibratedResult, calibrated_test, check_projectable
from bornbiased_jax.models.transformer import read

# Common tokens a channel: with fewer, a basis change fits unrelated embeddings too.
LEAST_TOKENS_A_CHANNEL = 2


class MatchedUnits(NamedTuple):
  """Of `matched_units_test`.

  Attributes:
    statistic: mean over layers of Spearman's rho.
    log10_p: of Fisher's combination over layers.
    layer_L: rho of each layer.
  """

  statistic: float
  log10_p: float
  layer_L: np.ndarray


def basis_change(embedding_a: jax.Array, embedding_b: jax.Array, kind: str, rows: slice = slice(None)) -> np.ndarray:
  """W [D, D] with embedding_a W ≈ embedding_b, least squares over common tokens [V, D].

  Args:
    embedding_a: rows of the tokens that both know.
    embedding_b: the same tokens' rows, in the other basis.
    kind: 'rotation' (orthogonal Procrustes) or 'permutation' (linear assignment).
    rows: the tokens to fit; all by default.

  Raises:
    InputError: different shapes, values that are not finite, or fewer than two tokens a channel.
  """
  a, b = np.asarray(embedding_a, np.float64), np.asarray(embedding_b, np.float64)
  if a.shape != b.shape or len(a) < LEAST_TOKENS_A_CHANNEL * a.shape[1]:
    raise InputError(f'embeddings {list(a.shape)} and {list(b.shape)} do not fix a change of basis; '
                     f'at least {LEAST_TOKENS_A_CHANNEL} common tokens a channel are needed')
  if not (np.isfinite(a).all() and np.isfinite(b).all()):
    raise InputError('embeddings that are not finite numbers do not fix a change of basis')
  a, b = a[rows], b[rows]
  if kind == 'permutation':
    row, column = optimize.linear_sum_assignment(a.T @ b, maximize=True)
    return np.eye(len(row))[column]
  left, _, right = np.linalg.svd(a.T @ b)
  return left @ right


def aligned_test(base: tuple[ModelConfig, dict], suspect: tuple[ModelConfig, dict], probe: Probe, *,
                 kind: str | None = None, num_permutations: int = NUM_PERMUTATIONS) -> CalibratedResult:
  """`calibrated_test` of two networks, whatever the basis of the suspect's residual stream.

  W is the `basis_change` between the embeddings of common tokens. The base
  reads Gaussian vectors X, the suspect X W, and what it answers is carried
  back by W'. X, which both share then, is projected out.

  Null hypothesis: given the embeddings, the suspect's blocks are those of an
  independent draw, in any basis. It holds for independent seeds before
  training. Training adapts blocks to their embeddings, so that no theory
  covers unrelated networks trained on the same text (experiments.calibrate
  measures their rate): where these embeddings are alike in some basis, and the
  same circuit is read off them, such networks may agree. `basis_fit` tells.

  Args:
    base: configuration and parameters.
    suspect: likewise.
    probe: of kind 'gaussian', with more than twice as many sequences as channels.
    kind: as in `basis_change`; None: 'rotation', and under LayerNorm, which no
      rotation commutes with, 'permutation'.
    num_permutations: as of `calibrated_test`.

  Raises:
    InputError: widths or norms that differ, a token probe, or too few common
      tokens or sequences.
  """
  (config_a, params_a), (config_b, params_b) = base, suspect
  if probe.kind != 'gaussian':
    raise InputError('the aligned test turns what the suspect reads: it needs a gaussian probe')
  if (config_a.width, config_a.norm) != (config_b.width, config_b.norm):
    raise InputError(f'{config_a.norm} of width {config_a.width} and {config_b.norm} of width {config_b.width} '
                     'have no basis in common')
  check_projectable(probe.num_sequences, config_a.width)
  change_DD = jnp.float32(basis_change(*common_embeddings(base, suspect), kind or kind_of(config_a)))
  answers_of = lambda config, params, change_DD: in_batches(
      functools.partial(_answers, exact(config), probe, config_a, params, change_DD), probe.num_sequences, probe.length)
  hidden_a, input_a = answers_of(config_a, params_a, jnp.eye(config_a.width))
  hidden_b, _ = answers_of(config_b, params_b, change_DD)
  with jax.default_matmul_precision('highest'):
    return calibrated_test(hidden_a, hidden_b @ change_DD.T, input_a, num_permutations=num_permutations)


def basis_fit(embedding_a: jax.Array, embedding_b: jax.Array, kind: str) -> float:
  """Mean cosine of common tokens' embeddings, one half of them in the `basis_change` that the other half tells.

  Near 0 for independent networks, near 1 where one embedding is the other in
  another basis. Arguments and errors as of `basis_change`.
  """
  change_DD = basis_change(embedding_a, embedding_b, kind, rows=slice(0, None, 2))
  a, b = (np.asarray(embedding, np.float64)[1::2] for embedding in (embedding_a, embedding_b))
  lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
  return float(np.mean(np.sum(a @ change_DD * b, axis=1) / np.maximum(lengths, 1e-30)))


def common_embeddings(base: tuple[ModelConfig, dict], suspect: tuple[ModelConfig, dict]) -> tuple[jax.Array, jax.Array]:
  """Rows of the ids that both vocabularies have; that equal ids are equal tokens is for the caller to know."""
  common = min(base[0].vocab_size, suspect[0].vocab_size)
  return base[1]['embedding'][:common], suspect[1]['embedding'][:common]


def kind_of(config: ModelConfig) -> str:
  """What may be undone: LayerNorm commutes with permutations alone."""
  return 'rotation' if config.norm == 'rmsnorm' else 'permutation'


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _answers(config, probe, base_config, params, change_DD, index_B):
  """Final norm without gain and bias, which belong to a basis, and the base's vectors, at the last position."""
  with jax.default_matmul_precision('highest'):
    inputs_BTD = probe.inputs(base_config, index_B)
    x_BD = read(config, params, inputs_BTD @ change_DD, ('residual_last',))['residual_last'][-1]
    if config.norm == 'layernorm':
      x_BD = x_BD - x_BD.mean(axis=-1, keepdims=True)
    return x_BD / jnp.sqrt((x_BD**2).mean(axis=-1, keepdims=True) + config.norm_epsilon), inputs_BTD[:, -1]


def matched_units_test(params_a: dict, params_b: dict, *, against_gate: bool = False) -> MatchedUnits:
  """Are the MLP units of two networks in the same order, or, `against_gate`, permuted alike in two matrices?

  The units of one layer are matched to the other's by their up-projections
  (linear assignment of cosines). Under independence the matching is a uniformly
  random permutation; Spearman's rho of it with the identity is nearly
  N(0, 1 / (F - 1)). With `against_gate` it is compared with the matching by
  gate-projections, which a hidden permutation of units changes likewise: also
  uniform where up and gate of a unit are independent, as at initialization.
  Layers are combined by Fisher's method (Zhu et al. 2025).

  Raises:
    InputError: MLPs of different shapes, or no gate.

  Cost: an assignment of F units a layer, about F³: 1 s for 2,048.
  """
  rho_L, log_p_L = [], []
  for matched_L in zip(*(_matchings(params_a, params_b, name) for name in ('up', 'gate')[:1 + against_gate]),
                       strict=True):
    order = matched_L[1] if against_gate else np.arange(len(matched_L[0]))
    rho = stats.spearmanr(matched_L[0], order).statistic
    rho_L.append(rho)
    log_p_L.append(stats.norm.logsf(rho * math.sqrt(len(order) - 1)))
  log_p = stats.chi2.logsf(-2 * np.sum(log_p_L), 2 * len(log_p_L))
  return MatchedUnits(float(np.mean(rho_L)), float(log_p / math.log(10)), np.array(rho_L))


def _matchings(params_a, params_b, name):
  """Of each layer: the unit of B that each unit of A is matched to."""
  kernels = [params['blocks'][name]['kernel'] if name in params['blocks'] else None for params in (params_a, params_b)]
  if any(kernel is None for kernel in kernels) or kernels[0].shape != kernels[1].shape:
    raise InputError(f'networks without equally large {name}-projections have no units to match')
  for layers in zip(*kernels, strict=True):
    a, b = (kernel_DF / jnp.maximum(jnp.linalg.norm(kernel_DF, axis=0), 1e-30) for kernel_DF in layers)
    yield optimize.linear_sum_assignment(np.asarray(a.T @ b), maximize=True)[1]
