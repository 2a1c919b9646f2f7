"""RoPE means what every version of `transformers` means by it, wherever config.json says it."""

import numpy as np
import pytest

from bornbiased_jax.storage import huggingface
from directories import assert_refused, assert_same, edit_config, logits


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


@pytest.mark.parametrize('entries, message', [
    (dict(rope_theta=500), 'rope_theta=500 is not supported in this family'),
    (dict(partial_rotary_factor=0.5), 'partial_rotary_factor=0.5 is not supported'),
    (dict(head_dim=8), 'head_dim=8 is not supported; 16 is'),
], ids=str)
def test_gpt_neox_has_names_of_its_own(copy, entries, message):
  path = copy('pythia')
  edit_config(path, **entries)
  assert_refused(path, 'config.json', message)


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
