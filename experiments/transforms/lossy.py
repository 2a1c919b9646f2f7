"""What changes a descendant's function: noise, pruning, rounding, merging and other surgery.

Each function takes (config, params, key, strength) and returns (config, params).
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import init_params

from .preserving import Altered, order_units, refuse_experts, upcycle


def add_noise(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Adds Gaussian noise whose std is `strength` times the std of each matrix."""
  return config, _each_matrix(params, key, _noisy, strength)


def _noisy(x, key, strength):
  return x + strength * x.std() * jax.random.normal(key, x.shape)


def add_low_rank(config: ModelConfig, params: dict, key: jax.Array, strength: float,
                 rank: int = 8) -> Altered:
  """Adds a random matrix of low rank to each matrix, as LoRA would.

  Its Frobenius norm is `strength` times that of the matrix.
  """
  return config, _each_matrix(params, key, _updated, strength, rank)


def _updated(x, key, strength, rank):
  left_key, right_key = jax.random.split(key)
  left = jax.random.normal(left_key, (len(x), rank))
  added = left @ jax.random.normal(right_key, (rank, x.shape[1]))
  return x + strength * jnp.linalg.norm(x) / jnp.linalg.norm(added) * added


def prune(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Sets a share `strength` of each matrix to 0, its entries of least size; ignores `key`."""
  return config, _each_matrix(params, key, _pruned, strength)


def _pruned(x, key, strength):
  return jnp.where(jnp.abs(x) < jnp.quantile(jnp.abs(x), strength), 0, x)


def quantize(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Rounds to `strength` bits and back, with a scale per column of each matrix; ignores `key`."""
  return config, _each_matrix(params, key, _rounded, strength)


def _rounded(x, key, strength):
  levels = 2 ** (strength - 1) - 1
  scale = jnp.maximum(jnp.abs(x).max(axis=0, keepdims=True), 1e-30) / levels
  return jnp.round(x / scale) * scale


def quantize_blocks(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Rounds to 8 or 4 bits and back, as Q8_0 and Q4_0 of GGUF files do; ignores `key`.

  Each 32 numbers of a column share a scale of half precision. Of 4 bits it is such that the
  largest of them is -8 scales.
  """
  return config, _each_matrix(params, key, _rounded_blocks, strength)


def _rounded_blocks(x, key, strength):
  blocks = jnp.pad(x.T, ((0, 0), (0, -len(x) % 32))).reshape(x.shape[1], -1, 32)
  largest = jnp.take_along_axis(blocks, jnp.abs(blocks).argmax(-1, keepdims=True), -1)
  scale = jnp.abs(largest) / 127 if strength == 8 else -largest / 8
  whole = jnp.floor(blocks / jnp.where(scale == 0, 1, scale) + 0.5)
  whole = whole if strength == 8 else jnp.clip(whole, -8, 7)
  rounded = whole * scale.astype(jnp.float16).astype(x.dtype)
  return rounded.reshape(x.shape[1], -1)[:, :len(x)].T


def average(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Averages with an unrelated random network of the same architecture, of weight `strength`."""
  other = another(config, key)
  return config, jax.tree.map(lambda x, y: (1 - strength) * x + strength * y, params, other)


def average_experts(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Makes a dense network of a mixture: each MLP is the mean of its experts; ignores `key`."""
  if config.num_experts == 1 or config.sublayers == 'attention_only':
    raise InputError('the network has no experts')
  left_out = 'experts', 'router', 'shared', 'shared_gate'
  blocks = {name: x for name, x in params['blocks'].items() if name not in left_out}
  blocks |= jax.tree.map(lambda x: x.mean(axis=1), params['blocks']['experts'])
  config = dataclasses.replace(config, num_experts=1, experts_per_token=1,
                               renormalized_experts=True, shared_mlp_width=0)
  return config, params | {'blocks': blocks}


def order_layers(config: ModelConfig, params: dict, order: Sequence[int]) -> Altered:
  """The network whose layers are those with these numbers, one after another."""
  index_M = jnp.array(order)
  blocks = jax.tree.map(lambda x: x[index_M], params['blocks'])
  windows = tuple(config.windows[i] for i in order) if config.windows else ()
  return (dataclasses.replace(config, num_layers=len(order), windows=windows),
          params | {'blocks': blocks})


def stitch(config: ModelConfig, params: dict, other: dict, strength: float) -> Altered:
  """Takes a share `strength` of the layers, rounded up, the last ones, from another network."""
  kept = config.num_layers - math.ceil(strength * config.num_layers)
  return config, params | {'blocks': jax.tree.map(
      lambda x, y: jnp.concatenate((x[:kept], y[kept:])), params['blocks'], other['blocks'])}


def redraw_layers(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Draws the last layers anew: a share `strength` of all layers, rounded up."""
  return stitch(config, params, another(config, key), strength)


def remove_units(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Removes a share `strength` of each MLP's units, those that write least; ignores `key`.

  The others keep their order, like in width pruning.
  """
  refuse_experts(params, ['blocks/up/kernel'])
  size_LF = jnp.linalg.norm(params['blocks']['down']['kernel'], axis=-1)
  count = config.mlp_width - round(strength * config.mlp_width)
  return order_units(config, params, jnp.sort(jnp.argsort(-size_LF, axis=-1)[:, :count], axis=-1))


def repeat_layers(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Repeats a share `strength` of the layers, those in the middle; ignores `key`.

  This is depth up-scaling: layers 0 to b, then a to the last one.
  """
  L, more = config.num_layers, math.ceil(strength * config.num_layers)
  first = (L - more) // 2
  return order_layers(config, params, [*range(first + more), *range(first, L)])


def redraw_tokens(config: ModelConfig, params: dict, key: jax.Array, strength: float) -> Altered:
  """Draws a share `strength` of the rows of embedding and LM head anew, as for new tokens."""
  other = another(config, key)
  count = math.ceil(strength * config.vocab_size)
  return config, params | {name: jnp.concatenate((other[name][:count], params[name][count:]))
                           for name in ('embedding', 'head') if name in params}


# By name, each function and the strengths to try.
DAMAGING: dict[str, tuple[Callable, tuple[float, ...]]] = {
    'noise': (add_noise, (0.5, 1.0, 2.0)), 'low rank': (add_low_rank, (0.1, 0.5, 1.0)),
    'prune': (prune, (0.1, 0.3, 0.5, 0.7)), 'quantize': (quantize, (8, 4)),
    'quantize blocks': (quantize_blocks, (8, 4)),
    'average': (average, (0.3, 0.5, 0.7, 0.9)), 'redraw layers': (redraw_layers, (0.25, 0.5, 0.75)),
    'remove units': (remove_units, (0.25, 0.5)), 'repeat layers': (repeat_layers, (0.5,)),
    'redraw tokens': (redraw_tokens, (0.5, 1.0)),
}
# From dense networks to mixtures of experts and back; they take no strength.
MIXTURES: dict[str, Callable] = {
    'upcycle': functools.partial(upcycle, num_experts=4), 'average experts': average_experts}


def another(config: ModelConfig, key: jax.Array) -> dict:
  """The parameters of an unrelated random network of the same architecture."""
  return init_params(config, jax.random.bits(key, dtype=jnp.uint32))


def _each_matrix(params, key, change, *arguments):
  """Applies `change(matrix, key, *arguments)` to every kernel and embedding, layer by layer."""
  flat = flatten_dict(params, sep='/')
  for i, (name, leaf) in enumerate(sorted(flat.items())):
    own = jax.random.fold_in(key, i)
    if name.startswith('blocks/') and name.endswith('kernel'):
      matrices = leaf.reshape(-1, *leaf.shape[-2:])  # Of layers, and of experts in them.
      keys = jax.random.split(own, len(matrices))
      flat[name] = _changed(change, arguments, matrices, keys).reshape(leaf.shape)
    elif name.endswith(('kernel', 'embedding', 'head')):
      flat[name] = _changed(change, arguments, leaf[None], own[None])[0]
  return unflatten_dict(flat, sep='/')


@functools.partial(jax.jit, static_argnums=(0, 1))
def _changed(change, arguments, matrices, keys):
  return jax.vmap(lambda x, key: change(x, key, *arguments))(matrices, keys)
