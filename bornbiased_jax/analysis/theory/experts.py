"""The share of a router's choices that fall on each expert of a random network.

Routers prefer experts as networks prefer tokens (`random_energy`), with E experts and not V tokens:
what they read is alike too. ρ, which depends on the position, τ and D are those behind the norm
that a router reads. Its std cancels: shares do not depend on it. States are drawn, as a token may
choose several experts.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.theory import fluctuations
from bornbiased_jax.analysis.theory.finite_width import finite_width
from bornbiased_jax.analysis.theory.infinite_width import first_kernels, infinite_width
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count
from bornbiased_jax.models.initialization import Seed, as_seed
from bornbiased_jax.models.layers import chosen

# Tokens that each network reads: one half chooses an expert and the other counts it.
_NUM_TOKENS = 4096


class ExpertShares(NamedTuple):
  """The share of choices by expert, whose largest is the highest expert load, of N routers a layer.

  Attributes:
    share_LNE: shares of all tokens, which sum to 1 over experts.
    again_LN: share, of one half of the tokens, of the expert that the other half chooses most: the
      highest load without the luck in being chosen and counted on the same tokens.
  """

  share_LNE: np.ndarray
  again_LN: np.ndarray


def load_of_others(half_2E: jax.Array) -> jax.Array:
  """The share in each half of the tokens of the expert that leads in the other, their mean."""
  first_E, second_E = half_2E
  return (first_E[second_E.argmax()] + second_E[first_E.argmax()]) / 2


def expert_shares(config: ModelConfig, length: int, probe: str | Probe = 'tokens', *,
                  num_experts: int | None = None, num_chosen: int | None = None,
                  num_networks: int = 200, seed: Seed = 0) -> ExpertShares:
  """The share of choices that fall on each expert, by layer, in random networks.

  Args:
    config: the architecture, with experts or without.
    length: number of tokens per sequence, T.
    probe: as `infinite_width` takes it.
    num_experts: of a router that reads the states, E; None means config.num_experts.
    num_chosen: how many it chooses for each token; None means config.experts_per_token.
    num_networks: number of networks that are drawn, N.
    seed: seed of the draws.

  Raises:
    InputError: as `infinite_width` and `finite_width`, there is no MLP, or more
      experts are chosen than there are.

  Cost: as `finite_width`, and some 8,192 N D E FLOPs per layer, for states of D dimensions.

  Example:
    >>> from bornbiased_jax import configs
    >>> config = configs.get('tiny_gpt2', num_layers=2)
    >>> share_LNE = expert_shares(config, 16, num_experts=8, num_networks=20).share_LNE
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
  limit_LT, dimensions_L, std_L = at_routers(config, length, probe)
  found = [_halves((num_networks, E, num_chosen), *of_layer, seed) for of_layer in zip(
      limit_LT + change_L[:, None], np.maximum(1, np.round(dimensions_L)).astype(int), std_L,
      strict=True)]
  return ExpertShares(np.mean(found, axis=2), np.array(
      [[load_of_others(half_2E) for half_2E in half_N2E] for half_N2E in found]))


def at_routers(config: ModelConfig, length: int, probe: str | Probe = 'tokens'
               ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Of states that MLPs or routers read: cosines [layers, T], dimensions and τ [layers].

  The cosines are of two sequences at each position, in the limit of infinite width. Arguments,
  errors and cost are like those of `finite_width` without samples.
  """
  network, start_PKTT = first_kernels(config, length, probe)
  path, _ = fluctuations.path_of(network, start_PKTT.mean(axis=0))
  found = _at_routers(network, fluctuations.widths_of(config), path)
  first, second, between = np.diagonal(path.before_LSKTT[:, -1], axis1=-2, axis2=-1).swapaxes(0, 1)
  return between / np.sqrt(first * second), *map(np.asarray, found)


@jax.jit
def _at_routers(network, widths, path):
  # Four positions stand for all: 1 / D is a mean over pairs of tokens.
  T = path.start_KTT.shape[-1]
  positions_P = np.maximum(T * (2 * np.arange(4) + 1) // 8, min(1, T - 1))

  def states(layer, position):
    of_router = lambda before_LSKTT: fluctuations.cosine_of(before_LSKTT[layer, -1], position)[0]
    cosine, direct_LSKTT = jax.value_and_grad(of_router)(path.before_LSKTT)
    at_end_KTT = jnp.zeros_like(path.start_KTT)
    at = fluctuations.derivatives(network, path.before_LSKTT, at_end_KTT, direct_LSKTT)
    return fluctuations.of_states(widths, path, *at, cosine)

  def of_layer(layer):
    dimensions_P, std_P = lax.map(functools.partial(states, layer), positions_P)
    return 1 / (1 / dimensions_P).mean(), jnp.sqrt((std_P**2).mean())

  return lax.map(of_layer, jnp.arange(network.num_layers))


def _halves(sizes, cosine_T, dimensions, std, seed):
  """The shares of the choices of either half of the tokens, [N, 2, E]."""
  num_networks, E, num_chosen = sizes
  generator = np.random.default_rng(int(as_seed(seed)))
  normal = lambda *shape: generator.standard_normal(shape, np.float32)
  root_rho_N1 = np.sqrt(np.resize(np.clip(cosine_T, 0, 1), (_NUM_TOKENS, 1)), dtype=np.float32)

  def network():
    along_N1 = np.clip(root_rho_N1 + np.float32(std) * normal(_NUM_TOKENS, 1), -1, 1)
    rest_ND = normal(_NUM_TOKENS, dimensions)
    rest_ND *= np.sqrt(1 - along_N1**2) / np.linalg.norm(rest_ND, axis=1, keepdims=True)
    chosen_NE = chosen(along_N1 * normal(1, E) + rest_ND @ normal(dimensions, E), num_chosen)
    return np.asarray(chosen_NE).reshape(2, -1, E).mean(axis=1) / num_chosen

  return np.array([network() for _ in range(num_networks)])
