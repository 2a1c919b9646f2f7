"""config.json is read as `transformers` reads it, or refused in one line that says why."""

from pathlib import Path

import numpy as np
import pytest
from test_huggingface import MIXTURES, SIZES

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.rotary import frequencies
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.huggingface.config import parse_config
from bornbiased_jax.storage.huggingface.families import FAMILIES
from directories import (
  assert_same,
  assert_these_are_refused,
  edit_config,
  minimal_config,
  refusal,
  write_config,
)
import make_goldens
from small_networks import logits

# What people have published: entries of config.json of SmolLM2-135M and gemma-3-1b-it.
PUBLISHED = {
    'smollm2': dict(
        architectures=['LlamaForCausalLM'], attention_bias=False, attention_dropout=0.0,
        bos_token_id=0, eos_token_id=0, hidden_act='silu', hidden_size=576,
        initializer_range=0.041666666666666664, intermediate_size=1536, is_llama_config=True,
        max_position_embeddings=8192, model_type='llama', num_attention_heads=9,
        num_hidden_layers=30, num_key_value_heads=3, pretraining_tp=1, rms_norm_eps=1e-05,
        rope_interleaved=False, rope_scaling=None, rope_theta=100000, tie_word_embeddings=True,
        torch_dtype='bfloat16', transformers_version='4.40.1', use_cache=True, vocab_size=49152),
    'gemma3': dict(
        architectures=['Gemma3ForCausalLM'], attention_bias=False, attention_dropout=0.0,
        attn_logit_softcapping=None, bos_token_id=2, cache_implementation='hybrid',
        eos_token_id=[1, 106], final_logit_softcapping=None, head_dim=256,
        hidden_activation='gelu_pytorch_tanh', hidden_size=1152, initializer_range=0.02,
        intermediate_size=6912, max_position_embeddings=32768, model_type='gemma3_text',
        num_attention_heads=4, num_hidden_layers=26, num_key_value_heads=1, pad_token_id=0,
        query_pre_attn_scalar=256, rms_norm_eps=1e-06, rope_local_base_freq=10000,
        rope_scaling=None, rope_theta=1000000, sliding_window=512, sliding_window_pattern=6,
        torch_dtype='bfloat16', transformers_version='4.50.0.dev0', use_cache=True,
        vocab_size=262144),
}


def test_published_models_are_read(tmp_path):
  configs = {}
  for name, stored in PUBLISHED.items():
    write_config(tmp_path, stored)
    configs[name] = huggingface.load_config(tmp_path)
  smollm, gemma = configs['smollm2'], configs['gemma3']
  assert (smollm.head_size, smollm.num_kv_heads, smollm.rope_theta) == (64, 3, 1e5)
  assert gemma.windows == ((512,) * 5 + (None,)) * 4 + (512, 512) and gemma.tied_head
  assert (gemma.rope_theta, gemma.window_rope_theta, gemma.score_divisor) == (1e6, 1e4, None)


# Of each type of an entry other values; a round tries one for every entry.
OTHERS = {bool: lambda value: (not value, not value, None),
          int: lambda value: (value + 1, 0, 2 * value),
          float: lambda value: (value / 2 + 0.1, 0.0, 1), str: lambda value: ('relu', 'gelu', None),
          type(None): lambda value: (5, 0.5, True), list: lambda value: (value[::-1], [], None),
          dict: lambda value: (None, {}, {'rope_type': 'linear', 'factor': 3.0})}
MORE = dict(rope_scaling={'rope_type': 'linear', 'factor': 3.0}, rope_theta=50.0, rotary_pct=0.5,
            rotary_emb_base=50.0, sliding_window_pattern=2, norm_eps=0.5, logit_scale=3.0,
            multi_query=True, pruned_heads={'0': [1]})


def read(stored):
  """Our configuration, or None where it is refused."""
  try:
    return parse_config(stored, Path('config.json'))[0]
  except InputError:
    return None


def theirs_of(transformers, stored):
  """That of `transformers`, or None where it is refused."""
  try:
    return transformers.AutoConfig.for_model(**stored)
  except Exception:  # Of many kinds.
    return None


def entries(family, transformers):
  """Those of a small model that are not the defaults of its family."""
  kind = family if family in make_goldens.MODELS else {
      'llama': 'llama_tied_sharded', 'mistral': 'mistral_window', 'qwen2': 'qwen2_window',
      'qwen3': 'qwen3_tied', 'gemma3_text': 'gemma3_bf16'}.get(family)
  given = make_goldens.MODELS[kind][1] if kind else SIZES | MIXTURES[family]
  found = transformers.AutoConfig.for_model(family, **given).to_diff_dict()
  return {name: value for name, value in found.items() if name != 'transformers_version'}


