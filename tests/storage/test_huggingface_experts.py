"""Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE are what `transformers` computes, in both directions."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.digests import digest
from directories import assert_close, edit_config
import make_goldens
from small_networks import logits

SIZES = dict(vocab_size=96, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=0.03,
             pad_token_id=None, bos_token_id=None, eos_token_id=None)
MODELS = {
    'mixtral': dict(intermediate_size=40, num_local_experts=5, num_experts_per_tok=3,
                    tie_word_embeddings=True, sliding_window=5),
    'qwen2_moe': dict(moe_intermediate_size=20, shared_expert_intermediate_size=56, num_experts=6,
                      num_experts_per_tok=2),
    'qwen3_moe': dict(moe_intermediate_size=24, num_experts=9, num_experts_per_tok=4, head_dim=10,
                      norm_topk_prob=True, attention_bias=True),
    'olmoe': dict(intermediate_size=24, num_experts=8, num_experts_per_tok=3),
}


@pytest.fixture
def stored(transformers, tmp_path, monkeypatch):
  """Writes a model of this name, and returns its folder."""
  def write(name, **how):
    model = name, SIZES | MODELS[name], 'float32', how
    monkeypatch.setitem(make_goldens.MODELS, name, model)
    make_goldens.store(name, 5, tmp_path / 'theirs')
    return tmp_path / 'theirs'

  return write


@pytest.mark.parametrize('name', MODELS)
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


@pytest.mark.parametrize('name', MODELS)
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
