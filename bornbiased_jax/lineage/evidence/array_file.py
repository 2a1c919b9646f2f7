"""Files of signatures (safetensors), maybe from a stranger. Nothing in them is executed."""

from collections.abc import Callable
import json
import os
from typing import TypeVar

import numpy as np
import safetensors
import safetensors.numpy

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import path_of, write_atomically

KIND, SCHEMA = 'signature', 5
SUFFIX = '.safetensors'
_LARGEST_HEADER = 100_000_000
T = TypeVar('T')


def write(path: str | os.PathLike, arrays: dict[str, np.ndarray], metadata: dict) -> None:
  """Writes arrays and metadata, which appear whole or not at all."""
  header = {'format': 'np', 'bornbiased': json.dumps(metadata | {'kind': KIND, 'schema': SCHEMA})}
  arrays = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
  write_atomically(path, safetensors.numpy.save(arrays, header))


def read(path: str | os.PathLike, make: Callable[[dict[str, np.ndarray], dict], T]) -> T:
  """What `make` gives for the arrays and the metadata of a file; InputError if that is damaged.

  `make` must not trust them, and raises ValueError, LookupError or the like if they do not fit.
  """
  path = path_of(path)
  try:
    with path.open('rb') as file:
      start = file.read(8)
      check((size := int.from_bytes(start, 'little')) <= _LARGEST_HEADER)
      start += file.read(size)
      metadata = json.loads(json.loads(start[8:])['__metadata__']['bornbiased'])
      check(metadata['schema'] == SCHEMA and metadata['kind'] == KIND)
      arrays = safetensors.numpy.load(start + file.read())  # Of a file of another kind, nothing.
    for name, x in arrays.items():
      if not np.isfinite(x).all():
        raise InputError(f'{show(name)} has numbers that are not finite')
    return make(arrays, metadata)
  except OSError as error:
    raise InputError(f'{path}: {error.strerror or error}') from None
  except InputError as error:
    raise InputError(f'{path}: {error}') from None
  except (safetensors.SafetensorError, LookupError, TypeError, ValueError, AttributeError,
          ArithmeticError, RecursionError) as error:
    raise InputError(f'{path} holds no {KIND} of this version (schema {SCHEMA}), or is damaged: '
                     f'{error}') from None


def check(holds: bool) -> None:
  """Raises ValueError if parts of a file do not fit each other."""
  if not holds:
    raise ValueError('its parts do not fit each other')
