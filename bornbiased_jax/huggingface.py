"""The door to Hugging Face: `load` and `save` directories of `transformers`, without torch or pickle.

One table per family says what `transformers` calls our fields and modules;
both directions follow it, so they cannot drift apart.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import json
import os
from pathlib import Path
import re
import reprlib
import shutil
from typing import Any, NamedTuple
import uuid

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.initialization import init_params


def _split_columns(tensor, heads):
  return np.split(tensor, 3, axis=-1)


def _split_heads(tensor, heads):
  tensor = tensor.reshape(*tensor.shape[:-1], heads, 3, -1)
  return [tensor[..., i, :] for i in range(3)]


class _Family(NamedTuple):
  """What `transformers` calls our fields and modules."""

  architecture: str
  fields: dict  # field of ModelConfig (or 'window') → entry of config.json
  defaults: dict  # entry of config.json → its value where absent; the others in `fields` must be there
  constants: dict  # fields of ModelConfig in which the family has no choice
  modules: dict  # our module (or several, fused into one) → theirs; '{}' is the layer
  base: str  # prefix of theirs, but for the head's; checkpoints may lack it
  head: str = 'lm_head'
  transposed: bool = True  # weights are [out, in]; our kernels are [in, out]
  split: Callable | None = None  # a fused [..., out] → views of its three parts
  whole_heads: bool = False  # hidden_size is a multiple of num_attention_heads even where head_dim is given
  rotary_factor: float = 1.0  # partial_rotary_factor where absent
  rope_entries: tuple = ('rope_theta',)  # of config.json before transformers 5, which has rope_parameters


_QKV = 'blocks/query blocks/key blocks/value'
_COMMON = dict(vocab_size='vocab_size', width='hidden_size', mlp_width='intermediate_size', activation='hidden_act',
               num_layers='num_hidden_layers', num_heads='num_attention_heads', length='max_position_embeddings',
               tied_head='tie_word_embeddings')
_GPT2 = _Family(
    architecture='GPT2LMHeadModel',
    fields=dict(vocab_size='vocab_size', width='n_embd', mlp_width='n_inner', activation='activation_function',
                num_layers='n_layer', num_heads='n_head', length='n_positions', tied_head='tie_word_embeddings',
                norm_epsilon='layer_norm_epsilon'),
    defaults=dict(n_inner=None, tie_word_embeddings=True),
    constants=dict(norm='layernorm', gated_mlp=False, positions='learned'),
    modules={'embedding': 'wte', 'position_embedding': 'wpe', 'final_norm': 'ln_f',
             'blocks/attention_norm': 'h.{}.ln_1', _QKV: 'h.{}.attn.c_attn', 'blocks/output': 'h.{}.attn.c_proj',
             'blocks/mlp_norm': 'h.{}.ln_2', 'blocks/up': 'h.{}.mlp.c_fc', 'blocks/down': 'h.{}.mlp.c_proj'},
    base='transformer.', transposed=False, split=_split_columns)
_GPT_NEOX = _Family(
    architecture='GPTNeoXForCausalLM',
    fields=_COMMON | dict(norm_epsilon='layer_norm_eps', qkv_bias='attention_bias', output_bias='attention_bias'),
    defaults=dict(attention_bias=True, tie_word_embeddings=False, use_parallel_residual=True),
    constants=dict(norm='layernorm', gated_mlp=False, positions='rope'),
    modules={'embedding': 'embed_in', 'final_norm': 'final_layer_norm',
             'blocks/attention_norm': 'layers.{}.input_layernorm', _QKV: 'layers.{}.attention.query_key_value',
             'blocks/output': 'layers.{}.attention.dense', 'blocks/mlp_norm': 'layers.{}.post_attention_layernorm',
             'blocks/up': 'layers.{}.mlp.dense_h_to_4h', 'blocks/down': 'layers.{}.mlp.dense_4h_to_h'},
    base='gpt_neox.', head='embed_out', split=_split_heads, rotary_factor=0.25,
    rope_entries=('rotary_emb_base', 'rotary_pct'))
_LLAMA = _Family(
    architecture='LlamaForCausalLM',
    fields=_COMMON | dict(norm_epsilon='rms_norm_eps', num_kv_heads='num_key_value_heads', head_size='head_dim',
                          qkv_bias='attention_bias', output_bias='attention_bias', mlp_bias='mlp_bias'),
    defaults=dict(num_key_value_heads=None, head_dim=None, attention_bias=False, mlp_bias=False,
                  tie_word_embeddings=False),
    constants=dict(norm='rmsnorm', gated_mlp=True, positions='rope'),
    modules={'embedding': 'embed_tokens', 'final_norm': 'norm',
             'blocks/attention_norm': 'layers.{}.input_layernorm', 'blocks/query': 'layers.{}.self_attn.q_proj',
             'blocks/key': 'layers.{}.self_attn.k_proj', 'blocks/value': 'layers.{}.self_attn.v_proj',
             'blocks/query_norm': 'layers.{}.self_attn.q_norm', 'blocks/key_norm': 'layers.{}.self_attn.k_norm',
             'blocks/output': 'layers.{}.self_attn.o_proj', 'blocks/mlp_norm': 'layers.{}.post_attention_layernorm',
             'blocks/gate': 'layers.{}.mlp.gate_proj', 'blocks/up': 'layers.{}.mlp.up_proj',
             'blocks/down': 'layers.{}.mlp.down_proj'},
    base='model.', whole_heads=True)


def _like_llama(architecture, defaults, constants, **more_fields):
  fields = {ours: name for ours, name in (_LLAMA.fields | more_fields).items() if ours not in constants}
  return _LLAMA._replace(architecture=architecture, fields=fields, defaults=_LLAMA.defaults | defaults,
                         constants=_LLAMA.constants | constants, whole_heads=False)


# In the order in which `save` tries them.
_FAMILIES = {
    'gpt2': _GPT2,
    'gpt_neox': _GPT_NEOX,
    'llama': _LLAMA,
    'mistral': _like_llama('MistralForCausalLM', dict(num_key_value_heads=8, sliding_window=4096),
                           dict(qkv_bias=False, output_bias=False, mlp_bias=False), window='sliding_window'),
    'qwen2': _like_llama('Qwen2ForCausalLM', dict(num_key_value_heads=32),
                         dict(qkv_bias=True, output_bias=False, mlp_bias=False)),
    'qwen3': _like_llama('Qwen3ForCausalLM', dict(num_key_value_heads=32, head_dim=128),
                         dict(mlp_bias=False, qk_norm=True)),
}
# Entries of config.json, of any family, with the one value that is what our Transformer computes.
_ONLY = dict(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False,
             use_parallel_residual=False, use_sliding_window=False, quantization_config=None)
_ACTIVATIONS = dict(gelu_new='gelu_tanh', gelu_pytorch_tanh='gelu_tanh', gelu_fast='gelu_tanh', gelu='gelu',
                    silu='silu', swish='silu', relu='relu', tanh='tanh')
_STORED_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
# All names that the settings of RoPE have had, inside rope_parameters, rope_scaling or neither.
_ROPE_NAMES = dict(rope_type='rope_type', type='rope_type', rope_theta='rope_theta', rotary_emb_base='rope_theta',
                   partial_rotary_factor='partial_rotary_factor', rotary_pct='partial_rotary_factor')

# What a value in config.json must be, in words and as a test (in which a bool is no number), by our field.
_is_count = lambda value: type(value) is int and 0 < value < 2**31
_COUNT = ('a whole number from 1 to 2147483647', _is_count)
_COUNT_OR_NULL = (_COUNT[0] + ' or null', lambda value: value is None or _is_count(value))
_NUMBER = ('a positive number below 1e30', lambda value: type(value) in (int, float) and 0 < value < 1e30)
_FLAG = ('true or false', lambda value: type(value) is bool)
_KINDS = {
    **dict.fromkeys(('vocab_size', 'width', 'length', 'num_layers', 'num_heads'), _COUNT),
    **dict.fromkeys(('mlp_width', 'num_kv_heads', 'head_size', 'window'), _COUNT_OR_NULL),
    **dict.fromkeys(('norm_epsilon', 'rope_theta'), _NUMBER),
    **dict.fromkeys(('qkv_bias', 'output_bias', 'mlp_bias', 'tied_head'), _FLAG),
    'activation': (f'one of {", ".join(_ACTIVATIONS)}', lambda value: type(value) is str and value in _ACTIVATIONS),
}
_UNSAVED = ('init_scheme', 'linear_std', 'embedding_std', 'dtype', 'remat')
_LARGEST_JSON = 100_000_000
_DTYPES = ('F32', 'F16', 'BF16')
_HEADS = ('lm_head.weight', 'embed_out.weight')
_BUFFERS = re.compile(r'.*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq')


def load(path) -> tuple[ModelConfig, dict]:
  """Reads a GPT-2, Llama, Mistral, Qwen2, Qwen3 or (sequential) GPT-NeoX checkpoint.

  Names, shapes and types of all tensors are checked before memory is taken;
  then one leaf of the result is filled at a time.

  Args:
    path: directory with config.json and either model.safetensors or
      model.safetensors.index.json and its shards; float32, float16 or bfloat16.

  Returns:
    The configuration, and its parameters as float32 arrays in the tree of
    `initialization.init_params`. What config.json does not say (how weights
    are drawn and what is computed in) has ModelConfig's defaults.

  Raises:
    InputError: a file is missing, broken or of a model that
      `transformer.Transformer` is not; the message names it.
  """
  path = Path(path)
  if not os.path.isdir(path):
    raise InputError(f'{path} is not a directory; give the one that holds config.json and model.safetensors')
  config, family = _read_config(path / 'config.json')
  with contextlib.ExitStack() as stack:
    tensors = _open(path, family, stack)
    shapes = _leaf_shapes(config)
    groups = list(_groups(config, family, shapes))
    _check(path, tensors, groups, family)
    params = {}
    for group in groups:
      leaves = [np.empty(shapes[name], np.float32) for name in group.leaves]
      for name, index in group.stored():
        for ours, theirs in group.aligned(leaves, index, tensors[name].read(), config, family):
          ours[...] = theirs
      params |= zip(group.leaves, map(jax.device_put, leaves), strict=True)
    _check_tied(tensors, params, family)
  return config, unflatten_dict(params, sep='/')


def save(path, config: ModelConfig, params: dict) -> None:
  """Writes a directory that `transformers.AutoModelForCausalLM.from_pretrained` loads.

  It appears complete or not at all. How weights were drawn (init_scheme,
  linear_std, embedding_std) and what is computed in (dtype, remat) have no
  place in it.

  Args:
    path: directory to make; absent or empty.
    config: the architecture.
    params: its parameters, as from `initialization.init_params`.

  Raises:
    InputError: no family of `transformers` computes this (the fields in the
      way are named), the parameters are not of this configuration, or `path`
      has something in it or cannot be written.
  """
  path = Path(os.path.realpath(path))
  name, family = _choose(config)
  _check_params(config, params)
  partial = path.with_name(f'.{path.name}.{uuid.uuid4().hex}')
  try:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
      raise InputError(f'{path} exists and is not an empty directory; give a new one')
    partial.mkdir(parents=True)
    header = dict(model_type=name, architectures=[family.architecture], dtype='float32', bos_token_id=None,
                  eos_token_id=None)
    (partial / 'config.json').write_text(json.dumps(header | _to_stored(config, family), indent=2) + '\n')
    # Older versions of transformers refuse a file that does not say whose layout it has.
    save_file(_stored_tensors(config, family, params), partial / 'model.safetensors', metadata=dict(format='pt'))
    # safetensors writes a file that nobody else can read.
    shutil.copymode(partial / 'config.json', partial / 'model.safetensors')
    partial.rename(path)
  except (OSError, SafetensorError) as error:
    raise InputError(f'{path} cannot be written: {_show(error)}') from None
  finally:
    shutil.rmtree(partial, ignore_errors=True)


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 200


def _show(value) -> str:
  """What a stranger wrote, fit for one line."""
  return _REPR.repr(str(value) if isinstance(value, Exception) else value)


# config.json ⇄ ModelConfig


def _read_json(file):
  if not os.path.isfile(file):
    raise InputError(f'{file} is missing or unreadable')
  try:
    if file.stat().st_size > _LARGEST_JSON:
      raise ValueError(f'it has more than {_LARGEST_JSON} bytes')
    content = json.loads(file.read_text(encoding='utf-8'))
  except (OSError, ValueError, RecursionError) as error:
    raise InputError(f'{file} is not JSON: {_show(error)}') from None
  if not isinstance(content, dict):
    raise InputError(f'{file} must hold a JSON object {{…}}')
  return content


def _read_config(file):
  stored = _read_json(file)
  try:
    name = stored.get('model_type')
    family = _FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
      raise InputError(f'model_type={_show(name)} is not supported; {", ".join(_FAMILIES)} are')
    if stored.get('architectures'):
      _only(stored, 'architectures', [family.architecture])
    return _from_stored(stored, family), family
  except (InputError, RecursionError) as error:
    raise InputError(f'{file}: {error}') from None


def _from_stored(stored, family):
  stored = _ONLY | family.defaults | stored
  values = {ours: _entry(stored, name, *_KINDS[ours]) for ours, name in family.fields.items()}
  values['activation'] = _ACTIVATIONS[values['activation']]
  values['mlp_width'] = values['mlp_width'] or 4 * values['width']
  # Up to the window's length, attention within a window is full attention.
  values['length'] = min(values['length'], values.pop('window', None) or values['length'])
  for name, wanted in _ONLY.items():
    _only(stored, name, wanted)
  for layer_type in _of_type(stored, 'layer_types', list):
    if layer_type != 'full_attention':
      raise InputError(f"layer_types with {_show(layer_type)} is not supported; 'full_attention' is")
  if family.whole_heads and values['width'] % values['num_heads']:
    raise InputError(f'num_attention_heads={values["num_heads"]} does not divide hidden_size={values["width"]}')
  if family.constants['positions'] == 'rope':
    values['rope_theta'] = _rope_theta(stored, family)
  return ModelConfig(**values, **family.constants)


def _entry(stored, name, words, is_right):
  if name not in stored:
    raise InputError(f'{name} is missing; it must be {words}')
  if not is_right(stored[name]):
    raise InputError(f'{name}={_show(stored[name])} must be {words}')
  return stored[name]


def _only(stored, name, wanted):
  if stored[name] != wanted:
    raise InputError(f'{name}={_show(stored[name])} is not supported; {_show(wanted)} is')


def _of_type(stored, name, kind):
  value = stored.get(name)
  if not isinstance(value, kind | None):
    raise InputError(f'{name}={_show(value)} must be a JSON {"object" if kind is dict else "array"}')
  return value or kind()


def _rope_theta(stored, family):
  rope = {}
  entries = {name: stored.get(name) for name in _ROPE_NAMES if name != 'type'}
  for place in (entries, _of_type(stored, 'rope_parameters', dict), _of_type(stored, 'rope_scaling', dict)):
    for name, value in place.items():
      name = _ROPE_NAMES.get(name, name)
      if value is not None and rope.setdefault(name, value) != value:
        raise InputError(f'{name} is both {_show(rope[name])} and {_show(value)}')
  rope = dict(rope_type='default', rope_theta=10000.0, partial_rotary_factor=family.rotary_factor) | rope
  _only(rope, 'rope_type', 'default')
  _only(rope, 'partial_rotary_factor', 1.0)
  if unknown := rope.keys() - _ROPE_NAMES.keys():
    raise InputError(f'RoPE with {_show(min(unknown))} is not supported; rope_type and rope_theta are')
  return _entry(rope, 'rope_theta', *_KINDS['rope_theta'])


def _to_stored(config, family):
  stored = {theirs: getattr(config, ours, None) for ours, theirs in family.fields.items()}
  stored[family.fields['activation']] = _STORED_ACTIVATIONS[config.activation]
  stored |= {name: _ONLY[name] for name in family.defaults if name in _ONLY}
  if family.constants['positions'] == 'rope':
    rope = dict(rope_type='default', rope_theta=float(config.rope_theta), partial_rotary_factor=1.0)
    stored |= {name: rope[_ROPE_NAMES[name]] for name in family.rope_entries} | dict(rope_parameters=rope)
  return stored


def _choose(config):
  """The first family that can say all of `config`: it comes back from the family's words the same."""
  misfits = {}
  ignored = _UNSAVED + ('rope_theta',) * (config.positions == 'learned')
  for name, family in _FAMILIES.items():
    try:
      back = _from_stored(_to_stored(config, family), family)
      misfits[name] = [f'{field}={value!r}' for field, value in dataclasses.asdict(config).items()
                       if field not in ignored and value != getattr(back, field)]
    except InputError as error:
      misfits[name] = [str(error)]
    if not misfits[name]:
      return name, family
  unlike = lambda family: sum(getattr(config, field) != value for field, value in family.constants.items())
  nearest = min(misfits, key=lambda name: (unlike(_FAMILIES[name]), len(misfits[name])))
  raise InputError(f'transformers has no such model; {nearest} comes near, but for {", ".join(misfits[nearest])}')


