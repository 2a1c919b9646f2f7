"""What theory reads of a configuration, and how a block changes kernels.

Attention averages kernels, an MLP maps them one by one. The first kernel of [K, T, T] is that
within a sequence, the second within another, any others are between them.
"""

from collections.abc import Callable
import dataclasses
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import OF_IDS, OF_TEXT, Probe, kind_of
from bornbiased_jax.analysis.theory.closed_forms import choice_overlap, covariance_powers, overlap
from bornbiased_jax.configs import ACTIVATIONS, ModelConfig
from bornbiased_jax.errors import InputError, check_count, check_kind
from bornbiased_jax.models import attention, interventions
from bornbiased_jax.models.initialization import mean_activation

_STATIC = {'static': True}
# Those that theory knows.
_INTERVENTIONS = (
    'none', 'rmsnorm', 'mask', 'amplify', 'attenuate', 'gain', 'damp', 'variance', 'norm')
_BLOCK = 64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Architecture:
  """What the theory reads of a configuration, and of a probe.

  Architectures that differ only in numbers share their compiled programs. Writes are the variance
  of an update over the variance inside its sublayer.
  """

  num_layers: int = dataclasses.field(metadata=_STATIC)
  sublayers: str = dataclasses.field(metadata=_STATIC)
  parallel_residual: bool = dataclasses.field(metadata=_STATIC)
  activation: str = dataclasses.field(metadata=_STATIC)
  gated_mlp: bool = dataclasses.field(metadata=_STATIC)
  intervention: str = dataclasses.field(metadata=_STATIC)
  intervention_position: int = dataclasses.field(metadata=_STATIC)
  token_variance: float
  position_variance: float
  norm_epsilon: float
  score_variance: float
  value_variance: float
  attention_writes: float
  preactivation_std: float
  mean_activation: float
  mlp_writes: float
  # Of experts (`closed_forms.choice_overlap`); empty without them.
  overlap_R: np.ndarray
  # Of ALiBi, by head; empty without it.
  slopes_H: np.ndarray
  # The factor of each position of the model under the interventions that have one.
  factor_P: np.ndarray


def check_known(config: ModelConfig, length: int, probe: str | Probe) -> None:
  """Raises the errors of `infinite_width`."""
  check_kind(config, ModelConfig, 'a ModelConfig')
  check_count('length', length)
  if length > config.length:
    raise InputError(f'length={length} is more than the {config.length} positions of the model')
  if kind_of(probe) not in ('tokens', *OF_TEXT, 'gaussian', 'sphere'):
    raise InputError(f'probe={kind_of(probe)!r} is not one of tokens, gaussian, sphere, or a Probe '
                     'of a text')
  if isinstance(probe, Probe) and probe.length != length:
    raise InputError(f'length={length} differs from the length of the probe, {probe.length}')
  _check_known(config, length)


def _check_known(config, length):
  has_attention = config.sublayers != 'mlp_only'
  window = min((window for window in config.windows if window), default=length)
  for is_unknown, field in (
      (config.norm_place != 'before', f'norm_place={config.norm_place!r}'),
      (has_attention and config.intervention not in _INTERVENTIONS,
       f'intervention={config.intervention!r}'),
      (config.shared_mlp_width > 0, f'shared_mlp_width={config.shared_mlp_width}'),
      (has_attention and config.score_cap is not None, f'score_cap={config.score_cap}'),
      (has_attention and window < length, f'windows of {window} for {length} tokens')):
    if is_unknown:
      raise InputError(f'the theory of random networks does not know {field}')


def architecture_of(config: ModelConfig, probe: str | Probe) -> Architecture:
  """What the theory reads of a configuration that reads this probe."""
  is_centred = config.init_scheme == 'centred' and config.sublayers != 'attention_only'
  factor = config.embedding_factor**2 if kind_of(probe) in OF_IDS else 1.0
  slopes_H = attention.alibi_slopes(config)
  return Architecture(
      **{name: getattr(config, name) for name in (
          'num_layers', 'sublayers', 'parallel_residual', 'activation', 'gated_mlp',
          'intervention', 'norm_epsilon')},
      intervention_position=config.intervention_position if config.intervention == 'mask' else 0,
      token_variance=config.embedding_std**2 * factor,
      position_variance=config.embedding_std**2 * (config.positions == 'learned'),
      score_variance=_score_variance(config),
      value_variance=config.std_of('value')**2 * config.width,
      attention_writes=config.residual_std**2 * config.num_heads * config.head_size,
      preactivation_std=config.std_of('up') * config.width**0.5,
      mean_activation=mean_activation(config) if is_centred else 0.0,
      mlp_writes=config.residual_std**2 * config.mlp_width,
      overlap_R=_overlap(config),
      slopes_H=np.zeros(0, np.float32) if slopes_H is None else slopes_H,
      factor_P=_factors(config))


