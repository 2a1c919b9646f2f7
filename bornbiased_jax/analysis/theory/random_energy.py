"""From contraction to preference: how often a network predicts its preferred token or expert.

The answer of a network to a random sequence, behind the final norm, is √ρ μ + √(1-ρ) w: a
direction μ that all sequences share, and what is the sequence's own, where ρ is the cosine of two
sequences. So the logit of token v, in units of its own std over tokens, is

    √ρ m_v + √(1-ρ) e_v · w,   m_v = e_v · μ ~ N(0, 1),

with head rows e_v and states w ~ N(0, diag(λ) / Σ λ). This is a random-energy model (Derrida
1981): m_v is fixed by the seed, the rest is fresh for each sequence. In infinitely many dimensions
the rest is independent over tokens. In few dimensions, tokens whose rows are long in them win more
often. Tied heads add a competitor, the last token's own embedding, which is in the stream.

Routers prefer experts by the same model, with E experts and not V tokens. A router reads the states
that contraction has made alike. In units of their std over experts, its logits for a token at
position i are

    √ρ_i m_e + √(1-ρ_i) r_e · w,   m_e = r_e · μ ~ N(0, 1),

with router rows r_e; m_e is fixed by the seed. ρ_i is the cosine of two sequences at position i,
behind the norm that the router reads, and w fills as few dimensions as states do, in which some
rows are longer than others. The std of the router cancels: shares do not depend on it.
"""

import functools
import math
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from bornbiased_jax.analysis.probes import OF_IDS, Probe, kind_of
from bornbiased_jax.analysis.theory import fluctuations
from bornbiased_jax.analysis.theory.finite_width import finite_width
from bornbiased_jax.analysis.theory.infinite_width import infinite_width
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count
from bornbiased_jax.models.initialization import Seed, as_seed, make_key
from bornbiased_jax.models.layers import chosen

_BATCH_SIZE = 256
# Tokens that each network reads.
_NUM_TOKENS = 4096


class Preference(NamedTuple):
  """What theory says of N random networks that read n sequences each.

  Attributes:
    top1_frequency_N: share of sequences for which the network predicts its preferred token.
    direction_agrees_N: the direction predicts this token (Finding 2.2).
    again_frequency_N: share of the same token among n other sequences. It lacks the luck of the
      first n, so that its mean is that of n → ∞.
    same_token_N: the preferred token among these other sequences is the same token.
  """

  top1_frequency_N: np.ndarray
  direction_agrees_N: np.ndarray
  again_frequency_N: np.ndarray
  same_token_N: np.ndarray


def preference(similarity: float, vocab_size: int, num_sequences: int,
               spectrum_D: ArrayLike, *, similarity_std: float = 0.0,
               direction_cosine: float = 1.0, other_similarity: float | None = None,
               own_logit: float | None = None, num_networks: int = 100,
               seed: Seed = 0) -> Preference:
  """Draws the preferred tokens of networks by the random-energy model.

  Args:
    similarity: cosine of two sequences behind the last layer, ρ.
    vocab_size: number of token ids, V.
    num_sequences: number of sequences that each network reads, n.
    spectrum_D: eigenvalues of the covariance of the states up to a factor, such as
      np.ones(width), or np.ones(D) for a participation ratio D. The shape of the spectrum
      matters little.
    similarity_std: std of ρ over networks.
    direction_cosine: the n other sequences contract to a direction that has this cosine with
      the first: 1 for sequences of one length, or `InfiniteWidth.direction_cosine` for two lengths.
    other_similarity: the cosine of two of these other sequences; None means `similarity`.
    own_logit: mean logit of the last token's own row, in units of a logit's std, if it competes.
    num_networks: number of networks, N.
    seed: seed of the draws.

  Raises:
    InputError: a count is no positive whole number, a similarity is outside [0, 1], or the
      spectrum is not of numbers of at least 0 with a positive sum.

  Cost: 4 n V D FLOPs per network.

  Example:
    >>> found = preference(0.25, vocab_size=2048, num_sequences=500, spectrum_D=np.ones(42),
    ...                    num_networks=10)
    >>> bool(0.03 < found.top1_frequency_N.mean() < 0.06)
    True
  """
  for name, value in (('vocab_size', vocab_size), ('num_sequences', num_sequences),
                      ('num_networks', num_networks)):
    check_count(name, value)
  other_similarity = similarity if other_similarity is None else other_similarity
  for name, cosine in (('similarity', similarity), ('direction_cosine', direction_cosine),
                       ('other_similarity', other_similarity)):
    if not 0 <= float(cosine) <= 1:
      raise InputError(f'{name}={cosine} is not between 0 and 1')
  if not 0 <= similarity_std < math.inf or math.isnan(0.0 if own_logit is None else own_logit):
    raise InputError(f'similarity_std={similarity_std} and own_logit={own_logit} must be numbers, '
                     'the first of at least 0')
  value_D = np.asarray(spectrum_D, np.float64)
  if value_D.ndim != 1 or not (np.all(value_D >= 0) and 0 < value_D.sum() < math.inf):
    raise InputError('spectrum_D must be a vector of numbers of at least 0 with a positive sum')
  weight_D = jnp.asarray(value_D / value_D.sum(), jnp.float32)
  own = jnp.float32(-jnp.inf if own_logit is None else own_logit)
  sizes = vocab_size, num_sequences, num_networks
  return Preference(*map(np.asarray, _draw(
      sizes, (float(similarity), float(other_similarity)), weight_D, similarity_std,
      direction_cosine, own, as_seed(seed))))


