"""`huggingface` against `transformers`: stored logits, live in both directions, and broken checkpoints."""

import dataclasses
import functools
import json
import os
from pathlib import Path
import pickle
import shutil
import struct

import jax
import make_goldens
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bornbiased_jax import configs, huggingface
from bornbiased_jax.errors import InputError
from bornbiased_jax.initialization import init_params
from bornbiased_jax.transformer import Transformer

GOLDENS = make_goldens.GOLDENS
TOLERANCE = 1e-4
_TINY = dict(num_layers=2, num_heads=4, width=32, mlp_width=48, vocab_size=96, length=256, norm_epsilon=0.03)
_LLAMA = dict(_TINY, norm='rmsnorm', activation='silu', gated_mlp=True, output_bias=False, mlp_bias=False)

# What `save` must find a family for: the family, and the configuration.
SAVED = {
    'learned_positions': ('gpt2', dict(_TINY, positions='learned', rope_theta=123.0)),
    'learned_untied_relu': ('gpt2', dict(_TINY, positions='learned', tied_head=False, activation='relu')),
    'paper_gpt2': ('gpt_neox', _TINY),
    'untied_no_attention_bias': ('gpt_neox', dict(_TINY, tied_head=False, qkv_bias=False, output_bias=False,
                                                  activation='gelu', rope_theta=300.0)),
    'paper_llama2': ('llama', dict(_LLAMA, qkv_bias=False, tied_head=False)),
    'grouped_biased_wide_heads': ('llama', dict(_LLAMA, num_kv_heads=1, head_size=12, output_bias=True, mlp_bias=True,
                                                activation='gelu_tanh')),
    'indivisible_width': ('mistral', dict(_LLAMA, qkv_bias=False, num_heads=3, head_size=10, num_kv_heads=1)),
    'paper_qwen2': ('qwen2', dict(_LLAMA, num_kv_heads=2, rope_theta=1e6, tied_head=False)),
    'qwen2_wide_heads': ('qwen2', dict(_LLAMA, num_kv_heads=2, head_size=12)),
    'qk_norm': ('qwen3', dict(_LLAMA, num_kv_heads=2, head_size=16, qkv_bias=False, qk_norm=True, tied_head=False)),
}


def random_params(config, seed=0):
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(functools.partial(init_params, config), 0)
  draw = lambda path, leaf: (path[-1].key == 'scale') + 0.25 * rng.normal(size=leaf.shape).astype(np.float32)
  return jax.tree_util.tree_map_with_path(draw, shapes)


def logits(config, params, tokens):
  return np.asarray(jax.jit(Transformer(config).apply)({'params': params}, tokens))


def assert_close(given, wanted):
  assert 1 < wanted.std() < 10, 'logits too small or large for the tolerance to mean something'
  np.testing.assert_allclose(given, wanted, rtol=0, atol=TOLERANCE)


@pytest.fixture
def transformers():
  pytest.importorskip('torch')
  library = pytest.importorskip('transformers')
  library.logging.set_verbosity_error()
  library.logging.disable_progress_bar()
  return library


@pytest.fixture
def copy(tmp_path):
  """A golden checkpoint that a test may change."""
  return lambda name: Path(shutil.copytree(GOLDENS / name, tmp_path / name))


def edit_config(path, **changes):
  stored = json.loads((path / 'config.json').read_text())
  stored = {name: value for name, value in (stored | changes).items() if value is not ...}
  (path / 'config.json').write_text(json.dumps(stored))


def edit_tensors(path, change):
  tensors = load_file(path / 'model.safetensors')
  change(tensors)
  save_file(tensors, path / 'model.safetensors')


# Against transformers


@pytest.mark.parametrize('name', make_goldens.MODELS)
def test_golden_logits(name):
  golden = np.load(GOLDENS / name / 'logits.npz')
  assert_close(logits(*huggingface.load(GOLDENS / name), golden['tokens']), golden['logits'])


@pytest.mark.parametrize('change', [
    dict(norm_epsilon=0.029), dict(rope_theta=9000.0), dict(activation='gelu'), dict(norm='rmsnorm')], ids=str)
def test_tolerance_sees_a_wrong_field(change):
  golden = np.load(GOLDENS / 'gpt_neox' / 'logits.npz')
  config, params = huggingface.load(GOLDENS / 'gpt_neox')
  if 'norm' in change:
    del params['final_norm']['bias'], params['blocks']['attention_norm']['bias'], params['blocks']['mlp_norm']['bias']
  with pytest.raises(AssertionError, match='Not equal to tolerance'):
    assert_close(logits(dataclasses.replace(config, **change), params, golden['tokens']), golden['logits'])


