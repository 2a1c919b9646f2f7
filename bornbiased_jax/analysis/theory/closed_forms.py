"""Closed forms for wide networks and long sequences (Propositions 2, 4 and 5, Eq 2).

Functions of arrays broadcast and can be jitted. Similarities are cosines in [-1, 1].

An MLP needs the covariance of an activation at two correlated normal inputs. If u and v are normal
with mean 0, the same standard deviation and correlation r, then E[f(u) f(v)] = Σ_k c_k² r^k, where
c_k = E[f(u) h_k(u)] for the normalized Hermite polynomials h_k. The constant term (E f)² is what
makes unrelated inputs alike.
"""

from collections.abc import Callable
import functools
import math

import jax
from jax import lax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np
import scipy

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.initialization import EMBEDDING_LEAVES, param_shapes
from bornbiased_jax.models.layers import route

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


def relu_similarity(similarity: ArrayLike) -> jax.Array:
  """Cosine of two vectors after one infinitely wide random ReLU layer (Prop 2).

  For inputs of cosine r it is (sqrt(1 - r²) + r (pi - arccos r)) / pi, the normalized
  arc-cosine kernel of degree 1 of Cho and Saul (2009).

  Example:
    >>> from bornbiased_jax.analysis import theory
    >>> round(float(theory.relu_similarity(0.0)), 4)  # 1/pi
    0.3183
  """
  # Rounding may take a cosine past 1, where the square root would be NaN.
  r = jnp.clip(similarity, -1.0, 1.0)
  return (jnp.sqrt(1 - r * r) + r * (jnp.pi - jnp.arccos(r))) / jnp.pi


def activation_similarity(activation: Callable[[jax.Array], jax.Array], similarity: ArrayLike,
                          scale: ArrayLike = 1.0, gated: bool = False) -> jax.Array:
  """Cosine of two vectors after one infinitely wide random layer with any activation.

  The pre-activations u and v of the two inputs are jointly normal with mean 0, standard
  deviation `scale` and correlation `similarity`. The result is E[f(u) f(v)] / E[f(u)²].
  Orthogonal inputs stay orthogonal behind a gated layer, and behind an odd activation.

  Args:
    activation: f, elementwise.
    similarity: cosine of the inputs, any shape, which the result has too.
    scale: standard deviation of a pre-activation. After LayerNorm it is
      linear_std sqrt(width).
    gated: the layer computes f(gate) * up instead of f(up).

  Example:
    >>> from bornbiased_jax.analysis import theory
    >>> bool(abs(theory.activation_similarity(jnp.tanh, 0.0)) < 1e-6)
    True
  """
  powers = covariance_powers(activation, scale, gated)
  return jnp.polyval(powers, jnp.asarray(similarity)) / powers.sum()


def iterate(similarity_map: Callable[[jax.Array], jax.Array], start: ArrayLike,
            num_layers: int) -> jax.Array:
  """Similarities after layers 1 to `num_layers`, stacked on a leading axis.

  Args:
    similarity_map: the map from the similarity before a layer to the one after it.
    start: similarity of the inputs, any shape.
    num_layers: number of layers.
  """
  step = lambda r, _: (similarity_map(r),) * 2
  return lax.scan(step, jnp.asarray(start, jnp.float32), length=num_layers)[1]


def amplified_similarity(similarity: ArrayLike, length: ArrayLike) -> jax.Array:
  """Cosine of the means of two sequences, by which attention amplifies contraction (Prop 4).

  If any two tokens, of one sequence or of both, have cosine r, then the means over T
  tokens have cosine T r / (1 + (T - 1) r): uniform attention averages away what tokens
  do not share. For the r = 1/pi of a ReLU layer this is T / (T + pi - 1).

  Args:
    similarity: cosine of any two tokens, r.
    length: number of tokens per sequence, T.

  Example:
    >>> from bornbiased_jax.analysis import theory
    >>> round(float(theory.amplified_similarity(1 / 3.14159, length=100)), 4)
    0.979
  """
  r, T = jnp.asarray(similarity), jnp.asarray(length)
  return T * r / (1 + (T - 1) * r)


