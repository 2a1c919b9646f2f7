"""The tensors of safetensors files, read when they are needed."""

from collections.abc import Callable, Iterator
import functools
import json
import math
import os
from pathlib import Path
import re
import shutil
import struct
from typing import NamedTuple
import uuid

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import check_fetched, read_json

WHOLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
# Files of weights that only config.json makes a network of. Others may be signatures or text.
WEIGHTS = re.compile(r'(adapter_)?model(-.*)?\.safetensors(\.index\.json)?|pytorch_model.*\.bin|'
                     r'.*\.pth?')
_PICKLES = '.bin', '.pt', '.pth'
_PART = 2**22
DTYPES = ('F32', 'F16', 'BF16')
# The types that NumPy itself does not have.
_EXTENSIONS = {'BF16': jnp.bfloat16.dtype, 'F8_E4M3': jnp.float8_e4m3fn.dtype,
               'F8_E5M2': jnp.float8_e5m2.dtype, 'F8_E8M0': jnp.float8_e8m0fnu.dtype}


class Tensor(NamedTuple):
  """A tensor in a file. Its values are not read before `read`."""

  file: Path
  stored_name: str
  shape: list
  dtype: str
  stamp: tuple | None  # of the file when its header was read; None in memory
  values: Callable[[int, int | None], np.ndarray]  # rows from the first to before the last

  def read(self, first: int = 0, last: int | None = None) -> np.ndarray:
    """Its rows from `first` to before `last`, or all.

    Raises InputError if the file has changed, or what it holds there is not all finite numbers.
    """
    values = self.values(first, last)
    if self.stamp and stamp(self.file) != self.stamp:
      raise InputError(f'{self.file} has changed while it was read')
    if not is_finite(values):
      raise InputError(f'{self.file}: {show(self.stored_name)} has NaN or infinities among its '
                       'weights')
    return values


class Merged(NamedTuple):
  """A weight with what an adapter adds to it (`adapters`). It is read as a `Tensor` is."""

  base: Tensor
  a: Tensor
  b: Tensor
  scale: float
  magnitude: Tensor | None
  transposed: bool  # whether the weight is [in, out]
  shape: list  # of the weight

  def read(self, first: int = 0, last: int | None = None) -> np.ndarray:
    """Its rows from `first` to before `last`, or all, as float32; InputError as of a `Tensor`."""
    if self.magnitude and self.transposed and (first, last) != (0, None):
      return self.read()[first:last]
    base = self.base.read(first, last).astype(np.float32)
    a, b = self.a.read().astype(np.float32), self.b.read().astype(np.float32)
    with np.errstate(all='ignore'):
      product = a.T[first:last] @ b.T if self.transposed else b[first:last] @ a
      merged = base + np.float32(self.scale) * product
      if self.magnitude:
        rows = slice(None) if self.transposed else slice(first, last)
        norm = np.linalg.norm(merged, axis=0 if self.transposed else 1)
        factor = self.magnitude.read().astype(np.float32)[rows] / norm
        merged *= factor if self.transposed else factor[:, None]
    if not is_finite(merged):
      raise InputError(f'{self.a.file}: {show(self.a.stored_name)} and what belongs to it make '
                       'weights that are not finite')
    return merged


def is_finite(values: np.ndarray) -> bool:
  """Whether all are finite numbers, asked of a part at a time, as the answers take memory."""
  flat = values.reshape(-1)
  return all(np.isfinite(flat[start:start + _PART]).all() for start in range(0, flat.size, _PART))


def open_tensors(path: Path, whole: bool = False) -> Iterator[Tensor]:
  """All tensors of a directory; only headers are read. Raises InputError if files are not right.

  Of several files the index says from which one a tensor is read, and leaves out what it lacks.
  With `whole`, all that it names must be there.
  """
  if os.path.isfile(path / WHOLE):
    yield from tensors_in(path / WHOLE)
    return
  file_of = _indexed(path)
  for file in sorted(set(file_of.values())):
    for tensor in tensors_in(path / file):
      if file_of.get(tensor.stored_name) == file:
        yield tensor
        del file_of[tensor.stored_name]
  for name, file in file_of.items() if whole else ():
    raise InputError(f'{path / file} lacks {show(name)}, which {INDEX} says is there')


def tensors_in(file: Path) -> Iterator[Tensor]:
  """All tensors of a file; only its header is read, once. InputError if it is not whole."""
  check_fetched(file)
  try:
    stamped = stamp(file)
    with safe_open(file, framework='np'):  # It checks all of the header.
      pass
    with open(file, 'rb') as handle:
      length, = struct.unpack('<Q', handle.read(8))
      header = json.loads(handle.read(length))
  except (SafetensorError, OSError, ValueError) as error:
    raise InputError(f'{file} is not a whole safetensors file: {show(error)}') from None
  header.pop('__metadata__', None)
  for name, each in header.items():
    shape, dtype, place = each['shape'], each['dtype'], 8 + length + each['data_offsets'][0]
    yield Tensor(file, name, shape, dtype, stamped,
                 functools.partial(_read_rows, file, place, shape, dtype))