def _overlap(config):
  if config.num_experts == 1:
    return np.ones(0, np.float32)
  return choice_overlap(config.num_experts, config.experts_per_token, config.renormalized_experts,
                        config.std_of('router') * config.width**0.5)


def _factors(config):
  position_P = np.arange(config.length)
  match config.intervention:
    case 'amplify' | 'attenuate' | 'gain' | 'damp':
      return interventions.factors(config, position_P).astype(np.float32)
    case 'variance' | 'norm':
      # The mean over channels vanishes in the limit, so that both are the same here.
      return np.where(position_P == config.intervention_position, config.intervention_strength,
                      1.0).astype(np.float32)
  return np.ones(0, np.float32)


def _score_variance(config):
  """Variance of attention scores: of q·k / sqrt(K), whose entries have the variance σ² d."""
  query_std, key_std = config.std_of('query'), config.std_of('key')
  variance = 1.0 if config.qk_norm else (query_std * key_std * config.width) ** 2
  variance *= config.head_size / (config.score_divisor or config.head_size)
  if config.positions != 'rope' or not config.rope_scaling:
    return variance
  turning = config.rotary_size / config.head_size
  return variance * (1 - turning + turning * config.rope_scaling.attention_factor**4)


def sublayers(network: Architecture) -> list[Callable[[jax.Array], jax.Array]]:
  """The functions from kernels [K, T, T] to kernels that make up a block."""
  present: list[Callable] = [
      functools.partial(sublayer, network) for sublayer, missing_in in
      ((_attention, 'mlp_only'), (_mlp, 'attention_only')) if network.sublayers != missing_in]
  return [functools.partial(_side_by_side, present)] if network.parallel_residual else present


def _side_by_side(parts, kernels_KTT):
  """All parts read the same kernels, and what each adds is independent of the others."""
  return sum(part(kernels_KTT) for part in parts) - (len(parts) - 1) * kernels_KTT


def _attention(network, kernels_KTT):
  return kernels_KTT + network.attention_writes * aggregates(network, kernels_KTT)


def aggregates(network, kernels_KTT):
  """Kernels of the value aggregates, which W_O reads: means over heads."""
  # Behind LayerNorm or RMSNorm products per channel are cosines, but for the norm's epsilon.
  kernels_KTT = kernels_KTT / sizes(kernels_KTT, network.norm_epsilon)
  if not len(network.slopes_H):
    return _of_head(network, kernels_KTT, None)
  behind_TT = np.subtract.outer(*[np.arange(kernels_KTT.shape[-1], dtype=np.float32)] * 2)
  of_slope = lambda slope: _of_head(network, kernels_KTT, jax.nn.softmax(
      jnp.where(behind_TT < 0, -jnp.inf, -slope * behind_TT)))
  return lax.map(of_slope, jnp.asarray(network.slopes_H)).mean(axis=0)


def _of_head(network, kernels_KTT, weights_TT):
  """Those of a head of these weights, which are uniform if they are None."""
  # Scores of std s make weights uneven: those of queries i and j have to leading order the
  # covariance s² Ŝ_ij Ŝ_kl, less what normalization takes away. The factor in the place of s²
  # makes the sum of squared weights e^{s²} / (e^{s²} + n - 1) for unlike keys, where 1 / n is
  # that sum for equal scores. Divided by e^{s²}, which may overflow.
  shrunk = jnp.exp(-network.score_variance)
  count_T = jnp.arange(1, kernels_KTT.shape[-1] + 1, dtype=jnp.float32)
  if weights_TT is not None:
    count_T = 1 / jnp.square(weights_TT).sum(axis=-1)
  uneven_T = jnp.sqrt((1 - shrunk) * count_T / (1 + (count_T - 1) * shrunk))
  uneven_TT = jnp.outer(uneven_T, uneven_T)
  average = functools.partial(weighted_mean, weights_TT)
  averaged_KTT = average(average(kernels_KTT, axis=-2), axis=-1)
  averaged_KTT += uneven_TT[None] * kernels_KTT * _spread(average, kernels_KTT, averaged_KTT)
  return network.value_variance * _intervene(network, average, averaged_KTT, kernels_KTT)


