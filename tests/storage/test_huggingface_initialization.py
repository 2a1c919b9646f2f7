"""How a config.json says that weights are drawn is how `transformers` draws them."""

import dataclasses
import json

from flax.traverse_util import flatten_dict
import numpy as np
import pytest

from bornbiased_jax import configs, storage
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.huggingface.families import FAMILIES
from directories import minimal_config, refusal, write_config
from small_networks import born

SIZES = dict(vocab_size=500, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=4, head_dim=16, max_position_embeddings=256, intermediate_size=128,
             initializer_range=0.03, pad_token_id=None, bos_token_id=None, eos_token_id=None)
EXPERTS = dict(num_experts=8, num_local_experts=8, moe_intermediate_size=64,
               shared_expert_intermediate_size=128, num_experts_per_tok=2)
OF_FAMILY = {
    'gpt2': dict(n_embd=64, n_layer=3, n_head=4, n_positions=256),
    'gemma2': dict(tie_word_embeddings=False), 'gpt_neox': dict(attention_bias=True),
    **dict.fromkeys(('mixtral', 'qwen2_moe', 'qwen3_moe', 'olmoe'), EXPERTS)}


def assert_drawn_as_said(config, params):
  """The std of each leaf is that of its layer, within 1 % or four standard errors."""
  for name, leaf in flatten_dict(params, sep='/').items():
    layer, _, kind = ('/' + name).rpartition('/')
    layer = layer.rpartition('/')[2] if kind in ('kernel', 'bias', 'scale') else kind
    leaf = np.asarray(leaf, np.float64)
    if kind in ('bias', 'scale'):
      assert np.all(leaf == (kind == 'scale')), name
    else:
      tolerance = max(0.01, 4 / (2 * leaf.size)**0.5)
      assert leaf.std() == pytest.approx(config.std_of(layer), rel=tolerance), name


@pytest.mark.parametrize('family', FAMILIES)
def test_every_tensor_has_the_std_that_its_config_says(family, transformers, tmp_path):
  entries = SIZES | OF_FAMILY.get(family, {})
  transformers.set_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(
      transformers.AutoConfig.for_model(family, **entries))
  model.save_pretrained(tmp_path)
  config, params = huggingface.load(tmp_path)
  assert_drawn_as_said(config, params)
  if family == 'gpt2':
    assert_drawn_as_said(config, storage.open(f'{tmp_path}:3').load()[1])


def test_an_absent_or_empty_range_is_that_of_transformers(tmp_path):
  for entries in ({}, dict(initializer_range=None), dict(initializer_range=0)):
    write_config(tmp_path, minimal_config('llama', **entries))
    config = huggingface.load_config(tmp_path)
    assert (config.linear_std, config.embedding_std, config.init_scheme) == (0.02, 0.02, 'plain')
  for wrong in ('0.02', -1, True):
    write_config(tmp_path, minimal_config('llama', initializer_range=wrong))
    assert 'initializer_range' in refusal(tmp_path)


SCHEMES = [{}, dict(init_scheme='plain', linear_std=0.03, embedding_std=0.03),
           dict(init_scheme='mup', tied_head=False), dict(linear_std=1.5, embedding_std=1.0),
           dict(init_scheme='deepnorm')]


@pytest.mark.parametrize('preset, changes', [
    *(('tiny_llama2', changes) for changes in SCHEMES), ('tiny_gpt2', {}), ('tiny_moe', SCHEMES[2]),
], ids=str)
def test_save_keeps_how_weights_are_drawn(preset, changes, tmp_path, transformers):
  config = configs.get(preset, **{'num_layers': 1, 'width': 64, 'vocab_size': 50} | changes)
  huggingface.save(tmp_path / 'saved', config, born(config, 1))
  assert huggingface.load_config(tmp_path / 'saved') == config
  stored = json.loads((tmp_path / 'saved' / 'config.json').read_text())
  is_theirs = config.init_scheme == 'plain' and config.linear_std == config.embedding_std
  assert ('bornbiased_jax' in stored) != is_theirs
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'saved')
  model.save_pretrained(tmp_path / 'theirs')
  assert huggingface.load_config(tmp_path / 'theirs') == config


def test_older_configurations_keep_their_meaning():
  stored = dataclasses.asdict(configs.get('tiny_llama2'))
  config = configs.from_dict(json.loads(json.dumps(stored)), 'a run')
  assert config.init_scheme == 'gpt2' and config.linear_std == pytest.approx(0.049, abs=1e-3)
  assert config == storage.open('tiny_llama2:1').config
