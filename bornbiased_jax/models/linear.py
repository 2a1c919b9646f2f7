"""Linear layers: how their weights are drawn, and how XLA multiplies by them fastest."""

import functools
import math
from typing import Any

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig


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
  """A random matrix of which the shorter of rows and columns are orthonormal.

  It is the polar factor of a normal matrix. Products alone compute it (Newton and Schulz), since
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

  It differs in two ways, neither of which changes more than the order of float32 sums:

  - Arrays of bfloat16 are multiplied into float32, which is rounded afterwards. For such a
    product alone XLA uses the bfloat16 units of a CPU, if it has any: a third of the time.
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
  wide = jnp.promote_types(a.dtype, jnp.float32)
  product = lax.dot_general(a, b, ((contracted_of_a, contracted_of_b), ((), ())), precision,
                            preferred_element_type=wide)
  return product.astype(a.dtype)
