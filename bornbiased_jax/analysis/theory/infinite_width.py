"""Similarities in an infinitely wide transformer at initialization, layer by layer.

Two kernels over positions are propagated through the blocks. S_ij is the mean product
per channel of the residual states at positions i and j of one sequence, X_ij that of two
independent sequences. A hat means division by sqrt(S_ii S_jj), which is what LayerNorm
and RMSNorm do. With A_ij = 1/i for j <= i, the uniform attention of a random network,

    attention   S += α A Ŝ Aᵀ,  X += α A X̂ Aᵀ,   α = (σ² d) (σ_r² H K)
    MLP         S += β κ(Ŝ),    X += β κ(X̂),     β = σ_r² F

where σ is the std of linear layers, σ_r the std of layers that write to the stream, F the
width of the MLP, and κ(r) = E[f(u) f(v)] for pre-activations of std σ sqrt(d) and
correlation r. A gated unit multiplies κ by σ² d r. So the similarity of sequences comes
from κ(0) = (E f)², and attention amplifies it.

Two inputs have units in common only in experts that both choose: a mixture multiplies κ(r) by
P(r) = E Σ_e g_e g'_e, for weights g and g' of logits of correlation r. As P(0) is 1 / E if one of E
experts is chosen, a mixture contracts less than an MLP.

With ALiBi the weights of head h are A_ij ∝ e^{-m_h (i-j)}, for its slope m_h. As values and outputs
of different heads are independent, A Ŝ Aᵀ is then the mean of A_h Ŝ A_hᵀ over heads. Heads with a
steep slope average few positions, so that they average less away.

An initialization changes only variances. Orthogonal matrices have the same limit: they keep
products of inputs exactly, and other matrices keep them on average.

Propagation within one sequence is known (Hron et al. 2020, Noci et al. 2022, Cowsik et
al. 2024, Giorlandino and Goldt 2025). The second kernel, X, between sequences is added here.

Theory begins with the ids that coincide in two sequences. Random ids rarely do. In a text, two ids
are the same with probability q = Σ p_v², its collision probability, so that a text acts like random
ids of 1/q tokens. But q is a mean. Ids coincide more often within a window than between windows,
and in some windows more than in others, which matters where kernels are curved, such as in gated
units. So for a text, theory takes the windows that networks read, pair by pair.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import OF_IDS, OF_TEXT, Probe, kind_of
from bornbiased_jax.analysis.theory import blocks
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count

# Pairs of windows at a time.
_BATCH = 16
# Pairs of windows; fewer can be afforded where windows are long.
_NUM_PAIRS = 512
_LARGEST = 2**23


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
                       'that theory was computed for')
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
    probe: 'tokens', random ids that coincide in pairs with probability 1/V, or 'gaussian' or
      'sphere', which are the same in the limit; or a Probe, of whose text counts which ids of its
      windows coincide. The result is then the mean over pairs of them: over all where they are
      few, else over 512, or fewer of more than 128 tokens.
    collision: the probability that two ids coincide, Σ p_v² of a text, instead of 1/V.

  Raises:
    InputError: the model does not read so many tokens, the probe is unknown, or the theory does
      not know the architecture (`norm_place`, `score_cap`, `shared_mlp_width`, some interventions,
      and `windows` shorter than T).

  Cost: O(L T²) operations and numbers. No network is drawn.

  Example:
    >>> from bornbiased_jax import configs
    >>> limit = infinite_width(configs.get('nano_gpt2'), length=64)
    >>> round(float(limit.inter_cosine_L[-1]), 2)
    0.33
  """
  return propagate(*first_kernels(config, length, probe, collision))


def first_kernels(config: ModelConfig, length: int, probe: str | Probe,
                  collision: float | None = None) -> tuple[blocks.Architecture, np.ndarray]:
  """What theory reads of a configuration, and the kernels [P, 3, T, T] of P pairs of sequences."""
  blocks.check_known(config, length, probe)
  network = blocks.architecture_of(config, probe)
  coincidence_PKTT = coincidences(config, length, probe, collision)
  same_position_TT = np.eye(length, dtype=np.float32)
  return network, (np.float32(network.token_variance) * coincidence_PKTT
                   + np.float32(network.position_variance) * same_position_TT)


@jax.jit
def propagate(network: blocks.Architecture, start_PKTT: jax.Array) -> InfiniteWidth:
  """The mean over pairs of sequences, from their first kernels."""
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


def coincidences(config: ModelConfig, length: int, probe: str | Probe,
                 collision: float | None = None) -> np.ndarray:
  """Whether ids at positions i and j coincide, or how probable it is, [P, 3, T, T].

  Of each of P pairs of sequences the first kernel is within one, the second within the other, the
  third between them. One pair speaks for all pairs of random sequences.
  """
  kind = kind_of(probe)
  if collision is not None and not (kind == 'tokens' and 0 <= collision <= 1):
    raise InputError(f'collision={collision} is a probability from 0 to 1 of random ids, in '
                     "probe='tokens'")
  if kind in OF_TEXT:
    return _of_windows(config, probe)
  q = 0.0
  if kind in OF_IDS:
    q = 1 / (getattr(probe, 'num_ids', None) or config.vocab_size)
    q = q if collision is None else collision
  within_TT = np.where(np.eye(length, dtype=bool), 1, q)
  between_TT = np.full((length, length), q)
  if getattr(probe, 'start_id', None) is not None:
    between_TT[0, 0] = 1
  return np.stack([within_TT, within_TT, between_TT])[None].astype(np.float32)


def _of_windows(config, probe):
  windows_NT, first_P, second_P = pairs_of_windows(config, probe)
  return np.stack([windows_NT[i_P][:, :, None] == windows_NT[j_P][:, None, :] for i_P, j_P in (
      (first_P, first_P), (second_P, second_P), (first_P, second_P))], axis=1).astype(np.float32)


@functools.lru_cache(maxsize=1)  # `finite_width` needs them twice; no other text is kept.
def pairs_of_windows(config, probe):
  """Windows of a text, and pairs of them; each window is in as many pairs as any other."""
  largest = max(2, min(_NUM_PAIRS, _LARGEST // probe.length**2))
  num_windows = largest if probe.of_each else min(largest, max(2, probe.num_sequences))
  steps = np.arange(1, 1 + min(largest // num_windows, num_windows - 1))
  first_P = np.tile(np.arange(num_windows), len(steps))
  windows = jax.jit(lambda index_B: probe.inputs(config, index_B))
  return (np.asarray(windows(np.arange(num_windows))), first_P,
          (first_P + steps.repeat(num_windows)) % num_windows)
