"""Directories of `transformers` load as the networks that they are, whoever wrote them."""

import dataclasses

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bornbiased_jax import storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.digests import digest
from bornbiased_jax.storage.huggingface import leaves
from directories import (
  TOLERANCE,
  assert_close,
  assert_equal,
  assert_same,
  edit_config,
  edit_tensors,
)
import make_goldens
from small_networks import logits

GOLDENS = make_goldens.GOLDENS
SIZES = dict(vocab_size=96, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=0.03,
             pad_token_id=None, bos_token_id=None, eos_token_id=None)
MIXTURES = {
    'mixtral': dict(intermediate_size=40, num_local_experts=5, num_experts_per_tok=3,
                    tie_word_embeddings=True, sliding_window=5),
    'qwen2_moe': dict(moe_intermediate_size=20, shared_expert_intermediate_size=56, num_experts=6,
                      num_experts_per_tok=2),
    'qwen3_moe': dict(moe_intermediate_size=24, num_experts=9, num_experts_per_tok=4, head_dim=10,
                      norm_topk_prob=True, attention_bias=True),
    'olmoe': dict(intermediate_size=24, num_experts=8, num_experts_per_tok=3),
}
FAMILIES = {name: model[:3] for name, model in make_goldens.MODELS.items()} | {
    name: (name, SIZES | model, 'float32') for name, model in MIXTURES.items()}


# Against transformers


@pytest.mark.parametrize('name', make_goldens.MODELS)
def test_golden_logits(name):
  golden = np.load(GOLDENS / name / 'logits.npz')
  assert_close(logits(*huggingface.load(GOLDENS / name), golden['tokens']), golden['logits'])


@pytest.mark.parametrize('name, change', [
    *(('gpt_neox', change) for change in (
        dict(norm_epsilon=0.029), dict(rope_theta=9000.0), dict(activation='gelu'))),
    ('mistral_window', dict(windows=(6, 7))), ('gemma2', dict(score_cap=2.1)),
    ('gemma3_bf16', dict(window_rope_theta=900.0)), ('gemma3_bf16', dict(rope_scaling=None)),
], ids=str)
def test_tolerance_sees_a_wrong_field(name, change):
  golden = np.load(GOLDENS / name / 'logits.npz')
  config, params = huggingface.load(GOLDENS / name)
  wrong = logits(dataclasses.replace(config, **change), params, golden['tokens'])
  least = {'gpt_neox': 1, 'mistral_window': 100}.get(name, 10)
  assert np.abs(wrong - golden['logits']).max() > least * TOLERANCE


@pytest.mark.parametrize('name', make_goldens.MODELS)
def test_live_from_transformers(name, transformers, tmp_path):
  make_goldens.store(name, 1234, tmp_path)
  tokens = np.random.default_rng(0).integers(96, size=(2, make_goldens.LENGTH))
  assert_close(logits(*huggingface.load(tmp_path), tokens), make_goldens.logits(tmp_path, tokens))


def made(transformers, name):
  """A model of PyTorch with random parameters."""
  import torch
  model_type, config, dtype = FAMILIES[name]
  model = transformers.AutoModelForCausalLM.from_config(
      transformers.AutoConfig.for_model(model_type, **config), attn_implementation='eager')
  make_goldens.randomize(model, 3)
  return model.to(getattr(torch, dtype)).eval()


def logits_of(model, ids):
  import torch
  with torch.no_grad():
    return model.float()(torch.from_numpy(ids)).logits.numpy()


@pytest.mark.parametrize('name', FAMILIES)
def test_a_model_is_what_its_saved_folder_is(name, transformers, tmp_path):
  model, ids = made(transformers, name), np.random.default_rng(0).integers(96, size=(2, 24))
  model.save_pretrained(tmp_path)
  loaded = huggingface.load(tmp_path)
  assert_equal(huggingface.from_transformers(model), loaded)
  assert_equal(huggingface.from_state_dict(tmp_path, model.state_dict()), loaded)
  assert_equal(huggingface.from_state_dict(loaded[0], model.state_dict()), loaded)
  assert_close(logits(*huggingface.from_transformers(model), ids),
               make_goldens.logits(tmp_path, ids))


@pytest.mark.parametrize('name', ['gpt2', 'gpt_neox', 'qwen3_tied', 'olmo2', 'gemma2', 'phi3',
                                  'llama_tied_sharded', 'mixtral'])
def test_a_model_as_it_was_initialized(name, transformers):
  model_type, config, _ = FAMILIES[name]
  model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
      model_type, **config), attn_implementation='eager').eval()
  ids = np.random.default_rng(0).integers(96, size=(2, 24))
  found = logits(*huggingface.from_transformers(model), ids)
  np.testing.assert_allclose(found, logits_of(model, ids), rtol=0, atol=1e-5)


# Reading what others wrote


def test_names_without_prefix_and_known_buffers(copy):
  # openai-community/gpt2 has names without the prefix, and these buffers.
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


def test_tied_head_stored_too(copy, monkeypatch):
  monkeypatch.setattr(leaves, 'ROWS', 40)  # They are compared in parts, here in three.
  path = copy('qwen3_tied')

  def store_head(shift):
    edit_tensors(path, lambda tensors: tensors.update(
        {'lm_head.weight': tensors['model.embed_tokens.weight'] + np.float32(shift)}))

  store_head(0)
  assert_same(path, 'qwen3_tied')
  edit_tensors(path, lambda tensors: tensors.update(
      {'lm_head.weight': tensors['lm_head.weight'][:-1]}))
  with pytest.raises(InputError, match=r'lm_head.weight is \[95, 32\]; config.json needs'):
    huggingface.load(path)
  for shift in (1, np.arange(96)[:, None] == 95):  # Of all rows, or of the last one.
    store_head(shift)
    config, params = huggingface.load(path)
    assert config == huggingface.load_config(path) == storage.open(str(path)).config
    assert not config.tied_head
    assert huggingface.open_files(path).layers().digest() == digest(params)
    np.testing.assert_array_equal(params['head'], params['embedding'] + np.float32(shift))


