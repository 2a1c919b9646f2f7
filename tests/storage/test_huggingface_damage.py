"""Broken and hostile directories of `transformers` are refused in one line that says why."""

import json
import os
import pickle
import struct

import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from directories import assert_refused, edit_config, edit_tensors

_LAYER = 'model.layers.1.'
_JSON, _WEIGHTS = 'config.json', 'model.safetensors'


def _remove(*names):
  return lambda path: [(path / name).unlink() for name in names]


def _write(name, content):
  content = content if isinstance(content, bytes) else content.encode()
  return lambda path: (path / name).write_bytes(content)


def _config(**changes):
  return lambda path: edit_config(path, **changes)


def _tensors(**changes):
  def change(tensors):
    for name, value in changes.items():
      name = _LAYER + name.replace('__', '.')
      tensors.pop(name) if value is None else tensors.update({name: value})

  return lambda path: edit_tensors(path, change)


def _index(content):
  return _write('model.safetensors.index.json', json.dumps(content))


def _safetensors(header, data=b''):
  header = header if isinstance(header, bytes) else json.dumps(header).encode()
  return _write(_WEIGHTS, struct.pack('<Q', len(header)) + header + data)


def _truncate(path):
  os.truncate(path / _WEIGHTS, (path / _WEIGHTS).stat().st_size - 1)


def _pickled(path):
  (path / _WEIGHTS).unlink()
  (path / 'pytorch_model.bin').write_bytes(pickle.dumps({}))