@functools.partial(jax.jit, static_argnums=0)
def _draw(sizes, similarities, weight_D, similarity_std, direction_cosine, own_logit, seed):
  vocab_size, num_sequences, num_networks = sizes

  def network(key):
    keys = jax.random.split(key, 6)
    normal = jax.random.normal
    differs = similarity_std * normal(keys[0])
    rhos = [jnp.clip(similarity + differs, 0.0, 1.0) for similarity in similarities]
    head_VD = normal(keys[1], (vocab_size, len(weight_D))) * jnp.sqrt(weight_D)[None]
    mean_V, fresh_V = normal(keys[2], (vocab_size,)), normal(keys[3], (vocab_size,))
    other_V = direction_cosine * mean_V + jnp.sqrt(1 - direction_cosine**2) * fresh_V
    counts = [_counts(key, jnp.sqrt(rho) * each_V, jnp.sqrt(1 - rho) * head_VD, own_logit,
                      num_sequences)
              for key, rho, each_V in zip(keys[4:], rhos, (mean_V, other_V), strict=True)]
    top1 = jnp.argmax(counts[0])
    return (counts[0][top1] / num_sequences, top1 == jnp.argmax(mean_V),
            counts[1][top1] / num_sequences, top1 == jnp.argmax(counts[1]))

  return lax.map(network, jax.random.split(make_key(seed), num_networks))


def _counts(key, mean_V, head_VD, own_logit, num_sequences):
  """How many sequences predict each token. A sequence's own last token is any token."""
  V, D = head_VD.shape

  def batch(count_V, start):
    state_key, own_key, id_key = jax.random.split(jax.random.fold_in(key, start), 3)
    state_BD = jax.random.normal(state_key, (_BATCH_SIZE, D))
    logits_BV = mean_V[None] + state_BD @ head_VD.T
    own_B = own_logit + jax.random.normal(own_key, (_BATCH_SIZE,))
    own_id_B = jax.random.randint(id_key, (_BATCH_SIZE,), 0, V)
    predicted_B = jnp.where(logits_BV.max(axis=1) > own_B, jnp.argmax(logits_BV, axis=1), own_id_B)
    is_there_B = start + jnp.arange(_BATCH_SIZE) < num_sequences
    predicted_B = jnp.where(is_there_B, predicted_B, V)
    return count_V.at[predicted_B].add(1, mode='drop'), None

  return lax.scan(batch, jnp.zeros(V, jnp.int32), jnp.arange(0, num_sequences, _BATCH_SIZE))[0]


def preference_at_initialization(config: ModelConfig, length: int, num_sequences: int,
                        probe: str | Probe = 'tokens', *, other_length: int | None = None,
                        num_networks: int = 100, seed: int = 0) -> Preference:
  """What theory says of the preferred tokens of random networks of this architecture.

  It puts `infinite_width`, `finite_width` and `preference` together. No network is drawn, and no
  number is fitted.

  Args:
    config: the architecture.
    length: number of tokens per sequence, T.
    num_sequences: number of sequences that each network reads, n.
    probe: as in `infinite_width`. Of a text, the cosine of its windows counts; their last
      tokens, of which a tied head prefers its own, are taken for any.
    other_length: length of the n other sequences, at most T; None means T.
    num_networks: number of networks, N.
    seed: seed of the draws.

  Raises:
    InputError: as `infinite_width` and `preference`.

  The similarity is that of `finite_width`: beyond 1,300 tokens it is that of the limit.

  Cost: that of `finite_width` and of `preference`.

  Example:
    >>> from bornbiased_jax import configs
    >>> config = configs.get('tiny_gpt2', num_layers=2)
    >>> found = preference_at_initialization(config, length=16, num_sequences=100, num_networks=4)
    >>> found.top1_frequency_N.shape
    (4,)
  """
  limit = infinite_width(config, length, probe)
  finite = finite_width(config, length, probe)
  similarity, other = float(finite.inter_cosine_L[-1]), None
  if other_length is not None:
    # What the width changes is taken to be the same at both lengths.
    direction_cosine = limit.direction_cosine(other_length)
    at_other = limit.inter_cosine_LTT[-1, other_length - 1, other_length - 1]
    other = float(at_other + finite.inter_cosine_L[-1] - limit.inter_cosine_L[-1])
  size = config.embedding_factor * config.embedding_std
  own = size * (config.width / limit.variance_LT[-1, -1]) ** 0.5
  return preference(
      _in_range(similarity), config.vocab_size, num_sequences,
      np.ones(max(1, round(float(finite.dimensions)))), num_networks=num_networks, seed=seed,
      similarity_std=float(finite.inter_cosine_std),
      direction_cosine=1.0 if other_length is None else _in_range(direction_cosine),
      other_similarity=None if other is None else _in_range(other),
      own_logit=float(own) if config.tied_head and kind_of(probe) in OF_IDS else None)


