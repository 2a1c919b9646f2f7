"""Files of arrays and JSON (.npz) that may come from a stranger. Nothing in them is executed."""

from collections.abc import Iterator
import contextlib
import io
import json
import math
import os
import tokenize
from typing import Any
import zipfile

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of, write_atomically

_MOST_METADATA_BYTES = 2**20


def write(path: str | os.PathLike, arrays: dict[str, np.ndarray], metadata: dict) -> None:
  """Writes arrays and metadata, which appear whole or not at all."""
  content = io.BytesIO()
  encoded = np.frombuffer(json.dumps(metadata).encode(), np.uint8)
  whole: dict[str, Any] = arrays | {'metadata': encoded}
  np.savez(content, **whole)
  write_atomically(path, content.getvalue())


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[tuple[zipfile.ZipFile, dict]]:
  """The archive of a saved fingerprint or dossier and its metadata, a dict.

  Whatever is found to be wrong with them in the block becomes an InputError that names
  the file.
  """
  path = path_of(path)
  try:
    with path.open('rb') as file, zipfile.ZipFile(file) as archive:
      yield archive, json.loads(array(archive, 'metadata', np.uint8, 1).tobytes())
  except OSError as error:
    raise InputError(f'{path}: {error.strerror or error}') from None
  except InputError as error:
    raise InputError(f'{path}: {error}') from None
  except (zipfile.BadZipFile, LookupError, TypeError, ValueError, ArithmeticError, AttributeError,
          EOFError, RecursionError, RuntimeError, SyntaxError, tokenize.TokenError) as error:
    raise InputError(f'{path} is not a fingerprint, or damaged: {error}') from None


def array(archive: zipfile.ZipFile, name: str, dtype: type, ndim: int) -> np.ndarray:
  """One array: stored uncompressed (no zip bomb), of the type and length that it claims."""
  info = archive.getinfo(f'{name}.npy')
  assert archive.fp is not None  # It is open.
  size_of_file = archive.fp.seek(0, os.SEEK_END)
  if info.compress_type != zipfile.ZIP_STORED or info.file_size > size_of_file:
    raise ValueError(f'{name} is not stored as savez stores it')
  if name == 'metadata' and info.file_size > _MOST_METADATA_BYTES:
    raise ValueError('its metadata is too long')
  stored = archive.read(info)
  content = io.BytesIO(stored)
  if np.lib.format.read_magic(content) != (1, 0):
    raise ValueError(f'{name} has an unknown header')
  shape, fortran_order, found = np.lib.format.read_array_header_1_0(content)
  data = memoryview(stored)[content.tell():]  # Python 3.12.1 can crash on BytesIO.getbuffer.
  whole = math.prod(shape) * found.itemsize == len(data)
  if found != dtype or len(shape) != ndim or fortran_order or not whole:
    raise ValueError(f'{name} is {found}{list(shape)} in {len(data)} bytes')
  return np.frombuffer(data, dtype).reshape(shape)
