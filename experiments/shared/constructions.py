"""Pairs of networks that an adversary made: innocent ones (innocents.py), and disguised ones.

Each construction is a function from the number of networks to pairs of networks, each
with a configuration and parameters.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.lineage import alterations, damage
from bornbiased_jax.models import init_params

from .innocents import GPT2, INNOCENT, LLAMA, STEPS, Network, Pairs
from .small_training import from_seeds, text, train


class Construction(NamedTuple):
  """What an adversary did.

  Attributes:
    truth: 'unrelated', 'same seed' or 'descendant'.
    make: from the number of networks to pairs.
  """

  truth: str
  make: Callable[[int], Pairs]


# Of one seed, without descent.


def one_seed(count: int) -> Pairs:
  """A seed set before networks of 2 and 3 layers are drawn: they begin with the same numbers."""
  deeper, pairs = dataclasses.replace(LLAMA, num_layers=3), []
  for seed in range(count):
    own, other = init_params(LLAMA, seed), init_params(deeper, 7000 + seed)
    other = own | {'blocks': jax.tree.map(lambda x, y: x.at[:len(y)].set(y), other['blocks'],
                                          own['blocks'])}
    pairs.append(((LLAMA, *train(LLAMA, [own], STEPS)), (deeper, *train(deeper, [other], STEPS))))
  return pairs


# Disguised: true descendants.


def sparse(count: int) -> Pairs:
  """Descendants, with noise of half their std, that keep the zeros of a pruned ancestor."""
  def pair(network, seed):
    config, params = damage.prune(*network, jax.random.key(seed), 0.8)
    noisy = damage.add_noise(config, params, jax.random.key(seed + 1), 0.5)[1]
    kept = jax.tree.map(lambda x, y: jnp.where(x == 0, 0, y), params['blocks'], noisy['blocks'])
    return (config, params), (config, noisy | {'blocks': kept})

  return [pair(network, seed) for seed, network in enumerate(_families(count))]


def _families(count):
  """Trained networks of both families, half of each."""
  for config in (LLAMA, GPT2):
    for params in train(config, from_seeds(config, range(max(1, count // 2))), STEPS):
      yield config, params


def disguised(changes: tuple[Callable, ...], count: int) -> Pairs:
  """Descendants to which changes were made one after another."""
  def disguise(network, seed):
    for i, change in enumerate(changes):
      network = change(*network, jax.random.key(1000 * seed + i))
    return network

  return [(network, disguise(network, seed)) for seed, network in enumerate(_families(count))]


def spoil_rare_tokens(config: ModelConfig, params: dict, key: jax.Array) -> Network:
  """Redraws the embedding of ids that the text never has, thirty times as large."""
  seen = np.unique(text(config.vocab_size, STEPS))
  is_rare_V1 = ~np.isin(np.arange(config.vocab_size), seen)[:, None]
  fresh = 30 * params['embedding'].std() * jax.random.normal(key, params['embedding'].shape)
  head = params['embedding' if config.tied_head else 'head']
  return dataclasses.replace(config, tied_head=False), params | {
      'embedding': jnp.where(is_rare_V1, fresh, params['embedding']), 'head': head}


def redrawn_tokens(count: int) -> Pairs:
  """Tokens renumbered, embedding and LM head drawn anew, then trained on."""
  def change(config, params, seed):
    fresh = init_params(config, 5000 + seed)
    params = params | {name: fresh[name] for name in ('embedding', 'head') if name in params}
    return train(config, [params], STEPS // 3)[0]

  return [((config, params), (config, change(config, params, seed)))
          for seed, (config, params) in enumerate(_families(count))]


_ALL_SEVEN = (alterations.permute_units, alterations.permute_heads, alterations.rotate_channels,
              alterations.flip_channels, alterations.mix_values, alterations.turn_queries,
              alterations.scale_channels)


def _by(*changes):
  return functools.partial(disguised, changes)


def _with(strength, change):
  return functools.partial(change, strength=strength)


DISGUISED: dict[str, Callable[[int], Pairs]] = {
    'channels change sign': _by(alterations.flip_channels),
    'channels permuted': _by(alterations.permute_channels),
    'units and heads permuted': _by(alterations.permute_units, alterations.permute_heads),
    'all seven changes': _by(*_ALL_SEVEN),
    'all seven changes (noise 0.5)': _by(*_ALL_SEVEN, _with(0.5, damage.add_noise)),
    'rare tokens spoiled (and all seven)': _by(spoil_rare_tokens, *_ALL_SEVEN),
    'embedding redrawn (trained on)': redrawn_tokens,
    'average (0.3 of the base)': _by(_with(0.7, damage.average)),
    'half of the units': _by(_with(0.5, damage.remove_units)),
    'layers repeated': _by(_with(0.5, damage.repeat_layers)),
    'low rank of the same size': _by(_with(1.0, damage.add_low_rank)),
    'sparse (noise 0.5)': sparse,
    'rotated (average 0.5)': _by(alterations.rotate_channels, _with(0.5, damage.average)),
}
CONSTRUCTIONS: dict[str, Construction] = {
    **{name: Construction('unrelated', make) for name, make in INNOCENT.items()},
    'one seed (2 and 3 layers)': Construction('same seed', one_seed),
    **{name: Construction('descendant', make) for name, make in DISGUISED.items()},
}