def _mlp(network, kernels_KTT):
  variance_2T = _variances(kernels_KTT)
  # The norm's epsilon makes pre-activations smaller, much the same at all positions.
  shrinks = jnp.mean(variance_2T / (variance_2T + network.norm_epsilon))
  scale = network.preactivation_std * jnp.sqrt(shrinks)
  activation = lambda x: ACTIVATIONS[network.activation](x) - network.mean_activation
  powers = covariance_powers(activation, scale, network.gated_mlp)
  # Unrolled, it takes longer to compile and no less to run.
  cosine_KTT = kernels_KTT / sizes(kernels_KTT)
  hidden_KTT = jnp.polyval(powers, cosine_KTT, unroll=1)
  if len(network.overlap_R):
    hidden_KTT *= overlap(cosine_KTT, network.overlap_R)
  return kernels_KTT + network.mlp_writes * hidden_KTT


def _variances(kernels_KTT):
  """Those of the states of either sequence, [2, T]."""
  return jnp.diagonal(kernels_KTT[:2], axis1=-2, axis2=-1)


def sizes(kernels_KTT, epsilon=0.0):
  """The sizes of states i and j, multiplied, [K, T, T]."""
  first_T, second_T = std_2T = jnp.sqrt(_variances(kernels_KTT) + epsilon)
  within_2TT = std_2T[:, :, None] * std_2T[:, None]
  between_TT = jnp.outer(first_T, second_T)
  return jnp.concatenate([within_2TT, jnp.broadcast_to(between_TT, kernels_KTT[2:].shape)])


def _spread(average, kernel_TT, averaged_TT):
  """Variance over rows and columns of K, as i and j average them, less the variance of means."""
  of_rows_TT = average(average(kernel_TT, axis=-1) ** 2, axis=-2)
  of_columns_TT = average(average(kernel_TT, axis=-2) ** 2, axis=-1)
  of_both_TT = average(average(kernel_TT**2, axis=-2), axis=-1)
  return of_both_TT - of_rows_TT - of_columns_TT + averaged_TT**2


def weighted_mean(weights_TT, kernel_TT, axis):
  """The weighted mean over the rows (axis -2) or the columns of K, for each row of weights."""
  if weights_TT is None:
    return _running_mean(kernel_TT, axis)
  if axis == -1:
    return jnp.matmul(kernel_TT, weights_TT.T, precision='highest')
  return jnp.matmul(weights_TT, kernel_TT, precision='highest')


def _running_mean(kernel_TT, axis):
  """The mean up to each index, by products with blocks of ones: XLA's sums take 4 times as long."""
  kernel_TT = jnp.swapaxes(kernel_TT, axis, -1)
  *others, T = kernel_TT.shape
  block = min(T, _BLOCK)
  num_blocks = -(-T // block)
  padding = [(0, 0)] * len(others) + [(0, num_blocks * block - T)]
  blocks = jnp.pad(kernel_TT, padding).reshape(*others, num_blocks, block)
  sums = jnp.matmul(blocks, np.triu(np.ones((block, block), np.float32)), precision='highest')
  if num_blocks > 1:
    total = sums[..., -1:]
    sums += total.cumsum(axis=-2) - total
  count_T = np.arange(1, T + 1, dtype=np.float32).reshape([1] * len(others) + [T])
  return jnp.swapaxes(sums.reshape(*others, -1)[..., :T] / count_T, axis, -1)


def _intervene(network, average, averaged_KTT, own_KTT):
  """The kernels of value aggregates after the intervention (see interventions.py)."""
  match network.intervention:
    case 'rmsnorm':
      return averaged_KTT / sizes(averaged_KTT) / network.value_variance
    case 'mask':
      at_k_T = np.arange(own_KTT.shape[-1]) == network.intervention_position
      both_TT, either_TT = np.logical_and.outer(at_k_T, at_k_T), np.logical_or.outer(at_k_T, at_k_T)
      crossed_KTT = _cross_mask(average, own_KTT, network.intervention_position)
      return jnp.where(both_TT[None], own_KTT,
                       jnp.where(either_TT[None], crossed_KTT, averaged_KTT))
    case 'none':
      return averaged_KTT
  factor_T = network.factor_P[:own_KTT.shape[-1]]
  return jnp.outer(factor_T, factor_T)[None] * averaged_KTT


def _cross_mask(average, kernels_KTT, position):
  """Row and column of the masked position: its own value with the means of the others."""
  T = kernels_KTT.shape[-1]
  inside = min(position, T - 1)
  row_K1T = average(kernels_KTT, axis=-1)[:, inside][:, None]
  column_KT1 = average(kernels_KTT, axis=-2)[:, :, inside][:, :, None]
  return jnp.where((np.arange(T) == position)[None, :, None], row_K1T, column_KT1)