# Tensors ⇄ parameters


class _Tensor(NamedTuple):
  """A tensor that is in a file; nothing of it is read before `read`."""

  file: Path
  stored_name: str
  handle: Any

  def read(self):
    return self.handle.get_tensor(self.stored_name)


class _Group(NamedTuple):
  """One weight or bias of a module, in all layers, and the leaves of ours that it is."""

  template: str
  leaves: tuple
  layers: int | None  # None: not in a block, and the leaf has no layer axis
  shape: tuple  # of a stored tensor
  transposed: bool

  def stored(self):
    """(Name of a stored tensor, its index in our leaves) of each layer."""
    return ((self.template.format(i), i) for i in ((...,) if self.layers is None else range(self.layers)))

  def aligned(self, leaves, index, tensor, config, family):
    """(Part of our leaf at `index`, its place in the stored tensor), two views of one shape, of each leaf."""
    tensor = tensor.T if self.transposed else tensor
    parts = family.split(tensor, config.num_heads) if len(leaves) > 1 else [tensor]
    return [(leaf[index].reshape(part.shape), part) for leaf, part in zip(leaves, parts, strict=True)]


def _leaf_shapes(config):
  tree = jax.eval_shape(functools.partial(init_params, config), 0)
  return {name: leaf.shape for name, leaf in flatten_dict(tree, sep='/').items()}


