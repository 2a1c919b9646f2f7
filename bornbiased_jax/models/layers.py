"""Linear layers, the MLP of a block, and mixtures of experts.

How the weights of linear layers are drawn, and how XLA multiplies by them fastest; a router of a
mixture chooses some of its experts for each position.
"""

import functools
import math
from typing import Any

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ACTIVATIONS, ModelConfig


def mlp(config: ModelConfig, x_BTD: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
  """What an MLP adds to the residual stream [B, T, D], and its hidden units [B, T, F].

  Its layers belong to the module in whose compact method it is called.
  """
  hidden_BTF = dense(config, 'up', width, config.mlp_bias)(x_BTD)
  if config.gated_mlp:
    gate_BTF = dense(config, 'gate', width, config.mlp_bias)(x_BTD)
    hidden_BTF = ACTIVATIONS[config.activation](gate_BTF) * hidden_BTF
  else:
    hidden_BTF = ACTIVATIONS[config.activation](hidden_BTF)
  return dense(config, 'down', config.width, config.mlp_bias)(hidden_BTF), hidden_BTF


class Mlp(nn.Module):
  """An MLP with a name of its own: the experts, which are stacked, or the one that all share."""

  config: ModelConfig
  width: int

  @nn.compact
  def __call__(self, x_BTD):
    return mlp(self.config, x_BTD, self.width)[0]


def mixture(config: ModelConfig, x_BTD: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
  """What experts add to the residual stream [B, T, D], and what the router said (READS).

  Every expert is computed at every position and weighed, most of them with 0. So the sum over
  experts is one product, which a mesh divides by expert, and costs num_experts /
  experts_per_token times what the chosen ones need.
  """
  logits_BTE = dense(config, 'router', config.num_experts, use_bias=False)(x_BTD)
  logits_BTE = logits_BTE.astype(jnp.float32)
  weight_BTE = route(logits_BTE, config.experts_per_token, config.renormalized_experts)
  experts = nn.vmap(Mlp, variable_axes={'params': 0}, split_rngs={'params': True}, in_axes=None,
                    axis_size=config.num_experts)
  update_EBTD = experts(config, config.mlp_width, name='experts')(x_BTD)
  update_BTD = jnp.einsum('EBTD,BTE->BTD', update_EBTD, weight_BTE.astype(x_BTD.dtype))
  if config.shared_mlp_width:
    opened_BT1 = nn.sigmoid(dense(config, 'shared_gate', 1, use_bias=False)(x_BTD))
    update_BTD += opened_BT1 * Mlp(config, config.shared_mlp_width, name='shared')(x_BTD)
  return update_BTD, {'router_logits': logits_BTE, 'expert_weights': weight_BTE}


def route(logits_BTE: jax.Array, num_chosen: int, renormalized: bool) -> jax.Array:
  """The weight of each expert, 0 for those that are not chosen, [..., E] as the logits.

  The experts with the largest logits are chosen. Their weights are the softmax over all experts,
  or, if they are to be renormalized, over the chosen.
  """
  weight_BTE = nn.softmax(logits_BTE) * chosen(logits_BTE, num_chosen)
  if renormalized:
    weight_BTE /= weight_BTE.sum(axis=-1, keepdims=True)
  return weight_BTE


def chosen(logits_BTE: jax.Array, num_chosen: int) -> jax.Array:
  """1 for the experts with the largest logits, so many for each position, and 0 for the others."""
  index_BTK = lax.top_k(logits_BTE, num_chosen)[1]
  return nn.one_hot(index_BTK, logits_BTE.shape[-1]).sum(axis=-2)


def balance_loss(config: ModelConfig, logits_LBTE: jax.Array) -> jax.Array:
  """The balance loss of a batch (Fedus et al. 2022, eq. 4), mean over layers.

  E Σ_e f_e P_e, of the share f_e of choices that fall on expert e, and its mean probability P_e.
  It is 1 if all experts are chosen alike.
  """
  chosen_LBTE = chosen(logits_LBTE, config.experts_per_token)
  share_LE = chosen_LBTE.mean(axis=(1, 2)) / config.experts_per_token
  mean_LE = nn.softmax(logits_LBTE).mean(axis=(1, 2))
  return config.num_experts * (share_LE * mean_LE).sum(axis=-1).mean()


def dense(config: ModelConfig, name: str, features: int, use_bias: bool) -> nn.Dense:
  """A linear layer of the module in whose compact method it is made."""
  # The policy that stores products of a block does not see those of on_cpu.
  on_cpu = jax.default_backend() == 'cpu' and config.remat != 'dots'
  return nn.Dense(features, use_bias, dtype=config.dtype, name=name,
                  kernel_init=_draw_kernel(config, name),
                  dot_general=multiply_on_cpu if on_cpu else lax.dot_general)


def draw(config: ModelConfig, std: float) -> nn.initializers.Initializer:
  """The initializer of independent entries of this std."""
  if config.init_scheme != 'truncated':
    return nn.initializers.normal(std)
  # A normal that is cut at two stds has a smaller one.
  return nn.initializers.truncated_normal(std / 0.87962566103423978)


def _draw_kernel(config, name):
  std = config.std_of(name)
  if config.init_scheme != 'orthogonal':
    return draw(config, std)
  return lambda key, shape, dtype: std * math.sqrt(max(shape)) * _draw_orthogonal(key, shape, dtype)


def _draw_orthogonal(key, shape, dtype):
  """A random matrix; the shorter ones of its rows and columns are orthonormal.

  It is the polar factor of a normal matrix. Only products compute it (Newton and Schulz), since
  several of LAPACK's decompositions in one program wait for each other on a CPU of few cores.
  """
  short, long = sorted(shape)
  x_LS = jax.random.normal(key, (long, short), dtype) / (1.1 * (math.sqrt(long) + math.sqrt(short)))
  product = functools.partial(jnp.matmul, precision='highest')
  # Each step makes small singular values 1.5 times as large, until they are 1.
  step = lambda _, x_LS: 1.5 * x_LS - 0.5 * product(x_LS, product(x_LS.T, x_LS))
  x_LS = lax.fori_loop(0, 44, step, x_LS)
  return x_LS if shape == (long, short) else x_LS.T


def multiply_on_cpu(x: jax.Array, weights: jax.Array, dimension_numbers: tuple,
                    precision: str | None = None) -> jax.Array:
  """`lax.dot_general` of activations [..., D] and weights [D, F], for `nn.Dense` on a CPU.

  It differs in two ways, which change only the order of float32 sums:

  - Arrays of bfloat16 are multiplied into float32, which is rounded afterwards. Only for
    such a product does XLA use the bfloat16 units of a CPU, if any: a third of the time.
  - The gradient of the weights is computed as xᵀ g. JAX would compute gᵀ x and transpose it,
    for which XLA writes every g once more and takes a slower product.

  It can be differentiated in reverse mode only.
  """
  del dimension_numbers
  # A backward pass is traced after `jax.default_matmul_precision` has ended.
  configured: Any = jax.config
  return _product(precision or configured.jax_default_matmul_precision, x, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(precision, x, weights_DF):
  return _dot(precision, x, weights_DF, (x.ndim - 1,), (0,))


def _forward(precision, x, weights_DF):
  return _product(precision, x, weights_DF), (x, weights_DF)


def _backward(precision, saved, gradient):
  x, weights_DF = saved
  leading = tuple(range(x.ndim - 1))
  return (_dot(precision, gradient, weights_DF, (x.ndim - 1,), (1,)),
          _dot(precision, x, gradient, leading, leading))


_product.defvjp(_forward, _backward)


def _dot(precision, a, b, contracted_of_a, contracted_of_b):
  wide = np.promote_types(a.dtype, np.float32)
  product = lax.dot_general(a, b, ((contracted_of_a, contracted_of_b), ((), ())), precision,
                            preferred_element_type=wide)
  return product.astype(a.dtype)
