"""Experts are born unequal: how many tokens a random router sends to each of them.

A router reads the states that contraction has made alike. In units of their std over experts, its
logits for a token at position i are

    √ρ_i m_e + √(1-ρ_i) r_e · w,   m_e = r_e · μ ~ N(0, 1),

with router rows r_e, the direction μ that all sequences share, and what is the token's own, w. This
is the random-energy model of preferred tokens (`random_energy`), of E experts and not of V tokens:
m_e is fixed by the seed. ρ_i is the cosine of two sequences at position i, behind the norm that the
router reads, and w fills as few dimensions as states do, in which some rows are longer than others.
The std of the router cancels: shares do not depend on it.
"""

import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.theory import fluctuations
from bornbiased_jax.analysis.theory.finite_width import finite_width
from bornbiased_jax.analysis.theory.infinite_width import infinite_width
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count
from bornbiased_jax.models.initialization import Seed, as_seed
from bornbiased_jax.models.keys import make_key
from bornbiased_jax.models.mlp import chosen

# Tokens that each network reads.
_NUM_TOKENS = 4096


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
