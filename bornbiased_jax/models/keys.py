"""Keys of random numbers that do not depend on the settings of the process.

Beside a key, the numbers that are drawn from it depend on settings of JAX and Flax, which
environment variables change. With other settings every seed would be another network, and every
probe another probe. The generator is a part of the key. The other settings are read when numbers
are drawn; a key is refused where they are not the defaults.
"""

from collections.abc import Iterator
from typing import Any

import flax
import jax

from bornbiased_jax.errors import InputError

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
