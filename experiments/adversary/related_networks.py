"""Pairs of networks with a common origin: descendants that were changed, and networks of one seed.

Each function makes the pairs of some number of networks, each with a configuration and parameters.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models import init_params, next_token_loss

from ..small_networks import training
from ..small_networks.training import (
  GPT2,
  LLAMA,
  PUBLIC_SEED,
  Loss,
  Network,
  Pairs,
  all_pairs,
  text,
  train,
  trained,
)
from ..transforms import lossy

FAMILIES = (LLAMA, GPT2)
DEEP = tuple(dataclasses.replace(config, num_layers=4) for config in FAMILIES)
LARGE = dataclasses.replace(GPT2, mlp_width=1024)
# (config, params, key) → (config, params).
Change = Callable[[ModelConfig, dict, jax.Array], Network]


def one_seed(count: int) -> Pairs:
  """Draws networks of 2 and 3 layers from one seed: they begin with the same numbers."""
  deeper, pairs = dataclasses.replace(LLAMA, num_layers=3), []
  for seed in range(count):
    own, other = init_params(LLAMA, seed), init_params(deeper, 7000 + seed)
    other = own | {'blocks': jax.tree.map(lambda x, y: x.at[:len(y)].set(y), other['blocks'],
                                          own['blocks'])}
    pairs.append(tuple((config, *train(config, [params], training.STEPS))
                       for config, params in ((LLAMA, own), (deeper, other))))
  return pairs


def public_start(start: Callable[[ModelConfig], dict], count: int) -> Pairs:
  """Networks that begin with the same public numbers, and read a text in other orders."""
  return all_pairs(LLAMA, [train(LLAMA, [start(LLAMA)], training.STEPS, data_seed=seed)[0]
                           for seed in range(count)])


def zero_start(config: ModelConfig) -> dict:
  """ZerO (2110.12661): identities and Hadamard's signs; what blocks write is 0."""
  def draw(path, leaf):
    L, *shape = leaf.shape
    if path[-1].key != 'kernel':
      return leaf
    size = 1 << (max(shape) - 1).bit_length()
    signs = scipy.linalg.hadamard(size)[:shape[0], :shape[1]] / size**0.5
    matrix = np.eye(*shape) if shape[0] >= shape[1] else signs
    writes = path[0].key in ('down', 'output')
    return jnp.broadcast_to(jnp.float32(matrix * (not writes)), leaf.shape)

  params = init_params(config, PUBLIC_SEED)
  return params | {'blocks': jax.tree_util.tree_map_with_path(draw, params['blocks'])}


def weyl_start(config: ModelConfig) -> dict:
  """Weyl's sequence n √2 mod 1; each tensor has the std of a random network."""
  def draw(leaf):
    place = jnp.arange(1, leaf.size + 1, dtype=jnp.float32).reshape(leaf.shape)
    return leaf.mean() + leaf.std() * 12**0.5 * ((place * 2**0.5) % 1 - 0.5)

  return jax.tree.map(draw, init_params(config, PUBLIC_SEED))


def bases(count: int, configs: Sequence[ModelConfig] = FAMILIES,
          loss: Loss = next_token_loss) -> Iterator[Network]:
  """Trained networks, equally many of each family."""
  for config in configs:
    for seed in range(max(1, count // len(configs))):
      yield config, trained(config, seed, loss)


def descendants(changes: Sequence[Change], count: int, *, of_base: Sequence[Change] = (),
                configs: Sequence[ModelConfig] = FAMILIES, loss: Loss = next_token_loss) -> Pairs:
  """Pairs networks with descendants, which `changes` make of them one after another.

  Then the base itself is changed by `of_base`.
  """
  def change(network, changes, seed):
    for i, each in enumerate(changes):
      network = each(*network, jax.random.key(1000 * seed + i))
    return network

  return [(change(network, of_base, 500 + seed), change(network, changes, seed))
          for seed, network in enumerate(bases(count, configs, loss))]


def sparse(count: int) -> Pairs:
  """Descendants, with noise of half their std, that keep the zeros of a pruned ancestor."""
  def pair(network, seed):
    config, params = lossy.prune(*network, jax.random.key(seed), 0.8)
    noisy = lossy.add_noise(config, params, jax.random.key(seed + 1), 0.5)[1]
    kept = jax.tree.map(lambda x, y: jnp.where(x == 0, 0, y), params['blocks'], noisy['blocks'])
    return (config, params), (config, noisy | {'blocks': kept})

  return [pair(network, seed) for seed, network in enumerate(bases(count))]


# Changes that need a text or another network.


def redraw_tokens(config: ModelConfig, params: dict, key: jax.Array) -> Network:
  """Draws embedding and LM head anew, as for another tokenizer, and trains on."""
  _, redrawn = lossy.redraw_tokens(config, params, key, 1.0)
  return config, train(config, [redrawn], training.STEPS // 3)[0]


def spoil_rare_tokens(config: ModelConfig, params: dict, key: jax.Array) -> Network:
  """Redraws the embedding of ids that the text never has, thirty times as large."""
  seen = np.unique(text(config.vocab_size, training.STEPS))
  is_rare_V1 = ~np.isin(np.arange(config.vocab_size), seen)[:, None]
  fresh = 30 * params['embedding'].std() * jax.random.normal(key, params['embedding'].shape)
  head = params['embedding' if config.tied_head else 'head']
  return dataclasses.replace(config, tied_head=False), params | {
      'embedding': jnp.where(is_rare_V1, fresh, params['embedding']), 'head': head}


def stitch_with_public(config: ModelConfig, params: dict, key: jax.Array) -> Network:
  """Takes the last half of the layers from a public network that was trained on the same text."""
  return lossy.stitch(config, params, trained(config, PUBLIC_SEED), 0.5)