@pytest.mark.parametrize('family', FAMILIES)
def test_what_we_do_not_see_changes_nothing(family, transformers):
  """Entries that change no field of ours, all together, leave the logits of `transformers`.

  Entries that are left out are what `transformers` takes for them.
  """
  stored = entries(family, transformers)
  base, config = read(stored), theirs_of(transformers, stored)
  least = minimal_config(family, num_hidden_layers=8)  # So many that some have no window.
  for given in [least, *({other: stored[other] for other in stored if other != name}
                         for name in stored)]:
    if (completed := theirs_of(transformers, given)) and (found := read(given)):
      assert found == read(completed.to_dict() | {'architectures': None}), given
  model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation='eager').eval()
  make_goldens.randomize(model, 1)
  ids = np.random.default_rng(0).integers(96, size=(2, 24))
  expected = make_goldens.logits_of(model, ids)
  generic = transformers.PreTrainedConfig().to_dict().keys() | {'model_type'}
  known = {}
  for each in FAMILIES:
    known |= transformers.AutoConfig.for_model(each).to_dict()
  known |= MORE | config.to_dict()
  for i in range(3):
    changed = dict(stored)
    for name in sorted(known.keys() - generic):
      value = MORE[name] if name in MORE else OTHERS[type(known[name])](known[name])[i]
      if read(changed | {name: value}) == base and theirs_of(transformers, changed | {name: value}):
        changed[name] = value
    assert len(changed) > len(stored)
    other = transformers.AutoModelForCausalLM.from_config(
        theirs_of(transformers, changed), attn_implementation='eager').eval()
    other.load_state_dict(model.state_dict())
    np.testing.assert_allclose(make_goldens.logits_of(other, ids), expected, atol=1e-4,
                               err_msg=str(changed))


FULL, SLIDING = 'full_attention', 'sliding_attention'
MIXED = [SLIDING, FULL, FULL, SLIDING, SLIDING, FULL, SLIDING]
# As many layers as MIXED has.
CASES = [
    ('llama', {}), ('llama', dict(sliding_window=5)), ('olmo2', {}),
    ('mistral', {}), ('mistral', dict(sliding_window=None)), ('mistral', dict(sliding_window=7)),
    ('phi3', {}), ('phi3', dict(sliding_window=9)),
    *((family, entries) for family in ('qwen2', 'qwen3') for entries in (
        {}, dict(sliding_window=5), dict(use_sliding_window=True),
        *(dict(use_sliding_window=True, sliding_window=5, max_window_layers=n)
          for n in (-1, 0, 3, 6, 7)),
        dict(use_sliding_window=True, sliding_window=None, max_window_layers=0),
        dict(use_sliding_window=True, sliding_window=6, layer_types=MIXED, max_window_layers=0),
        dict(layer_types=[FULL] * 7))),
    *((family, entries) for family in ('gemma2', 'gemma3_text', 'olmo3') for entries in (
        {}, dict(sliding_window=5), dict(sliding_window=5, layer_types=MIXED),
        dict(layer_types=[FULL] * 7), dict(layer_types=[SLIDING] * 7), dict(layer_types=None))),
    *(('gemma3_text', dict(sliding_window_pattern=n)) for n in (1, 2, 7, 8)),
]


@pytest.mark.parametrize('family, entries', CASES, ids=str)
def test_windows_are_those_of_transformers(family, entries, transformers, tmp_path):
  stored = minimal_config(family, num_hidden_layers=7)
  theirs = transformers.AutoConfig.for_model(**stored | entries)
  if family in ('mistral', 'phi3'):
    expected = (theirs.sliding_window,) * 7
  else:
    types = getattr(theirs, 'layer_types', None) or [FULL] * 7
    expected = tuple(theirs.sliding_window if name == SLIDING else None for name in types)
  write_config(tmp_path, stored | entries)
  config = huggingface.load_config(tmp_path)
  assert (config.windows or (None,) * 7) == expected


