"""The tensors of safetensors files, read when they are needed, and of quantized weights.

Quantized weights are what they stand for, exactly: (q - z) · s, for whole numbers q, or numbers of
8 bits with a point, zero points z and scales s, computed in float32. What else quantization asks
of activations is not done.
"""

from collections.abc import Callable, Iterable, Iterator
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
from bornbiased_jax.files import check_fetched, of_type, read_json

WHOLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_PART = 2**22
DTYPES = ('F32', 'F16', 'BF16')
# The numbers of bits that a weight may have, if config.json says it.
_METHODS = {'compressed-tensors': (4, 8), 'gptq': (4, 8), 'awq': (4,), 'fp8': (None,),
            'fbgemm_fp8': (None,)}
# Beside the weights: what activations are multiplied by, and a shape that others give as well.
_UNUSED = ('input_scale', 'input_zero_point', 'activation_scale', 'weight_shape')
_SMALL = ('I8', 'F8_E4M3')
# The types that NumPy itself does not have.
_EXTENSIONS = {'BF16': jnp.bfloat16.dtype, 'F8_E4M3': jnp.float8_e4m3fn.dtype}
# The place of each column among the eight in a word of AWQ.
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
# For each part, the types that it may have.
_TYPES = {'weight': _SMALL, 'weight_scale': DTYPES, 'weight_scale_inv': DTYPES,
          'weight_zero_point': ('I8', 'I32'), 'weight_packed': ('I32',), 'weight_g_idx': ('I32',),
          'qweight': ('I32',), 'qzeros': ('I32',), 'scales': DTYPES, 'g_idx': ('I32',)}


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
  try:
    kind = _EXTENSIONS.get(dtype) or np.dtype(f'<{dtype[0].lower()}{int(dtype[1:]) // 8}')
    with open(file, 'rb') as handle:
      handle.seek(place + rows.start * row * kind.itemsize)
      values = np.fromfile(handle, kind, len(rows) * row)
    return values.reshape(len(rows), *shape[1:]) if shape else values.reshape(())
  except (OSError, ValueError) as error:
    raise InputError(f'{file} is not a whole safetensors file: {show(error)}') from None


def stamp(file: Path) -> tuple:
  """What tells a file from another one that took its place, or was written over it."""
  status = os.stat(file)
  return status.st_ino, status.st_size, status.st_mtime_ns


def _files(path):
  """The safetensors files of a checkpoint."""
  if os.path.isfile(path / WHOLE):
    return [path / WHOLE]
  if os.path.isfile(path / INDEX):
    shards = [path / name for name in shard_names(path / INDEX)]
    if missing := [shard for shard in shards if not os.path.isfile(shard)]:
      raise InputError(f'{missing[0]} is missing; {INDEX} asks for it')
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
    if not (isinstance(name, str) and re.fullmatch(r'[\w.-]{1,200}\.safetensors', name)):
      raise InputError(f'{index}: shard {show(name)} must be the name of a .safetensors file '
                       'beside it')
  return sorted(set(weight_map.values()))


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


def read_quantization(stored: dict) -> dict:
  """How the weights are quantized, by quantization_config in config.json; {} if they are not.

  Raises InputError if we cannot dequantize them; the message says who can.
  """
  settings = of_type(stored, 'quantization_config', dict)
  if not settings:
    return {}
  method = settings.get('quant_method')
  groups = of_type(settings, 'config_groups', dict)
  weights = [of_type(groups[name], 'weights', dict) for name in groups
             if isinstance(groups[name], dict)] or [settings]
  bits = next((weights[0][name] for name in ('num_bits', 'bits', 'w_bit') if name in weights[0]),
              None)
  is_known = (
      isinstance(method, str) and bits in _METHODS.get(method, ())
      and all(each == weights[0] for each in weights)
      and str(settings.get('version', 'gemm')).lower() == 'gemm'
      and not settings.get('transform_config'))
  if not is_known:
    raise InputError(f'quantization_config with quant_method={show(method)} and {show(bits)} bits '
                     'is not supported; load the model by from_pretrained of transformers, '
                     'dequantize() it, and save it by save_pretrained')
  block = weights[0].get('weight_block_size') or weights[0].get('block_structure')
  return dict(method=method, bits=bits, sizes=block or [1, weights[0].get('group_size')],
              one_less=method == 'gptq' and settings.get('checkpoint_format') != 'gptq_v2')


