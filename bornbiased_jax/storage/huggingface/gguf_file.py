"""The GGUF file format: metadata and tensors; no read goes beyond the end of a file.

The package `gguf` knows the types of quantization. Its own reader trusts what a file says of its
sizes, so headers are read here.
"""

from collections.abc import Iterator
import contextlib
import functools
import math
import os
from pathlib import Path
import struct
from typing import Any, BinaryIO

import numpy as np

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import check_fetched
from bornbiased_jax.storage.huggingface.tensors import Tensor, stamp
from bornbiased_jax.storage.layers import ROWS

SUFFIX = '.gguf'
MAGIC = b'GGUF'
_VERSIONS, _BIG_ENDIAN = (2, 3), 3 << 24
# What a value of metadata is, by its number in the file, as a format of `struct`.
_NUMBERS = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q',
            12: 'd'}
_TEXT, _ARRAY = 8, 9
# Vocabularies, of at most a million strings or so, are passed over.
_MOST_TEXTS, _MOST_BYTES = 2**24, 2**24
_MOST_ENTRIES, _MOST_AXES, _MOST_LAYERS = 100_000, 4, 10_000


def read_header(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
  """The metadata of a GGUF file and its tensors, both by their names.

  Arrays are tuples of at most as many numbers as there may be layers; others are None.

  All of the header is checked; raises InputError if it is not right.
  """
  quants = _package(file)
  with _open(file) as handle:
    reader = _Reader(handle)
    if reader.take(4) != MAGIC:
      raise InputError('it does not begin with GGUF')
    version = reader.number('I')
    if version not in _VERSIONS:
      raise InputError(f'it is big-endian, and {_VERSIONS} little-endian ones are read'
                       if version == _BIG_ENDIAN else
                       f'its version is {version}; {_VERSIONS} are read')
    num_tensors, num_entries = reader.count(), reader.count()
    metadata = _by_name((reader.text(), reader.value(reader.number('I')))
                        for _ in range(num_entries))
    infos = _by_name(reader.tensor() for _ in range(num_tensors))
    start = _aligned(reader, metadata)
    make = functools.partial(_tensor, file, stamp(file), start, reader.size, quants)
    return metadata, {name: make(name, *info) for name, info in infos.items()}


def _by_name(pairs):
  found = {}
  for name, value in pairs:
    if name in found:
      raise InputError(f'{show(name)} is there twice')
    found[name] = value
  return found


def _package(file):
  try:
    from gguf import quants
  except ImportError:
    raise InputError(f"{file}: GGUF files need the package gguf: pip install 'bornbiased_jax[gguf]'"
                     ) from None
  return quants


@contextlib.contextmanager
def _open(file) -> Iterator[BinaryIO]:
  check_fetched(file)
  try:
    with open(file, 'rb') as handle:
      yield handle
  except (InputError, OSError) as error:
    raise InputError(f'{file} is not a whole GGUF file that can be read: '
                     f'{error if isinstance(error, InputError) else show(error)}') from None


class _Reader:
  """Reads what follows in a header, after it was seen to be inside the file."""

  def __init__(self, handle: BinaryIO):
    self._handle, self.place = handle, 0
    self.size = os.fstat(handle.fileno()).st_size

  def _advance(self, length):
    if length > self.size - self.place:
      raise InputError('it ends within its header')
    self.place += length

  def take(self, length: int) -> bytes:
    if length > _MOST_BYTES:
      raise InputError(f'a text of {length} bytes in its header is too long')
    self._advance(length)
    return self._handle.read(length)

  def number(self, code: str) -> Any:
    return struct.unpack(f'<{code}', self.take(struct.calcsize(f'<{code}')))[0]

  def count(self) -> int:
    if (count := self.number('Q')) > _MOST_ENTRIES:
      raise InputError(f'{count} tensors or entries are too many')
    return count

  def text(self) -> str:
    return self.take(self.number('Q')).decode(errors='replace')

  def value(self, kind: int) -> Any:
    """A value of metadata."""
    if kind == _TEXT:
      return self.text()
    if kind == _ARRAY:
      return self._array(self.number('I'), self.number('Q'))
    if kind not in _NUMBERS:
      raise InputError(f'its metadata has a value of the unknown type {kind}')
    value = self.number(_NUMBERS[kind])
    # The shortest number that float32 rounds so: 1e-05, say, as config.json has it.
    return float(str(np.float32(value))) if _NUMBERS[kind] == 'f' else value

  def _array(self, kind, count):
    if kind in _NUMBERS and count <= _MOST_LAYERS:
      return tuple(self.value(kind) for _ in range(count))
    if kind in _NUMBERS:
      self._skip(count * struct.calcsize(f'<{_NUMBERS[kind]}'))
    elif kind == _TEXT and count <= _MOST_TEXTS:
      for _ in range(count):
        self._skip(self.number('Q'))
    else:
      raise InputError(f'its metadata has an array of {count} values of type {kind}')

  def _skip(self, length):
    self._advance(length)
    self._handle.seek(self.place)

  def tensor(self) -> tuple[str, tuple[list[int], int, int]]:
    """The name of a tensor, and its shape, type and offset."""
    name, num_axes = self.text(), self.number('I')
    if not 0 < num_axes <= _MOST_AXES:
      raise InputError(f'tensor {show(name)} has {num_axes} axes')
    # The axis that varies fastest comes first.
    shape = [self.number('Q') for _ in range(num_axes)][::-1]
    return name, (shape, self.number('I'), self.number('Q'))


def _aligned(reader, metadata):
  """Where the tensors begin."""
  alignment = metadata.get('general.alignment', 32)
  if type(alignment) is not int or not 0 < alignment < 2**20:
    raise InputError(f'general.alignment={show(alignment)} must be a whole number below 2**20')
  return -(-reader.place // alignment) * alignment


def _tensor(file, stamped, start, size, quants, name, shape, number, offset):
  kind, block, block_bytes = _kind(quants, number)
  if shape[-1] % block:
    raise InputError(f'tensor {show(name)} has rows of {shape[-1]} in blocks of {block}')
  row_bytes = shape[-1] // block * block_bytes
  if not 0 < row_bytes * math.prod(shape[:-1]) <= size - start - offset:
    raise InputError(f'tensor {show(name)} of shape {shape} lies outside of it')

  def values(first, last):
    """Some of its rows, dequantized a part at a time; a vector is one row."""
    rows = range(shape[0])[first:last] if len(shape) > 1 else range(1)
    depth = math.prod(shape[1:-1])
    flat = np.empty((len(rows) * depth, shape[-1]), np.float32)
    with _open(file) as handle, np.errstate(all='ignore'):
      handle.seek(start + offset + rows.start * depth * row_bytes)
      for i in range(0, len(flat), ROWS):
        part = flat[i:i + ROWS]
        stored = handle.read(len(part) * row_bytes)
        if len(stored) < len(part) * row_bytes:
          raise InputError(f'it ends within tensor {show(name)}')
        part[...] = quants.dequantize(np.frombuffer(stored, np.uint8).reshape(-1, row_bytes), kind)
    return flat.reshape(-1, *shape[1:]) if len(shape) > 1 else flat[0, first:last]

  # Whatever its type, what is read is float32.
  return Tensor(file, name, shape, 'F32', stamped, values)


@functools.cache
def _kind(quants, number):
  """A type of quantization that `gguf` dequantizes, the numbers in a block, and its bytes."""
  from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
  try:
    kind = GGMLQuantizationType(number)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    with np.errstate(all='ignore'):
      quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
  except (ValueError, KeyError, NotImplementedError):
    raise InputError(f'it has tensors of type {number}, which the package gguf, in this version, '
                     'does not dequantize') from None
  return kind, block, block_bytes
