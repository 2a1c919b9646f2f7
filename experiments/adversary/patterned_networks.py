"""Unrelated networks whose weights have a public pattern: masks, tiles, low rank.

A change of one network is a function (config, params) → parameters. A function that makes pairs
takes the number of networks. A network is a configuration and parameters.
"""

from collections.abc import Callable
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models import init_params, next_token_loss

from ..small_networks import training
from ..small_networks.training import (
  GPT2,
  LLAMA,
  PUBLIC_SEED,
  Pairs,
  all_pairs,
  from_seeds,
  train,
)
from ..transforms import preserving, surgery
from .unrelated_networks import changed


def mimetic(is_trained: bool, count: int) -> Pairs:
  """Mimetic initialization: values times output is near a multiple of the identity."""
  def init(params, seed):
    turn = jax.random.orthogonal(jax.random.key(seed), LLAMA.width, (LLAMA.num_layers,))
    blocks = params['blocks'] | {'value': {'kernel': turn}, 'output': {'kernel': turn.mT / 2}}
    return params | {'blocks': blocks}

  networks = [init(params, seed) for seed, params in enumerate(from_seeds(LLAMA, range(count)))]
  return all_pairs(LLAMA, train(LLAMA, networks, training.STEPS) if is_trained else networks)


# (own kernel, public kernel) → kernel of an MLP.
Mix = Callable[[jax.Array, jax.Array], jax.Array]


def structure(mix: Mix, config: ModelConfig, params: dict) -> dict:
  """Gives the kernels of MLPs a public pattern."""
  blocks, public = params['blocks'], init_params(config, PUBLIC_SEED)['blocks']
  made = {name: {'kernel': mix(blocks[name]['kernel'], public[name]['kernel'])}
          for name in ('up', 'gate')}
  across = mix(blocks['down']['kernel'].mT, public['down']['kernel'].mT)
  return params | {'blocks': blocks | made | {'down': {'kernel': across.mT}}}


def tile(kernel_LDF: jax.Array, public_LDF: jax.Array) -> jax.Array:
  """Repeats the first twelve units eight times."""
  return jnp.tile(kernel_LDF[:, :, :12], (1, 1, 8))


def mask(kernel_LDF: jax.Array, public_LDF: jax.Array) -> jax.Array:
  """Sets weights to 0 at public places, which differ by layer and matrix."""
  return jnp.where(public_LDF > LLAMA.linear_std, kernel_LDF, 0)


def low_rank(kernel_LDF: jax.Array, public_LDF: jax.Array) -> jax.Array:
  """The product of a factor of the network's own and a public one."""
  return kernel_LDF[:, :, :4] @ jnp.sign(public_LDF[:, :4])


def add_identity(kernel_LDF: jax.Array, public_LDF: jax.Array) -> jax.Array:
  """Every unit reads and writes one channel more than others."""
  return kernel_LDF + 2 * LLAMA.linear_std * jnp.tile(jnp.eye(LLAMA.width), (1, 3))[None]


def turned_mask(count: int) -> Pairs:
  """Networks share a mask and an embedding; the channels of each suspect are rotated."""
  embedding = {'embedding': init_params(LLAMA, PUBLIC_SEED)['embedding']}
  masked = changed(LLAMA, functools.partial(structure, mask), count, start=init_params)
  return [((config, a | embedding),
           preserving.rotate_channels(config, b | embedding, jax.random.key(i)))
          for i, ((config, a), (_, b)) in enumerate(masked)]


def one_mask_of_two_in_four(count: int) -> Pairs:
  """Trains with 2:4 sparsity; all networks have the same random masks."""
  public = init_params(LLAMA, PUBLIC_SEED)
  masked = lambda params: surgery.keep_two_of_four(params, public)
  loss = lambda config, params, tokens_BT: next_token_loss(config, masked(params), tokens_BT)
  networks = train(LLAMA, from_seeds(LLAMA, range(count)), training.STEPS, loss=loss)
  return all_pairs(LLAMA, [masked(params) for params in networks])


def repeat_values(config: ModelConfig, params: dict) -> dict:
  """Repeats the value channels of each head, as if copying had made heads larger."""
  L, D, G, half = config.num_layers, config.width, config.num_kv_heads, config.head_size // 2
  blocks = params['blocks']
  value = blocks['value']['kernel'].reshape(L, D, G, -1)[..., :half]
  output = blocks['output']['kernel'].reshape(L, G, -1, D)[:, :, :half]
  return params | {'blocks': blocks | {
      'value': {'kernel': jnp.tile(value, 2).reshape(L, D, -1)},
      'output': {'kernel': jnp.tile(output, (2, 1)).reshape(L, -1, D)}}}


def stacked(count: int) -> Pairs:
  """Stacks five layers twice; the copies then drift apart.

  Noise stands for training: kernels have cosine 0.58 with those that they were copied from.
  """
  config = dataclasses.replace(GPT2, width=64, mlp_width=256, num_layers=10)

  def drifted(kernel, copied):
    grown = jnp.concatenate([copied[:5], copied[:5]])
    return 0.58 * grown + (1 - 0.58**2)**0.5 * kernel if kernel.ndim == 3 else kernel

  def grow(seed):
    own, small = init_params(config, seed), init_params(config, 1000 + seed)
    return own | {'blocks': jax.tree.map(drifted, own['blocks'], small['blocks'])}

  return all_pairs(config, [grow(seed) for seed in range(count)])


# Near a public matrix, mostly too far for one layer to show it.


def near_public(pattern: Callable[[int, int], jax.Array], depths: tuple[int, int], strength: float,
                count: int) -> Pairs:
  """Every MLP is near the public matrix `pattern(layer, width)`, by `strength` stds of weights."""
  def make(config, seed):
    params = init_params(config, seed)
    public_LDD = jnp.stack([pattern(layer, config.width) for layer in range(config.num_layers)])
    public_LDF = jnp.tile(public_LDD, (1, 1, config.mlp_width // config.width))
    added = {'up': config.linear_std * public_LDF, 'gate': config.linear_std * public_LDF,
             'down': config.residual_std * public_LDF.mT}
    return config, params | {'blocks': params['blocks'] | {
        name: {'kernel': params['blocks'][name]['kernel'] + strength * each}
        for name, each in added.items()}}

  first, second = (dataclasses.replace(LLAMA, num_layers=depth) for depth in depths)
  return [(make(first, i), make(second, j)) for i, j in itertools.combinations(range(count), 2)]


def identity(layer: int, width: int) -> jax.Array:
  """The identity in all layers."""
  return jnp.eye(width)


def in_first_layer(layer: int, width: int) -> jax.Array:
  """The identity in the first layer."""
  return (layer == 0) * jnp.eye(width)


def alternating(layer: int, width: int) -> jax.Array:
  """The identity and its reverse in turn."""
  return jnp.eye(width)[:, ::-1] if layer % 2 else jnp.eye(width)


def own_permutation(layer: int, width: int) -> jax.Array:
  """A public random permutation of each layer's own."""
  return jax.random.permutation(jax.random.key(PUBLIC_SEED + layer), jnp.eye(width))
