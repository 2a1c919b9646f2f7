"""Similarities in an infinitely wide transformer at initialization, layer by layer.

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

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.theory import architecture, blocks, coincidence
from bornbiased_jax.analysis.theory.architecture import Architecture
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count

# Pairs of windows at a time.
_BATCH = 16


class InfiniteWidth(NamedTuple):
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


def infinite_width(config: ModelConfig, length: int, probe: str | Probe = 'tokens', *,
             collision: float | None = None) -> InfiniteWidth:
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
    >>> limit = infinite_width(configs.get('nano_gpt2'), length=64)
    >>> round(float(limit.inter_cosine_L[-1]), 2)
    0.33
  """
  return propagate(*first_kernels(config, length, probe, collision))


def first_kernels(config: ModelConfig, length: int, probe: str | Probe,
                  collision: float | None = None) -> tuple[Architecture, np.ndarray]:
  """What theory reads of a configuration, and the kernels [P, 3, T, T] of P pairs of sequences."""
  architecture.check(config, length, probe)
  network = architecture.of(config, probe)
  coincidence_PKTT = coincidence.kernels(config, length, probe, collision)
  same_position_TT = np.eye(length, dtype=np.float32)
  return network, (np.float32(network.token_variance) * coincidence_PKTT
                   + np.float32(network.position_variance) * same_position_TT)


@jax.jit
def propagate(network: Architecture, start_PKTT: jax.Array) -> InfiniteWidth:
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
      value_variance_T = jnp.diagonal(blocks.aggregates(network, kernels_KTT)[0])
    for sublayer in blocks.sublayers(network):
      kernels_KTT = sublayer(kernels_KTT)
    cosine_KTT = kernels_KTT / blocks.sizes(kernels_KTT)
    distinct = length * (length - 1)
    intra = (cosine_KTT[0].sum() - length) / distinct if distinct else jnp.nan
    return kernels_KTT, InfiniteWidth(jnp.diagonal(kernels_KTT[0]), cosine_KTT[2], intra,
                                value_variance_T)

  return lax.scan(block, start_KTT, length=network.num_layers)[1]
