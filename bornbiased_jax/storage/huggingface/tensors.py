"""The tensors of safetensors files, read when they are needed."""

from collections.abc import Callable, Iterator
import contextlib
import functools
import json
import os
from pathlib import Path
import re
import struct
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import check_fetched, read_json

WHOLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_PART = 2**22
DTYPES = ('F32', 'F16', 'BF16')


class Tensor(NamedTuple):
  """A tensor in a file. Its values are not read before `read`."""

  file: Path
  stored_name: str
  shape: list
  dtype: str
  stamp: tuple  # of the file when its header was read
  values: Callable[[int, int | None], np.ndarray]  # rows from the first to before the last

  def read(self, first: int = 0, last: int | None = None) -> np.ndarray:
    """Its rows from `first` to before `last`, or all.

    Raises InputError if the file has changed, or what it holds there is not all finite numbers.
    """
    values = self.values(first, last)
    if stamp(self.file) != self.stamp:
      raise InputError(f'{self.file} has changed while it was read')
    if not is_finite(values):
      raise InputError(f'{self.file}: {show(self.stored_name)} has NaN or infinities among its '
                       'weights')
    return values


def is_finite(values: np.ndarray) -> bool:
  """Whether all are finite numbers, asked of a part at a time, as the answers take memory."""
  flat = values.reshape(-1)
  return all(np.isfinite(flat[start:start + _PART]).all() for start in range(0, flat.size, _PART))


def open_tensors(path: Path) -> Iterator[Tensor]:
  """All tensors of a directory; only headers are read. Raises InputError if files are not right."""
  for file in _files(path):
    yield from tensors_in(file)


def tensors_in(file: Path) -> Iterator[Tensor]:
  """All tensors of a file; only its header is read. Raises InputError if it is not whole."""
  with _open_file(file) as handle:
    for name in handle.keys():
      header = handle.get_slice(name)
      yield Tensor(file, name, header.get_shape(), header.get_dtype(), stamp(file),
                   functools.partial(_slice, file, name))


def _slice(file, name, first, last):
  # A file is mapped only while it is read: what is mapped counts as memory in use.
  with _open_file(file) as handle:
    if handle.get_slice(name).get_dtype() != 'F8_E4M3':
      return handle.get_slice(name)[first:last]
  return _slice_bytes(file, name, jnp.float8_e4m3fn.dtype)[first:last]


def _slice_bytes(file, name, dtype):
  """A tensor of a type that safetensors cannot give to NumPy, of a file that is whole."""
  with open(file, 'rb') as handle:
    length, = struct.unpack('<Q', handle.read(8))
    header = json.loads(handle.read(length))[name]
    first, last = header['data_offsets']
    handle.seek(8 + length + first)
    return np.frombuffer(handle.read(last - first), dtype).reshape(header['shape'])


def stamp(file: Path) -> tuple:
  """What tells a file from another one that took its place, or was written over it."""
  status = os.stat(file)
  return status.st_ino, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _open_file(file) -> Iterator[Any]:
  check_fetched(file)
  try:
    # NumPy knows bfloat16 here because jax imports ml_dtypes.
    with safe_open(file, framework='np') as handle:
      yield handle
  except (SafetensorError, OSError) as error:
    raise InputError(f'{file} is not a whole safetensors file: {show(error)}') from None


def _files(path):
  """The safetensors files of a checkpoint."""
  if os.path.isfile(path / WHOLE):
    return [path / WHOLE]
  if os.path.isfile(path / INDEX):
    shards = [path / name for name in shard_names(path / INDEX)]
    for file in shards:
      if not os.path.isfile(file):
        raise InputError(f'{file} is missing; {INDEX} asks for it')
    return shards
  for pickled in sorted(file for file in path.iterdir() if file.suffix in ('.bin', '.pt', '.pth')):
    raise InputError(f'{path}: {pickle_advice(show(pickled.name), repr(str(path)), path)}')
  raise InputError(f'{path} has neither {WHOLE} nor {INDEX}')


def pickle_advice(file: str, source: str, target: str | os.PathLike) -> str:
  """Why a pickle is not read, and how to convert what `from_pretrained(source)` takes."""
  return (f'{file} is a pickle, which could run code; convert it with '
          'python -c "from transformers import AutoModelForCausalLM as M; '
          f"M.from_pretrained({source}).save_pretrained('{target}', safe_serialization=True)\"")


def shard_names(index: Path) -> list[str]:
  """The files that model.safetensors.index.json asks for, all of them beside it."""
  weight_map = read_json(index).get('weight_map')
  if not (isinstance(weight_map, dict) and weight_map):
    raise InputError(f'{index}: weight_map={show(weight_map)} must be a JSON object from tensors '
                     'to shards')
  for name in weight_map.values():
    # A name with a path separator could lead out of the directory.
    if not (isinstance(name, str) and re.fullmatch(r'[\w.-]+\.safetensors', name)):
      raise InputError(f'{index}: shard {show(name)} must be the name of a .safetensors file '
                       'beside it')
  return sorted(set(weight_map.values()))
