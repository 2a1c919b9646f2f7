"""Covariance of an activation at two correlated normal inputs, as a power series; of choices too.

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

from bornbiased_jax.models.mlp import route

# The last power takes what is left of E f², so that the series is exact at r = 1. Behind a
# kink, as of ReLU, it converges like NUM_POWERS^(-3/2), else much faster.
NUM_POWERS = 32
NUM_OVERLAPS, NUM_DRAWS = 33, 2**14
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


def overlap(correlation: jax.Array, overlap_R: jax.Array) -> jax.Array:
  """Σ_e g_e g'_e of what `choice_overlap` gives for two inputs of these correlations."""
  # In this variable it is smooth, also where two inputs become one; there r must not enter.
  apart = jnp.sqrt(jnp.clip(1 - correlation, 1e-10, 1.0))
  return jnp.interp(apart, jnp.linspace(0, 1, len(overlap_R)), overlap_R)


@functools.lru_cache(maxsize=64)
def choice_overlap(num_experts: int, num_chosen: int, renormalized: bool,
                   logit_std: float) -> np.ndarray:
  """How far two inputs choose the same experts: E Σ_e g_e g'_e of their weights, float32.

  It is 1 / num_experts for unlike inputs if one expert is chosen with weight 1, and 1 for equal
  ones. The logits are normal with this std, independent over experts, and correlate over inputs by
  r = 1 - u², for u from 0 to 1 in NUM_OVERLAPS steps. A mean over NUM_DRAWS drawn pairs, to which
  the exact value at r = 0 is known.
  """
  random = np.random.default_rng(0)
  a_NE, b_NE = logit_std * random.standard_normal((2, NUM_DRAWS, num_experts), np.float32)
  weights = lambda logits_NE: np.asarray(route(logits_NE, num_chosen, renormalized))
  own_NE = weights(a_NE)
  found = []
  for r in 1 - np.linspace(0, 1, NUM_OVERLAPS, dtype=np.float32)**2:
    other_NE = weights(r * a_NE + np.sqrt(1 - r * r) * b_NE)
    found.append(float((own_NE * other_NE).sum(axis=1).mean()))
  # What the draws make of r = 0, where the truth is known, they make of small r as well.
  error = found[-1] - float(own_NE.sum(axis=1).mean())**2 / num_experts
  share_R = np.linspace(0, 1, NUM_OVERLAPS)
  return np.asarray(found - error * share_R, np.float32)
