"""What `transformers` calls our fields and modules: one table per family, read both ways."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage.huggingface_entries import (
  COUNT,
  COUNT_OR_NULL,
  FLAG,
  NUMBER,
  entry,
  of_type,
  only,
  read_json,
  show,
)
from bornbiased_jax.storage.huggingface_rope import read_rope, rope_to_stored


def _split_columns(tensor, heads):
  return np.split(tensor, 3, axis=-1)


def _split_heads(tensor, heads):
  tensor = tensor.reshape(*tensor.shape[:-1], heads, 3, -1)
  return [tensor[..., i, :] for i in range(3)]


class Family(NamedTuple):
  """What one family of `transformers` calls our fields and modules."""

  architecture: str
  fields: dict  # field of ModelConfig (or 'window') → entry of config.json
  defaults: dict  # entry of config.json that may be missing → its value then
  constants: dict  # fields of ModelConfig that are the same in the whole family
  modules: dict  # our module, or several that they fuse into one → theirs; '{}' is the layer
  base: str  # prefix of their modules except the head; checkpoints may lack it
  head: str = 'lm_head'
  transposed: bool = True  # their weights are [out, in]; our kernels are [in, out]
  split: Callable | None = None  # function from a fused [..., out] to views of its three parts
  whole_heads: bool = False  # heads must divide hidden_size even if head_dim is given
  rotary_factor: float | None = None  # partial_rotary_factor if it is missing; None: always 1
  rope_entries: tuple = ('rope_theta',)  # what transformers had before rope_parameters


_QKV = 'blocks/query blocks/key blocks/value'
_COMMON = dict(
    vocab_size='vocab_size', width='hidden_size', mlp_width='intermediate_size',
    activation='hidden_act', num_layers='num_hidden_layers', num_heads='num_attention_heads',
    length='max_position_embeddings', tied_head='tie_word_embeddings')
_GPT2 = Family(
    architecture='GPT2LMHeadModel',
    fields=dict(vocab_size='vocab_size', width='n_embd', mlp_width='n_inner',
                activation='activation_function', num_layers='n_layer', num_heads='n_head',
                length='n_positions', tied_head='tie_word_embeddings',
                norm_epsilon='layer_norm_epsilon'),
    defaults=dict(n_inner=None, tie_word_embeddings=True),
    constants=dict(norm='layernorm', gated_mlp=False, positions='learned'),
    modules={'embedding': 'wte', 'position_embedding': 'wpe', 'final_norm': 'ln_f',
             'blocks/attention_norm': 'h.{}.ln_1', _QKV: 'h.{}.attn.c_attn',
             'blocks/output': 'h.{}.attn.c_proj', 'blocks/mlp_norm': 'h.{}.ln_2',
             'blocks/up': 'h.{}.mlp.c_fc', 'blocks/down': 'h.{}.mlp.c_proj'},
    base='transformer.', transposed=False, split=_split_columns)
_GPT_NEOX = Family(
    architecture='GPTNeoXForCausalLM',
    fields=_COMMON | dict(norm_epsilon='layer_norm_eps', qkv_bias='attention_bias',
                          output_bias='attention_bias',
                          parallel_residual='use_parallel_residual'),
    defaults=dict(attention_bias=True, tie_word_embeddings=False, use_parallel_residual=True),
    constants=dict(norm='layernorm', gated_mlp=False, positions='rope'),
    modules={'embedding': 'embed_in', 'final_norm': 'final_layer_norm',
             'blocks/attention_norm': 'layers.{}.input_layernorm',
             _QKV: 'layers.{}.attention.query_key_value',
             'blocks/output': 'layers.{}.attention.dense',
             'blocks/mlp_norm': 'layers.{}.post_attention_layernorm',
             'blocks/up': 'layers.{}.mlp.dense_h_to_4h',
             'blocks/down': 'layers.{}.mlp.dense_4h_to_h'},
    base='gpt_neox.', head='embed_out', split=_split_heads, rotary_factor=0.25,
    rope_entries=('rotary_emb_base', 'rotary_pct'))
_LLAMA = Family(
    architecture='LlamaForCausalLM',
    fields=_COMMON | dict(norm_epsilon='rms_norm_eps', num_kv_heads='num_key_value_heads',
                          head_size='head_dim', qkv_bias='attention_bias',
                          output_bias='attention_bias', mlp_bias='mlp_bias'),
    defaults=dict(num_key_value_heads=None, head_dim=None, attention_bias=False, mlp_bias=False,
                  tie_word_embeddings=False),
    constants=dict(norm='rmsnorm', gated_mlp=True, positions='rope'),
    modules={'embedding': 'embed_tokens', 'final_norm': 'norm',
             'blocks/attention_norm': 'layers.{}.input_layernorm',
             'blocks/query': 'layers.{}.self_attn.q_proj',
             'blocks/key': 'layers.{}.self_attn.k_proj',
             'blocks/value': 'layers.{}.self_attn.v_proj',
             'blocks/query_norm': 'layers.{}.self_attn.q_norm',
             'blocks/key_norm': 'layers.{}.self_attn.k_norm',
             'blocks/output': 'layers.{}.self_attn.o_proj',
             'blocks/mlp_norm': 'layers.{}.post_attention_layernorm',
             'blocks/gate': 'layers.{}.mlp.gate_proj', 'blocks/up': 'layers.{}.mlp.up_proj',
             'blocks/down': 'layers.{}.mlp.down_proj'},
    base='model.', whole_heads=True)


def _like_llama(architecture, defaults, constants, **more_fields):
  fields = {ours: name for ours, name in (_LLAMA.fields | more_fields).items()
            if ours not in constants}
  return _LLAMA._replace(
      architecture=architecture, fields=fields, defaults=_LLAMA.defaults | defaults,
      constants=_LLAMA.constants | constants, whole_heads=False)


# The order is that in which `save` tries them.
FAMILIES = {
    'gpt2': _GPT2,
    'gpt_neox': _GPT_NEOX,
    'llama': _LLAMA,
    'mistral': _like_llama('MistralForCausalLM', dict(num_key_value_heads=8, sliding_window=4096),
                           dict(qkv_bias=False, output_bias=False, mlp_bias=False),
                           window='sliding_window'),
    'qwen2': _like_llama('Qwen2ForCausalLM', dict(num_key_value_heads=32),
                         dict(qkv_bias=True, output_bias=False, mlp_bias=False)),
    'qwen3': _like_llama('Qwen3ForCausalLM', dict(num_key_value_heads=32, head_dim=128),
                         dict(mlp_bias=False, qk_norm=True)),
}
# Entries of config.json of any family, with the only value that our Transformer can compute.
_ONLY = dict(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False,
             add_cross_attention=False, use_sliding_window=False, quantization_config=None)
_ACTIVATIONS = dict(gelu_new='gelu_tanh', gelu_pytorch_tanh='gelu_tanh', gelu_fast='gelu_tanh',
                    gelu='gelu', silu='silu', swish='silu', relu='relu', tanh='tanh')
_STORED_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
# For each of our fields what its value in config.json must be.
_KINDS = {
    **dict.fromkeys(('vocab_size', 'width', 'length', 'num_layers', 'num_heads'), COUNT),
    **dict.fromkeys(('mlp_width', 'num_kv_heads', 'head_size', 'window'), COUNT_OR_NULL),
    **dict.fromkeys(('norm_epsilon', 'rope_theta'), NUMBER),
    **dict.fromkeys(('qkv_bias', 'output_bias', 'mlp_bias', 'tied_head', 'parallel_residual'),
                    FLAG),
    'activation': (f'one of {", ".join(_ACTIVATIONS)}',
                   lambda value: type(value) is str and value in _ACTIVATIONS),
}
# Fields of ModelConfig that have no place in config.json.
_UNSAVED = ('init_scheme', 'linear_std', 'embedding_std', 'dtype', 'remat')


def read_config(file: Path) -> tuple[ModelConfig, Family]:
  """Reads config.json.

  Raises:
    InputError: an entry is wrong, or our Transformer cannot compute what it says.
  """
  stored = read_json(file)
  try:
    name = stored.get('model_type')
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
      raise InputError(f'model_type={show(name)} is not supported; {", ".join(FAMILIES)} are')
    if stored.get('architectures'):
      only(stored, 'architectures', [family.architecture])
    return _from_stored(stored, family), family
  except (InputError, RecursionError) as error:
    raise InputError(f'{file}: {error}') from None


def _from_stored(stored, family):
  stored = _ONLY | family.defaults | stored
  values = {ours: entry(stored, name, *_KINDS[ours]) for ours, name in family.fields.items()}
  values['activation'] = _ACTIVATIONS[values['activation']]
  # JSON may have it as a whole number, which need not fit in an int of JAX.
  values['norm_epsilon'] = float(values['norm_epsilon'])
  values['mlp_width'] = values['mlp_width'] or 4 * values['width']
  # For sequences no longer than the window, attention within it is full attention.
  values['length'] = min(values['length'], values.pop('window', None) or values['length'])
  for name, wanted in _ONLY.items():
    only(stored, name, wanted)
  for layer_type in of_type(stored, 'layer_types', list):
    if layer_type != 'full_attention':
      raise InputError(f"layer_types with {show(layer_type)} is not supported; 'full_attention' is")
  if family.whole_heads and values['width'] % values['num_heads']:
    raise InputError(f'num_attention_heads={values["num_heads"]} does not divide '
                     f'hidden_size={values["width"]}')
  if family.constants['positions'] == 'rope':
    values |= read_rope(stored, family.rope_entries, family.rotary_factor)
    if 'head_size' not in family.fields and stored.get('head_dim') is not None:
      only(stored, 'head_dim', values['width'] // values['num_heads'])
  return ModelConfig(**values, **family.constants)


def to_stored(config: ModelConfig, family: Family) -> dict:
  """The entries of config.json that describe `config`, as far as the family can."""
  stored = {theirs: getattr(config, ours, None) for ours, theirs in family.fields.items()}
  stored[family.fields['activation']] = _STORED_ACTIVATIONS[config.activation]
  if family.constants['positions'] == 'rope':
    stored |= rope_to_stored(config, family.rope_entries)
  return stored


def choose_family(config: ModelConfig) -> tuple[str, Family]:
  """The first family that can describe all of `config`.

  The test is a round trip: written as config.json and read again, the
  configuration must come back the same.

  Raises:
    InputError: there is none. The message names the nearest family and the
      fields in which it differs.
  """
  misfits = {}
  ignored = _UNSAVED + ('rope_theta', 'rotary_factor', 'rope_scaling') * (
      config.positions == 'learned')
  ignored += ('intervention_position', 'intervention_strength') * (config.intervention == 'none')
  for name, family in FAMILIES.items():
    try:
      back = _from_stored(to_stored(config, family), family)
      misfits[name] = [f'{field}={value!r}'
                       for field, value in vars(config).items()
                       if field not in ignored and value != getattr(back, field)]
    except InputError as error:
      misfits[name] = [str(error)]
    if not misfits[name]:
      return name, family
  unlike = lambda family: sum(getattr(config, field) != value
                              for field, value in family.constants.items())
  nearest = min(misfits, key=lambda name: (unlike(FAMILIES[name]), len(misfits[name])))
  raise InputError(f'transformers has no such model; {nearest} comes near, but for '
                   f'{", ".join(misfits[nearest])}')
