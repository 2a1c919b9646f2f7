"""Products of activations and weights, in the form that XLA computes fastest on a CPU."""

import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp


def on_cpu(x: jax.Array, weights: jax.Array, dimension_numbers: tuple,
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
