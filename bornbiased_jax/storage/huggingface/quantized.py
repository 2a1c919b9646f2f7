"""Quantized weights: what they stand for.

This is (q - z) · s, exactly, for whole numbers q, or numbers of 4 or 8 bits with a point, zero
points z and scales s, computed in float32. What else quantization asks of activations and of the
cache of keys and values is not done.
"""

from collections.abc import Iterable, Iterator
import functools
import math
import re

import numpy as np

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import of_type
from bornbiased_jax.storage.huggingface.tensors import DTYPES, Tensor

# The numbers of bits that a weight may have.
_METHODS = {'compressed-tensors': (2, 4, 8, None), 'gptq': (2, 4, 8), 'awq': (4,), 'fp8': (None,),
            'fbgemm_fp8': (None,), 'modelopt': (8, None), 'mxfp4': (None,)}
# How numbers lie in words, where config.json may say it.
_LAYOUTS = {'gptq': {'gptq', 'gptq_v2'}, 'awq': {'gemm'}}
# Besides the weights: what activations and the cache are multiplied by, and a shape that others
# give as well.
AUXILIARY = re.compile(r'(input|output|activation|[qkv]|kv|prob|prob_output)_(scale|zero_point)|'
                       'weight_shape')
# What shows that a module is quantized.
_QUANTIZED = {'weight_scale', 'weight_scale_inv', 'weight_packed', 'qweight'}
_BLOCKS = '_blocks', '_scales'  # of MXFP4, behind the name of a matrix
# The two numbers that a byte of MXFP4 stands for, the lower half first, as one word.
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_FP4_PAIRS = np.stack([np.tile(_FP4, 16), np.repeat(_FP4, 16)], axis=1).view(np.uint64).ravel()
_SMALL = ('I8', 'F8_E4M3', 'F8_E5M2')
_SCALES = (*DTYPES, 'F8_E8M0')
# The place of each column among the eight in a word of AWQ.
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
# For each part, the types that it may have.
_TYPES = {'weight': _SMALL, 'weight_scale': _SCALES, 'weight_scale_inv': _SCALES,
          'weight_zero_point': ('I8', 'I32'), 'weight_packed': ('I32',), 'weight_g_idx': ('I32',),
          'qweight': ('I32',), 'qzeros': ('I32',), 'scales': DTYPES, 'g_idx': ('I32',)}


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
  said = {str(settings[name]).lower() for name in ('checkpoint_format', 'format', 'version')
          if settings.get(name)}
  is_known = (
      isinstance(method, str) and bits in _METHODS.get(method, ())
      and all(each == weights[0] for each in weights) and said <= _LAYOUTS.get(method, said)
      and not settings.get('transform_config'))
  if not is_known:
    raise InputError(f'quantization_config with quant_method={show(method)}, {show(bits)} bits and '
                     f'format={show(sorted(said))} is not supported; load the model by '
                     'from_pretrained of transformers, dequantize() it, and save it by '
                     'save_pretrained')
  block = weights[0].get('weight_block_size') or weights[0].get('block_structure')
  return dict(method=method, bits=bits, sizes=block or [1, weights[0].get('group_size')],
              one_less='gptq_v2' not in said,
              symmetric=settings.get('sym') is True and not settings.get('dynamic'))


def dequantized(tensors: Iterable[Tensor], settings: dict) -> Iterator[Tensor]:
  """The tensors of a directory; with settings, parts of one weight become that weight."""
  modules: dict[str, dict[str, Tensor]] = {}
  for tensor in tensors:
    stem, _, ending = tensor.stored_name.rpartition('.')
    in_blocks = tensor.dtype == 'U8' and ending.endswith(_BLOCKS)
    if settings.get('method') == 'mxfp4' and in_blocks:
      stem, ending = tensor.stored_name[:-len(_BLOCKS[0])], ending[-len(_BLOCKS[0]):]
    if (ending in _QUANTIZED or in_blocks) and not settings:
      raise InputError(f'{tensor.file}: {show(stem)} is quantized, and config.json has no '
                       'quantization_config; take it from quantize_config.json or '
                       'quant_config.json, and add quant_method')
    if not settings or ending in modules.setdefault(stem, {}):  # A second one is seen later.
      yield tensor
    else:
      modules[stem][ending] = tensor
  for stem, parts in modules.items():
    used = {ending: part for ending, part in parts.items() if not AUXILIARY.fullmatch(ending)}
    if used.keys() & set(_BLOCKS):
      yield _in_blocks(stem, *(used.pop(ending, None) for ending in _BLOCKS))
    if _QUANTIZED & used.keys():
      yield _weight(stem, used, settings)
      used = {ending: part for ending, part in used.items() if ending not in _TYPES}
    yield from used.values()


def _weight(stem, parts, settings):
  """The weight of a module, [out, in], from its parts."""
  parts = {ending: part for ending, part in parts.items() if ending in _TYPES}
  for ending, part in parts.items():
    is_packed = ending in ('qweight', 'weight_packed')
    if part.dtype not in _TYPES[ending] or not 2 * is_packed <= len(part.shape) <= 2:
      raise InputError(f'{part.file}: tensor {show(part.stored_name)} is {part.dtype} '
                       f'{show(part.shape)}; {" or ".join(_TYPES[ending])} with '
                       f'{"" if is_packed else "at most "}two axes can be read')
  main = next((parts[name] for name in ('qweight', 'weight_packed', 'weight') if name in parts),
              None)
  if main is None:
    part = next(iter(parts.values()))
    raise InputError(f'{part.file}: it has no weights for {show(part.stored_name)}')
  settings = settings | dict(bits=_bits(parts, settings))
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
    except InputError as error:
      raise InputError(f'{main.file}: {show(stem)} {error}') from None
    except (LookupError, TypeError, ArithmeticError, ValueError):
      shapes = ', '.join(f'{ending} {list(part.shape)}' for ending, part in parts.items())
      raise InputError(f'{main.file}: the parts of {show(stem)} do not fit together: {shapes}'
                       ) from None

  return main._replace(stored_name=f'{stem}.weight', shape=shape, dtype='F32', values=values)


