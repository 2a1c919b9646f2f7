"""GGUF files of llama.cpp: what they call our fields and modules, in the families of `families`.

Their metadata become entries of config.json, and a family has other names for its tensors, so that
all else is like in Hugging Face model folders.
"""

import contextlib
import dataclasses
import functools
import math
import os
from pathlib import Path

import numpy as np

from bornbiased_jax.configs import ModelConfig, RopeScaling
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import COUNT, entry, naming, only, path_of
from bornbiased_jax.models.rotary import frequencies
from bornbiased_jax.storage.huggingface.config import from_stored
from bornbiased_jax.storage.huggingface.families import FAMILIES, Family
from bornbiased_jax.storage.huggingface.gguf_file import MAGIC, SUFFIX, read_header
from bornbiased_jax.storage.huggingface.positions import FULL, SLIDING
from bornbiased_jax.storage.huggingface.tensors import Tensor, stamp

# Mistral models are 'llama' here.
_FAMILIES = {'gpt2': 'gpt2', 'llama': 'llama', 'qwen2': 'qwen2', 'qwen3': 'qwen3',
             'gemma2': 'gemma2', 'gemma3': 'gemma3_text', 'phi3': 'phi3'}
_EPSILONS = dict(layernorm='attention.layer_norm_epsilon',
                 rmsnorm='attention.layer_norm_rms_epsilon')
# Field of ModelConfig → the tensor that files have if it is true, as no entry says so.
_BIASES = dict(qkv_bias='blk.0.attn_q.bias', output_bias='blk.0.attn_output.bias',
               mlp_bias='blk.0.ffn_up.bias')
# Field of ModelConfig → entry of the metadata, behind the name of the architecture.
_FIELDS = dict(
    vocab_size='vocab_size', width='embedding_length', mlp_width='feed_forward_length',
    num_layers='block_count', num_heads='attention.head_count', length='context_length',
    num_kv_heads='attention.head_count_kv', head_size='attention.key_length',
    score_cap='attn_logit_softcapping', logit_cap='final_logit_softcapping',
    **_BIASES)
# Entry of the metadata → of the settings of RoPE in config.json.
_SCALING = {'rope.scaling.type': 'rope_type', 'rope.scale_linear': 'factor',
            'rope.scaling.factor': 'factor'}
_YARN = {'rope.scaling.original_context_length': 'original_max_position_embeddings',
         'rope.scaling.yarn_beta_fast': 'beta_fast', 'rope.scaling.yarn_beta_slow': 'beta_slow'}
# Entry of the metadata → entry of config.json, in the architectures that have it.
_ROPE = {'rope.freq_base': 'rope_theta'}
_WINDOW = {'attention.sliding_window': 'sliding_window'}
_OTHERS = {'gpt2': {}, 'phi3': _ROPE | _WINDOW, 'gemma2': _ROPE | _WINDOW,
           'gemma3': _ROPE | _WINDOW | {
               'rope.freq_base_swa': 'rope_local_base_freq',
               'attention.sliding_window_pattern': 'sliding_window_pattern'}}
# Entries that change nothing if they have this value; None stands for any. All others are of
# what a model may have, and 0 or false says that it has none.
_IDLE = {'attention.causal': True, 'rope.scaling.attn_factor': 1.0,
         'rope.scaling.yarn_ext_factor': 1.0, 'rope.scaling.finetuned': None,
         'tensor_data_layout': None}
# Gemma divides scores by the root of the head size, but at 27B of width / num_heads. GGUF files do
# not say so, and llama.cpp knows these models by their number of layers.
_LAYERS_OF_27B = dict(gemma2=46, gemma3=62)
_MODULES = {
    'embedding': 'token_embd', 'position_embedding': 'position_embd', 'final_norm': 'output_norm'
} | {ours: f'blk.{{}}.{theirs}' for ours, theirs in {
    'blocks/attention_norm': 'attn_norm', 'blocks/query': 'attn_q', 'blocks/key': 'attn_k',
    'blocks/value': 'attn_v', 'blocks/query blocks/key blocks/value': 'attn_qkv',
    'blocks/query_norm': 'attn_q_norm', 'blocks/key_norm': 'attn_k_norm',
    'blocks/output': 'attn_output', 'blocks/attention_output_norm': 'post_attention_norm',
    'blocks/mlp_norm': 'ffn_norm', 'blocks/gate': 'ffn_gate', 'blocks/up': 'ffn_up',
    'blocks/gate blocks/up': 'ffn_up', 'blocks/down': 'ffn_down',
    'blocks/mlp_output_norm': 'post_ffw_norm'}.items()}
