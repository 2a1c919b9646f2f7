"""RoPE means what every version of `transformers` means by it, wherever config.json says it."""

import numpy as np
import pytest

from bornbiased_jax.storage import huggingface
from directories import (
  assert_same,
  assert_these_are_refused,
  edit_config,
  minimal_config,
  write_config,
)
from small_networks import logits


def test_scaled_rope_before_transformers_5(copy):
  path = copy('llama3_scaled')
  scaling = dict(type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                 original_max_position_embeddings=32)
  edit_config(path, rope_parameters=..., rope_theta=500.0, rope_scaling=scaling)
  assert_same(path, 'llama3_scaled')
  del scaling['original_max_position_embeddings']
  edit_config(path, rope_scaling=scaling, original_max_position_embeddings=32)
  assert_same(path, 'llama3_scaled')


def test_huge_whole_numbers_are_numbers(copy):
  path = copy('qwen2_bf16')
  edit_config(path, rope_parameters=dict(rope_type='linear', factor=10**12, rope_theta=10**10))
  config, params = huggingface.load(path)
  assert (config.rope_theta, config.rope_scaling.factor) == (1e10, 1e12)
  assert np.isfinite(logits(config, params, np.arange(5)[None])).all()


def test_dynamic_rope_changes_nothing_that_is_read(copy):
  path = copy('qwen2_bf16')
  edit_config(path, rope_parameters=dict(rope_type='dynamic', factor=4.0, rope_theta=1e6))
  assert_same(path, 'qwen2_bf16')


def test_yarn_has_defaults(copy):
  path = copy('qwen2_yarn')
  edit_config(path, rope_parameters=dict(rope_type='yarn', rope_theta=1e4, factor=2.0))
  scaling = huggingface.load(path)[0].rope_scaling
  assert (scaling.slow, scaling.fast, scaling.original_length) == (1, 32, 256)
  assert scaling.attention_factor == pytest.approx(1 + 0.1 * np.log(2))


@pytest.mark.parametrize('factors', [
    dict(mscale=0.7, mscale_all_dim=0.5), dict(mscale=1.0, mscale_all_dim=1.0), dict(mscale=0.7),
    dict(mscale_all_dim=0.7), dict(mscale=0.0, mscale_all_dim=0.5), dict(attention_factor=1.5),
    dict(mscale=0.7, mscale_all_dim=0.5, attention_factor=1.5)], ids=str)
def test_the_attention_factor_of_yarn_is_that_of_transformers(factors, transformers, tmp_path):
  rope = dict(rope_type='yarn', rope_theta=1e4, factor=8.0, original_max_position_embeddings=32)
  write_config(tmp_path, minimal_config('llama', rope_parameters=rope | factors))
  theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
      transformers.AutoConfig.from_pretrained(tmp_path))
  scaling = huggingface.load_config(tmp_path).rope_scaling
  assert scaling.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def test_two_bases_before_transformers_5(copy):
  path = copy('gemma3_bf16')
  edit_config(path, rope_parameters=..., rope_theta=900, rope_local_base_freq=40.0, layer_types=...,
              rope_scaling=dict(rope_type='linear', factor=3.0))
  assert_same(path, 'gemma3_bf16')
  path = copy('olmo3')
  scaling = dict(rope_type='yarn', factor=4.0, beta_fast=3.0, beta_slow=0.5,
                 original_max_position_embeddings=64)
  theta = dict(rope_type='default', rope_theta=100.0)
  edit_config(path, rope_parameters=dict(sliding_attention=theta), rope_theta=100.0,
              rope_scaling=scaling)
  assert_same(path, 'olmo3')


LINEAR = dict(rope_type='linear', factor=2.0)


@pytest.mark.parametrize('family, entries', [
    ('gemma3_text', {}), ('gemma3_text', dict(rope_theta=5e5)),
    ('gemma3_text', dict(rope_local_base_freq=50.0)), ('gemma3_text', dict(rope_scaling=LINEAR)),
    ('gemma3_text', dict(rope_theta=5e5, rope_local_base_freq=50, rope_scaling=LINEAR)),
    ('gemma3_text', dict(rope_parameters=dict(full_attention=dict(rope_theta=7e5)))),
    ('gemma3_text', dict(rope_parameters=dict(sliding_attention=dict(rope_theta=7e5)))),
    ('gemma3_text', dict(rope_parameters=dict(full_attention=LINEAR), rope_local_base_freq=30)),
    ('olmo3', {}), ('olmo3', dict(rope_theta=5e5)), ('olmo3', dict(rope_scaling=LINEAR)),
    ('olmo3', dict(rope_parameters=dict(sliding_attention=dict(rope_theta=7e5)))),
    ('phi3', {}), ('phi3', dict(rope_theta=5e5, partial_rotary_factor=0.5)),
    ('phi3', dict(rope_parameters=dict(partial_rotary_factor=0.5, rope_theta=300.0))),
    ('gemma2', dict(rope_theta=5e5)), ('olmo2', dict(rope_theta=5e5)),
], ids=str)
def test_bases_are_those_of_transformers(family, entries, transformers, tmp_path):
  stored = minimal_config(family, num_hidden_layers=8) | entries
  write_config(tmp_path, stored)
  # It changes the dicts that it gets.
  rope = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
  config = huggingface.load_config(tmp_path)
  full = rope.get('full_attention', rope)
  local = rope.get('sliding_attention', full)
  assert config.rope_theta == full['rope_theta']
  assert (config.window_rope_theta or config.rope_theta) == local['rope_theta']
  assert (config.rope_scaling.factor if config.rope_scaling else None) == full.get('factor')
  assert config.rotary_factor == full.get('partial_rotary_factor', 1)


REFUSED = [
    ('gpt_neox', dict(rope_theta=500)), ('gpt_neox', dict(partial_rotary_factor=0.5)),
    ('gpt_neox', dict(head_dim=4)),
    ('gemma3_text', dict(rope_parameters=dict(rope_type='default', rope_theta=1e6))),
    ('gemma3_text', dict(rope_parameters=dict(sliding_attention=LINEAR))),
    ('gemma3_text', dict(rope_parameters=dict(full_attention=LINEAR), rope_scaling=dict(LINEAR,
        factor=3.0))),
    ('gemma3_text', dict(rope_parameters=dict(full_attention=dict(rope_theta=1e5)),
        rope_theta=1e6)),
    ('gemma3_text', dict(rope_scaling=dict(type='linear', factor=8.0))),
    ('olmo3', dict(rope_scaling=dict(LINEAR), original_max_position_embeddings=64)),
    ('gemma3_text', dict(rope_local_base_freq='x')),
    ('gemma3_text', dict(rope_parameters=dict(full_attention=[1]))),
    ('olmo3', dict(rope_theta=1e4)),
    ('llama', dict(rope_local_base_freq=10)),
    ('phi3', dict(rope_scaling=dict(type='longrope', long_factor=[1.0], short_factor=[1.0]))),
    ('phi3', dict(rope_scaling=dict(type='su'))),
    ('phi3', dict(rope_parameters=dict(rope_type='yarn', factor=2.0))),
    ('phi3', dict(partial_rotary_factor=0.5, rope_parameters=dict(partial_rotary_factor=0.25))),
    ('olmo2', dict(partial_rotary_factor=0.5)),
]


@pytest.mark.parametrize('family, entries', REFUSED, ids=str)
def test_what_is_refused(family, entries, tmp_path):
  assert_these_are_refused(tmp_path, minimal_config(family, num_hidden_layers=8), entries)