def _groups(config, family, shapes):
  modules = {ours: family.base + theirs for ours, theirs in family.modules.items()} | dict(head=family.head)
  for ours, theirs in modules.items():
    for ending, suffix in (('', '.weight'), ('/scale', '.weight'), ('/kernel', '.weight'), ('/bias', '.bias')):
      leaves = tuple(module + ending for module in ours.split())
      if leaves[0] in shapes:
        layers = config.num_layers if '{}' in theirs else None
        parts = [shapes[leaf][layers is not None:] for leaf in leaves]
        shape = (*parts[0][:-1], sum(part[-1] for part in parts))
        transposed = family.transposed and ending == '/kernel'
        yield _Group(theirs + suffix, leaves, layers, shape[::-1] if transposed else shape, transposed)


def _files(path):
  """The safetensors files of a checkpoint."""
  whole, index = path / 'model.safetensors', path / 'model.safetensors.index.json'
  if os.path.isfile(whole):
    return [whole]
  if os.path.isfile(index):
    return _shards(index)
  for other in [other for ending in ('bin', 'pt', 'pth') for other in sorted(path.glob(f'*.{ending}'))]:
    raise InputError(f'{path}: {_show(other.name)} is a pickle, which could run code; convert it with python -c "from '
                     f"transformers import AutoModelForCausalLM as M; M.from_pretrained('{path}').save_pretrained("
                     f"'{path}', safe_serialization=True)\"")
  raise InputError(f'{path} has neither {whole.name} nor {index.name}')