_F32 = dict(dtype='F32', shape=[1], data_offsets=[0, 4])
# How the golden directory 'qwen3_tied' is broken, the file that the message names, and what the
# message says of it.
BROKEN = {
    'no_config': (_remove(_JSON), _JSON, 'is missing'),
    'config_not_json': (_write(_JSON, '{"a": '), _JSON, 'is not JSON'),
    'config_not_text': (_write(_JSON, b'\xff\xfe\x00'), _JSON, 'is not JSON'),
    'config_not_object': (_write(_JSON, '[1]'), _JSON, 'must hold a JSON object'),
    'config_deep': (_write(_JSON, '[' * 100_000), _JSON, 'is not JSON'),
    'config_long_number': (_write(_JSON, '{"a": ' + '9' * 10_000 + '}'), _JSON, 'is not JSON'),
    'no_model_type': (_config(model_type=...),
                      _JSON, 'gpt2, gpt_neox, llama, mistral, qwen2, qwen3, olmo2, olmo3, gemma2'),
    'model_type_list': (_config(model_type=['qwen3']), _JSON, 'is not supported'),
    'model_type': (_config(model_type='mamba\n'), _JSON, r"model_type='mamba\n' is not supported"),
    'model_type_long': (_config(model_type='x' * 10**6), _JSON, 'is not supported'),
    'architecture': (_config(architectures=['Qwen3ForSequenceClassification']),
                     _JSON, "'Qwen3ForCausalLM'"),
    'field_missing': (_config(hidden_size=...),
                      _JSON, 'hidden_size is missing; it must be a whole number'),
    'field_text': (_config(hidden_size='32'), _JSON, "hidden_size='32' must be a whole number"),
    'field_null': (_config(vocab_size=None), _JSON, 'vocab_size=None must be a whole number'),
    'field_bool': (_config(num_hidden_layers=True), _JSON, 'num_hidden_layers=True must be'),
    'field_float': (_config(num_hidden_layers=2.0), _JSON, 'num_hidden_layers=2.0 must be'),
    'field_zero': (_config(num_attention_heads=0), _JSON, 'num_attention_heads=0 must be'),
    'field_huge': (_config(head_dim=10**3000),
                   _JSON, 'must be a whole number from 1 to 2147483647'),
    'product_huge': (_config(
        num_attention_heads=2**31 - 2, head_dim=2**31 - 2, hidden_size=2**31 - 2),
                     _WEIGHTS, 'config.json needs [96, 2147483646]'),
    'layers_huge': (_config(num_hidden_layers=2**31 - 1, layer_types=...),
                    '', 'no safetensors file has tensor model.layers.2.'),
    'width_huge': (_config(hidden_size=2**31 - 1), _WEIGHTS, 'config.json needs [96, 2147483647]'),
    'flag': (_config(tie_word_embeddings='no'),
             _JSON, "tie_word_embeddings='no' must be true or false"),
    'epsilon_nan': (_config(rms_norm_eps=float('nan')),
                    _JSON, 'rms_norm_eps=nan must be a positive number'),
    'epsilon_huge': (_config(rms_norm_eps=10**400), _JSON, 'must be a positive number'),
    'epsilon_negative': (_config(rms_norm_eps=-1e-6), _JSON, 'must be a positive number'),
    'activation': (_config(hidden_act='quick_gelu'),
                   _JSON, "hidden_act='quick_gelu' must be one of gelu_new"),
    'heads': (_config(num_key_value_heads=3), _JSON, 'num_kv_heads=3 does not divide num_heads=4'),
    'odd_head': (_config(head_dim=15), _JSON, 'head_size=15 is odd'),
    'rope_type': (_config(rope_parameters=dict(rope_type='longrope', factor=8.0, rope_theta=1e4)),
                  _JSON, "rope_type='longrope' is not supported; default, dynamic, linear, llama3"),
    'rope_type_list': (_config(rope_parameters=dict(rope_type=['yarn'])),
                       _JSON, 'is not supported'),
    'rope_factor': (_config(rope_parameters=..., rope_scaling=dict(type='linear', factor='2')),
                    _JSON, "factor='2' must be a positive number"),
    'rope_no_factor': (_config(rope_parameters=dict(rope_type='linear')), _JSON,
                       'factor is missing'),
    'rope_order': (_config(rope_parameters=dict(
        rope_type='llama3', factor=8.0, low_freq_factor=4.0, high_freq_factor=1.0)), _JSON,
                   'RoPE: slow=4.0 must be below fast=1.0'),
    'rope_yarn_base': (_config(rope_parameters=dict(rope_type='yarn', factor=2.0, rope_theta=1.0)),
                       _JSON, "rope_theta=1.0 must be above 1 with kind='yarn'"),
    'rope_mscale': (_config(rope_parameters=dict(rope_type='yarn', factor=2.0, mscale=0.7)), _JSON,
                    "RoPE with 'mscale'=0.7 is not supported in rope_type='yarn'"),
    'rope_truncate': (_config(rope_parameters=dict(rope_type='yarn', factor=2.0, truncate=None)),
                      _JSON, "RoPE with 'truncate'=None is not supported"),
    'rope_places': (_config(rope_parameters=dict(rope_type='linear', factor=2.0, rope_theta=500.0),
                            rope_scaling=dict(rope_type='linear', factor=2.0)),
                    _JSON, 'rope_parameters and rope_scaling describe different RoPE'),
    'rope_other_name': (_config(rotary_emb_base=500), _JSON,
                        'rotary_emb_base=500 is not supported in this family'),
    'rope_other_name_inside': (_config(rope_parameters=dict(rotary_emb_base=500)), _JSON,
                               "RoPE with 'rotary_emb_base'=500 is not supported"),
    'rope_tiny': (_config(rope_parameters=dict(rope_type='yarn', factor=2.0, beta_slow=1e-310)),
                  _JSON, 'slow=1e-310 must be a positive number'),
    'rope_theta_tiny': (_config(rope_parameters=dict(rope_theta=1e-40)), _JSON,
                        'rope_theta=1e-40 must be a positive number'),
    'rope_theta_small': (_config(rope_parameters=dict(rope_theta=0.5)), _JSON,
                         'rope_theta=0.5 must be at least 1'),
    'rope_factor_small': (_config(rope_parameters=dict(rope_type='linear', factor=0.5)), _JSON,
                          'RoPE: factor=0.5 must be at least 1'),
    'rope_nested': (_config(rope_parameters=dict(full_attention=dict(rope_theta=1e6))), _JSON,
                    "RoPE with 'full_attention'={'rope_theta': 1000000.0} is not supported"),
    'rope_list': (_config(rope_parameters=[1]), _JSON, 'rope_parameters=[1] must be a JSON object'),
    'rope_twice': (_config(rope_theta=5e5), _JSON, 'rope_theta is both'),
    'rope_theta': (_config(rope_parameters=dict(rope_theta='big')),
                   _JSON, "rope_theta='big' must be"),
    'rope_partial': (_config(partial_rotary_factor=0.5),
                     _JSON, 'partial_rotary_factor=0.5 is not supported'),
    'layer_types': (_config(layer_types=['full_attention', 'sliding_attention']),
                    _JSON, "'sliding_attention' needs use_sliding_window=true"),
    'layer_types_few': (_config(layer_types=['full_attention']),
                        _JSON, 'layer_types has 1 entries for 2 layers'),
    'layer_types_number': (_config(layer_types=5), _JSON, 'layer_types=5 must be a JSON array'),
    'quantized': (_config(quantization_config={'bits': 4}), _JSON, 'quantization_config'),
    'no_weights': (_remove(_WEIGHTS),
                   '', 'has neither model.safetensors nor model.safetensors.index.json'),
    'pickle': (_pickled, 'pytorch_model.bin', 'save_pretrained('),
    'truncated': (_truncate, _WEIGHTS, 'is not a whole safetensors file'),
    'empty': (_write(_WEIGHTS, ''), _WEIGHTS, 'is not a whole safetensors file'),
    'not_safetensors': (_write(_WEIGHTS, 'x' * 99), _WEIGHTS, 'is not a whole safetensors file'),
    'header_huge': (_write(_WEIGHTS, struct.pack('<Q', 2**63) + b'{}'), _WEIGHTS, 'header'),
    'header_type': (_safetensors(dict(a=dict(_F32, dtype='X\n'))), _WEIGHTS, 'is not a whole'),
    'header_offsets': (_safetensors(dict(a=dict(_F32, data_offsets=[0, 8])), b'8' * 8),
                       _WEIGHTS, 'shape'),
    'header_overflow': (_safetensors(dict(a=dict(_F32, shape=[2**40, 2**40]))),
                        _WEIGHTS, 'overflow'),
    'tensor_missing': (_tensors(mlp__up_proj__weight=None), '',
                       'no safetensors file has tensor model.layers.1.mlp.up_proj.weight [48, 32]'),
    'tensor_shape': (_tensors(mlp__up_proj__weight=np.ones((32, 48), np.float32)), _WEIGHTS,
                     'model.layers.1.mlp.up_proj.weight is [32, 48]; config.json needs [48, 32]'),
    'tensor_dtype': (_tensors(mlp__up_proj__weight=np.ones((48, 32), np.int32)), _WEIGHTS,
                     'model.layers.1.mlp.up_proj.weight is I32; '
                     'config.json needs F32 or F16 or BF16'),
    'tensor_nan': (_tensors(mlp__up_proj__weight=np.full((48, 32), np.nan, np.float32)), _WEIGHTS,
                   'has NaN or infinities'),
    'tensor_unknown': (_tensors(self_attn__q_proj__bias=np.ones(64, np.float32)), _WEIGHTS,
                       "tensor 'model.layers.1.self_attn.q_proj.bias' has no place in this model"),
    'tensor_third_layer': (_config(num_hidden_layers=1, layer_types=...),
                           _WEIGHTS, "tensor 'model.layers.1."),
    'tensor_twice': (lambda path: edit_tensors(path, lambda tensors: tensors.update(
        {'norm.weight': tensors['model.norm.weight']})), _WEIGHTS, 'is a second'),
    'untied': (_config(tie_word_embeddings=False),
               '', 'no safetensors file has tensor lm_head.weight [96, 32]'),
}
# The same of the golden directory 'llama_tied_sharded'.
_SHARD, _INDEX = 'model-00002-of-00002.safetensors', 'model.safetensors.index.json'
BROKEN_SHARDS = {
    'index_not_json': (_write(_INDEX, 'x'), _INDEX, 'is not JSON'),
    'index_empty': (_index({}), _INDEX, 'weight_map=None must be a JSON object'),
    'index_list': (_index(dict(weight_map=['a'])),
                   _INDEX, "weight_map=['a'] must be a JSON object"),
    'index_parent': (_index(dict(weight_map=dict(a='../model.safetensors'))),
                     _INDEX, "'../model.safetensors' must be"),
    'index_absolute': (_index(dict(weight_map=dict(a='/etc/passwd'))),
                       _INDEX, "shard '/etc/passwd' must be"),
    'index_number': (_index(dict(weight_map=dict(a=3))), _INDEX, 'shard 3 must be'),
    'index_newline': (_index(dict(weight_map=dict(a='a\n.safetensors'))),
                      _INDEX, 'must be the name'),
    'shard_missing': (_remove(_SHARD),
                      _SHARD, 'is missing; model.safetensors.index.json asks for it'),
    'shard_left_out': (_index(dict(weight_map=dict(a=_SHARD))),
                       '', 'no safetensors file has tensor'),
    'whole_heads': (_config(num_attention_heads=5),
                    _JSON, 'num_attention_heads=5 does not divide hidden_size=32'),
}