_ROPE_FACTORS = 'rope_freqs.weight'
# Entry of config.json that says how tensors lie → entry of the metadata.
_SIZES = {'hidden_size': 'embedding_length', 'num_attention_heads': 'attention.head_count',
          'rms_norm_eps': _EPSILONS['rmsnorm'], 'layer_norm_eps': _EPSILONS['layernorm']}
_BY_HEAD = 'attn_v_b.weight'
# Llama 3 had read so many positions before; nothing but the factors says so.
_LENGTHS = tuple(2**n for n in range(10, 18))


def is_gguf(path: str | os.PathLike) -> bool:
  """Whether a path has the name of a GGUF file, or is a file that begins like one, as Ollama's."""
  path = path_of(path)
  if path.name.lower().endswith(SUFFIX) or not path.is_file():
    return path.name.lower().endswith(SUFFIX) and not path.is_dir()
  with contextlib.suppress(OSError), path.open('rb') as file:
    return file.read(len(MAGIC)) == MAGIC
  return False


def read_entries(file: Path) -> dict:
  """The entries of config.json that a file of any architecture stands for: its kind and sizes."""
  metadata, tensors = _header(file)
  architecture = str(metadata.get('general.architecture'))
  known = None if metadata.get(f'{architecture}.expert_count') else _FAMILIES.get(architecture)
  entries = {'model_type': known or f'GGUF {architecture}'}
  if embedding := tensors.get('token_embd.weight'):
    entries['vocab_size'] = embedding.shape[0]
  for ours, theirs in _SIZES.items():
    value = metadata.get(f'{architecture}.{theirs}')
    if isinstance(value, tuple) and len(set(value)) == 1:
      value = value[0]  # Some have a number for each layer.
    if value is not None:
      entries[ours] = value
  return entries


def named_tensors(file: Path) -> list[Tensor]:
  """The tensors of a file of any architecture, by its names."""
  return [_joined(tensor) if tensor.stored_name.endswith(_BY_HEAD) else tensor
          for tensor in _header(file)[1].values()]


def _joined(tensor):
  """Rows of all heads [H K, inputs], of a tensor [H, K, inputs]."""
  size = tensor.shape[-1]
  return tensor._replace(
      shape=[math.prod(tensor.shape[:-1]), size],
      values=lambda first, last: tensor.values(0, None).reshape(-1, size)[first:last])


def open_gguf(file: Path) -> tuple[ModelConfig, Family, list[Tensor]]:
  """The configuration, the family with its names of GGUF, and the tensors of `transformers`."""
  metadata, found = _header(file)
  with naming(file):
    architecture = metadata.get('general.architecture')
    only('general.architecture', architecture, *_FAMILIES)
    family = _family(FAMILIES[_FAMILIES[architecture]])
    prefix = f'{architecture}.'
    given = _of_all_layers({name.removeprefix(prefix): value for name, value in metadata.items()
                            if name.startswith(prefix)})
    config = from_stored(_stored(architecture, family, given, found), family)
    if architecture != 'llama':
      return config, family, list(found.values())
    if factors := found.pop(_ROPE_FACTORS, None):
      config = _with_rope_factors(config, factors)
  return config, family, [_in_halves(tensor, config) for tensor in found.values()]


def _header(file):
  """Metadata and tensors of a whole model. A file is read again only if it has changed."""
  metadata, tensors = _read_header(file, file.exists() and stamp(file))
  return dict(metadata), dict(tensors)


@functools.lru_cache(maxsize=4)
def _read_header(file, stamped):
  metadata, tensors = read_header(file)
  with naming(file):
    if metadata.get('split.count', 0) not in (0, 1):
      raise InputError('it is one part of several; join them: llama-gguf-split --merge FIRST WHOLE')
    only('general.type', metadata.get('general.type', 'model'), 'model')
  return metadata, tensors


def _of_all_layers(given):
  """The entries; one with a number for each layer becomes that number if all are the same."""
  for name, value in given.items():
    if not isinstance(value, tuple) or name == 'attention.sliding_window_pattern':
      continue
    if len(value) != given.get('block_count') or len(set(value)) != 1:
      raise InputError(f'{show(name)}={show(value)} is not supported: one number for all layers is')
    given = given | {name: value[0]}
  return given


