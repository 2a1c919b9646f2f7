"""Directories of `transformers` load as the networks that they are, whoever wrote them."""

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import load_file

from bornbiased_jax import storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.digests import digest
from directories import TOLERANCE, assert_close, assert_same, edit_config, edit_tensors
import make_goldens
from small_networks import logits

GOLDENS = make_goldens.GOLDENS


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


def test_tied_head_stored_too(copy):
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
  store_head(1)
  config, params = huggingface.load(path)
  assert config == huggingface.load_config(path) == storage.open(str(path)).config
  assert not config.tied_head and huggingface.open_files(path).layers().digest() == digest(params)
  np.testing.assert_array_equal(params['head'], params['embedding'] + 1)


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