@pytest.mark.parametrize('name', BROKEN)
def test_broken(name, copy):
  path = copy('qwen3_tied')
  break_it, file, words = BROKEN[name]
  break_it(path)
  assert_refused(path, file, words)


@pytest.mark.parametrize('name', BROKEN_SHARDS)
def test_broken_shards(name, copy):
  path = copy('llama_tied_sharded')
  break_it, file, words = BROKEN_SHARDS[name]
  break_it(path)
  assert_refused(path, file, words)


def test_no_directory(tmp_path):
  assert_refused(tmp_path / 'nowhere', '', 'is not a directory')
  (tmp_path / 'file').touch()
  assert_refused(tmp_path / 'file', '', 'is not a directory')


def test_any_damage_to_the_header_is_refused_or_harmless(copy):
  path = copy('qwen3_tied')
  whole = (path / _WEIGHTS).read_bytes()
  end = 8 + struct.unpack('<Q', whole[:8])[0]
  rng = np.random.default_rng(0)
  refused = 0
  for _ in range(60):
    damaged = bytearray(whole)
    for position in rng.integers(end, size=3):
      damaged[position] = rng.integers(256)
    (path / _WEIGHTS).write_bytes(damaged)
    try:
      huggingface.load(path)
    except InputError as error:
      refused += '\n' not in str(error)
  assert refused == 60