def dequantized(tensors: Iterable[Tensor], settings: dict) -> Iterator[Tensor]:
  """The tensors of a directory, of which those that stand for one weight are that weight."""
  modules: dict[str, dict[str, Tensor]] = {}
  for tensor in tensors:
    stem, _, ending = tensor.stored_name.rpartition('.')
    modules.setdefault(stem, {})[ending] = tensor
  for stem, parts in modules.items():
    used = {ending: part for ending, part in parts.items() if ending not in _UNUSED}
    if used.keys() & {'weight_scale', 'weight_scale_inv', 'weight_packed', 'qweight'}:
      yield _weight(stem, used, settings)
      used = {ending: part for ending, part in used.items() if ending not in _TYPES}
    yield from used.values()


def _weight(stem, parts, settings):
  """The weight of a module, [out, in], from its parts."""
  parts = {ending: part for ending, part in parts.items() if ending in _TYPES}
  for ending, part in parts.items():
    if part.dtype not in _TYPES[ending] or len(part.shape) > 2:
      raise InputError(f'{part.file}: tensor {show(part.stored_name)} is {part.dtype} '
                       f'{show(part.shape)}; {" or ".join(_TYPES[ending])} with at most two axes '
                       'can be read')
  main = next((parts[name] for name in ('qweight', 'weight_packed', 'weight') if name in parts),
              None)
  if main is None:
    part = next(iter(parts.values()))
    raise InputError(f'{part.file}: it has no weights beside {show(part.stored_name)}')
  shape, per_word = main.shape, 32 // (settings['bits'] or 8)
  if 'qweight' in parts:
    rows, columns = shape
    shape = ([columns, rows * per_word] if settings['method'] == 'gptq' else
             [columns * per_word, rows])
  elif 'weight_packed' in parts:
    shape = [shape[0], shape[1] * per_word]

  def values(first, last):
    read = {ending: part.read() for ending, part in parts.items()}
    try:
      return _scaled(*_in_rows(read, settings), settings['sizes'])[first:last]
    except (LookupError, TypeError, ValueError, ArithmeticError):
      shapes = ', '.join(f'{ending} {list(part.shape)}' for ending, part in parts.items())
      raise InputError(f'{main.file}: the parts of {show(stem)} do not fit together: {shapes}'
                       ) from None

  return main._replace(stored_name=f'{stem}.weight', shape=shape, dtype='F32', values=values)


def _in_rows(parts, settings):
  """Whole numbers [out, in], and scales and zero points of as many rows; with groups of columns."""
  bits, half = settings['bits'], 2 ** ((settings['bits'] or 8) - 1)
  if 'qweight' in parts:
    is_gptq = settings['method'] == 'gptq'
    unpack = functools.partial(_unpacked, bits=bits, order=None if is_gptq else _AWQ_ORDER)
    zero = (unpack(parts['qzeros'], axis=1) + settings['one_less']) % 2**bits
    return (unpack(parts['qweight'], axis=0 if is_gptq else 1).T, parts['scales'].T, zero.T,
            parts.get('g_idx'))
  scale = parts['weight_scale'] if 'weight_scale' in parts else parts['weight_scale_inv']
  zero = parts.get('weight_zero_point', np.zeros((1, 1), np.int32))
  if 'weight_packed' in parts:
    zero = _unpacked(zero, bits, axis=0) - half if 'weight_zero_point' in parts else zero
    return (_unpacked(parts['weight_packed'], bits, axis=1) - half, scale, zero,
            parts.get('weight_g_idx'))
  return parts['weight'], scale, zero, None


def _unpacked(words, bits, axis, order=None):
  """The numbers of so many bits in words of 32, the lowest first, along an axis."""
  words = np.moveaxis(words, axis, -1).astype(np.uint32)
  numbers = words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & np.uint32(2**bits - 1)
  numbers = numbers[..., order] if order else numbers
  return np.moveaxis(numbers.reshape(len(words), -1), -1, axis).astype(np.int32)


def _scaled(whole, scale, zero, group, sizes):
  scale, zero = (_spread(part.reshape(*part.shape, *(1,) * (2 - part.ndim)), whole.shape, group,
                         sizes) for part in (scale, zero))
  return (whole.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)


def _spread(part, shape, group, sizes):
  """A scale for each weight, from one for all, a row, a group of columns, or a block."""
  if group is not None and part.shape[1] > 1:
    return part[:, group]
  for axis, (count, length, size) in enumerate(zip(part.shape, shape, sizes, strict=True)):
    if count not in (1, length):
      if -(-length // size) != count:
        raise ValueError(f'{count} groups of {size} are not {length}')
      part = np.repeat(part, size, axis)[(slice(None),) * axis + (slice(length),)]
  return part
