"""From a seed to a network.

One jitted function draws the parameters, so that a seed stands for the same network
everywhere. Drawing them without jit would differ in the last bit on some versions of JAX.

The numbers that are drawn from a key also depend on settings of JAX and Flax, which environment
variables change. With other settings every seed would be another network, and every
probe another probe. The generator is a part of the key. The other settings are read when numbers
are drawn; a key is refused where they are not the defaults.
"""

from collections.abc import Iterator
import functools
from typing import Any
import zlib

import flax
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ACTIVATIONS, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.transformer import Transformer

Seed = int | np.integer | np.ndarray | jax.Array
EMBEDDING_LEAVES = ('embedding', 'position_embedding', 'head')
GENERATOR = 'threefry2x32'
# Where a setting is, its name, and its value by default.
_SETTINGS: tuple[tuple[Any, str, bool | int], ...] = (
    (jax.config, 'jax_enable_x64', False),
    (jax.config, 'jax_threefry_partitionable', True),
    (jax.config, 'jax_random_seed_offset', 0),
    (flax.config, 'flax_fix_rng_separator', False),
)


def make_key(seed: int | jax.Array) -> jax.Array:
  """`jax.random.key(seed)` of the generator by which seeds are networks.

  All keys of the library are made here. A setting with which other numbers would be drawn from
  the key raises InputError.
  """
  for _, name, value, default in _find_changed():
    package = name.partition('_')[0]
    raise InputError(f'{name}={value} makes every seed another network: it must be {default}, the '
                     f'default (unset {name.upper()}, or see {package}.config.update)')
  return jax.random.key(seed, impl=GENERATOR)


def pin_settings() -> None:
  """Gives this process the settings that `make_key` asks for, and all its keys one generator.

  Programs call it when they begin, so that results do not depend on environment variables.
  """
  for config, name, _, default in _find_changed():
    config.update(name, default)
  jax.config.update('jax_default_prng_impl', GENERATOR)


def _find_changed() -> Iterator[tuple[Any, str, bool | int, bool | int]]:
  """The settings that are not the defaults: where, name, value, default."""
  for config, name, default in _SETTINGS:
    # A version that lacks a setting does as by default.
    value = getattr(config, name, default)
    if value != default:
      yield config, name, value, default


def as_seed(seed: Seed) -> np.uint32 | np.ndarray | jax.Array:
  """A seed as uint32; InputError unless it is a whole number in [0, 2^32).

  Integer arrays, traced ones included, are only cast; their values are not checked.
  """
  if isinstance(seed, (np.ndarray, jax.Array)) and jnp.issubdtype(seed.dtype, jnp.integer):
    return seed.astype(jnp.uint32)
  if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 2**32:
    raise InputError(f'seed {seed!r} is not a whole number from 0 to {2**32 - 1}')
  return np.uint32(seed)


def stream_key(purpose: str, seed: Seed) -> jax.Array:
  """The PRNG key that a seed gives for one purpose, such as 'network' or 'probe'.

  Different purposes share no randomness: network 42 and probe 42 are independent.
  """
  return jax.random.fold_in(make_key(zlib.crc32(purpose.encode())), as_seed(seed))


# Traced once for all that draw: a network alone, in an ensemble, or to be trained.
@functools.partial(jax.jit, static_argnums=0)
def _draw(config, seed, embedding_seed):
  # Parameters have the same shapes for every input, so that the smallest will do.
  tokens_BT = jnp.zeros((1, 1), jnp.int32)
  init = lambda seed: Transformer(config).init(stream_key('network', seed), tokens_BT)['params']
  params = init(seed)
  if config.init_scheme == 'centred' and config.sublayers != 'attention_only':
    params = _centre(config, params)
  if embedding_seed is not None:
    # A second whole network is drawn; the compiler drops what is not taken from it.
    donor = init(embedding_seed)
    params |= {name: donor[name] for name in EMBEDDING_LEAVES if name in params}
  return params


@functools.cache
def param_shapes(config: ModelConfig) -> dict:
  """The tree of `init_params` as jax.ShapeDtypeStruct; to be left as it is."""
  return _draw.eval_shape(config, as_seed(0), None)


def leaf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """The shape of each leaf of the parameters, by its name."""
  return {name: leaf.shape for name, leaf in flatten_dict(param_shapes(config), sep='/').items()}


def check_params(config: ModelConfig, params: dict, dtype: str = '') -> None:
  """Raises InputError for parameters that are not of this configuration, or of another type."""
  leaves, shapes = flatten_dict(params, sep='/'), leaf_shapes(config)
  for name in sorted(shapes.keys() | leaves.keys()):
    own = str(leaves[name].dtype) if dtype and name in leaves else ''
    given = f'{own}{list(np.shape(leaves[name]))}' if name in leaves else 'absent'
    wanted = f'{dtype}{list(shapes[name])}' if name in shapes else 'absent'
    if given != wanted:
      raise InputError(f'params are not of this configuration: {name} is {given} and should be '
                       f'{wanted}')


def num_parameters(config: ModelConfig) -> int:
  """The number of parameters of a network; none is drawn."""
  return sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config)))


def _centre(config, params):
  """Takes from each MLP what the mean c = E f(u) of its units writes to every stream alike."""
  leaves = flatten_dict(params)
  for path, kernel in list(leaves.items()):
    if path[-2:] == ('down', 'kernel'):
      leaves[*path[:-1], 'bias'] = -mean_activation(config) * kernel.sum(axis=-2)
  return unflatten_dict(leaves)


def mean_activation(config: ModelConfig) -> float:
  """Mean of the MLP's activation at initialization, E f(u) for u ~ N(0, linear_std² width)."""
  # A fine grid serves kinks as well, which Gauss's quadrature does not.
  z_G = np.linspace(-9, 9, 4001)
  weight_G = np.exp(-z_G**2 / 2)
  with jax.ensure_compile_time_eval():
    f_G = ACTIVATIONS[config.activation](jnp.asarray(config.linear_std * config.width**0.5 * z_G))
  return float(np.average(np.asarray(f_G, np.float64), weights=weight_G))


def init_params(config: ModelConfig, seed: Seed, embedding_seed: Seed | None = None) -> dict:
  """The parameters of the random network with this seed (appendix B.1).

  Embeddings are drawn from N(0, config.embedding_std²) and linear layers from
  N(0, config.std_of(layer)²), which is linear_std² but for the two layers that write to the
  residual stream, whose std is config.residual_std, and for what config.init_scheme changes.
  Norm gains are 1 and biases 0, except those that 'centred' sets.

  The network is bitwise the same when it is drawn by itself, under vmap or lax.map, on any
  number of devices, and in an ensemble of any size. Orthogonal matrices that devices share
  differ by rounding.

  Args:
    config: the architecture.
    seed: whole number in [0, 2^32); under jit, vmap or lax.map it may be traced.
    embedding_seed: another seed, from which the embeddings and the LM head are taken
      (appendix B.2). Networks that share it give token ids the same meaning, so that
      their preferred tokens can be compared. None means `seed`.

  Returns:
    A nested dict of float32 arrays; those in 'blocks' have a leading layer axis.

  Raises:
    InputError: a seed outside its range, or a setting of JAX with which seeds would be other
      networks (`make_key`).

  Example:
    >>> from bornbiased_jax import configs, models
    >>> params = models.init_params(configs.get('tiny_gpt2'), seed=42)
    >>> params['blocks']['query']['kernel'].shape  # layers, width, heads x head size
    (4, 128, 128)
  """
  if embedding_seed is not None:
    embedding_seed = as_seed(embedding_seed)
  return _draw(config, as_seed(seed), embedding_seed)
