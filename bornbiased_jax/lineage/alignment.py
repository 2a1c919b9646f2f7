"""Tests that a permuted or rotated network cannot escape.

A suspect's residual stream may have been rotated or permuted to hide it from the
calibrated test. `aligned_test` finds this change of basis from the two embedding
matrices alone and undoes it before the test. `matched_units_test` looks at weights
and can find permuted MLP units (Zhu et al. 2025).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.sizes import in_batches
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.hosts import on_host
from bornbiased_jax.lineage.permutations import NUM_PERMUTATIONS, CalibratedResult
from bornbiased_jax.lineage.reading import exact, sized
from bornbiased_jax.lineage.seedprint import calibrated_test, check_projectable
from bornbiased_jax.models.transformer import read

# Common tokens per channel. With fewer, some change of basis fits unrelated embeddings too.
LEAST_TOKENS_A_CHANNEL = 2
REWEIGHTINGS = 4


class MatchedUnits(NamedTuple):
  """The result of `matched_units_test`.

  Attributes:
    statistic: mean over layers of Spearman's rho.
    log10_p: log10 of the one-sided p-value of all layers, combined by Fisher's method.
    layer_L: rho of each layer.
  """

  statistic: float
  log10_p: float
  layer_L: np.ndarray


def basis_change(embedding_a: jax.Array | np.ndarray, embedding_b: jax.Array | np.ndarray,
                 kind: str, rows: slice = slice(None)) -> np.ndarray:
  """The change of basis W [D, D] for which embedding_a W ≈ embedding_b.

  Rows count by their direction alone, and in each of REWEIGHTINGS rounds by how well
  they fitted in the one before.

  Args:
    embedding_a: embeddings [V, D] of the tokens that both networks know.
    embedding_b: embeddings [V, D] of the same tokens in the other basis.
    kind: 'rotation' (orthogonal Procrustes), 'centred rotation' (one that leaves the
      vector of ones in place), or 'permutation' (linear assignment, by which channels
      may also change their sign).
    rows: the tokens to fit, by default all.

  Raises:
    InputError: shapes differ, values are not finite, or there are fewer than two
      tokens per channel.

  Example:
    >>> from bornbiased_jax import lineage
    >>> embedding = np.random.default_rng(0).standard_normal((20, 3))
    >>> lineage.basis_change(embedding, embedding[:, [2, 0, 1]], 'permutation').argmax(0).tolist()
    [2, 0, 1]
  """
  a, b = (on_host(embedding).astype(np.float64) for embedding in (embedding_a, embedding_b))
  if a.shape != b.shape or len(a) < LEAST_TOKENS_A_CHANNEL * a.shape[1]:
    raise InputError(f'embeddings of shapes {list(a.shape)} and {list(b.shape)} do not determine a '
                     'change of basis; they must have the same shape and at least '
                     f'{LEAST_TOKENS_A_CHANNEL} common tokens per channel')
  if not (np.isfinite(a).all() and np.isfinite(b).all()):
    raise InputError('embeddings that are not finite numbers do not determine a change of basis')
  a, b = (_unit_rows(x[rows]) for x in (a, b))
  weight_V1 = np.ones((len(a), 1))
  for _ in range(REWEIGHTINGS):
    change_DD = _best_change(a.T @ (weight_V1 * b), kind)
    # Tokens that do not fit, such as ids that never occur, have no say in the next round.
    weight_V1 = np.maximum(0, np.sum(a @ change_DD * b, axis=1, keepdims=True))**2
  return change_DD


def _unit_rows(x):
  return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)


def _best_change(product_DD, kind):
  if kind == 'permutation':
    row, column = scipy.optimize.linear_sum_assignment(np.abs(product_DD), maximize=True)
    return np.where(product_DD[row, column] < 0, -1.0, 1.0)[:, None] * np.eye(len(row))[column]
  if kind == 'centred rotation':
    # The vector of ones stays where it is: nothing else is as large in this product.
    D, size = len(product_DD), np.abs(product_DD).sum()
    centre = lambda x: x - x.mean(axis=0, keepdims=True) - x.mean(axis=1, keepdims=True) + x.mean()
    product_DD = centre(product_DD) + size * np.ones((D, D))
  left, _, right = np.linalg.svd(product_DD)
  return left @ right


def fitted_change(base: tuple[ModelConfig, dict],
                  suspect: tuple[ModelConfig, dict]) -> tuple[np.ndarray, float]:
  """The `basis_change` of the kind that fits best, and its `basis_fit`.

  Of a network with LayerNorm, channels can be permuted, or rotated around the vector
  of ones; of one with norms behind its sublayers, permuted.

  Raises:
    InputError: there is no such change (`check_alignable`, `basis_change`).
  """
  check_alignable(base[0], suspect[0])
  embeddings = common_embeddings(base, suspect)
  fits = {kind: basis_fit(*embeddings, kind) for kind in kinds_of(base[0])}
  kind = max(fits, key=fits.__getitem__)
  return basis_change(*embeddings, kind), fits[kind]


def aligned_test(base: tuple[ModelConfig, dict], suspect: tuple[ModelConfig, dict], probe: Probe,
                 *, change_DD: np.ndarray | None = None,
                 num_permutations: int = NUM_PERMUTATIONS) -> CalibratedResult:
  """`calibrated_test` of two networks, whatever the basis of the suspect's residual stream.

  W is the `basis_change` from the base's embeddings to the suspect's, over common
  tokens. The base reads Gaussian vectors X, the suspect reads X W, and its answers
  are carried back by W'. Both then share the input X, which is projected out.

  Null hypothesis: given the embeddings, the suspect's blocks are those of an
  independent draw, in any basis. It holds for independent seeds before training.
  Training adapts blocks to their embeddings, so no theory covers unrelated networks
  that were trained on the same text, and their false-positive rate must be measured.
  They may agree if their embeddings are alike in some basis and their blocks make
  the same use of them. `basis_fit` says how alike the embeddings are.

  Args:
    base: configuration and parameters of one network.
    suspect: configuration and parameters of the other.
    probe: a probe of kind 'gaussian' or 'sphere' with more than twice as many sequences as
      channels.
    change_DD: W, if it is known already; by default that of `fitted_change`.
    num_permutations: as in `calibrated_test`.

  Raises:
    InputError: widths or norms differ, the probe is not Gaussian, or there are too
      few common tokens or sequences.
  """
  (config_a, params_a), (config_b, params_b) = base, suspect
  if probe.kind == 'tokens':
    raise InputError('the aligned test changes the basis of what the suspect reads, so it needs a '
                     'gaussian probe or one of kind sphere')
  check_alignable(config_a, config_b)
  check_projectable(probe.num_sequences, config_a.width)
  if change_DD is None:
    change_DD, _ = fitted_change(base, suspect)
  turn_DD = jnp.asarray(change_DD, jnp.float32)
  answers_of = lambda config, params, change_DD: in_batches(
      functools.partial(_answers, exact(sized(config, params)), probe, params, change_DD),
      probe.num_sequences, probe.length)
  hidden_a, input_a = answers_of(config_a, params_a, jnp.eye(config_a.width))
  hidden_b, _ = answers_of(config_b, params_b, turn_DD)
  with jax.default_matmul_precision('highest'):
    return calibrated_test(hidden_a, hidden_b @ turn_DD.T, input_a,
                           num_permutations=num_permutations)


def check_alignable(config_a: ModelConfig, config_b: ModelConfig) -> None:
  """Raises InputError if two networks differ in width or norm, or in the place of norms."""
  if (config_a.width, config_a.norm) != (config_b.width, config_b.norm):
    raise InputError(f'{config_a.norm} of width {config_a.width} and {config_b.norm} of width '
                     f'{config_b.width} have no basis in common')
  if config_a.norm_place != config_b.norm_place:
    raise InputError(f'norm_place={config_a.norm_place!r} and {config_b.norm_place!r} have no '
                     'basis in common')


def basis_fit(embedding_a: jax.Array | np.ndarray, embedding_b: jax.Array | np.ndarray,
              kind: str) -> float:
  """How well two embeddings agree up to a change of basis: the mean cosine over tokens.

  The `basis_change` is fitted to every other token, and the cosine is taken over the
  rest. It is near 0 for independent networks, and near 1 if one embedding is the
  other in another basis. Arguments and errors are those of `basis_change`.

  Example:
    >>> from bornbiased_jax import lineage
    >>> embedding = np.random.default_rng(0).standard_normal((20, 3))
    >>> round(lineage.basis_fit(embedding, embedding[:, ::-1], 'rotation'), 3)
    1.0
  """
  change_DD = basis_change(embedding_a, embedding_b, kind, rows=slice(0, None, 2))
  a, b = (on_host(embedding).astype(np.float64)[1::2] for embedding in (embedding_a, embedding_b))
  lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
  return float(np.mean(np.sum(a @ change_DD * b, axis=1) / np.maximum(lengths, 1e-30)))


def common_embeddings(base: tuple[ModelConfig, dict],
                      suspect: tuple[ModelConfig, dict]) -> tuple[jax.Array, jax.Array]:
  """The embeddings of the ids that both vocabularies have.

  The caller must know that equal ids are equal tokens.
  """
  common = min(base[0].vocab_size, suspect[0].vocab_size)
  return base[1]['embedding'][:common], suspect[1]['embedding'][:common]


def kinds_of(config: ModelConfig) -> tuple[str, ...]:
  """The kinds of `basis_change` with which a network's norms commute."""
  if config.norm_place != 'before':
    return ('permutation',)
  return ('rotation',) if config.norm == 'rmsnorm' else ('permutation', 'centred rotation')


