"""Files of arrays and JSON (safetensors), maybe from a stranger. Nothing in them is executed."""

from collections.abc import Callable
import json
import os
from typing import TypeVar

import numpy as np
import safetensors
import safetensors.numpy

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of, write_atomically

SCHEMA = 3
SUFFIX = '.safetensors'
T = TypeVar('T')


def write(path: str | os.PathLike, kind: str, arrays: dict[str, np.ndarray],
          metadata: dict) -> None:
  """Writes arrays and metadata of a kind, which appear whole or not at all."""
  header = {'format': 'np', 'bornbiased': json.dumps(metadata | {'kind': kind, 'schema': SCHEMA})}
  arrays = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
  write_atomically(path, safetensors.numpy.save(arrays, header))


def read(path: str | os.PathLike, kind: str,
         make: Callable[[dict[str, np.ndarray], dict], T]) -> T:
  """What `make` gives for the arrays and the metadata of a file; InputError if that is damaged.

  `make` may trust neither, and raises ValueError, LookupError or the like if they do not fit.
  """
  path = path_of(path)
  if path.suffix == '.npz':
    raise InputError(f'{path}: files of older versions (.npz) are not read any more; compare the '
                     'network itself, which leaves a signature (.safetensors)')
  try:
    with path.open('rb') as file:
      content = file.read()
    arrays, metadata = safetensors.numpy.load(content), _metadata(content)
    check(metadata['schema'] == SCHEMA and metadata['kind'] == kind)
    for name, x in arrays.items():
      if not np.isfinite(x).all():
        raise InputError(f'{name} has numbers that are not finite')
    return make(arrays, metadata)
  except OSError as error:
    raise InputError(f'{path}: {error.strerror or error}') from None
  except InputError as error:
    raise InputError(f'{path}: {error}') from None
  except (safetensors.SafetensorError, LookupError, TypeError, ValueError, AttributeError,
          ArithmeticError, RecursionError) as error:
    raise InputError(f'{path} holds no {kind} of this version (schema {SCHEMA}), or is damaged: '
                     f'{error}') from None


def _metadata(content):
  size = int.from_bytes(content[:8], 'little')
  return json.loads(json.loads(content[8:8 + size])['__metadata__']['bornbiased'])


def check(holds: bool) -> None:
  """Raises ValueError if parts of a file do not fit each other."""
  if not holds:
    raise ValueError('its parts do not fit each other')
