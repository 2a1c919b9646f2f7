"""A seed is a network: the one jitted function from a seed to parameters."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.transformer import Transformer

EMBEDDING_LEAVES = ('embedding', 'position_embedding', 'head')


def as_seed(seed) -> np.uint32 | jax.Array:
  """A seed as uint32; integer arrays, traced ones included, pass as they are.

  Raises:
    InputError: not a whole number in [0, 2^32).
  """
  if isinstance(seed, (np.ndarray, jax.Array)) and jnp.issubdtype(seed.dtype, jnp.integer):
    return seed.astype(jnp.uint32)
  if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 2**32:
    raise InputError(f'seed {seed!r} is not a whole number from 0 to {2**32 - 1}')
  return np.uint32(seed)


def stream_key(purpose: str, seed) -> jax.Array:
  """The PRNG key of `seed` (see `as_seed`) for one purpose ('network', 'probe', …).

  Network 42 and probe 42 share no randomness.
  """
  return jax.random.fold_in(jax.random.key(zlib.crc32(purpose.encode())), as_seed(seed))


def draw_params(config: ModelConfig, seed, embedding_seed=None) -> dict:
  """`init_params` for use inside jit, vmap or lax.map: seeds may be traced."""
  tokens_BT = jnp.zeros((1, 1), jnp.int32)
  init = lambda seed: Transformer(config).init(stream_key('network', seed), tokens_BT)['params']
  params = init(seed)
  if embedding_seed is not None:
    others = init(embedding_seed)
    params |= {name: others[name] for name in EMBEDDING_LEAVES if name in params}
  return params


_draw_jitted = jax.jit(draw_params, static_argnums=0)


def init_params(config: ModelConfig, seed, embedding_seed=None) -> dict:
  """The network that `seed` is (appendix B.1).

  N(0, config.embedding_std²) embeddings, N(0, config.linear_std²) linear
  layers, of which the two that write to the residual stream use
  config.residual_std; gains 1, biases 0. Bitwise the same alone, under vmap
  or lax.map, on any number of devices and in an ensemble of any size.

  Args:
    config: the architecture.
    seed: whole number in [0, 2^32).
    embedding_seed: take embedding and LM head from this seed instead
      (appendix B.2), so that token ids are comparable between networks.

  Returns:
    Nested dict of float32 arrays; those of 'blocks' have a leading layer axis.

  Raises:
    InputError: a seed outside its range.
  """
  return _draw_jitted(config, as_seed(seed), None if embedding_seed is None else as_seed(embedding_seed))