def _in_range(cosine: float) -> float:
  """The nearest cosine that `preference` takes; corrections for a finite width may leave it."""
  return min(1.0, max(0.0, float(cosine)))


def expert_shares(config: ModelConfig, length: int, probe: str | Probe = 'tokens', *,
                  num_experts: int | None = None, num_chosen: int | None = None,
                  num_networks: int = 200, seed: Seed = 0) -> np.ndarray:
  """The share of choices that fall on each expert, by layer, in random networks.

  Args:
    config: the architecture, with experts or without.
    length: number of tokens per sequence, T.
    probe: as in `infinite_width`.
    num_experts: of a router that reads the states, E; None means config.num_experts.
    num_chosen: how many it chooses for each token; None means config.experts_per_token.
    num_networks: number of networks that are drawn, N.
    seed: seed of the draws.

  Returns:
    [layers, N, E]; the E shares of a network sum to 1. The largest is the highest expert load.

  Raises:
    InputError: as `infinite_width` and `finite_width`, there is no MLP, or more
      experts are chosen than there are.

  Cost: that of `finite_width`, and some 8,192 N D E FLOPs per layer, for states of D dimensions.

  Example:
    >>> from bornbiased_jax import configs
    >>> config = configs.get('tiny_gpt2', num_layers=2)
    >>> share_LNE = expert_shares(config, 16, num_experts=8, num_networks=20)
    >>> share_LNE.shape, bool(0.2 < share_LNE[-1].max(axis=-1).mean() < 0.4)
    ((2, 20, 8), True)
  """
  E = config.num_experts if num_experts is None else num_experts
  num_chosen = config.experts_per_token if num_chosen is None else num_chosen
  for name, count in (('num_experts', E), ('num_chosen', num_chosen),
                      ('num_networks', num_networks)):
    check_count(name, count)
  if num_chosen > E:
    raise InputError(f'num_chosen={num_chosen} exceeds num_experts={E}')
  if config.sublayers == 'attention_only':
    raise InputError("a router needs an MLP, and sublayers='attention_only' has none")
  # What a finite width changes in cosines is taken to be what it changes after the layer.
  limit_L = infinite_width(config, length, probe).inter_cosine_L
  change_L = finite_width(config, length, probe).inter_cosine_L - limit_L
  limit_LT, dimensions_L = fluctuations.at_routers(config, length, probe)
  cosine_LT = limit_LT + change_L[:, None]
  sizes = E, num_chosen, num_networks
  return np.stack([
      np.asarray(_draw_shares(sizes, max(1, round(float(dimensions))), cosine_T, as_seed(seed)))
      for cosine_T, dimensions in zip(cosine_LT, dimensions_L, strict=True)])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draw_shares(sizes, dimensions, cosine_T, seed):
  E, num_chosen, num_networks = sizes
  rho_N1 = jnp.resize(jnp.clip(cosine_T, 0.0, 1.0), (_NUM_TOKENS, 1))

  def network(key):
    mean_key, router_key, token_key = jax.random.split(key, 3)
    mean_E = jax.random.normal(mean_key, (1, E))
    router_DE = jax.random.normal(router_key, (dimensions, E)) / dimensions**0.5
    own_NE = jax.random.normal(token_key, (_NUM_TOKENS, dimensions)) @ router_DE
    logits_NE = jnp.sqrt(rho_N1) * mean_E + jnp.sqrt(1 - rho_N1) * own_NE
    return chosen(logits_NE, num_chosen).mean(axis=0) / num_chosen

  return lax.map(network, jax.random.split(make_key(seed), num_networks))