LINEAR = dict(rope_type='linear', factor=2.0)
REFUSED = [
    ('gemma2', dict(use_bidirectional_attention=True)),
    ('gemma3_text', dict(use_bidirectional_attention='no')),
    ('gemma3_text', dict(attn_logit_softcapping=50.0)),
    ('gemma2', dict(attn_logit_softcapping=0.0)),
    ('gemma2', dict(final_logit_softcapping='30')),
    ('gemma2', dict(query_pre_attn_scalar=24.5)),
    ('gemma2', dict(head_dim=None)),
    ('gemma3_text', dict(num_key_value_heads=None)),
    ('gemma2', dict(hidden_activation=None)),
    ('gemma2', dict(num_attention_heads=3)),
    ('gemma2', dict(architectures=['GemmaForCausalLM'])),
    ('olmo2', dict(attention_bias=None)),
    ('gemma2', dict(layer_types=MIXED[1:])),
    ('gemma2', dict(layer_types=[FULL] * 6 + ['chunked_attention'])),
    ('gemma2', dict(layer_types=[[FULL]] * 7)),
    ('gemma2', dict(sliding_window=None)),
    ('olmo3', dict(sliding_window=0)),
    ('phi3', dict(sliding_window=4.0)),
    ('mistral', dict(use_sliding_window=True)),
    ('llama', dict(layer_types=MIXED, sliding_window=5)),
    ('llama', dict(layer_types=[FULL] * 6)),
    ('qwen2', dict(layer_types=MIXED)),
    ('qwen2', dict(layer_types=MIXED, use_sliding_window=True, sliding_window=None)),
    ('qwen2', dict(use_sliding_window='yes')),
    ('qwen3', dict(max_window_layers=None)),
    ('gemma3_text', dict(sliding_window_pattern=0)),
    ('gemma3_text', dict(sliding_window_pattern=2, layer_types=MIXED)),
    ('gemma3_text', dict(num_hidden_layers=2**31 - 1)),
    # Experts.
    ('qwen2_moe', dict(mlp_only_layers=[1])), ('qwen3_moe', dict(decoder_sparse_step=2)),
    ('qwen2_moe', dict(use_sliding_window=True)), ('olmoe', dict(clip_qkv=8.0)),
    ('mixtral', dict(num_local_experts=1)), ('mixtral', dict(num_experts_per_tok=9)),
    # Settings of RoPE.
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
    ('phi3', dict(rope_parameters=dict(rope_type='yarn', factor=2.0))),
    ('phi3', dict(partial_rotary_factor=0.5, rope_parameters=dict(partial_rotary_factor=0.25))),
    ('olmo2', dict(partial_rotary_factor=0.5)),
]


@pytest.mark.parametrize('family, entries', REFUSED, ids=str)
def test_what_is_refused(family, entries, tmp_path):
  assert_these_are_refused(tmp_path, minimal_config(family, num_hidden_layers=7), entries)


@pytest.mark.parametrize('name', ['falcon', 'gemma3', 'Gemma2', 'gemma2 ', ''])
def test_other_families_are_refused_by_name(name, tmp_path):
  write_config(tmp_path, minimal_config('llama') | dict(model_type=name))
  message = refusal(tmp_path)
  assert f'model_type={name!r}' in message and all(family in message for family in FAMILIES)


def test_what_no_family_may_have_is_refused(tmp_path):
  stored = minimal_config('llama', is_causal=True, transformers_weights=None, per_layer_config=None)
  # With the last two the same files would be another network.
  for entries in (dict(is_causal=False), dict(is_causal=None),
                  dict(transformers_weights='other.safetensors'),
                  dict(per_layer_config={'1': {'length': 3}})):
    assert_these_are_refused(tmp_path, stored, entries)


def test_names_of_gpt2_that_all_families_share_go_first(transformers, tmp_path):
  stored = dict(model_type='gpt2', vocab_size=96, n_embd=48, n_layer=5, n_head=3, n_positions=128,
                layer_norm_epsilon=1e-5, activation_function='gelu')
  write_config(tmp_path, stored | dict(
      hidden_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32))
  ours, theirs = (library.load_config(tmp_path) if library is huggingface
                  else library.AutoConfig.from_pretrained(tmp_path)
                  for library in (huggingface, transformers))
  assert (ours.width, ours.num_layers, ours.num_heads, ours.length) == (64, 2, 4, 32)
  assert (theirs.n_embd, theirs.n_layer, theirs.n_head, theirs.n_positions) == (64, 2, 4, 32)


def test_the_letters_of_an_architecture_may_be_large_or_small(tmp_path):
  write_config(tmp_path, minimal_config('llama', architectures=['LLaMAForCausalLM']))
  assert huggingface.load_config(tmp_path).num_layers == 3


# RoPE means what every version of `transformers` means by it, wherever config.json says it.


def test_scaled_rope_before_transformers_5(copy):
  path = copy('llama3_scaled')
  scaling = dict(type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                 original_max_position_embeddings=32)
  edit_config(path, rope_parameters=..., rope_theta=500.0, rope_scaling=scaling)
  assert_same(path, 'llama3_scaled')
  del scaling['original_max_position_embeddings']
  edit_config(path, rope_scaling=scaling, original_max_position_embeddings=32)
  assert_same(path, 'llama3_scaled')


def test_a_length_beside_the_settings_of_rope_goes_before_theirs(copy, transformers):
  path, turned = copy('llama3_scaled'), []
  for length in (..., 4096):
    edit_config(path, original_max_position_embeddings=length)
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
        transformers.AutoConfig.from_pretrained(path)).inv_freq.numpy()
    turned.append(frequencies(huggingface.load_config(path)))
    np.testing.assert_allclose(turned[-1], theirs, rtol=1e-5)
  assert np.any(turned[0] != turned[1])


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