@pytest.mark.parametrize('name', make_goldens.MODELS)
def test_tree_is_that_of_init_params(name):
  config, params = huggingface.load(GOLDENS / name)
  wanted = jax.eval_shape(functools.partial(init_params, config), 0)
  assert jax.tree.structure(params) == jax.tree.structure(wanted)
  for given, leaf in zip(jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True):
    assert isinstance(given, jax.Array) and (given.shape, given.dtype) == (leaf.shape, leaf.dtype)


@pytest.mark.parametrize('name', make_goldens.MODELS)
def test_live_from_transformers(name, transformers, tmp_path):
  make_goldens.store(name, 1234, tmp_path)
  tokens = np.random.default_rng(0).integers(96, size=(2, make_goldens.LENGTH))
  assert_close(logits(*huggingface.load(tmp_path), tokens), make_goldens.logits(tmp_path, tokens))


@pytest.mark.parametrize('name', SAVED)
def test_live_to_transformers(name, transformers, tmp_path):
  family, fields = SAVED[name]
  config = configs.ModelConfig(**fields)
  params = random_params(config)
  huggingface.save(tmp_path / 'saved', config, params)
  assert json.loads((tmp_path / 'saved/config.json').read_text())['model_type'] == family
  tokens = np.random.default_rng(0).integers(96, size=(2, make_goldens.LENGTH))
  assert_close(make_goldens.logits(tmp_path / 'saved', tokens), logits(config, params, tokens))


@pytest.mark.parametrize('name', ['paper_gpt2', 'qk_norm'])
def test_live_long_sequence(name, transformers, tmp_path):
  config = configs.ModelConfig(**SAVED[name][1])
  params = random_params(config)
  huggingface.save(tmp_path / 'saved', config, params)
  tokens = np.random.default_rng(0).integers(96, size=(1, 250))
  assert_close(make_goldens.logits(tmp_path / 'saved', tokens), logits(config, params, tokens))


# Reading what others wrote


def assert_same(path, golden):
  (config, params), (wanted_config, wanted) = huggingface.load(path), huggingface.load(GOLDENS / golden)
  assert config == wanted_config
  jax.tree.map(np.testing.assert_array_equal, params, wanted)


def test_names_without_prefix_and_known_buffers(copy):
  # As openai-community/gpt2 has them.
  path = copy('gpt2')

  def change(tensors):
    for name in list(tensors):
      tensors[name.removeprefix('transformer.')] = tensors.pop(name)
    tensors['h.0.attn.bias'] = np.ones((1, 1, 8, 8), np.float32)
    tensors['h.1.attn.masked_bias'] = np.array(-1e4, np.float32)

  edit_tensors(path, change)
  edit_config(path, n_inner=..., tie_word_embeddings=..., architectures=..., n_ctx=256,
              scale_attn_weights=..., scale_attn_by_inverse_layer_idx=..., add_cross_attention=...)
  edit_config(path, n_inner=None)
  assert_same(path, 'gpt2')


def test_config_before_transformers_5(copy):
  path = copy('qwen2_bf16')
  edit_config(path, rope_parameters=..., rope_theta=1e6, rope_scaling=None, layer_types=..., torch_dtype='bfloat16')
  assert_same(path, 'qwen2_bf16')
  path = copy('gpt_neox_tied_fp16')
  edit_config(path, rope_parameters=..., rotary_pct=1.0, rotary_emb_base=500)
  edit_tensors(path, lambda tensors: tensors.update(
      {'gpt_neox.layers.0.attention.rotary_emb.inv_freq': np.ones(4, np.float32)}))
  assert_same(path, 'gpt_neox_tied_fp16')


def test_llama_1_has_no_groups_nor_theta(copy):
  path = copy('mistral_window')
  edit_config(path, model_type='llama', architectures=['LlamaForCausalLM'], rope_parameters=...,
              num_key_value_heads=..., head_dim=..., tie_word_embeddings=..., hidden_size=24, num_attention_heads=2)
  with pytest.raises(InputError, match=r'tensor model.embed_tokens.weight is \[96, 32\]; config.json needs \[96, 24\]'):
    huggingface.load(path)
  edit_config(path, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12)
  config, _ = huggingface.load(path)
  assert (config.rope_theta, config.tied_head, config.qkv_bias, config.length) == (10000.0, False, False, 256)


