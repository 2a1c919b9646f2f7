"""The whole network at birth: similarities of an infinitely wide transformer, layer by layer.

Two kernels over positions are propagated through the blocks. S_ij is the mean product
per channel of the residual states at positions i and j of one sequence, X_ij that of two
independent sequences. A hat means division by sqrt(S_ii S_jj), which is what LayerNorm
and RMSNorm do. With A_ij = 1/i for j <= i, the uniform attention of a random network,

    attention   S += α A Ŝ Aᵀ,  X += α A X̂ Aᵀ,   α = (σ² d) (σ_r² H K)
    MLP         S += β κ(Ŝ),    X += β κ(X̂),     β = σ_r² F

where σ is the std of linear layers, σ_r that of the layers that write to the stream, F the
width of the MLP, and κ(r) = E[f(u) f(v)] for pre-activations of std σ sqrt(d) and
correlation r. A gated unit multiplies κ by σ² d r. So the similarity of sequences comes
from κ(0) = (E f)², and attention amplifies it.

Propagation within one sequence is known (Hron et al. 2020, Noci et al. 2022, Cowsik et
al. 2024, Giorlandino and Goldt 2025). What is added here is the second kernel, X, between
sequences.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.hermite import covariance_powers
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count
from bornbiased_jax.models import interventions
from bornbiased_jax.models.initialization import mean_activation
from bornbiased_jax.models.transformer import activate

_BLOCK = 64
# S and X, [T, T] each.
Kernels = tuple[jax.Array, ...]


class AtBirth(NamedTuple):
  """What theory says of a random network, after each of L layers, at T positions.

  Attributes:
    variance_LT: mean square of the residual stream per channel.
    inter_cosine_LTT: cosine between position i of one sequence and position j of another.
    intra_cosine_L: mean cosine between distinct positions of one sequence; NaN for T = 1.
    value_std_LT: std per channel of the value aggregate that W_O reads; NaN without attention.
  """

  variance_LT: jax.Array
  inter_cosine_LTT: jax.Array
  intra_cosine_L: jax.Array
  value_std_LT: jax.Array

  @property
  def inter_cosine_L(self) -> jax.Array:
    """Cosine between the last positions of two sequences."""
    return self.inter_cosine_LTT[:, -1, -1]

  def direction_cosine(self, length: int) -> float:
    """Cosine between the contraction directions of sequences of T and of `length` tokens.

    Raises:
      InputError: `length` is not from 1 to T.
    """
    check_count('length', length)
    if length > self.inter_cosine_LTT.shape[-1]:
      raise InputError(f'length={length} is more than the {self.inter_cosine_LTT.shape[-1]} tokens '
                       'of which theory was asked')
    cosine_TT = self.inter_cosine_LTT[-1]
    own = cosine_TT[length - 1, length - 1] * cosine_TT[-1, -1]
    return min(1.0, float(cosine_TT[length - 1, -1] / jnp.sqrt(own)))


def at_birth(config: ModelConfig, length: int, probe: str = 'tokens') -> AtBirth:
  """Similarities in a random network of this architecture, as its width goes to infinity.

  Ensembles of width 256 stay within 7 % of it, relative to the last layer, as long as
  attention scores (of std s = linear_std² width, times the square of YaRN's factor) are no larger
  than about 1. That holds for the presets up to 1.2B; at s = 1.6 networks contract up to 15 % more
  than predicted. The small similarity of gated networks (LLaMA, Qwen) and of centred ones comes
  from finite width: `finite_width` has it.

  Args:
    config: the architecture.
    length: number of tokens per sequence, T.
    probe: 'tokens', random ids, two of which coincide with probability 1/V, or 'gaussian' or
      'sphere', which are the same in the limit.

  Raises:
    InputError: the model does not read so many tokens, the probe is unknown, or the theory does
      not know the architecture (`norm_place`, `score_cap`, and `windows` shorter than T).

  Cost: O(L T²) operations and numbers. No network is drawn.

  Example:
    >>> from bornbiased_jax import configs
    >>> birth = at_birth(configs.get('nano_gpt2'), length=64)
    >>> round(float(birth.inter_cosine_L[-1]), 2)
    0.33
  """
  check_count('length', length)
  if length > config.length:
    raise InputError(f'length={length} is more than the {config.length} positions of the model')
  if probe not in ('tokens', 'gaussian', 'sphere'):
    raise InputError(f'probe={probe!r} is not one of tokens, gaussian, sphere')
  _check_known(config, length)
  return _propagated(config, length, probe)


def _check_known(config, length):
  has_attention = config.sublayers != 'mlp_only'
  window = min((window for window in config.windows if window), default=length)
  for is_unknown, field in (
      (config.norm_place != 'before', f'norm_place={config.norm_place!r}'),
      (has_attention and config.score_cap is not None, f'score_cap={config.score_cap}'),
      (has_attention and window < length, f'windows of {window} for {length} tokens')):
    if is_unknown:
      raise InputError(f'the theory of random networks does not know {field}')


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _propagated(config, length, probe):
  def block(kernels, _):
    value_std_T = jnp.full(length, jnp.nan)
    if config.sublayers != 'mlp_only':
      value_std_T = jnp.sqrt(jnp.diagonal(_aggregates(config, kernels)[0]))
    for sublayer in sublayers(config):
      kernels = sublayer(kernels)
    within_TT, between_TT = kernels
    variance_T = jnp.diagonal(within_TT)
    cosine_TT = within_TT / _sizes(variance_T)
    distinct = length * (length - 1)
    intra = (cosine_TT.sum() - length) / distinct if distinct else jnp.nan
    return kernels, AtBirth(variance_T, between_TT / _sizes(variance_T), intra, value_std_T)

  return lax.scan(block, inputs(config, length, probe), length=config.num_layers)[1]


def inputs(config: ModelConfig, length: int, probe: str) -> Kernels:
  """Kernels of the embeddings, within a sequence and between two."""
  same_id = 1 / config.vocab_size if probe == 'tokens' else 0.0
  same_position_TT = jnp.eye(length)
  within_TT = same_position_TT + same_id * (1 - same_position_TT)
  between_TT = jnp.full((length, length), same_id)
  learned = float(config.positions == 'learned')
  factor = config.embedding_factor**2 if probe == 'tokens' else 1.0
  return tuple(config.embedding_std**2 * (factor * token_TT + learned * same_position_TT)
               for token_TT in (within_TT, between_TT))


def sublayers(config: ModelConfig) -> list[Callable[[Kernels], Kernels]]:
  """The functions from kernels to kernels that make up a block."""
  present: list[Callable] = [
      functools.partial(sublayer, config) for sublayer, missing_in in
      ((_attention, 'mlp_only'), (_mlp, 'attention_only')) if config.sublayers != missing_in]
  return [functools.partial(_side_by_side, present)] if config.parallel_residual else present


def _side_by_side(parts, kernels):
  """All parts read the same kernels, and what each adds is independent of the others."""
  return tuple(sum(after) - (len(parts) - 1) * before
               for before, *after in zip(kernels, *(part(kernels) for part in parts), strict=True))


def _attention(config, kernels):
  writes = config.residual_std**2 * config.num_heads * config.head_size
  added = _aggregates(config, kernels)
  return tuple(old + writes * new for old, new in zip(kernels, added, strict=True))


def _aggregates(config, kernels):
  """Kernels of the value aggregates, which W_O reads."""
  within_TT, between_TT = _normed(config, kernels)
  value_variance = config.linear_std**2 * config.width
  score_variance = _score_variance(config)
  # Scores of std s make weights uneven: those of queries i and j have to leading order the
  # covariance s² Ŝ_ij Ŝ_kl, less what normalization takes away. The factor in the place of s²
  # makes the sum of squared weights e^{s²} / (e^{s²} + i - 1) for unlike keys.
  # Divided by e^{s²}, which may overflow.
  shrunk, count_T = jnp.exp(-score_variance), jnp.arange(1, len(within_TT) + 1)
  uneven_T = jnp.sqrt((1 - shrunk) * count_T / (1 + (count_T - 1) * shrunk))
  uneven_TT = jnp.outer(uneven_T, uneven_T)
  mean_within_TT, mean_between_TT = (
      _averaged(each) + uneven_TT * each * _spread(each) for each in (within_TT, between_TT))
  return [value_variance * each for each in _intervened(
      config, (mean_within_TT, mean_between_TT), (within_TT, between_TT))]


def _score_variance(config):
  """Variance of attention scores: of q·k / sqrt(K), whose entries have the variance σ² d."""
  variance = 1.0 if config.qk_norm else (config.linear_std**2 * config.width) ** 2
  variance *= config.head_size / (config.score_divisor or config.head_size)
  if config.positions != 'rope' or not config.rope_scaling:
    return variance
  turning = config.rotary_size / config.head_size
  return variance * (1 - turning + turning * config.rope_scaling.attention_factor**4)


def _mlp(config, kernels):
  variance_T = jnp.diagonal(kernels[0])
  # The norm's epsilon makes pre-activations smaller, much the same at all positions.
  shrinks = jnp.mean(variance_T / (variance_T + config.norm_epsilon))
  scale = config.linear_std * jnp.sqrt(config.width * shrinks)
  mean = mean_activation(config) if config.init_scheme == 'centred' else 0.0
  activation = lambda x: activate(config.activation, x) - mean
  powers = covariance_powers(activation, scale, config.gated_mlp)
  # Unrolled, it takes longer to compile and no less to run.
  hidden = [jnp.polyval(powers, each / _sizes(variance_T), unroll=1) for each in kernels]
  writes = config.residual_std**2 * config.mlp_width
  return tuple(old + writes * new for old, new in zip(kernels, hidden, strict=True))


def _normed(config, kernels):
  """Products per channel behind LayerNorm or RMSNorm: cosines, but for the norm's epsilon."""
  within_TT, between_TT = kernels
  sizes_TT = _sizes(jnp.diagonal(within_TT) + config.norm_epsilon)
  return within_TT / sizes_TT, between_TT / sizes_TT


def _sizes(variance_T):
  std_T = jnp.sqrt(variance_T)
  return jnp.outer(std_T, std_T)


def _averaged(kernel_TT):
  """A K Aᵀ: entry i, j is the mean over the first i rows and the first j columns."""
  return _running_mean(_running_mean(kernel_TT, axis=0), axis=1)


def _spread(kernel_TT):
  """Variance of the first i rows and j columns of K, without that of their means, at i, j."""
  of_rows_TT = _running_mean(_running_mean(kernel_TT, axis=1) ** 2, axis=0)
  of_columns_TT = _running_mean(_running_mean(kernel_TT, axis=0) ** 2, axis=1)
  return _averaged(kernel_TT**2) - of_rows_TT - of_columns_TT + _averaged(kernel_TT) ** 2


def _running_mean(kernel_TT, axis):
  count_T = jnp.arange(1, len(kernel_TT) + 1, dtype=jnp.float32)
  return _running_sum(kernel_TT, axis) / jnp.expand_dims(count_T, 1 - axis)


def _running_sum(kernel_TT, axis):
  """The cumulative sum, by products with blocks of ones: on a CPU 4 times as fast as XLA's."""
  T, num_blocks = len(kernel_TT), -(-len(kernel_TT) // _BLOCK)
  padding, shape = [(0, 0), (0, 0)], [T, T]
  padding[axis], shape[axis:axis + 1] = (0, num_blocks * _BLOCK - T), [num_blocks, _BLOCK]
  blocks = jnp.pad(kernel_TT, padding).reshape(shape)
  inside = jnp.einsum('ij,njt->nit' if axis == 0 else 'ij,tnj->tni',
                      jnp.tril(jnp.ones((_BLOCK, _BLOCK))), blocks, precision='highest')
  total = lax.index_in_dim(inside, -1, axis + 1)
  shape[axis:axis + 2] = [num_blocks * _BLOCK]
  return (inside + total.cumsum(axis) - total).reshape(shape)[:T, :T]


def _intervened(config, averaged, own):
  """The kernels of value aggregates after config.intervention (see interventions.py)."""
  T = len(own[0])
  position_T = np.arange(T)
  at_k_T = jnp.asarray(position_T == config.intervention_position)
  match config.intervention:
    case 'rmsnorm':
      sizes_TT = _sizes(jnp.diagonal(averaged[0])) * config.linear_std**2 * config.width
      return [each / sizes_TT for each in averaged]
    case 'mask':
      crossed = [_mask_crossed(kernel_TT, config.intervention_position) for kernel_TT in own]
      both_TT = at_k_T[:, None] & at_k_T[None]
      either_TT = at_k_T[:, None] | at_k_T[None]
      return [jnp.where(both_TT, kernel_TT, jnp.where(either_TT, crossed_TT, averaged_TT))
              for kernel_TT, crossed_TT, averaged_TT in zip(own, crossed, averaged, strict=True)]
    case 'amplify' | 'attenuate' | 'gain' | 'damp':
      factor_T = jnp.asarray(interventions.factors(config, position_T), jnp.float32)
    case 'variance' | 'norm':
      # The mean over channels vanishes in the limit, so that both are the same here.
      factor_T = jnp.where(at_k_T, config.intervention_strength, 1.0)
    case _:
      return list(averaged)
  return [jnp.outer(factor_T, factor_T) * each for each in averaged]


def _mask_crossed(kernel_TT, position):
  """Row and column of the masked position: its own value with the means of the others."""
  inside = min(position, len(kernel_TT) - 1)
  row_1T = _running_mean(kernel_TT, axis=1)[inside][None]
  column_T1 = _running_mean(kernel_TT, axis=0)[:, inside][:, None]
  return jnp.where(jnp.arange(len(kernel_TT))[:, None] == position, row_1T, column_T1)
