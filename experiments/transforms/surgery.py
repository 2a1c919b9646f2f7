"""What is done to a network before it is published: cutting, moving, inserting, sorting, sparsing.

Like in lossy.py, each function takes (config, params, key) and, where it has one, a
strength, and returns (config, params). Those that draw nothing ignore the key.
"""

from collections.abc import Callable
import dataclasses
import math

import jax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig

from . import preserving
from .lossy import another, order_layers
from .preserving import Altered

Key = jax.Array | None


# Channels, heads, units and tokens.


def cut_channels(config: ModelConfig, params: dict, key: Key, strength: float) -> Altered:
  """Removes a random share `strength` of the residual channels; heads keep their size."""
  count = config.width - round(strength * config.width)
  kept_C = jnp.sort(jax.random.permutation(key, config.width)[:count])
  _, params = preserving.order_channels(config, params, kept_C)
  return dataclasses.replace(config, width=count, head_size=config.head_size), params


def cut_heads(config: ModelConfig, params: dict, key: Key, strength: float) -> Altered:
  """Removes a random share `strength` of the key/value heads of each layer, with their queries."""
  L, G = config.num_layers, config.num_kv_heads
  count = G - round(strength * G)
  return preserving.order_heads(config, params, jax.vmap(
      lambda key: jnp.sort(jax.random.permutation(key, G)[:count]))(jax.random.split(key, L)))


def keep_first_units(config: ModelConfig, params: dict, key: Key = None, *,
                     strength: float) -> Altered:
  """Keeps a share `strength` of each MLP's units, the first ones, as is done with a MatFormer."""
  first_F = jnp.arange(round(strength * config.mlp_width))
  return preserving.order_units(config, params, jnp.tile(first_F, (config.num_layers, 1)))


def written_norms(config: ModelConfig, params: dict) -> jax.Array:
  """The norm of the vector that each unit writes to the stream, [layers, units]."""
  return jnp.linalg.norm(params['blocks']['down']['kernel'], axis=-1)


def sort_units(config: ModelConfig, params: dict, key: Key = None,
               size: Callable[[ModelConfig, dict], jax.Array] = written_norms) -> Altered:
  """Puts each MLP's units in the order of a size of theirs, the largest first."""
  return preserving.order_units(config, params, jnp.argsort(-size(config, params), axis=-1))


def trim_vocabulary(config: ModelConfig, params: dict, key: Key, strength: float) -> Altered:
  """Removes a share `strength` of the token ids, the last ones, and renumbers the others."""
  count = config.vocab_size - round(strength * config.vocab_size)
  kept_V = jax.random.permutation(key, count)
  return dataclasses.replace(config, vocab_size=count), params | {
      name: params[name][kept_V] for name in ('embedding', 'head') if name in params}


# Layers.


def swap_layers(config: ModelConfig, params: dict, key: Key = None) -> Altered:
  """Exchanges the second layer and the third."""
  return order_layers(config, params, [0, 2, 1, *range(3, config.num_layers)])


def move_layer(config: ModelConfig, params: dict, key: Key = None) -> Altered:
  """Moves the first layer to the end."""
  return order_layers(config, params, [*range(1, config.num_layers), 0])


def drop_layer(config: ModelConfig, params: dict, key: Key = None) -> Altered:
  """Leaves the second layer out."""
  return order_layers(config, params, [0, *range(2, config.num_layers)])


def average_layers(config: ModelConfig, params: dict, key: Key = None) -> Altered:
  """Puts one layer, their average, in the place of the last two."""
  blocks = jax.tree.map(lambda x: x.at[-2].set((x[-2] + x[-1]) / 2), params['blocks'])
  return order_layers(config, params | {'blocks': blocks}, range(config.num_layers - 1))


def insert_zero_layers(config: ModelConfig, params: dict, key: Key = None, *,
                       strength: float) -> Altered:
  """Inserts copies of a share `strength` of the layers that write nothing yet, as LLaMA-Pro does.

  They are the last layer of each group of layers, and stand behind it.
  """
  L, more = config.num_layers, math.ceil(strength * config.num_layers)
  ends = {round((group + 1) * L / more) - 1 for group in range(more)}
  order = [i for layer in range(L) for i in [layer] * (2 if layer in ends else 1)]
  is_own = jnp.array([i == 0 or order[i - 1] != layer for i, layer in enumerate(order)])
  config, params = order_layers(config, params, order)
  silent = lambda x: jnp.where(is_own.reshape(-1, *[1] * (x.ndim - 1)), x, 0)
  blocks = params['blocks']
  return config, params | {'blocks': blocks | {
      name: jax.tree.map(silent, blocks[name]) for name in ('output', 'down')}}


def redraw_every_other(config: ModelConfig, params: dict, key: Key) -> Altered:
  """Draws the second layer, the fourth and so on anew."""
  replace = lambda x, y: x.at[1::2].set(y[1::2])
  return config, params | {'blocks': jax.tree.map(
      replace, params['blocks'], another(config, key)['blocks'])}


# Sparsity, and the values of a head.


def is_kept(kernel_LDF: jax.Array) -> jax.Array:
  """Which weights 2:4 sparsity keeps: the two largest of four inputs in a row, for each output."""
  L, D, F = kernel_LDF.shape
  size = jnp.abs(kernel_LDF).reshape(L, D // 4, 4, F)
  rank = jnp.argsort(jnp.argsort(-size, axis=2), axis=2)
  return (rank < 2).reshape(L, D, F)


def prune_two_of_four(config: ModelConfig, params: dict, key: Key = None) -> Altered:
  """Sets the smaller two of four weights in a row to 0 in every kernel of the blocks."""
  return config, keep_two_of_four(params, params)


def keep_two_of_four(params: dict, chosen_by: dict) -> dict:
  """The parameters with the zeros that 2:4 sparsity would give to another network."""
  def pruned(path, x, y):
    return jnp.where(is_kept(y), x, 0) if path[-1].key == 'kernel' else x
  return params | {'blocks': jax.tree_util.tree_map_with_path(
      pruned, params['blocks'], chosen_by['blocks'])}


def rotate_values(config: ModelConfig, params: dict, key: Key) -> Altered:
  """Rotates the values of each head, and its output back, as QuaRot does."""
  shape = config.num_layers, config.num_kv_heads
  rotations_LGKJ = jax.random.orthogonal(key, config.head_size, shape)
  return preserving.multiply_values(config, params, rotations_LGKJ)


def order_values(config: ModelConfig, params: dict, key: Key = None) -> Altered:
  """Makes value channel k of a head the k-th singular direction of its values times its output."""
  value_LGDK, output_LGKE = _values_and_outputs(config, params)
  K = config.head_size
  with jax.default_matmul_precision('highest'):
    _, size_LGK, right = jnp.linalg.svd(value_LGDK @ output_LGKE, full_matrices=False)
    across = output_LGKE @ right[..., :K, :].mT
  return preserving.multiply_values(config, params, across / jnp.sqrt(size_LGK[..., None, :K]))


def _values_and_outputs(config, params):
  """By layer and key/value head: the kernels of values, and of all outputs that read them."""
  L, D, G, K = config.num_layers, config.width, config.num_kv_heads, config.head_size
  value = params['blocks']['value']['kernel'].reshape(L, D, G, K)
  output = params['blocks']['output']['kernel'].reshape(L, G, -1, K, D)
  return value.swapaxes(1, 2), output.swapaxes(2, 3).reshape(L, G, K, -1)