def _shards(index):
  weight_map = _read_json(index).get('weight_map')
  if not (isinstance(weight_map, dict) and weight_map):
    raise InputError(f'{index}: weight_map={_show(weight_map)} must be a JSON object from tensors to shards')
  for name in weight_map.values():
    # With a separator it could lead out of the directory.
    if not (isinstance(name, str) and re.fullmatch(r'[\w.-]+\.safetensors', name)):
      raise InputError(f'{index}: shard {_show(name)} must be the name of a .safetensors file beside it')
    if not os.path.isfile(index.parent / name):
      raise InputError(f'{index.parent / name} is missing; {index.name} asks for it')
  return [index.parent / name for name in sorted(set(weight_map.values()))]


def _open(path, family, stack):
  """All tensors by the name they have in the family; reads headers only."""
  tensors = {}
  for file in _files(path):
    try:
      # NumPy knows bfloat16 because jax imports ml_dtypes.
      handle = stack.enter_context(safe_open(file, framework='np'))
    except (SafetensorError, OSError) as error:
      raise InputError(f'{file} is not a whole safetensors file: {_show(error)}') from None
    for stored_name in handle.keys():
      name = stored_name if stored_name.startswith(family.base) else family.base + stored_name
      name = f'{family.head}.weight' if stored_name in _HEADS else name
      if name in tensors:
        raise InputError(f'{file}: tensor {_show(stored_name)} is a second {_show(name)}')
      tensors[name] = _Tensor(file, stored_name, handle)
  return tensors


