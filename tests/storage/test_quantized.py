"""Quantized directories give the weights that the formulas of their makers give."""

import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.huggingface import quantized
from bornbiased_jax.storage.huggingface.tensors import tensors_in
from directories import assert_equal, assert_same, edit_config, edit_tensors, load_refusal

INT32 = np.int32
_UP = 'model.layers.1.mlp.up_proj.'


def pack(numbers, bits, axis):
  """Puts numbers into words of 32 bits, one by one, the first at the lowest bits."""
  rows = np.moveaxis(numbers, axis, -1)
  words = [[sum(int(number) << bits * i for i, number in enumerate(row[first:first + 32 // bits]))
            for first in range(0, len(row), 32 // bits)] for row in rows]
  return np.moveaxis(np.array(words, np.uint32).view(INT32), -1, axis)


def drawn(shape, levels, seed=0):
  return np.random.default_rng([*shape, seed]).integers(levels, size=shape)


def scales(*shape):
  return np.random.default_rng([*shape, 9]).uniform(0.01, 0.02, shape).astype(np.float16)


def float8(shape):
  return np.random.default_rng(shape).normal(size=shape).astype(ml_dtypes.float8_e4m3fn)


# Each makes what is stored of a matrix [out, in], and the matrix.


def by_channel(out, width):
  whole, scale = drawn((out, width), 255) - 127, scales(out, 1)
  return dict(weight=whole.astype(np.int8), weight_scale=scale, input_scale=scales(1)), (
      whole * scale.astype(np.float32))


def with_zero_points(out, width):
  whole, scale, zero = drawn((out, width), 255) - 127, scales(out, 1), drawn((out, 1), 20) - 9
  stored = dict(weight=whole.astype(np.int8), weight_scale=scale,
        weight_zero_point=zero.astype(np.int8))
  return stored, (whole - zero) * scale.astype(np.float32)


def by_tensor(out, width):
  weight, scale = float8((out, width)), scales(1)
  return dict(weight=weight, weight_scale=scale), weight.astype(np.float32) * np.float32(scale)


def by_block(out, width):
  weight, count = float8((out, width)), (-(-out // 12), -(-width // 20))
  scale = scales(*count).astype(np.float32)
  spread = np.array([[scale[i // 12, j // 20] for j in range(width)] for i in range(out)])
  return dict(weight=weight, weight_scale_inv=scale), weight.astype(np.float32) * spread


def with_own_types(out, width):
  """Scales that are powers of 2, of blocks whose sizes nothing says."""
  weight = float8((out, width)).astype(np.float32).astype(ml_dtypes.float8_e5m2)
  scale = 2.0 ** (drawn((out // 8, width // 16), 5) - 2)
  return dict(weight=weight, weight_scale_inv=scale.astype(ml_dtypes.float8_e8m0fnu)), (
      weight.astype(np.float32) * scale.repeat(8, 0).repeat(16, 1).astype(np.float32))


def packed_whole(out, width, group=None):
  """Zero points that are not packed: of a whole matrix, or of groups as in older versions."""
  whole, scale = drawn((out, width), 16), scales(out, width // group) if group else scales(1)
  zero = (drawn(scale.shape, 16, 1) - 8).astype(np.int8)
  stored = dict(weight_packed=pack(whole, 4, 1), weight_scale=scale, weight_zero_point=zero)
  spread = (lambda part: part.repeat(group, 1)) if group else lambda part: part
  return stored, (whole - 8 - spread(zero)) * spread(scale.astype(np.float32))


def packed(out, width, bits=4, zeros=False, order=False):
  whole, scale = drawn((out, width), 2**bits), scales(out, width // 8)
  zero = drawn((out, width // 8), 2**bits, 1) if zeros else np.full((out, width // 8),
                                                                    2 ** (bits - 1))
  group = np.arange(width) // 8
  if order:
    group = np.random.default_rng(width).permutation(group)
  stored = dict(weight_packed=pack(whole, bits, 1), weight_scale=scale,
        weight_shape=np.array([out, width]))
  stored |= dict(weight_zero_point=pack(zero, bits, 0)) if zeros else {}
  stored |= dict(weight_g_idx=group.astype(INT32)) if order else {}
  return stored, (whole - zero[:, group]) * scale.astype(np.float32)[:, group]


def gptq(out, width, bits=4, less=1, order='rising', symmetric=False, group=8):
  count = width // group
  whole, scale = drawn((width, out), 2**bits), scales(count, out)
  zero, group = drawn((count, out), 2**bits, 1), np.arange(width) // group
  zero = np.full_like(zero, 2 ** (bits - 1)) if symmetric else zero
  if order == 'own':
    group = np.random.default_rng(width).permutation(group)
  stored = dict(qweight=pack(whole, bits, 0), scales=scale, g_idx=group.astype(INT32),
        qzeros=pack((zero - less) % 2**bits, bits, 1))
  if order in ('none', 'zeros'):
    stored |= dict(g_idx=0 * stored['g_idx'] if order == 'zeros' else None)
  return stored, ((whole - zero[group]) * scale.astype(np.float32)[group]).T


def with_biases(out, width):
  """As AutoGPTQ makes of every matrix, also where a model has no biases."""
  stored, whole = gptq(out, width)
  return stored | dict(bias=np.zeros(out, np.float16)), whole


def by_module(out, width):
  """As GPTQModel's `dynamic` lets modules differ: in bits, groups and symmetry."""
  is_down = out < width
  return gptq(out, width, bits=8 if is_down else 4, group=4 if is_down else 16, order='none',
              symmetric=is_down)


def without_axes(out, width):
  weight, scale = float8((out, width)), scales(1)[0]
  return dict(weight=weight, weight_scale=np.asarray(scale), input_scale=np.asarray(scale)), (
      weight.astype(np.float32) * np.float32(scale))


def awq(out, width):
  whole, scale = drawn((width, out), 16), scales(width // 8, out)
  zero = drawn((width // 8, out), 16, 1)
  order = (np.arange(out) // 8 * 8).reshape(-1, 8) + [0, 2, 4, 6, 1, 3, 5, 7]
  stored = dict(qweight=pack(whole[:, order.ravel()], 4, 1), scales=scale,
        qzeros=pack(zero[:, order.ravel()], 4, 1))
  return stored, ((whole - zero.repeat(8, 0)) * scale.astype(np.float32).repeat(8, 0)).T


def compressed(**weights):
  return dict(quant_method='compressed-tensors', config_groups={'group_0': {
      'weights': dict(type='int', num_bits=8, symmetric=True) | weights, 'targets': ['Linear']}})


OF_GPTQ = dict(quant_method='gptq', bits=4, group_size=8)
SYMMETRIC = OF_GPTQ | dict(sym=True, checkpoint_format='gptq')
FORMATS = {
    'int8': (compressed(), by_channel), 'int8_zero_points': (compressed(), with_zero_points),
    'float8': (compressed(type='float', strategy='tensor'), by_tensor),
    'float8_blocks': (dict(quant_method='fp8', weight_block_size=[12, 20]), by_block),
    'blocks_too': (compressed(type='float', block_structure=[12, 20]), by_block),
    'packed': (compressed(num_bits=4, group_size=8), packed),
    'packed_8': (compressed(group_size=8), lambda *shape: packed(*shape, bits=8)),
    'packed_zeros': (compressed(num_bits=4, group_size=8), lambda *shape: packed(*shape, zeros=1)),
    'packed_order': (compressed(num_bits=4, group_size=8), lambda *shape: packed(*shape, order=1)),
    'other_blocks': (dict(quant_method='fp8', weight_block_size=[128, 128]), with_own_types),
    'packed_2': (compressed(num_bits=2, group_size=8), lambda *shape: packed(*shape, bits=2)),
    'packed_whole': (compressed(num_bits=4, strategy='tensor', symmetric=False), packed_whole),
    'packed_older': (compressed(num_bits=4, group_size=8), lambda *shape: packed_whole(*shape, 8)),
    'gptq_biases': (OF_GPTQ, with_biases),
    'float8_scalars': (dict(quant_method='modelopt', quant_algo='FP8'), without_axes),
    'gptq': (OF_GPTQ, gptq), 'gptq_order': (OF_GPTQ, lambda *shape: gptq(*shape, order='own')),
    'gptq_8': (OF_GPTQ | dict(bits=8), lambda *shape: gptq(*shape, bits=8)),
    'gptq_2': (OF_GPTQ | dict(bits=2), lambda *shape: gptq(*shape, bits=2, group=16)),
    # In exllama's loader, an order of zeros is none.
    'gptq_zeros': (OF_GPTQ, lambda *shape: gptq(*shape, order='zeros')),
    # Both versions of symmetric zero points, under the label of either: they are in the middle.
    'symmetric': (SYMMETRIC, lambda *shape: gptq(*shape, symmetric=True)),
    'symmetric_2': (SYMMETRIC, lambda *shape: gptq(*shape, less=0, symmetric=True)),
    'symmetric_8': (SYMMETRIC | dict(bits=8),
                    lambda *shape: gptq(*shape, bits=8, less=0, symmetric=True)),
    'labelled_2': (SYMMETRIC | dict(checkpoint_format='gptq_v2', sym=False),
                   lambda *shape: gptq(*shape, symmetric=True)),
    'unlabelled': (OF_GPTQ, lambda *shape: gptq(*shape, less=0, symmetric=True)),
    'one_group': (OF_GPTQ | dict(group_size=-1),
                  lambda out, width: gptq(out, width, group=width, order='none')),
    'by_module': (OF_GPTQ | dict(sym=True, dynamic={r'+:.*down.*': {'bits': 8}}), by_module),
    'other_groups': (OF_GPTQ | dict(group_size=32), lambda *shape: gptq(*shape, order='none')),
    'gptq_v2': (OF_GPTQ | dict(checkpoint_format='gptq_v2'), lambda *shape: gptq(*shape, less=0)),
    'awq': (dict(quant_method='awq', bits=4, group_size=8, version='gemm'), awq),
}


def quantize(path, name, changes=None):
  """Puts other weights into the blocks of a directory, and gives these in full.

  With `changes` of one module's parts, to others or to None for none.
  """
  settings, make = FORMATS[name]
  edit_config(path, quantization_config=settings)
  stored, whole = {}, {}
  for key, tensor in load_file(path / 'model.safetensors').items():
    stem = key.removesuffix('.weight')
    if key.endswith('proj.weight'):
      parts, whole[key] = make(*tensor.shape)
      stored |= {f'{stem}.{ending}': np.array(part, order='C') for ending, part in parts.items()
                 if part is not None}
    else:
      stored[key] = whole[key] = tensor
  for ending, part in (changes or {}).items():
    stored[_UP + ending] = part
  save_file({key: part for key, part in stored.items() if part is not None},
            path / 'model.safetensors')
  return whole


@pytest.mark.parametrize('name', FORMATS)
def test_weights_are_what_the_formula_says(name, copy, tmp_path):
  path = copy('qwen3_tied')
  other = shutil.copytree(path, tmp_path / 'whole')
  whole = {key: np.ascontiguousarray(value, np.float32)
           for key, value in quantize(path, name).items()}
  save_file(whole, other / 'model.safetensors')
  assert_same(path, other)
  jax.tree.map(np.testing.assert_array_equal, huggingface.open_files(path).layers().read_block(1),
               huggingface.open_files(other).layers().read_block(1))


@pytest.mark.parametrize('settings', [
    dict(quant_method='bitsandbytes', load_in_4bit=True), {'quant_method': ['awq']}, {'bits': 4},
    dict(quant_method='awq', bits=4, version='gemv'), OF_GPTQ | dict(bits=3),
    dict(quant_method='awq', bits=4, checkpoint_format='gemv'),
    OF_GPTQ | dict(checkpoint_format='bitblas'), OF_GPTQ | dict(format='marlin'),
    compressed() | dict(transform_config={'R1': {}}),
    compressed() | dict(config_groups={'a': {'weights': {'num_bits': 8}}, 'b': {'weights': {}}}),
], ids=str)
def test_other_methods_are_named_with_a_way_out(settings, copy):
  path = copy('qwen3_tied')
  edit_config(path, quantization_config=settings)
  message = load_refusal(path)
  assert repr(settings.get('quant_method')) in message and 'dequantize() it' in message
  names = 'version', 'checkpoint_format', 'format'
  assert all(settings[name] in message for name in names if name in settings)


@pytest.mark.parametrize('name', ['gptq', 'packed', 'float8'])
def test_what_config_json_does_not_say_is_asked_for(name, copy):
  """AutoGPTQ's older folders say it in a file of their own."""
  path = copy('qwen3_tied')
  quantize(path, name)
  edit_config(path, quantization_config=None)
  assert 'no quantization_config; take it from quantize_config.json' in load_refusal(path)


DAMAGE = {
    'groups': ('packed', {'weight_scale': scales(48, 3)}),
    'rows': ('int8', {'weight_scale': scales(7, 1)}),
    'order': ('gptq', {'g_idx': np.full(32, 4, INT32)}),
    'flat': ('gptq', {'qweight': np.ones(192, INT32)}),
    'no_axes': ('packed', {'weight_packed': np.array(7, INT32)}),
    'symmetry': ('symmetric', {'qzeros': pack(drawn((4, 48), 16), 4, 1)}),
    'zeros': ('awq', {'qzeros': np.ones((2, 6), INT32)}),
    'words': ('packed', {'weight_packed': np.ones((48, 4), np.int64)}),
    'axes': ('awq', {'scales': np.ones((4, 48, 1), np.float16)}),
    'shape': ('packed', {'weight_packed': np.ones((48, 3), INT32)}),
    'nan': ('int8', {'weight_scale': np.full((48, 1), np.nan, np.float32)}),
    'float8_nan': ('float8', {'weight': np.full((48, 32), np.nan, ml_dtypes.float8_e4m3fn)}),
    'no_scale': ('gptq', {'scales': None}),
    'no_weight': ('float8', {'weight': None}),
}


@pytest.mark.parametrize('name', DAMAGE)
def test_parts_that_do_not_fit(name, copy):
  path = copy('qwen3_tied')
  quantize(path, *DAMAGE[name])
  assert _UP[:-1] in load_refusal(path)


CACHE = ('self_attn.k_scale', 'self_attn.kv_scale', 'self_attn.attn.v_scale',
         'self_attn.k_proj.output_scale', 'self_attn.v_proj.v_scale', 'self_attn.qkv_proj.k_scale',
         'self_attn.prob_output_scale', 'self_attn.q_scale', 'self_attn.k_zero_point')


@pytest.mark.parametrize('settings', [
    FORMATS['float8_scalars'][0], None,
    dict(quant_method='compressed-tensors', config_groups={}, kv_cache_scheme=dict(num_bits=8))],
    ids=['weights', 'unsaid', 'cache'])
def test_scales_of_the_cache_are_left_out(settings, copy):
  """Under every name by which vLLM finds them: keys and values are as if they were not cached."""
  path = copy('qwen3_tied')
  kept = (path / 'model.safetensors').read_bytes()
  found = []
  stored = {f'model.layers.{i}.{name}': np.array(0.5, np.float32)
            for i in range(2) for name in CACHE}
  for scales_of in ({}, stored):
    (path / 'model.safetensors').write_bytes(kept)
    edit_tensors(path, lambda tensors, scales_of=scales_of: tensors.update(scales_of))
    if settings == FORMATS['float8_scalars'][0]:
      quantize(path, 'float8_scalars')
    edit_config(path, quantization_config=settings)
    found.append(huggingface.load(path))
  assert_equal(*found)


def test_experts_of_gpt_oss_are_those_of_transformers(tmp_path):
  torch = pytest.importorskip('torch')
  pytest.importorskip('transformers')
  from transformers.integrations.mxfp4 import convert_moe_packed_tensors
  random = np.random.default_rng(0)
  parts = {'blocks': random.integers(0, 256, (3, 8, 2, 16), np.uint8),
           'scales': random.integers(110, 140, (3, 8, 2), np.uint8)}
  path, name = tmp_path / 'model.safetensors', 'layers.0.experts.down_proj'
  save_file({f'{name}_{ending}': part for ending, part in parts.items()}, path)
  settings = quantized.read_quantization({'quantization_config': {'quant_method': 'mxfp4'}})
  tensor, = quantized.dequantized(tensors_in(path), settings)
  wanted = convert_moe_packed_tensors(
      *map(torch.from_numpy, parts.values()), dtype=torch.float32).numpy()
  assert (tensor.stored_name, tuple(tensor.shape)) == (name, wanted.shape)
  np.testing.assert_array_equal(tensor.read(), wanted)
  np.testing.assert_array_equal(tensor.read(1, 2), wanted[1:2])


@pytest.mark.parametrize('parts, settings, message', [
    ({'blocks': (3, 8, 2, 16), 'scales': (3, 8, 3)}, True, 'do not fit'),
    ({'blocks': (3, 8, 2, 16, 1), 'scales': (3, 8, 2, 16)}, True, 'do not fit'),
    ({'blocks': (3, 8, 2, 8), 'scales': (3, 8, 2)}, True, 'do not fit'),
    ({'blocks': (3, 8, 2, 16)}, True, 'do not fit'), ({'scales': (3, 8, 2)}, True, 'do not fit'),
    ({'blocks': (3, 8, 2, 16), 'scales': (3, 8, 2)}, False, 'no quantization_config'),
], ids=str)
def test_parts_of_gpt_oss_that_do_not_fit(parts, settings, message, tmp_path):
  save_file({f'up_{name}': np.ones(shape, np.uint8) for name, shape in parts.items()},
            tmp_path / 'model.safetensors')
  with pytest.raises(InputError, match=message):
    list(quantized.dequantized(tensors_in(tmp_path / 'model.safetensors'),
                               dict(method='mxfp4') if settings else {}))