def _read_rows(file, place, shape, dtype, first, last):
  """Some rows of a tensor, which begins at a place of its file; that is not mapped."""
  rows, row = range(*slice(first, last).indices(shape[0] if shape else 1)), math.prod(shape[1:])
  if not (kind := _kind(dtype)):
    raise InputError(f'{file} has a tensor of type {show(dtype)}, which is not read')
  try:
    with open(file, 'rb') as handle:
      handle.seek(place + rows.start * row * kind.itemsize)
      values = np.fromfile(handle, kind, len(rows) * row)
    return values.reshape(len(rows), *shape[1:]) if shape else values.reshape(())
  except (OSError, ValueError) as error:
    raise InputError(f'{file} is not a whole safetensors file: {show(error)}') from None


def _kind(dtype):
  if dtype in _EXTENSIONS or dtype == 'BOOL':
    return _EXTENSIONS.get(dtype, np.dtype(bool))
  is_plain = re.fullmatch('[IUF](8|16|32|64)', dtype)
  return is_plain and np.dtype(f'<{dtype[0].lower()}{int(dtype[1:]) // 8}')


def stamp(file: Path) -> tuple:
  """What tells a file from another one that took its place, or was written over it."""
  status = os.stat(file)
  return status.st_ino, status.st_size, status.st_mtime_ns


def _indexed(path):
  """The shard of each tensor of a checkpoint; all shards are there."""
  if os.path.isfile(path / INDEX):
    file_of = read_index(path / INDEX)
    if missing := sorted(name for name in set(file_of.values()) if not os.path.isfile(path / name)):
      raise InputError(f'{path / missing[0]} is missing; {INDEX} asks for it')
    return file_of
  for pickled in sorted(file for file in path.iterdir() if file.suffix in _PICKLES):
    raise InputError(f'{path}: {pickle_advice(show(pickled.name), repr(str(path)), path)}')
  for file in sorted(path.glob('*.gguf')):
    raise InputError(f'{path} has no {WHOLE}; give one of its GGUF files, such as {file}')
  raise InputError(f'{path} has no weights: no {WHOLE} and no {INDEX}; {path}:42 is a random '
                   'model of its config.json')


def pickle_advice(file: str, source: str, target: str | os.PathLike) -> str:
  """Why a pickle is not read, and how to convert what `from_pretrained(source)` takes."""
  return (f'{file} is a pickle, which could run code; convert it with '
          'python -c "from transformers import AutoModelForCausalLM as M; '
          f"M.from_pretrained({source}).save_pretrained('{target}', safe_serialization=True)\"")


def refuse_file(file: Path) -> None:
  """Raises InputError for weights without a config.json; it says what to give instead."""
  if file.suffix in _PICKLES:
    raise InputError(
        f'{file} is a pickle, which could run code, and is not read. Convert it in Python: import '
        "torch; from bornbiased_jax.storage import huggingface; tensors = torch.load("
        f"'{file}', weights_only=True); huggingface.save('NEW_FOLDER', "
        "*huggingface.from_state_dict('config.json', tensors)), where config.json is the model's; "
        'names of your own need names= there')
  if WEIGHTS.fullmatch(file.name):
    raise InputError(f'{file} has only the weights of a model; give its folder {file.parent}, '
                     'which needs config.json too')


def read_index(index: Path) -> dict[str, str]:
  """The file of each tensor by model.safetensors.index.json, all in its folder."""
  weight_map = read_json(index).get('weight_map')
  if not (isinstance(weight_map, dict) and weight_map):
    raise InputError(f'{index}: weight_map={show(weight_map)} must be a JSON object from tensors '
                     'to shards')
  for name in weight_map.values():
    # A name with a path separator could lead out of the directory.
    if not (isinstance(name, str) and re.fullmatch(r'[\w.-]{1,200}\.safetensors', name)):
      raise InputError(f'{index}: shard {show(name)} must be the name of a .safetensors file '
                       'in its folder')
  return weight_map


def write_folder(path: str | os.PathLike, files: dict[str, bytes], weights: str,
                 tensors: dict[str, np.ndarray]) -> None:
  """Writes files, and tensors to a safetensors file `weights`; the folder appears complete.

  Raises:
    InputError: `path` is there and not an empty directory, or cannot be written.
  """
  path = Path(os.path.realpath(path))
  partial = path.with_name(f'.{path.name}.{uuid.uuid4().hex}')
  try:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
      raise InputError(f'{path} exists and is not an empty directory; give a new one')
    partial.mkdir(parents=True)
    for file, content in files.items():
      (partial / file).write_bytes(content)
    # Older versions of transformers refuse a file whose metadata has no format.
    save_file(tensors, partial / weights, metadata=dict(format='pt'))
    # safetensors lets only the owner read its file, so take the usual permissions.
    shutil.copymode(partial / next(iter(files)), partial / weights)
    partial.rename(path)
  except (OSError, SafetensorError) as error:
    raise InputError(f'{path} cannot be written: {show(error)}') from None
  finally:
    shutil.rmtree(partial, ignore_errors=True)