@functools.partial(jax.jit, static_argnums=(0, 1))
def _answers(config, probe, params, change_DD, index_B):
  """Answers and the input vectors in the base's basis, both at the last position.

  The answers are the final norm's output without gain and bias, which belong to a
  basis.
  """
  with jax.default_matmul_precision('highest'):
    inputs_BTD = probe.inputs(config, index_B)
    x_BD = read(config, params, inputs_BTD @ change_DD, ('residual_last',))['residual_last'][-1]
    if config.norm == 'layernorm':
      x_BD = x_BD - x_BD.mean(axis=-1, keepdims=True)
    mean_square_B1 = (x_BD**2).mean(axis=-1, keepdims=True)
    return x_BD / jnp.sqrt(mean_square_B1 + config.norm_epsilon), inputs_BTD[:, -1]


def matched_units_test(params_a: dict, params_b: dict, *,
                       against_gate: bool = False) -> MatchedUnits:
  """Tests whether the MLP units of two networks correspond to each other (Zhu et al. 2025).

  In each layer, the units of one network are matched with those of the other by the
  cosines of their up-projections (linear assignment). If the networks are
  independent, this matching is a uniformly random permutation, and its Spearman's
  rho with the identity is nearly N(0, 1 / (F - 1)). The p-values of the layers are
  combined by Fisher's method.

  A hidden permutation of the units escapes this. With `against_gate`, the matching is
  therefore compared not with the identity but with the matching by gate-projections,
  which such a permutation changes in the same way. The null then also needs the up-
  and gate-projection of a unit to be independent, as they are at initialization.

  As published, units that are dead (0) in the same places of both networks are matched there, which
  makes the p-value too small; `orders.unit_order` leaves them out.

  Args:
    params_a: parameters of one network, as from `initialization.init_params`.
    params_b: parameters of the other network.
    against_gate: whether to compare with the matching by gate-projections.

  Raises:
    InputError: the MLPs have different shapes, or no gate.

  Cost: an assignment of F units per layer and matching, about F³: 1 s for F = 2,048.

  Example:
    >>> from bornbiased_jax import lineage
    >>> params = {'blocks': {'up': {'kernel': jax.random.normal(jax.random.key(0), (2, 8, 20))}}}
    >>> round(lineage.matched_units_test(params, params).statistic, 3)
    1.0
  """
  rho_L, log_p_L = [], []
  names = ('up', 'gate') if against_gate else ('up',)
  for matchings in zip(*(_matchings(params_a, params_b, name) for name in names), strict=True):
    order = matchings[1] if against_gate else np.arange(len(matchings[0]))
    rho = scipy.stats.spearmanr(matchings[0], order).statistic
    rho_L.append(rho)
    log_p_L.append(scipy.stats.norm.logsf(rho * math.sqrt(len(order) - 1)))
  log_p = scipy.stats.chi2.logsf(-2 * np.sum(log_p_L), 2 * len(log_p_L))
  return MatchedUnits(float(np.mean(rho_L)), float(log_p / math.log(10)), np.array(rho_L))


def _matchings(params_a, params_b, name):
  """For each layer, the unit of B with which each unit of A is matched."""
  kernels = [params['blocks'][name]['kernel'] if name in params['blocks'] else None
             for params in (params_a, params_b)]
  if any(kernel is None for kernel in kernels) or kernels[0].shape != kernels[1].shape:
    raise InputError(f'networks without equally large {name}-projections have no units to match')
  for layers in zip(*kernels, strict=True):
    a, b = (kernel_DF / jnp.maximum(jnp.linalg.norm(kernel_DF, axis=0, keepdims=True), 1e-30)
            for kernel_DF in layers)
    yield scipy.optimize.linear_sum_assignment(np.asarray(a.T @ b), maximize=True)[1]
