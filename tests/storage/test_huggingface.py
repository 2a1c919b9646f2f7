"""`huggingface` against `transformers`: stored logits, live ones, and the directories that others wrote."""

import dataclasses
import functools
from pathlib import Path
import shutil

import jax
import make_goldens
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import huggingface
from directories import assert_close, assert_same, edit_config, edit_tensors, logits, quiet_transformers

GOLDENS = make_goldens.GOLDENS


@pytest.fixture
def transformers():
  return quiet_transformers()


@pytest.fixture
def copy(tmp_path):
  """A golden checkpoint that a test may change."""
  return lambda name: Path(shutil.copytree(GOLDENS / name, tmp_path / name))


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


# Reading what others wrote


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
