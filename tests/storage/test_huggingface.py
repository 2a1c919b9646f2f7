"""Directories of `transformers` load as the networks that they are, whoever wrote them."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import huggingface
from directories import assert_close, assert_same, edit_config, edit_tensors, logits
import make_goldens

GOLDENS = make_goldens.GOLDENS


# Against transformers


@pytest.mark.parametrize('name', make_goldens.MODELS)
def test_golden_logits(name):
  golden = np.load(GOLDENS / name / 'logits.npz')
  assert_close(logits(*huggingface.load(GOLDENS / name), golden['tokens']), golden['logits'])


@pytest.mark.parametrize('change', [
    dict(norm_epsilon=0.029), dict(rope_theta=9000.0), dict(activation='gelu'),
    dict(norm='rmsnorm')], ids=str)
def test_tolerance_sees_a_wrong_field(change):
  golden = np.load(GOLDENS / 'gpt_neox' / 'logits.npz')
  config, params = huggingface.load(GOLDENS / 'gpt_neox')
  if 'norm' in change:
    blocks = params['blocks']
    for norm in (params['final_norm'], blocks['attention_norm'], blocks['mlp_norm']):
      del norm['bias']
  changed = dataclasses.replace(config, **change)
  with pytest.raises(AssertionError, match='Not equal to tolerance'):
    assert_close(logits(changed, params, golden['tokens']), golden['logits'])


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
  message = 'lm_head.weight is not the embedding, but tie_word_embeddings is true'
  with pytest.raises(InputError, match=message):
    huggingface.load(path)


def test_symlinks_as_in_the_cache_of_the_hub(tmp_path):
  for file in (GOLDENS / 'llama_tied_sharded').iterdir():
    (tmp_path / file.name).symlink_to(file)
  assert_same(tmp_path, 'llama_tied_sharded')