def test_length_is_that_of_the_window(copy):
  path = copy('mistral_window')
  assert huggingface.load(path)[0].length == make_goldens.LENGTH
  edit_config(path, sliding_window=None)
  assert huggingface.load(path)[0].length == 256
  edit_config(path, sliding_window=..., max_position_embeddings=32768)
  assert huggingface.load(path)[0].length == 4096


def test_tied_head_stored_too(copy):
  path = copy('qwen3_tied')
  edit_tensors(path, lambda tensors: tensors.update({'lm_head.weight': tensors['model.embed_tokens.weight']}))
  assert_same(path, 'qwen3_tied')
  edit_tensors(path, lambda tensors: tensors.update({'lm_head.weight': tensors['model.embed_tokens.weight'] + 1}))
  with pytest.raises(InputError, match='lm_head.weight is not the embedding, but tie_word_embeddings is true'):
    huggingface.load(path)


def test_symlinks_as_in_the_cache_of_the_hub(tmp_path):
  for file in (GOLDENS / 'llama_tied_sharded').iterdir():
    (tmp_path / file.name).symlink_to(file)
  assert_same(tmp_path, 'llama_tied_sharded')


# Writing


@pytest.mark.parametrize('name', SAVED)
def test_round_trip_is_bitwise(name, tmp_path):
  config = configs.ModelConfig(**SAVED[name][1])
  params = random_params(config)
  huggingface.save(tmp_path / 'new/saved', config, params)
  back_config, back = huggingface.load(tmp_path / 'new/saved')
  assert dataclasses.replace(back_config, rope_theta=config.rope_theta) == config
  assert config.positions == 'learned' or back_config == config
  jax.tree.map(np.testing.assert_array_equal, back, params)


@pytest.mark.parametrize('preset', ['tiny_gpt2', 'tiny_llama2'])
def test_presets_round_trip(preset, tmp_path):
  config = configs.get(preset, vocab_size=64, num_layers=2)
  params = init_params(config, 42)
  huggingface.save(tmp_path, config, params)
  back_config, back = huggingface.load(tmp_path)
  assert back_config == config
  jax.tree.map(np.testing.assert_array_equal, back, params)


def test_goldens_saved_again_are_the_same(tmp_path):
  for name in make_goldens.MODELS:
    config, params = huggingface.load(GOLDENS / name)
    huggingface.save(tmp_path / name, config, params)
    assert_same(tmp_path / name, name)


@pytest.mark.parametrize('fields, word', [
    (dict(sublayers='mlp_only'), "sublayers='mlp_only'"),
    (dict(norm='rmsnorm'), "norm='rmsnorm'"),
    (dict(gated_mlp=True), 'gated_mlp=True'),
    (dict(qk_norm=True), 'qk_norm=True'),
    (dict(mlp_bias=False), 'mlp_bias=False'),
    (dict(output_bias=False), 'bias'),
    (dict(num_kv_heads=2), 'num_kv_heads=2'),
    (dict(head_size=16), 'head_size=16'),
    (dict(num_heads=5, head_size=6), 'num_heads=5 does not divide width=32'),
    (dict(_LLAMA, positions='learned', qkv_bias=False), "positions='learned'"),
    (dict(_LLAMA, gated_mlp=False, qkv_bias=False), 'gated_mlp=False'),
    (dict(_LLAMA, num_heads=5, head_size=6, mlp_bias=True, output_bias=True), 'num_attention_heads=5 does not divide'),
    (dict(_LLAMA, mlp_bias=True), 'llama comes near, but for qkv_bias=True'),
], ids=str)
def test_save_refuses_what_transformers_lacks(fields, word, tmp_path):
  config = configs.ModelConfig(**(_TINY | fields))
  with pytest.raises(InputError, match='transformers has no such model') as error:
    huggingface.save(tmp_path / 'saved', config, random_params(config))
  assert word in str(error.value) and '\n' not in str(error.value)
  assert not list(tmp_path.iterdir())


def test_save_refuses_other_params(tmp_path):
  config = configs.ModelConfig(**_TINY)
  params = random_params(config)
  with pytest.raises(InputError, match='head is absent and should be float32'):
    huggingface.save(tmp_path / 'saved', dataclasses.replace(config, tied_head=False), params)
  with pytest.raises(InputError, match=r'embedding is float32\[96, 32\] and should be float32\[95, 32\]'):
    huggingface.save(tmp_path / 'saved', dataclasses.replace(config, vocab_size=95), params)
  with pytest.raises(InputError, match='is float16'):
    huggingface.save(tmp_path / 'saved', config, jax.tree.map(lambda leaf: leaf.astype(np.float16), params))
  assert not list(tmp_path.iterdir())


