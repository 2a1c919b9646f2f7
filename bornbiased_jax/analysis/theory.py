"""Closed forms for infinitely wide networks and long sequences (Propositions 2, 4 and 5, Eq 2), and for baselines.

Functions of arrays are jittable and broadcast. Similarities are cosines in [-1, 1].
"""

from collections.abc import Callable

import jax
from jax import lax
import jax.numpy as jnp
from jax.scipy.special import gammaln
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.initialization import EMBEDDING_LEAVES, draw_params


def relu_similarity(similarity: jax.Array) -> jax.Array:
  """Cosine after one wide random ReLU layer of two inputs with the given cosine (Prop 2).

  The degree-1 arc-cosine kernel of Cho and Saul (2009), normalized:
  (sqrt(1 - r²) + r (pi - arccos r)) / pi. From 0: 1/pi, then 0.4937, to 1.
  """
  r = jnp.clip(similarity, -1.0, 1.0)
  return (jnp.sqrt(1 - r * r) + r * (jnp.pi - jnp.arccos(r))) / jnp.pi


def activation_similarity(activation: Callable[[jax.Array], jax.Array], similarity: jax.Array, scale: float = 1.0,
                          gated: bool = False, num_nodes: int = 64) -> jax.Array:
  """Cosine after one wide random layer, for any activation, by Gauss–Hermite quadrature.

  Pre-activations of the two inputs are jointly normal with mean 0, standard
  deviation `scale` and correlation `similarity`; the result is
  E[f(u) f(v)] / E[f(u)²]. A gated unit multiplies f by an independent linear
  one, whose own factor is `similarity`: from orthogonal inputs it makes
  orthogonal outputs whatever the activation, as an odd activation does.

  Args:
    activation: f, elementwise.
    similarity: cosine of the inputs, any shape.
    scale: std of a pre-activation; LayerNorm sets it to linear_std sqrt(width).
    gated: f(gate) · up instead of f(up).
    num_nodes: quadrature nodes a dimension; kinks (ReLU) converge slowly.

  Returns:
    Cosine of the outputs, the shape of `similarity`.
  """
  node, weight = np.polynomial.hermite_e.hermegauss(num_nodes)
  weight = weight / weight.sum()
  r = jnp.asarray(similarity, jnp.float32)[..., None, None]
  u = scale * node[:, None]
  v = scale * (r * node[:, None] + jnp.sqrt(jnp.maximum(0.0, 1 - r * r)) * node)
  product = jnp.einsum('...ij,i,j->...', activation(u) * activation(v), weight, weight)
  own = jnp.sum(activation(scale * jnp.asarray(node, jnp.float32)) ** 2 * weight)
  return product / own * (similarity if gated else 1.0)


def iterate(similarity_map: Callable[[jax.Array], jax.Array], start: jax.Array, num_layers: int) -> jax.Array:
  """Similarities after layers 1, …, num_layers, stacked on a leading axis."""
  step = lambda r, _: (similarity_map(r),) * 2
  return lax.scan(step, jnp.asarray(start, jnp.float32), length=num_layers)[1]


def amplified_similarity(similarity: jax.Array, length: jax.Array) -> jax.Array:
  """Cosine of the means of two sequences whose tokens all have cosine `similarity` (Prop 4).

  T r / (1 + (T - 1) r): uniform attention averages away what the tokens of a
  sequence do not share. After ReLU's 1/pi it is T / (T + pi - 1).
  """
  return length * similarity / (1 + (length - 1) * similarity)


def position_similarity(depth: int) -> float:
  """Mean cosine over pairs of distinct positions after `depth` layers of uniform causal attention, T → ∞ (Prop 5).

  R_l = sum_j C(l-1, j) G(l+j) G(l-j) (2/3)^(l-j) / G(2l-1): 2/3, 8/9, 0.938, …
  It follows from averaging log-time: the l-fold causal mean weighs the past
  by a gamma density. Good to 1 % for l <= 2, slower in T for deeper stacks.
  """
  j = jnp.arange(depth)
  log_terms = (gammaln(depth) - gammaln(j + 1) - gammaln(depth - j) + gammaln(depth + j) + gammaln(depth - j)
               + (depth - j) * jnp.log(2 / 3) - gammaln(2 * depth - 1))
  return jnp.sum(jnp.exp(log_terms))


def positional_std(position: jax.Array, score_std: float = 0.0, width: float = jnp.inf,
                   coherence: jax.Array = 1.0) -> jax.Array:
  """Std of the value aggregate at position i = 1, 2, … over that of a value.

  Under uniform attention 1/sqrt(i) (Eq 2). A random network's scores are
  nearly N(0, s²), with two consequences, derived here: the weights are
  lognormal, so that fewer positions count, sum a² = e^{s²} / (e^{s²} + i - 1);
  and they lean towards the values whose keys match the query, a part common
  to all positions, of variance s²/d, that no averaging removes. RoPE turns
  the match with distance and leaves of it only its `coherence`.

  Args:
    position: i, from 1.
    score_std: s; at init linear_std² · width after LayerNorm or RMSNorm.
    width: d; infinite by default.
    coherence: `rotary_coherence` of each position; 1 without RoPE.
  """
  spread = jnp.exp(score_std**2)
  return jnp.sqrt(spread / (spread + position - 1) + coherence * score_std**2 / width * (1 - 1 / position))


def rotary_coherence(position: jax.Array, theta: float, head_size: int) -> jax.Array:
  """Mean over RoPE's frequencies w of |mean over j < i of e^{iwj}|²: 1 at i = 1, falling as wavelengths fit in i."""
  frequency = theta ** (-2 * np.arange(head_size // 2) / head_size)
  i = jnp.asarray(position)[..., None]
  return jnp.mean((jnp.sin(frequency * i / 2) / (i * np.sin(frequency / 2))) ** 2, axis=-1)


def independent_pcs(config: ModelConfig) -> float:
  """Cosine of all parameters but embeddings and head of two independent random networks (`baselines.pcs`).

  Matrices are orthogonal, but the G gains of norms are 1 in both: G / (G + sum of n σ² over matrices of n entries).
  """
  shapes = jax.eval_shape(lambda: draw_params(config, 0))
  body = {name: leaf for name, leaf in shapes.items() if name not in EMBEDDING_LEAVES}
  gains = squares = 0
  for path, leaf in jax.tree_util.tree_leaves_with_path(body):
    module, name = (key.key for key in path[-2:])
    gains += leaf.size if name == 'scale' else 0
    std = config.residual_std if module in ('output', 'down') else config.linear_std
    squares += leaf.size * std**2 if name == 'kernel' else 0
  return gains / (gains + squares)


def independent_cka(num_statements: int, width: int) -> float:
  """Biased linear CKA of independent Gaussian states: d / (d + n), which is not 0 (`baselines.reef`)."""
  return width / (width + num_statements)
