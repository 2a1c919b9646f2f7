"""What `huggingface.save` writes is what `transformers` computes with and what comes back."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open

from bornbiased_jax import configs
from bornbiased_jax.data import load_tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.storage import huggingface
from directories import assert_close, assert_equal
import make_goldens
from small_networks import logits

_TINY = dict(num_layers=2, num_heads=4, width=32, mlp_width=48, vocab_size=96, length=256,
             norm_epsilon=0.03)
_LLAMA = dict(_TINY, norm='rmsnorm', activation='silu', gated_mlp=True, output_bias=False,
              mlp_bias=False)
_OLMO = dict(_LLAMA, qkv_bias=False, norm_place='after', qk_norm=True, joint_qk_norm=True)
_GEMMA = dict(_LLAMA, qkv_bias=False, norm_place='both', activation='gelu_tanh',
              scaled_embedding=True)

# Configurations that `save` can write, and the family that it must find for each.
SAVED = {
    'learned_positions': ('gpt2', dict(_TINY, positions='learned', rope_theta=123.0)),
    'learned_untied_relu': (
        'gpt2', dict(_TINY, positions='learned', tied_head=False, activation='relu')),
    'squared_relu': ('gpt2', dict(_TINY, positions='learned', activation='squared_relu')),
    'paper_gpt2': ('gpt_neox', _TINY),
    'untied_no_attention_bias': (
        'gpt_neox', dict(_TINY, tied_head=False, qkv_bias=False, output_bias=False,
                         activation='gelu', rope_theta=300.0)),
    'pythia': ('gpt_neox', dict(_TINY, parallel_residual=True, rotary_factor=0.25)),
    'llama3': ('llama', dict(_LLAMA, qkv_bias=False, rope_scaling=configs.RopeScaling(
        'llama3', factor=8.0, original_length=32, slow=1.0, fast=4.0))),
    'yarn': ('qwen2', dict(_LLAMA, rope_scaling=configs.RopeScaling(
        'yarn', factor=2.0, original_length=64, slow=0.5, fast=5.0, attention_factor=1.3))),
    'linear': ('gpt_neox', dict(_TINY, rope_scaling=configs.RopeScaling('linear', factor=3.0))),
    'paper_llama2': ('llama', dict(_LLAMA, qkv_bias=False, tied_head=False)),
    'grouped_biased_wide_heads': (
        'llama', dict(_LLAMA, num_kv_heads=1, head_size=12, output_bias=True, mlp_bias=True,
                      activation='gelu_tanh')),
    'indivisible_width': (
        'mistral', dict(_LLAMA, qkv_bias=False, num_heads=3, head_size=10, num_kv_heads=1)),
    'paper_qwen2': ('qwen2', dict(_LLAMA, num_kv_heads=2, rope_theta=1e6, tied_head=False)),
    'qwen2_wide_heads': ('qwen2', dict(_LLAMA, num_kv_heads=2, head_size=12)),
    'windows': ('mistral', dict(_LLAMA, qkv_bias=False, windows=(9, 9))),
    'some_windows': ('qwen2', dict(_LLAMA, windows=(None, 5))),
    'olmo2': ('olmo2', dict(_OLMO, num_kv_heads=2, head_size=6)),
    'olmo3': ('olmo3', dict(_OLMO, windows=(7, None), rope_scaling=configs.RopeScaling(
        'linear', factor=3.0), window_rope_theta=10000.0)),
    'gemma2': ('gemma2', dict(
        _GEMMA, num_kv_heads=2, head_size=14, score_divisor=9, score_cap=3.0, logit_cap=8.0,
        windows=(None, 6), tied_head=False)),
    'gemma2_unbounded': ('gemma2', dict(_GEMMA, qkv_bias=True, output_bias=True)),
    'gemma3': ('gemma3_text', dict(
        _GEMMA, num_kv_heads=1, head_size=12, logit_cap=8.0, qk_norm=True, windows=(6, None),
        rope_theta=700.0, window_rope_theta=30.0)),
    'gemma3_no_windows': ('gemma3_text', dict(_GEMMA, qk_norm=True, rope_theta=700.0)),
    'gemma3_windows': ('gemma3_text', dict(_GEMMA, qk_norm=True, rope_theta=700.0,
                                           windows=(3, 3))),
    'phi3': ('phi3', dict(_LLAMA, qkv_bias=False, num_kv_heads=2, head_size=12, rotary_factor=0.5,
                          windows=(9, 9), tied_head=False)),
    'qk_norm': (
        'qwen3', dict(_LLAMA, num_kv_heads=2, head_size=16, qkv_bias=False, qk_norm=True,
                      tied_head=False)),
}


def random_params(config, seed=0):
  rng = np.random.default_rng(seed)
  noise = lambda leaf: 0.25 * rng.normal(size=leaf.shape).astype(np.float32)
  draw = lambda path, leaf: (path[-1].key == 'scale') + noise(leaf)
  return jax.tree_util.tree_map_with_path(draw, param_shapes(config))


@pytest.mark.parametrize('name', [
    'learned_untied_relu', 'squared_relu', 'paper_gpt2', 'untied_no_attention_bias', 'pythia',
    'llama3', 'yarn', 'grouped_biased_wide_heads',
    'some_windows', 'olmo3', 'gemma2', 'gemma3', 'gemma3_no_windows', 'phi3', 'qk_norm'])
def test_live_to_transformers(name, transformers, tmp_path):
  """In a folder, and in memory. At least one of each family but Mistral and OLMo 2."""
  config = configs.ModelConfig(**SAVED[name][1])
  params = random_params(config)
  huggingface.save(tmp_path / 'saved', config, params)
  is_long = name in ('paper_gpt2', 'qk_norm', 'olmo3', 'gemma2', 'gemma3', 'phi3')
  tokens = np.random.default_rng(0).integers(96, size=(2, 250 if is_long else make_goldens.LENGTH))
  theirs = make_goldens.logits(tmp_path / 'saved', tokens)
  assert_close(theirs, logits(config, params, tokens))
  model = huggingface.to_transformers(config, params)
  model.set_attn_implementation('eager')
  np.testing.assert_array_equal(make_goldens.logits_of(model, tokens), theirs)
  assert_equal(huggingface.from_transformers(model), huggingface.load(tmp_path / 'saved'))


@pytest.mark.parametrize('name', SAVED)
def test_round_trip_is_bitwise(name, tmp_path):
  """But for gains of Gemma below 1/2, which are stored less 1."""
  config = configs.ModelConfig(**SAVED[name][1])
  params = random_params(config)
  huggingface.save(tmp_path / 'new/saved', config, params)
  stored = json.loads((tmp_path / 'new/saved/config.json').read_text())
  assert stored['model_type'] == SAVED[name][0]
  back_config, back = huggingface.load(tmp_path / 'new/saved')
  assert dataclasses.replace(back_config, rope_theta=config.rope_theta) == config
  assert config.positions == 'learned' or back_config == config
  is_gain = lambda path: SAVED[name][0].startswith('gemma') and path[-1].key == 'scale'
  jax.tree_util.tree_map_with_path(
      lambda path, given, wanted: np.testing.assert_allclose(
          given, wanted, rtol=0, atol=is_gain(path) * 2.0**-24), back, params)


@pytest.mark.parametrize('fields, word', [
    (dict(sublayers='mlp_only'), "sublayers='mlp_only'"),
    (dict(positions='alibi'), "positions='alibi'"),
    (dict(activation='own'), "hidden_act='own' must be one of"),
    (dict(gated_mlp=True), 'gated_mlp=True'),
    (dict(output_bias=False), 'bias'),
    (dict(num_kv_heads=2), 'num_kv_heads=2'),
    (dict(num_heads=5, head_size=6), 'num_heads=5 does not divide width=32'),
    (dict(_LLAMA, positions='learned', qkv_bias=False), "positions='learned'"),
    (dict(_LLAMA, num_heads=5, head_size=6, mlp_bias=True, output_bias=True),
     'num_attention_heads=5 does not divide'),
    (dict(_LLAMA, mlp_bias=True), 'llama comes near, but for qkv_bias=True'),
    (dict(_LLAMA, qkv_bias=False, windows=(3, 4)), 'windows=(3, 4)'),
    (dict(_LLAMA, windows=(3, None), window_rope_theta=5.0), 'window_rope_theta=5.0'),
    (dict(_OLMO, joint_qk_norm=False), "qwen3 comes near, but for norm_place='after'"),
    (dict(_GEMMA, scaled_embedding=False), "llama comes near, but for norm_place='both'"),
    (dict(_GEMMA, score_divisor=2.5), 'query_pre_attn_scalar=2.5 must be a whole number'),
    (dict(_GEMMA, qk_norm=True, score_cap=5.0), 'gemma2 comes near, but for qk_norm=True'),
], ids=str)
def test_save_refuses_what_transformers_lacks(fields, word, tmp_path, monkeypatch):
  monkeypatch.setitem(configs.ACTIVATIONS, 'own', abs)
  config = configs.ModelConfig(**(_TINY | fields))
  with pytest.raises(InputError, match='transformers has no such model') as error:
    huggingface.save(tmp_path / 'saved', config, {})
  assert word in str(error.value)
  assert not list(tmp_path.iterdir())


def test_save_refuses_other_params(tmp_path):
  config = configs.ModelConfig(**_TINY)
  params = random_params(config)
  with pytest.raises(InputError, match='head is absent and should be float32'):
    huggingface.save(tmp_path / 'saved', dataclasses.replace(config, tied_head=False), params)
  message = r'embedding is float32\[96, 32\] and should be float32\[95, 32\]'
  with pytest.raises(InputError, match=message):
    huggingface.save(tmp_path / 'saved', dataclasses.replace(config, vocab_size=95), params)
  half = jax.tree.map(lambda leaf: leaf.astype(np.float16), params)
  with pytest.raises(InputError, match='is float16'):
    huggingface.save(tmp_path / 'saved', config, half)
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
  monkeypatch.setattr('bornbiased_jax.storage.huggingface.tensors.save_file', interrupted)
  with pytest.raises(KeyboardInterrupt):
    huggingface.save(tmp_path / 'saved', config, random_params(config))
  assert not list(tmp_path.iterdir())


def test_saved_for_versions_4_of_transformers_too(tmp_path):
  for name in ('paper_gpt2', 'paper_qwen2'):
    config = configs.ModelConfig(**dict(SAVED[name][1], rope_theta=500.0))
    huggingface.save(tmp_path / name, config, random_params(config))
    with safe_open(tmp_path / name / 'model.safetensors', framework='np') as file:
      assert file.metadata() == {'format': 'pt'}
  stored = lambda name: json.loads((tmp_path / name / 'config.json').read_text())
  neox, qwen = stored('paper_gpt2'), stored('paper_qwen2')
  assert (neox['rotary_emb_base'], neox['rotary_pct'], qwen['rope_theta']) == (500.0, 1.0, 500.0)


def test_saved_files_are_as_readable_as_others(tmp_path):
  config = configs.ModelConfig(**_TINY)
  huggingface.save(tmp_path / 'saved', config, random_params(config))
  (tmp_path / 'other').touch()
  for file in ('config.json', 'model.safetensors'):
    assert (tmp_path / 'saved' / file).stat().st_mode == (tmp_path / 'other').stat().st_mode


@pytest.mark.parametrize('name', ['learned_positions', 'paper_gpt2', 'paper_llama2',
                                  'indivisible_width', 'qk_norm', 'olmo2', 'olmo3', 'gemma2',
                                  'gemma3', 'phi3'])
def test_live_transformers_finds_the_tokenizer(name, transformers, tmp_path):
  """In every family the ids are bytes, and what `generate` makes of them ends with a document."""
  config = configs.ModelConfig(**dict(SAVED[name][1], vocab_size=257))
  params = random_params(config)
  huggingface.save(tmp_path / 'saved', config, params, load_tokenizer('bytes'))
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'saved')
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'saved')
  written = 'naïve e\u0301 四'
  inputs = tokenizer(written, return_tensors='pt')
  assert inputs['input_ids'].tolist() == [list(written.encode())]
  model.generate(**inputs, do_sample=False, max_new_tokens=2, pad_token_id=256)
  assert model.generation_config.eos_token_id == 256
  jax.tree.map(np.testing.assert_array_equal, huggingface.load(tmp_path / 'saved')[1], params)


def test_save_refuses_a_tokenizer_that_would_be_misread(tmp_path):
  tokenizer = load_tokenizer('bytes')
  for name, message in (('paper_llama2', 'bytes has 257 ids, and the model only vocab_size=96'),
                        ('paper_qwen2', 'takes the tokenizer of every qwen2 model for')):
    config = configs.ModelConfig(**SAVED[name][1])
    with pytest.raises(InputError, match=message):
      huggingface.save(tmp_path / 'saved', config, random_params(config), tokenizer)
  assert not list(tmp_path.iterdir())
