"""How a block changes kernels: attention averages them, an MLP maps them one by one.

The first kernel of [K, T, T] is that within a sequence, the second within another, any others are
between them.
"""

from collections.abc import Callable
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.theory.architecture import Architecture
from bornbiased_jax.analysis.theory.hermite import covariance_powers, overlap
from bornbiased_jax.configs import ACTIVATIONS

_BLOCK = 64


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
  cosine_KTT = kernels_KTT / sizes(kernels_KTT)
  hidden_KTT = jnp.polyval(powers, cosine_KTT, unroll=1)
  if len(network.overlap_R):
    hidden_KTT *= overlap(cosine_KTT, network.overlap_R)
  return kernels_KTT + network.mlp_writes * hidden_KTT


def _normalize(network, kernels_KTT):
  """Products per channel behind LayerNorm or RMSNorm: cosines, but for the norm's epsilon."""
  return kernels_KTT / sizes(kernels_KTT, network.norm_epsilon)


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