def _family(family):
  """A family under the names of GGUF: all kernels are [out, in], and gains are whole."""
  fields = {ours: _FIELDS.get(ours, theirs) for ours, theirs in family.fields.items()}
  defaults = {fields[ours]: family.defaults[theirs] for ours, theirs in family.fields.items()
              if theirs in family.defaults}
  return family._replace(
      fields=fields | {'norm_epsilon': _EPSILONS[family.constants['norm']]},
      defaults=family.defaults | defaults, base='', head='output', transposed=True, gain_less=0.0,
      modules={ours: _MODULES[ours] for ours in family.modules})


def _stored(architecture, family, given, found):
  """The entries of config.json; those in _FIELDS keep their names."""
  others = _OTHERS.get(architecture, _ROPE)
  known = {*family.fields.values(), *others} | (
      {*_SCALING, *_YARN, 'rope.dimension_count', 'attention.value_length'} if others else set())
  for name, value in given.items():
    is_idle = _IDLE[name] in (None, value) if name in _IDLE else not value
    if name not in known and not is_idle:
      raise InputError(f'{architecture}.{show(name)}={show(value)} is not supported')
  width, heads = (entry(given, _FIELDS[name], *COUNT) for name in ('width', 'num_heads'))
  given = {'attention.head_count_kv': heads, 'attention.key_length': width // heads} | given
  head_size = entry(given, 'attention.key_length', *COUNT)
  only('attention.value_length', given.get('attention.value_length', head_size), head_size)
  embedding = found.get(f'{_MODULES["embedding"]}.weight')
  stored = dict(
      vocab_size=embedding.shape[0] if embedding else None, hidden_act='silu',
      max_position_embeddings=given.get('context_length'),
      activation_function='gelu_new', tie_word_embeddings='output.weight' not in found,
      rope_theta=1e4, query_pre_attn_scalar=head_size,
      **{name: name in found for name in _BIASES.values()})
  if given.get('block_count') == _LAYERS_OF_27B.get(architecture):
    stored['query_pre_attn_scalar'] = width // heads
  stored |= given | {theirs: given[ours] for ours, theirs in others.items() if ours in given}
  if not stored.get('sliding_window', True):
    stored['sliding_window'] = None
  if architecture == 'gemma3' and not stored.get('sliding_window'):
    stored['sliding_window_pattern'] = 1  # No layer has one.
  if isinstance(slides_L := stored.get('sliding_window_pattern'), tuple):
    del stored['sliding_window_pattern']
    stored['layer_types'] = [SLIDING if slides else FULL for slides in slides_L]
  return stored | _rope(given, head_size)


def _rope(given, head_size):
  stored = {}
  if given.get('rope.dimension_count', head_size) != head_size:
    stored['partial_rotary_factor'] = entry(given, 'rope.dimension_count', *COUNT) / head_size
  # As llama.cpp has it: linear is meant where no type is given, and no factor, or 0, is 1.
  kind = given.get('rope.scaling.type', 'linear')
  names = _SCALING | (_YARN if kind == 'yarn' else {})
  scaling = dict(rope_type=kind, factor=0.0) | {
      theirs: given[ours] for ours, theirs in names.items() if ours in given}
  if kind not in ('none', 'linear', 'yarn') or (kind != 'none' and scaling['factor'] not in (0, 1)):
    stored['rope_scaling'] = scaling
  return stored


def _with_rope_factors(config, tensor):
  """The configuration with Llama 3's scaling of RoPE; files have only its quotients."""
  if tensor.shape != [config.rotary_size // 2]:
    raise InputError(f'{_ROPE_FACTORS} is {tensor.shape}; [{config.rotary_size // 2}] is right')
  factor_R = tensor.read()
  if (factor_R == 1).all():
    return config
  for length in _LENGTHS:
    scaling = RopeScaling('llama3', float(factor_R.max()), length, slow=1.0, fast=4.0)
    scaled = dataclasses.replace(config, rope_scaling=scaling)
    if np.allclose(frequencies(config) / frequencies(scaled), factor_R, rtol=1e-4):
      return scaled
  raise InputError(f'{_ROPE_FACTORS} is not as of Llama 3, which is all that is supported')


def _in_halves(tensor, config):
  """A tensor of Llama as `transformers` has it.

  In GGUF files RoPE turns channels 2 j and 2 j + 1 of a query or key together, in `transformers`
  channels j and j + rotary_size / 2.
  """
  heads = dict(attn_q=config.num_heads, attn_k=config.num_kv_heads).get(
      ''.join(tensor.stored_name.split('.')[-2:-1]))
  if heads is None:
    return tensor

  def values(first, last):
    stored = tensor.values(0, None)
    pairs = stored.reshape(heads, -1, 2, *stored.shape[1:])
    return pairs.swapaxes(1, 2).reshape(stored.shape)[first:last]

  return tensor._replace(values=values)