def test_save_never_overwrites(tmp_path):
  config = configs.ModelConfig(**_TINY)
  (tmp_path / 'full').mkdir()
  (tmp_path / 'full/notes').write_text('mine')
  for taken in (tmp_path / 'full', tmp_path / 'full/notes'):
    with pytest.raises(InputError, match=f'{taken} exists and is not an empty directory'):
      huggingface.save(taken, config, random_params(config))
  with pytest.raises(InputError, match='cannot be written'):
    huggingface.save(tmp_path / 'full/notes/saved', config, random_params(config))
  assert [file.name for file in tmp_path.rglob('*')] == ['full', 'notes']
  assert (tmp_path / 'full/notes').read_text() == 'mine'


def test_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
  def interrupted(tensors, file, metadata):
    Path(file).write_bytes(b'half')
    raise KeyboardInterrupt

  config = configs.ModelConfig(**_TINY)
  monkeypatch.setattr(huggingface, 'save_file', interrupted)
  with pytest.raises(KeyboardInterrupt):
    huggingface.save(tmp_path / 'saved', config, random_params(config))
  assert not list(tmp_path.iterdir())


def test_saved_for_versions_4_of_transformers_too(tmp_path):
  for name in ('paper_gpt2', 'paper_qwen2'):
    config = configs.ModelConfig(**dict(SAVED[name][1], rope_theta=500.0))
    huggingface.save(tmp_path / name, config, random_params(config))
    with safe_open(tmp_path / name / 'model.safetensors', framework='np') as file:
      assert file.metadata() == {'format': 'pt'}
  neox, qwen = (json.loads((tmp_path / name / 'config.json').read_text()) for name in ('paper_gpt2', 'paper_qwen2'))
  assert (neox['rotary_emb_base'], neox['rotary_pct'], qwen['rope_theta']) == (500.0, 1.0, 500.0)


def test_saved_files_are_as_readable_as_others(tmp_path):
  config = configs.ModelConfig(**_TINY)
  huggingface.save(tmp_path / 'saved', config, random_params(config))
  (tmp_path / 'other').touch()
  for file in ('config.json', 'model.safetensors'):
    assert (tmp_path / 'saved' / file).stat().st_mode == (tmp_path / 'other').stat().st_mode


# Broken checkpoints

_LAYER = 'model.layers.1.'


def _remove(*names):
  return lambda path: [(path / name).unlink() for name in names]


def _write(name, content):
  return lambda path: (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())


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
  return _write('model.safetensors', struct.pack('<Q', len(header)) + header + data)


def _truncate(path):
  os.truncate(path / 'model.safetensors', (path / 'model.safetensors').stat().st_size - 1)


def _pickled(path):
  (path / 'model.safetensors').unlink()
  (path / 'pytorch_model.bin').write_bytes(pickle.dumps({}))


