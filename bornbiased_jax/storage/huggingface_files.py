"""The safetensors files of a directory of `transformers`, and the tensors in them."""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import re
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage.huggingface_entries import read_json, show

WHOLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_PART = 2**22


class Tensor(NamedTuple):
  """A tensor in a file. Its values are not read before `read`."""

  file: Path
  stored_name: str
  shape: list
  dtype: str
  stamp: tuple  # of the file when its header was read

  def read(self, first: int = 0, last: int | None = None) -> np.ndarray:
    """Its rows from `first` to before `last`, or all.

    Raises:
      InputError: the file has changed, or what it holds there is not all finite numbers.
    """
    # A file is mapped only while it is read: what is mapped counts as memory in use.
    with _open_file(self.file) as handle:
      if _stamp(self.file) != self.stamp:
        raise InputError(f'{self.file} has changed while it was read')
      values = handle.get_slice(self.stored_name)[first:last]
    if not _is_finite(values):
      raise InputError(f'{self.file}: {show(self.stored_name)} has NaN or infinities among its '
                       'weights')
    return values


def _is_finite(values):
  """Whether all are finite numbers, asked of a part at a time, as the answers take memory."""
  flat = values.reshape(-1)
  return all(np.isfinite(flat[start:start + _PART]).all() for start in range(0, flat.size, _PART))


def open_tensors(path: Path) -> Iterator[Tensor]:
  """All tensors of a directory. Only headers are read.

  Raises:
    InputError: a file is missing or no safetensors file, or there are pickles alone.
  """
  for file in _files(path):
    with _open_file(file) as handle:
      for name in handle.keys():
        header = handle.get_slice(name)
        yield Tensor(file, name, header.get_shape(), header.get_dtype(), _stamp(file))


def _stamp(file):
  """What tells a file from another one that took its place, or was written over it."""
  status = os.stat(file)
  return status.st_ino, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _open_file(file) -> Iterator[Any]:
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
    return _shards(path / INDEX)
  for pickled in [file for ending in ('bin', 'pt', 'pth')
                  for file in sorted(path.glob(f'*.{ending}'))]:
    raise InputError(f'{path}: {pickle_advice(show(pickled.name), repr(str(path)), path)}')
  raise InputError(f'{path} has neither {WHOLE} nor {INDEX}')


def pickle_advice(file: str, source: str, target: str | os.PathLike) -> str:
  """Why a pickle is not read, and how to convert it.

  Args:
    file: its name.
    source: what `from_pretrained` takes, as Python has it in brackets.
    target: the directory to make.
  """
  return (f'{file} is a pickle, which could run code; convert it with '
          'python -c "from transformers import AutoModelForCausalLM as M; '
          f"M.from_pretrained({source}).save_pretrained('{target}', safe_serialization=True)\"")


def shard_names(index: Path) -> list[str]:
  """The files that model.safetensors.index.json asks for, all of them beside it.

  Raises:
    InputError: it is damaged, or a name could lead out of its directory.
  """
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


def _shards(index):
  files = [index.parent / name for name in shard_names(index)]
  for file in files:
    if not os.path.isfile(file):
      raise InputError(f'{file} is missing; {index.name} asks for it')
  return files