@pytest.mark.parametrize('name, shift', [('qwen3_tied', 1), ('gpt2', 1), ('qwen3_tied', 0)])
def test_live_a_head_beside_the_embedding_that_it_should_be(name, shift, copy, transformers):
  path, ids = copy(name), np.arange(48).reshape(2, 24)
  theirs = 'model.embed_tokens.weight' if name == 'qwen3_tied' else 'transformer.wte.weight'
  edit_tensors(path, lambda tensors: tensors.update(
      {'lm_head.weight': np.roll(tensors[theirs], shift)}))
  assert_close(logits(*huggingface.load(path), ids), make_goldens.logits(path, ids))


@pytest.mark.parametrize('name', ['qwen3_tied', 'gpt2'])
def test_of_a_tied_model_safetensors_may_keep_the_head_alone(name, copy):
  """As its function save_model does."""
  path = copy(name)
  theirs = 'model.embed_tokens.weight' if name == 'qwen3_tied' else 'transformer.wte.weight'
  edit_tensors(path, lambda tensors: tensors.update({'lm_head.weight': tensors.pop(theirs)}))
  assert_same(path, name)
  edit_config(path, tie_word_embeddings=False)
  with pytest.raises(InputError, match=f'has no tensor {theirs}'):
    huggingface.load(path)


def test_live_a_tied_model_by_save_model(transformers, tmp_path):
  safetensors = pytest.importorskip('safetensors.torch')
  model = transformers.AutoModelForCausalLM.from_pretrained(GOLDENS / 'qwen3_tied')
  model.config.save_pretrained(tmp_path)
  safetensors.save_model(model, str(tmp_path / 'model.safetensors'))
  assert 'model.embed_tokens.weight' not in load_file(tmp_path / 'model.safetensors')
  assert_same(tmp_path, 'qwen3_tied')


def test_config_before_transformers_5(copy):
  path = copy('qwen2_bf16')
  edit_config(path, rope_parameters=..., rope_theta=1e6, rope_scaling=None, layer_types=...,
              torch_dtype='bfloat16')
  assert_same(path, 'qwen2_bf16')
  path = copy('gpt_neox_tied_fp16')
  edit_config(path, rope_parameters=..., rotary_pct=1.0, rotary_emb_base=500)
  edit_tensors(path, lambda tensors: tensors.update(
      {'gpt_neox.layers.0.attention.rotary_emb.inv_freq': np.ones(4, np.float32)}))
  assert_same(path, 'gpt_neox_tied_fp16')


def test_gpt_neox_is_pythia_where_it_does_not_say(copy):
  path = copy('pythia')
  edit_config(path, use_parallel_residual=..., rope_parameters=...)
  config, _ = huggingface.load(path)
  assert (config.parallel_residual, config.rotary_size, config.head_size) == (True, 4, 16)
  assert_same(path, 'pythia')


# Mixtures of experts, in both directions


@pytest.fixture
def stored(transformers, tmp_path, monkeypatch):
  """Writes a model of this name, and returns its folder."""
  def write(name, **how):
    model = name, SIZES | MIXTURES[name], 'float32', how
    monkeypatch.setitem(make_goldens.MODELS, name, model)
    make_goldens.store(name, 5, tmp_path / 'theirs')
    return tmp_path / 'theirs'

  return write


@pytest.mark.parametrize('name', MIXTURES)
def test_both_directions(name, stored, tmp_path):
  theirs, ids = stored(name), np.random.default_rng(0).integers(96, size=(2, 24))
  expected = make_goldens.logits(theirs, ids)
  config, params = huggingface.load(theirs)
  assert_close(logits(config, params, ids), expected)
  huggingface.save(tmp_path / 'ours', config, params)
  assert huggingface.load_config(tmp_path / 'ours') == config
  np.testing.assert_array_equal(make_goldens.logits(tmp_path / 'ours', ids), expected)
  layers = huggingface.open_files(theirs).layers()
  assert layers.digest() == digest(params)
  block = layers.read_block(1)
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[1]), block, params['blocks'])


@pytest.mark.parametrize('name', MIXTURES)
def test_experts_as_transformers_has_them_in_memory(name, stored):
  theirs, ids = stored(name, save_original_format=False), np.arange(48).reshape(2, 24)
  assert 'model.layers.0.mlp.experts.gate_up_proj' in load_file(theirs / 'model.safetensors')
  config, params = huggingface.load(theirs)
  assert_close(logits(config, params, ids), make_goldens.logits(theirs, ids))
  assert huggingface.open_files(theirs).layers().digest() == digest(params)


@pytest.mark.parametrize('name, changes, words', [
    ('mixtral', dict(num_local_experts=6), r'experts\.5\.w1\.weight'),
    ('olmoe', dict(num_experts=6), r'is \[8, 48\]; config.json needs \[6, 48\]')])
def test_other_numbers_of_experts_than_are_stored_are_refused(name, changes, words, stored):
  path = stored(name)
  edit_config(path, **changes)
  with pytest.raises(InputError, match=words):
    huggingface.load(path)


def test_both_names_of_their_number(stored):
  """Versions of transformers call it num_experts or num_local_experts."""
  path = stored('qwen3_moe')
  config = huggingface.load_config(path)
  edit_config(path, num_local_experts=..., num_experts=9)
  assert huggingface.load_config(path) == config