_F32 = dict(dtype='F32', shape=[1], data_offsets=[0, 4])
# Of golden 'qwen3_tied': how it is broken, the file that the message names, and what it says.
BROKEN = {
    'no_config': (_remove('config.json'), 'config.json', 'is missing'),
    'config_not_json': (_write('config.json', '{"a": '), 'config.json', 'is not JSON'),
    'config_not_text': (_write('config.json', b'\xff\xfe\x00'), 'config.json', 'is not JSON'),
    'config_not_object': (_write('config.json', '[1]'), 'config.json', 'must hold a JSON object'),
    'config_deep': (_write('config.json', '[' * 100_000), 'config.json', 'is not JSON'),
    'config_long_number': (_write('config.json', '{"a": ' + '9' * 10_000 + '}'), 'config.json', 'is not JSON'),
    'no_model_type': (_config(model_type=...), 'config.json', 'gpt2, gpt_neox, llama, mistral, qwen2, qwen3 are'),
    'model_type_list': (_config(model_type=['qwen3']), 'config.json', 'is not supported'),
    'model_type': (_config(model_type='mamba\n'), 'config.json', r"model_type='mamba\n' is not supported"),
    'model_type_long': (_config(model_type='x' * 10**6), 'config.json', 'is not supported'),
    'architecture': (_config(architectures=['Qwen3ForSequenceClassification']), 'config.json', "'Qwen3ForCausalLM'"),
    'field_missing': (_config(hidden_size=...), 'config.json', 'hidden_size is missing; it must be a whole number'),
    'field_text': (_config(hidden_size='32'), 'config.json', "hidden_size='32' must be a whole number"),
    'field_null': (_config(vocab_size=None), 'config.json', 'vocab_size=None must be a whole number'),
    'field_bool': (_config(num_hidden_layers=True), 'config.json', 'num_hidden_layers=True must be'),
    'field_float': (_config(num_hidden_layers=2.0), 'config.json', 'num_hidden_layers=2.0 must be'),
    'field_zero': (_config(num_attention_heads=0), 'config.json', 'num_attention_heads=0 must be'),
    'field_huge': (_config(head_dim=10**3000), 'config.json', 'must be a whole number from 1 to 2147483647'),
    'product_huge': (_config(num_attention_heads=2**31 - 2, head_dim=2**31 - 2, hidden_size=2**31 - 2), '',
                     'is larger than any'),
    'layers_huge': (_config(num_hidden_layers=2**31 - 1), '', 'no safetensors file has tensor model.layers.2.'),
    'width_huge': (_config(hidden_size=2**31 - 1), 'model.safetensors', 'config.json needs [96, 2147483647]'),
    'flag': (_config(tie_word_embeddings='no'), 'config.json', "tie_word_embeddings='no' must be true or false"),
    'epsilon_nan': (_config(rms_norm_eps=float('nan')), 'config.json', 'rms_norm_eps=nan must be a positive number'),
    'epsilon_huge': (_config(rms_norm_eps=10**400), 'config.json', 'must be a positive number'),
    'epsilon_negative': (_config(rms_norm_eps=-1e-6), 'config.json', 'must be a positive number'),
    'activation': (_config(hidden_act='quick_gelu'), 'config.json', "hidden_act='quick_gelu' must be one of gelu_new"),
    'heads': (_config(num_key_value_heads=3), 'config.json', 'num_kv_heads=3 does not divide num_heads=4'),
    'odd_head': (_config(head_dim=15), 'config.json', 'head_size=15 is odd'),
    'rope_type': (_config(rope_parameters=dict(rope_type='llama3', factor=8.0, rope_theta=1e4)), 'config.json',
                  "rope_type='llama3' is not supported"),
    'rope_scaling': (_config(rope_parameters=..., rope_scaling=dict(type='linear', factor=2.0)), 'config.json',
                     "rope_type='linear' is not supported"),
    'rope_nested': (_config(rope_parameters=dict(full_attention=dict(rope_theta=1e6))), 'config.json',
                    "RoPE with 'full_attention' is not supported"),
    'rope_list': (_config(rope_parameters=[1]), 'config.json', 'rope_parameters=[1] must be a JSON object'),
    'rope_twice': (_config(rope_theta=5e5), 'config.json', 'rope_theta is both'),
    'rope_theta': (_config(rope_parameters=dict(rope_theta='big')), 'config.json', "rope_theta='big' must be"),
    'rope_partial': (_config(partial_rotary_factor=0.5), 'config.json', 'partial_rotary_factor=0.5 is not supported'),
    'window': (_config(use_sliding_window=True), 'config.json', 'use_sliding_window=True is not supported'),
    'layer_types': (_config(layer_types=['full_attention', 'sliding_attention']), 'config.json', 'sliding_attention'),
    'layer_types_number': (_config(layer_types=5), 'config.json', 'layer_types=5 must be a JSON array'),
    'quantized': (_config(quantization_config={'bits': 4}), 'config.json', 'quantization_config'),
    'no_weights': (_remove('model.safetensors'), '', 'has neither model.safetensors nor model.safetensors.index.json'),
    'pickle': (_pickled, 'pytorch_model.bin', 'save_pretrained('),
    'truncated': (_truncate, 'model.safetensors', 'is not a whole safetensors file'),
    'empty': (_write('model.safetensors', ''), 'model.safetensors', 'is not a whole safetensors file'),
    'not_safetensors': (_write('model.safetensors', 'x' * 99), 'model.safetensors', 'is not a whole safetensors file'),
    'header_huge': (_write('model.safetensors', struct.pack('<Q', 2**63) + b'{}'), 'model.safetensors', 'header'),
    'header_type': (_safetensors(dict(a=dict(_F32, dtype='X\n'))), 'model.safetensors', 'is not a whole'),
    'header_offsets': (_safetensors(dict(a=dict(_F32, data_offsets=[0, 8])), b'8' * 8), 'model.safetensors', 'shape'),
    'header_overflow': (_safetensors(dict(a=dict(_F32, shape=[2**40, 2**40]))), 'model.safetensors', 'overflow'),
    'tensor_missing': (_tensors(mlp__up_proj__weight=None), '',
                       'no safetensors file has tensor model.layers.1.mlp.up_proj.weight [48, 32]'),
    'tensor_shape': (_tensors(mlp__up_proj__weight=np.ones((32, 48), np.float32)), 'model.safetensors',
                     'model.layers.1.mlp.up_proj.weight is [32, 48]; config.json needs [48, 32]'),
    'tensor_dtype': (_tensors(mlp__up_proj__weight=np.ones((48, 32), np.int32)), 'model.safetensors',
                     'model.layers.1.mlp.up_proj.weight is I32; config.json needs F32 or F16 or BF16'),
    'tensor_unknown': (_tensors(self_attn__q_proj__bias=np.ones(64, np.float32)), 'model.safetensors',
                       "tensor 'model.layers.1.self_attn.q_proj.bias' has no place in this model"),
    'tensor_third_layer': (_config(num_hidden_layers=1), 'model.safetensors', "tensor 'model.layers.1."),
    'tensor_twice': (lambda path: edit_tensors(path, lambda tensors: tensors.update(
        {'norm.weight': tensors['model.norm.weight']})), 'model.safetensors', 'is a second'),
    'untied': (_config(tie_word_embeddings=False), '', 'no safetensors file has tensor lm_head.weight [96, 32]'),
}
# Of golden 'llama_tied_sharded'.
_SHARD, _INDEX = 'model-00002-of-00002.safetensors', 'model.safetensors.index.json'
BROKEN_SHARDS = {
    'index_not_json': (_write(_INDEX, 'x'), _INDEX, 'is not JSON'),
    'index_empty': (_index({}), _INDEX, 'weight_map=None must be a JSON object'),
    'index_list': (_index(dict(weight_map=['a'])), _INDEX, "weight_map=['a'] must be a JSON object"),
    'index_parent': (_index(dict(weight_map=dict(a='../model.safetensors'))), _INDEX, "'../model.safetensors' must be"),
    'index_absolute': (_index(dict(weight_map=dict(a='/etc/passwd'))), _INDEX, "shard '/etc/passwd' must be"),
    'index_number': (_index(dict(weight_map=dict(a=3))), _INDEX, 'shard 3 must be'),
    'index_newline': (_index(dict(weight_map=dict(a='a\n.safetensors'))), _INDEX, 'must be the name'),
    'shard_missing': (_remove(_SHARD), _SHARD, 'is missing; model.safetensors.index.json asks for it'),
    'shard_left_out': (_index(dict(weight_map=dict(a=_SHARD))), '', 'no safetensors file has tensor'),
    'whole_heads': (_config(num_attention_heads=5),
                    'config.json', 'num_attention_heads=5 does not divide hidden_size=32'),
}