def _check(path, tensors, groups, family):
  known = {f'{family.head}.weight'}
  for group in groups:
    for name, _ in group.stored():
      if name not in tensors:
        raise InputError(f'{path}: no safetensors file has tensor {name} {list(group.shape)}')
      tensor = tensors[name].handle.get_slice(tensors[name].stored_name)
      for given, wanted in ((tensor.get_shape(), [list(group.shape)]), (tensor.get_dtype(), _DTYPES)):
        if given not in wanted:
          wanted = ' or '.join(map(str, wanted))
          raise InputError(f'{tensors[name].file}: tensor {name} is {given}; config.json needs {wanted}')
      known.add(name)
  for name in sorted(tensors.keys() - known):
    if not _BUFFERS.fullmatch(name):
      raise InputError(f'{tensors[name].file}: tensor {_show(tensors[name].stored_name)} has no place in this model')


def _check_tied(tensors, params, family):
  head = tensors.get(f'{family.head}.weight')
  if head and 'head' not in params and not np.array_equal(params['embedding'], head.read(), equal_nan=True):
    raise InputError(f'{head.file}: {head.stored_name} is not the embedding, but tie_word_embeddings is true')


def _check_params(config, params):
  leaves, shapes = flatten_dict(params, sep='/'), _leaf_shapes(config)
  for name in sorted(shapes.keys() | leaves.keys()):
    given = f'{leaves[name].dtype}{list(leaves[name].shape)}' if name in leaves else 'absent'
    wanted = f'float32{list(shapes[name])}' if name in shapes else 'absent'
    if given != wanted:
      raise InputError(f'params are not of this configuration: {name} is {given} and should be {wanted}')


def _stored_tensors(config, family, params):
  leaves, tensors = flatten_dict(params, sep='/'), {}
  for group in _groups(config, family, _leaf_shapes(config)):
    parts = [np.asarray(leaves[name]) for name in group.leaves]
    for name, index in group.stored():
      tensors[name] = np.empty(group.shape, np.float32)
      for ours, theirs in group.aligned(parts, index, tensors[name], config, family):
        theirs[...] = ours
  return tensors
