"""Covariance of an activation at two correlated normal inputs, as a power series.

If u and v are normal with mean 0, the same standard deviation and correlation r, then
E[f(u) f(v)] = Σ_k c_k² r^k, where c_k = E[f(u) h_k(u)] for the normalized Hermite
polynomials h_k. The constant term (E f)² is what makes unrelated inputs alike.
"""

from collections.abc import Callable
import functools
import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

# The last power takes what is left of E f², so that the series is exact at r = 1. Behind a
# kink, as of ReLU, it converges like NUM_POWERS^(-3/2), else much faster.
NUM_POWERS = 32
_GRID = np.linspace(-9, 9, 4001)


def covariance_powers(activation: Callable[[jax.Array], jax.Array], scale: ArrayLike,
                      gated: bool = False) -> jax.Array:
  """Coefficients of the covariance of hidden units in powers of r, the highest first.

  They are what `jnp.polyval` takes, [NUM_POWERS + 1 or + 2].

  Args:
    activation: f, elementwise.
    scale: standard deviation of the pre-activations.
    gated: f is multiplied by an independent linear unit of the same scale, which
      multiplies the series by scale² r.
  """
  weight_G, polynomial_KG = _grid()
  scale = jnp.asarray(scale, jnp.float32)
  f_G = activation(scale * jnp.asarray(_GRID, jnp.float32))
  square_K = jnp.matmul(polynomial_KG, weight_G * f_G, precision='highest') ** 2
  rest = jnp.maximum(0.0, jnp.sum(weight_G * f_G**2) - square_K.sum())
  powers = jnp.append(square_K, rest)
  if gated:
    powers = scale**2 * jnp.append(jnp.zeros(1), powers)
  return powers[::-1]


@functools.cache
def _grid():
  """The normal density on a grid, fine enough for kinks, and the polynomials there."""
  weight_G = np.exp(-_GRID**2 / 2)
  before_G, polynomials = np.zeros_like(_GRID), [np.ones_like(_GRID)]
  for k in range(NUM_POWERS - 1):
    # sqrt(k + 1) h_{k+1} = z h_k - sqrt(k) h_{k-1}.
    following_G = (_GRID * polynomials[-1] - math.sqrt(k) * before_G) / math.sqrt(k + 1)
    before_G = polynomials[-1]
    polynomials.append(following_G)
  return ((weight_G / weight_G.sum()).astype(np.float32),
          np.stack(polynomials).astype(np.float32))