def position_similarity(depth: int) -> jax.Array:
  """Mean cosine over pairs of positions of a long sequence behind uniform attention (Prop 5).

  After l layers of uniform causal attention on T → ∞ independent inputs it is

      R_l = sum over j < l of C(l-1, j) Γ(l+j) Γ(l-j) (2/3)^(l-j) / Γ(2l-1),

  that is 2/3, 8/9, 0.938, … The l-fold causal mean weighs the past by a gamma density in
  log-time, from which the sum follows. At finite T it is good to 1 % for l <= 2;
  deeper stacks approach it more slowly.

  Args:
    depth: number of layers, l.

  Example:
    >>> from bornbiased_jax.analysis import theory
    >>> round(float(theory.position_similarity(depth=2)), 4)
    0.8889
  """
  # Logarithms, because the gamma functions overflow for deep stacks, in float64.
  j = np.arange(depth)
  gammaln = scipy.special.gammaln
  log_terms = (gammaln(depth) - gammaln(j + 1) + gammaln(depth + j)
               + (depth - j) * np.log(2 / 3) - gammaln(2 * depth - 1))
  return jnp.asarray(np.sum(np.exp(log_terms)), jnp.float32)


def positional_std(position: ArrayLike, score_std: float = 0.0, width: float = jnp.inf,
                   coherence: ArrayLike = 1.0) -> jax.Array:
  """Standard deviation of the value aggregate at a position, relative to one value's.

  Under uniform attention it is 1/sqrt(i) at position i (Eq 2). The scores of a random
  network are nearly N(0, s²), which has two consequences that are derived here. First,
  the weights a are lognormal, so that fewer positions count: the sum of a² is
  e^{s²} / (e^{s²} + i - 1). Second, the weights lean towards the values whose keys match
  the query. This part is common to all positions, has variance s²/d, and is not removed
  by averaging. RoPE turns the match with distance and leaves only its `coherence`.

  Args:
    position: i, counted from 1, any shape.
    score_std: s. At initialization, behind LayerNorm or RMSNorm, it is
      linear_std² * width. 0 means uniform attention.
    width: number of channels, d; infinite by default.
    coherence: `rotary_coherence` of each position, or 1 without RoPE.

  Example:
    >>> from bornbiased_jax.analysis import theory
    >>> float(theory.positional_std(4))
    0.5
  """
  position = jnp.asarray(position, jnp.float32)
  shrunk = jnp.exp(-(score_std**2))  # Divided by e^{s²}, which may overflow.
  matched = coherence * score_std**2 / width * (1 - 1 / position)
  return jnp.sqrt(1 / (1 + shrunk * (position - 1)) + matched)


def rotary_coherence(position: ArrayLike, theta: float, head_size: int) -> jax.Array:
  """How much of the match between query and keys RoPE leaves at each position.

  It is the squared length of the mean of the unit vectors at the angles 0, w, 2w, …,
  (i - 1) w, averaged over RoPE's frequencies w. At position i = 1 it is 1, and it falls
  as more wavelengths fit into i positions.

  Args:
    position: i, counted from 1, any shape.
    theta: config.rope_theta.
    head_size: number of channels of one head.

  Example:
    >>> from bornbiased_jax.analysis import theory
    >>> round(float(theory.rotary_coherence(1, theta=10000.0, head_size=64)), 4)
    1.0
  """
  frequency = theta ** (-2 * np.arange(head_size // 2) / head_size)
  i = jnp.asarray(position)[..., None]
  frequency = np.expand_dims(frequency, tuple(range(i.ndim - 1)))
  # The sum of the unit vectors is a geometric series of length |sin(w i / 2) / sin(w / 2)|.
  return jnp.mean((jnp.sin(frequency * i / 2) / (i * np.sin(frequency / 2))) ** 2, axis=-1)


def independent_pcs(config: ModelConfig) -> float:
  """What the fingerprint PCS (`lineage.pcs`) shows for independent random networks.

  PCS is the cosine of all parameters except embeddings and LM head. Independent matrices
  are orthogonal, but all G norm gains are 1 in both networks, and biases are 0. The cosine is
  therefore G / (G + the sum of n σ² over matrices of n entries with standard deviation σ).
  """
  body = {name: leaf for name, leaf in param_shapes(config).items()
          if name not in EMBEDDING_LEAVES}
  gains = squares = 0
  for path, leaf in jax.tree_util.tree_leaves_with_path(body):
    module, name = (key.key for key in path[-2:])
    gains += leaf.size if name == 'scale' else 0
    squares += leaf.size * config.std_of(module) ** 2 if name == 'kernel' else 0
  return gains / (gains + squares)