def _in_blocks(stem, blocks, scales):
  """A matrix of experts [E, in, out], from pairs of numbers [E, out, blocks, 16] and exponents."""
  shapes = [each and each.shape for each in (blocks, scales)]
  if not all(shapes) or [*shapes[1], 16] != shapes[0] or len(shapes[0]) != 4:
    raise InputError(f'{(blocks or scales).file}: {show(stem)} has blocks {show(shapes[0])} and '
                     f'scales {show(shapes[1])}, which do not fit together')
  experts, outs, count, size = blocks.shape

  def values(first, last):
    pairs, exponents = (part.read(first, last) for part in (blocks, scales))
    numbers = _FP4_PAIRS[pairs].view(np.float32)
    with np.errstate(all='ignore'):  # What is not finite is seen when it is read.
      numbers *= np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)[..., None]
    return np.ascontiguousarray(numbers.reshape(-1, outs, count * size * 2).swapaxes(1, 2))

  return blocks._replace(stored_name=stem, shape=[experts, 2 * count * size, outs], dtype='F32',
                         values=values)


def _bits(parts, settings):
  """The bits of a number as shapes say them, since GPTQ's may differ by module, or as settings."""
  words, numbers = (math.prod(parts[name].shape) if name in parts else 0
                    for name in ('qzeros', 'scales'))
  bits = 32 * words // numbers if numbers else settings['bits']
  return bits if bits in _METHODS[settings['method']] else settings['bits']


def _in_rows(parts, settings):
  """Whole numbers [out, in], and scales and zero points of as many rows; with groups of columns."""
  bits, half = settings['bits'], 2 ** ((settings['bits'] or 8) - 1)
  if 'qweight' in parts:
    is_gptq = settings['method'] == 'gptq'
    unpack = functools.partial(_unpacked, bits=bits, order=None if is_gptq else _AWQ_ORDER)
    zero = unpack(parts['qzeros'], axis=1)
    zero = _zeros_of_gptq(zero, half, settings) if is_gptq else zero
    return (unpack(parts['qweight'], axis=0 if is_gptq else 1).T, parts['scales'].T, zero.T,
            parts.get('g_idx'))
  scale = parts['weight_scale'] if 'weight_scale' in parts else parts['weight_scale_inv']
  zero = parts.get('weight_zero_point', np.zeros((1, 1), np.int32))
  if 'weight_packed' in parts:
    # One of a whole matrix is not packed, and older versions packed none.
    zero = _unpacked(zero, bits, axis=0) - half if (
        'weight_zero_point' in parts and zero.dtype == np.int32) else zero
    return (_unpacked(parts['weight_packed'], bits, axis=1) - half, scale, zero,
            parts.get('weight_g_idx'))
  return parts['weight'], scale, zero, None


def _zeros_of_gptq(stored, half, settings):
  """Zero points, which version 1 of the format stores less one.

  Where all are the same in the middle, they are symmetric ones, whatever version config.json says:
  no others come out like this, and public files are labelled wrong.
  """
  if (stored == stored[:1, :1]).all() and stored[0, 0] in (half - 1, half):
    return np.full_like(stored, half)
  if settings['symmetric']:
    raise InputError('has zero points of many values, but quantization_config says sym=true')
  return (stored + settings['one_less']) % (2 * half)


def _unpacked(words, bits, axis, order=None):
  """The numbers of so many bits in words of 32, the lowest first, along an axis."""
  words = np.moveaxis(words, axis, -1).astype(np.uint32)
  numbers = words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & np.uint32(2**bits - 1)
  numbers = numbers[..., order] if order else numbers
  return np.moveaxis(numbers.reshape(len(words), -1), -1, axis).astype(np.int32)


def _scaled(whole, scale, zero, group, sizes):
  scale, zero = (part.reshape(*part.shape, *(1,) * (2 - part.ndim)) for part in (scale, zero))
  if zero.shape[1] not in (1, scale.shape[1]):
    raise ValueError('zero points and scales are of different groups')
  scale, zero = (_spread(part, whole.shape, group, sizes) for part in (scale, zero))
  return (whole.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)


def _spread(part, shape, group, sizes):
  """A scale for each weight, from one for all, a row, a group of columns, or a block."""
  # Some files without an order of their own have zeros for it.
  if group is not None and part.shape[1] > 1 and group.any():
    return part[:, group]
  for axis, (count, length, size) in enumerate(zip(part.shape, shape, sizes, strict=True)):
    if count not in (1, length):
      # Settings may be of other modules.
      if length % count == 0 and not (size and -(-length // size) == count):
        size = length // count
      if -(-length // size) != count:
        raise ValueError(f'{count} groups of {size} are not {length}')
      part = np.repeat(part, size, axis)[(slice(None),) * axis + (slice(length),)]
  return part
