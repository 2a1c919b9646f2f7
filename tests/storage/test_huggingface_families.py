"""Fields of config.json mean what every version of `transformers` takes them to mean."""

import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from directories import assert_same, edit_config, edit_tensors
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


def test_length_is_that_of_the_window(copy):
  path = copy('mistral_window')
  assert huggingface.load(path)[0].length == make_goldens.LENGTH
  edit_config(path, sliding_window=None)
  assert huggingface.load(path)[0].length == 256
  edit_config(path, sliding_window=..., max_position_embeddings=32768)
  assert huggingface.load(path)[0].length == 4096


def test_gpt_neox_is_pythia_where_it_does_not_say(copy):
  path = copy('pythia')
  edit_config(path, use_parallel_residual=..., rope_parameters=...)
  config, _ = huggingface.load(path)
  assert (config.parallel_residual, config.rotary_size, config.head_size) == (True, 4, 16)
  assert_same(path, 'pythia')