def assert_refused(path, file, words):
  with pytest.raises(InputError) as error:
    huggingface.load(path)
  message = str(error.value)
  assert message.startswith(str(path)) and file in message and words in message and len(message) < 1000
  assert '\n' not in message


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


def test_parallel_residual_is_refused_also_where_absent(copy):
  path = copy('gpt_neox')
  edit_config(path, use_parallel_residual=...)
  assert_refused(path, 'config.json', 'use_parallel_residual=True is not supported; False is')
  edit_config(path, use_parallel_residual=False, rope_parameters=...)
  assert_refused(path, 'config.json', 'partial_rotary_factor=0.25 is not supported; 1.0 is')


def test_any_damage_to_the_header_is_refused_or_harmless(copy):
  path = copy('qwen3_tied')
  whole = (path / 'model.safetensors').read_bytes()
  end = 8 + struct.unpack('<Q', whole[:8])[0]
  rng = np.random.default_rng(0)
  refused = 0
  for _ in range(60):
    damaged = bytearray(whole)
    for position in rng.integers(end, size=3):
      damaged[position] = rng.integers(256)
    (path / 'model.safetensors').write_bytes(damaged)
    try:
      huggingface.load(path)
    except InputError as error:
      refused += '\n' not in str(error)
  assert refused == 60
