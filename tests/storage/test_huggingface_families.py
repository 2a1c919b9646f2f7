"""Fields of config.json mean what every version of `transformers` takes them to mean."""

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import load_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from directories import TOLERANCE, assert_same, edit_config, edit_tensors, logits
import make_goldens


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


def test_llama_1_has_no_groups_nor_theta(copy):
  path = copy('mistral_window')
  edit_config(path, model_type='llama', architectures=['LlamaForCausalLM'], rope_parameters=...,
              num_key_value_heads=..., head_dim=..., tie_word_embeddings=..., hidden_size=24,
              num_attention_heads=2)
  message = r'tensor model.embed_tokens.weight is \[96, 32\]; config.json needs \[96, 24\]'
  with pytest.raises(InputError, match=message):
    huggingface.load(path)
  edit_config(path, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12)
  config, _ = huggingface.load(path)
  assert (config.rope_theta, config.length) == (10000.0, 256)
  assert (config.tied_head, config.qkv_bias) == (False, False)


@pytest.mark.parametrize('change', [
    dict(windows=(6, 7)), dict(windows=(7, 8)), dict(windows=(7, None)), dict(windows=())], ids=str)
def test_tolerance_sees_a_wrong_window(change):
  golden = np.load(make_goldens.GOLDENS / 'mistral_window/logits.npz')
  config, params = huggingface.load(make_goldens.GOLDENS / 'mistral_window')
  assert config.windows == (7, 7)
  wrong = logits(dataclasses.replace(config, **change), params, golden['tokens'])
  assert np.abs(wrong - golden['logits']).max() > 100 * TOLERANCE


@pytest.mark.parametrize('name, change', [
    ('gemma2', dict(score_cap=None)), ('gemma2', dict(score_cap=2.1)),
    ('gemma2', dict(logit_cap=None)), ('gemma2', dict(score_divisor=None)),
    ('gemma2', dict(scaled_embedding=False)), ('gemma2', dict(windows=(5, 5, 5))),
    ('gemma3_bf16', dict(window_rope_theta=None)), ('gemma3_bf16', dict(window_rope_theta=900.0)),
    ('gemma3_bf16', dict(rope_scaling=None)), ('gemma3_bf16', dict(score_divisor=None)),
    ('olmo3', dict(window_rope_theta=None)), ('olmo3', dict(windows=(6, 6, None, 6))),
    ('phi3', dict(rotary_factor=1.0)), ('olmo2', dict(rope_theta=290.0)),
], ids=str)
def test_tolerance_sees_what_families_differ_in(name, change):
  golden = np.load(make_goldens.GOLDENS / name / 'logits.npz')
  config, params = huggingface.load(make_goldens.GOLDENS / name)
  wrong = logits(dataclasses.replace(config, **change), params, golden['tokens'])
  assert np.abs(wrong - golden['logits']).max() > 10 * TOLERANCE


def test_a_gain_is_what_a_norm_multiplies_by():
  for name, norm in (('gemma2', 'model.norm.weight'), ('olmo2', 'model.norm.weight')):
    path = make_goldens.GOLDENS / name
    stored = load_file(path / 'model.safetensors')[norm]
    gain = huggingface.load(path)[1]['final_norm']['scale']
    np.testing.assert_array_equal(gain, stored + np.float32(name == 'gemma2'))


def test_fused_projections_are_parts_of_different_sizes():
  path = make_goldens.GOLDENS / 'phi3'
  stored = load_file(path / 'model.safetensors')['model.layers.1.self_attn.qkv_proj.weight']
  blocks = huggingface.load(path)[1]['blocks']
  np.testing.assert_array_equal(np.concatenate(
      [blocks[name]['kernel'][1].T for name in ('query', 'key', 'value')]), stored)
  assert [blocks[name]['kernel'].shape[-1] for name in ('query', 'key')] == [48, 24]


def test_gpt_neox_is_pythia_where_it_does_not_say(copy):
  path = copy('pythia')
  edit_config(path, use_parallel_residual=..., rope_parameters=...)
  config, _ = huggingface.load(path)
  assert (config.parallel_residual, config.rotary_size, config.head_size) == (True, 4, 16)
  assert_same(path, 'pythia')
