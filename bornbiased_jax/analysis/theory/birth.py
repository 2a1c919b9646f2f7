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

Two inputs have units in common only in experts that both choose: a mixture multiplies κ(r) by
P(r) = E Σ_e g_e g'_e, for weights g and g' of logits of correlation r. As P(0) is 1 / E if one of E
experts is chosen, a mixture contracts less than an MLP.

With ALiBi the weights of head h are A_ij ∝ e^{-m_h (i-j)}, for its slope m_h. As values and outputs
of different heads are independent, A Ŝ Aᵀ is then the mean of A_h Ŝ A_hᵀ over heads. Those of
steep slope average few positions, so that they average less away.

An initialization changes variances alone. That of orthogonal matrices has the same limit: what they
keep exactly, products of inputs, is what others keep on average.

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

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.theory import architecture, coincidence
from bornbiased_jax.analysis.theory.architecture import Architecture
from bornbiased_jax.analysis.theory.hermite import covariance_powers, overlap
from bornbiased_jax.configs import ACTIVATIONS, ModelConfig
from bornbiased_jax.errors import InputError, check_count

_BLOCK = 64
# Pairs of windows at a time.
_BATCH = 16


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

    It is NaN where theory knows no direction, as of gated MLPs that read vectors.

    Raises:
      InputError: `length` is not from 1 to T.
    """
    check_count('length', length)
    if length > self.inter_cosine_LTT.shape[-1]:
      raise InputError(f'length={length} is more than the {self.inter_cosine_LTT.shape[-1]} tokens '
                       'of which theory was asked')
    cosine_TT = self.inter_cosine_LTT[-1]
    own = cosine_TT[length - 1, length - 1] * cosine_TT[-1, -1]
    return float(jnp.minimum(1.0, cosine_TT[length - 1, -1] / jnp.sqrt(own)))


def at_birth(config: ModelConfig, length: int, probe: str | Probe = 'tokens', *,
             collision: float | None = None) -> AtBirth:
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
      'sphere', which are the same in the limit; or a Probe, of whose text counts which ids of its
      windows coincide. The result is then the mean over pairs of them: over all where they are
      few, else over 512, or fewer of more than 128 tokens.
    collision: the probability that two ids coincide, Σ p_v² of a text, in place of 1/V.

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
  architecture.check(config, length, probe)
  network = architecture.of(config, probe)
  return propagate(network, inputs(network, coincidence.kernels(config, length, probe, collision)))


@jax.jit
def propagate(network: Architecture, start_PKTT: jax.Array) -> AtBirth:
  """The mean over pairs of sequences, of which the first kernels are given."""
  of_each = lax.map(functools.partial(_of_pair, network), start_PKTT,
                    batch_size=min(_BATCH, len(start_PKTT)))
  mean = jax.tree.map(lambda each_P: each_P.mean(axis=0), of_each)
  return mean._replace(value_std_LT=jnp.sqrt(mean.value_std_LT))


def _of_pair(network, start_KTT):
  """What theory says of one pair, but the square of value_std_LT."""
  length = start_KTT.shape[-1]

  def block(kernels_KTT, _):
    value_variance_T = jnp.full(length, jnp.nan)
    if network.sublayers != 'mlp_only':
      value_variance_T = jnp.diagonal(_aggregates(network, kernels_KTT)[0])
    for sublayer in sublayers(network):
      kernels_KTT = sublayer(kernels_KTT)
    cosine_KTT = kernels_KTT / _sizes(kernels_KTT)
    distinct = length * (length - 1)
    intra = (cosine_KTT[0].sum() - length) / distinct if distinct else jnp.nan
    return kernels_KTT, AtBirth(jnp.diagonal(kernels_KTT[0]), cosine_KTT[2], intra,
                                value_variance_T)

  return lax.scan(block, start_KTT, length=network.num_layers)[1]


def inputs(network: Architecture, coincidence_PKTT: np.ndarray) -> np.ndarray:
  """Kernels of the embeddings of pairs of sequences, [P, 3, T, T], in float32."""
  same_position_TT = np.eye(coincidence_PKTT.shape[-1], dtype=np.float32)
  return (np.float32(network.token_variance) * coincidence_PKTT
          + np.float32(network.position_variance) * same_position_TT)


def sublayers(network: Architecture) -> list[Callable[[jax.Array], jax.Array]]:
  """The functions from kernels [K, T, T] to kernels that make up a block.

  The first kernel is that within a sequence, the second within another, any others between them.
  """
  present: list[Callable] = [
      functools.partial(sublayer, network) for sublayer, missing_in in
      ((_attention, 'mlp_only'), (_mlp, 'attention_only')) if network.sublayers != missing_in]
  return [functools.partial(_side_by_side, present)] if network.parallel_residual else present


def _side_by_side(parts, kernels_KTT):
  """All parts read the same kernels, and what each adds is independent of the others."""
  return sum(part(kernels_KTT) for part in parts) - (len(parts) - 1) * kernels_KTT


def _attention(network, kernels_KTT):
  return kernels_KTT + network.attention_writes * _aggregates(network, kernels_KTT)


def _aggregates(network, kernels_KTT):
  """Kernels of the value aggregates, which W_O reads: means over heads."""
  kernels_KTT = _normalize(network, kernels_KTT)
  if not len(network.slopes_H):
    return _of_head(network, kernels_KTT, None)
  behind_TT = np.subtract.outer(*[np.arange(kernels_KTT.shape[-1])] * 2)
  of_slope = lambda slope: _of_head(network, kernels_KTT, jax.nn.softmax(
      jnp.where(behind_TT < 0, -jnp.inf, -slope * behind_TT)))
  return lax.map(of_slope, jnp.asarray(network.slopes_H)).mean(axis=0)


def _of_head(network, kernels_KTT, weights_TT):
  """Those of a head of these weights, which are uniform if they are None."""
  # Scores of std s make weights uneven: those of queries i and j have to leading order the
  # covariance s² Ŝ_ij Ŝ_kl, less what normalization takes away. The factor in the place of s²
  # makes the sum of squared weights e^{s²} / (e^{s²} + n - 1) for unlike keys, where 1 / n is
  # that sum for equal scores. Divided by e^{s²}, which may overflow.
  shrunk, count_T = jnp.exp(-network.score_variance), jnp.arange(1, kernels_KTT.shape[-1] + 1)
  if weights_TT is not None:
    count_T = 1 / jnp.square(weights_TT).sum(axis=-1)
  uneven_T = jnp.sqrt((1 - shrunk) * count_T / (1 + (count_T - 1) * shrunk))
  uneven_TT = jnp.outer(uneven_T, uneven_T)
  average = functools.partial(_average, weights_TT)
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
  cosine_KTT = kernels_KTT / _sizes(kernels_KTT)
  hidden_KTT = jnp.polyval(powers, cosine_KTT, unroll=1)
  if len(network.overlap_R):
    hidden_KTT *= overlap(cosine_KTT, network.overlap_R)
  return kernels_KTT + network.mlp_writes * hidden_KTT


def _normalize(network, kernels_KTT):
  """Products per channel behind LayerNorm or RMSNorm: cosines, but for the norm's epsilon."""
  return kernels_KTT / _sizes(kernels_KTT, network.norm_epsilon)


def _variances(kernels_KTT):
  """Those of the states of either sequence, [2, T]."""
  return jnp.diagonal(kernels_KTT[:2], axis1=-2, axis2=-1)


def _sizes(kernels_KTT, epsilon=0.0):
  """The sizes of states i and j, multiplied, [K, T, T]."""
  first_T, second_T = std_2T = jnp.sqrt(_variances(kernels_KTT) + epsilon)
  within_2TT = std_2T[:, :, None] * std_2T[:, None]
  between_TT = jnp.outer(first_T, second_T)
  return jnp.concatenate([within_2TT, jnp.broadcast_to(between_TT, kernels_KTT[2:].shape)])


def _spread(average, kernel_TT, averaged_TT):
  """Variance over rows and columns of K, as i and j average them, without that of their means."""
  of_rows_TT = average(average(kernel_TT, axis=-1) ** 2, axis=-2)
  of_columns_TT = average(average(kernel_TT, axis=-2) ** 2, axis=-1)
  of_both_TT = average(average(kernel_TT**2, axis=-2), axis=-1)
  return of_both_TT - of_rows_TT - of_columns_TT + averaged_TT**2


def _average(weights_TT, kernel_TT, axis):
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
      return averaged_KTT / _sizes(averaged_KTT) / network.value_variance
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
