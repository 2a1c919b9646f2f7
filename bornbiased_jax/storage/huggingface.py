"""The door to Hugging Face: directories of `transformers`, without torch or pickle."""

import contextlib
import functools
import json
import os
from pathlib import Path
import re
import shutil
from typing import Any, NamedTuple
import uuid

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data.tokenizers import Tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage.huggingface_config import choose_family, read_config, to_stored
from bornbiased_jax.storage.huggingface_entries import read_json, show

_DTYPES = ('F32', 'F16', 'BF16')
_HEADS = ('lm_head.weight', 'embed_out.weight')
# Tensors that older versions stored although they are no weights.
_BUFFERS = re.compile(r'.*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq')


def load(path: str | os.PathLike,
         mesh: jax.sharding.Mesh | None = None) -> tuple[ModelConfig, dict]:
  """Loads a checkpoint of one of the families in `huggingface_families.FAMILIES`.

  These are GPT-2, GPT-NeoX (Pythia), Llama (SmolLM2, TinyLlama), Mistral, Qwen2, Qwen3, OLMo 2,
  OLMo 3, Gemma 2, Gemma 3 (text) and Phi-3.

  The names, shapes and types of all tensors are checked before any memory is
  taken. Then the leaves of the result are filled one after another.

  Args:
    path: directory with config.json and either model.safetensors or
      model.safetensors.index.json and its shards. Their tensors are float32,
      float16 or bfloat16.
    mesh: from `sharding.make_mesh`. Each leaf is spread over it before the next
      is read, so that the host holds one leaf at a time. By default one device
      holds the network.

  Returns:
    The configuration, and the parameters as float32 arrays in the tree of
    `initialization.init_params`. Gains of norms are what these multiply by, also of Gemma,
    which stores them less 1. Fields that config.json does not contain (how
    weights are drawn, and in which type to compute) have ModelConfig's defaults.

  Raises:
    InputError: a file is missing or broken, or describes a model that
      `transformer.Transformer` cannot compute. The message names the file.
  """
  path = Path(path)
  config, family = _config(path)
  with contextlib.ExitStack() as stack:
    tensors = _open(path, family, stack)
    shapes = _leaf_shapes(config)
    groups = list(_groups(config, family, shapes))
    placed = _placed(mesh, shapes)
    _check(path, tensors, groups, family)
    params: dict[str, jax.Array] = {}
    for group in groups:
      leaves = [np.empty(shapes[name], np.float32) for name in group.leaves]
      for name, index in group.stored():
        for ours, theirs in group.aligned(leaves, index, tensors[name].read(), config, family):
          ours[...] = theirs
          if group.shift:
            ours += group.shift
      params |= {name: jax.device_put(leaf, placed[name])
                 for name, leaf in zip(group.leaves, leaves, strict=True)}
    _check_tied(tensors, params, family)
  return config, unflatten_dict(params, sep='/')


def _placed(mesh, shapes):
  leaves = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
  return flatten_dict(sharding.shardings(mesh, unflatten_dict(leaves, sep='/')), sep='/')


def load_config(path: str | os.PathLike) -> ModelConfig:
  """The configuration alone; raises InputError as `load` does."""
  return _config(Path(path))[0]


def _config(path):
  if not os.path.isdir(path):
    raise InputError(f'{path} is not a directory; give the one that holds config.json and '
                     'model.safetensors')
  return read_config(path / 'config.json')


def save(path: str | os.PathLike, config: ModelConfig, params: dict,
         tokenizer: Tokenizer | None = None) -> None:
  """Writes a directory that `transformers.AutoModelForCausalLM.from_pretrained` can load.

  The directory appears complete or not at all. It does not say how weights were
  drawn (init_scheme, linear_std, embedding_std) nor how the network is computed
  (dtype, remat), because config.json has no entries for that. All parameters come back
  exactly, except gains of Gemma below 1/2: stored less 1, they are rounded by up to 3e-8.

  Args:
    path: directory to make; it must be missing or empty.
    config: the architecture.
    params: its parameters, as from `initialization.init_params`.
    tokenizer: from `tokenizers.load`. `AutoTokenizer.from_pretrained` then loads one
      that gives the same ids, and `generate` stops where a document ends. A model of
      the family qwen2 cannot have one, as `transformers` 5 always takes Qwen2's own.

  Raises:
    InputError: no family of `transformers` computes this architecture (the
      message names the fields in the way), the parameters do not belong to the
      configuration, `transformers` cannot have this tokenizer (`tokenizer_files`), or
      `path` is not empty or cannot be written.
  """
  path = Path(os.path.realpath(path))
  name, family = choose_family(config)
  _check_params(config, params)
  files = _tokenizer_files(name, config, tokenizer) if tokenizer else {}
  partial = path.with_name(f'.{path.name}.{uuid.uuid4().hex}')
  try:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
      raise InputError(f'{path} exists and is not an empty directory; give a new one')
    partial.mkdir(parents=True)
    header = dict(model_type=name, architectures=[family.architecture], dtype='float32',
                  bos_token_id=None, pad_token_id=None,
                  eos_token_id=tokenizer.end_id if tokenizer else None)
    stored = json.dumps(header | to_stored(config, family), indent=2) + '\n'
    for file, content in (files | {'config.json': stored.encode()}).items():
      (partial / file).write_bytes(content)
    # Older versions of transformers refuse a file whose metadata has no format.
    save_file(_stored_tensors(config, family, params), partial / 'model.safetensors',
              metadata=dict(format='pt'))
    # safetensors lets only the owner read its file, so take the usual permissions.
    shutil.copymode(partial / 'config.json', partial / 'model.safetensors')
    partial.rename(path)
  except (OSError, SafetensorError) as error:
    raise InputError(f'{path} cannot be written: {show(error)}') from None
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _tokenizer_files(family_name, config, tokenizer):
  if family_name == 'qwen2':
    raise InputError('transformers 5 takes the tokenizer of every qwen2 model for Qwen2\'s own; '
                     'save it without one')
  if tokenizer.vocab_size > config.vocab_size:
    raise InputError(f'tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids, and the model '
                     f'only vocab_size={config.vocab_size}')
  return tokenizer.files()


class _Tensor(NamedTuple):
  """A tensor in a file. Its values are not read before `read`."""

  file: Path
  stored_name: str
  handle: Any

  def read(self):
    return self.handle.get_tensor(self.stored_name)


class _Group(NamedTuple):
  """One weight or bias of a module, in all layers, and the leaves of our tree that hold it."""

  template: str
  leaves: tuple
  layers: int | None  # None for a module outside the blocks, whose leaf has no layer axis
  shape: tuple  # shape of a stored tensor
  transposed: bool
  shift: np.float32  # our value less the stored one

  def stored(self):
    """For each layer, the name of the stored tensor and its index in our leaves."""
    indices = (...,) if self.layers is None else range(self.layers)
    return ((self.template.format(i), i) for i in indices)

  def aligned(self, leaves, index, tensor, config, family):
    """For each leaf, its part at `index` and its part of the stored tensor: views of one shape."""
    tensor = tensor.T if self.transposed else tensor
    sizes = [leaf.shape[-1] for leaf in leaves]
    parts = family.split(tensor, sizes, config.num_heads) if len(leaves) > 1 else [tensor]
    return [(leaf[index].reshape(part.shape), part)
            for leaf, part in zip(leaves, parts, strict=True)]


def _leaf_shapes(config):
  tree = jax.eval_shape(functools.partial(init_params, config), 0)
  return {name: leaf.shape for name, leaf in flatten_dict(tree, sep='/').items()}


def _groups(config, family, shapes):
  modules = {ours: family.base + theirs for ours, theirs in family.modules.items()}
  endings = {'': '.weight', '/scale': '.weight', '/kernel': '.weight', '/bias': '.bias'}
  for ours, theirs in (modules | dict(head=family.head)).items():
    for ending, suffix in endings.items():
      leaves = tuple(module + ending for module in ours.split())
      if leaves[0] in shapes:
        layers = config.num_layers if '{}' in theirs else None
        parts = [shapes[leaf][layers is not None:] for leaf in leaves]
        shape = (*parts[0][:-1], sum(part[-1] for part in parts))
        transposed = family.transposed and ending == '/kernel'
        shape = shape[::-1] if transposed else shape
        shift = np.float32(family.gain_less if ending == '/scale' else 0)
        yield _Group(theirs + suffix, leaves, layers, shape, transposed, shift)


def _files(path):
  """The safetensors files of a checkpoint."""
  whole, index = path / 'model.safetensors', path / 'model.safetensors.index.json'
  if os.path.isfile(whole):
    return [whole]
  if os.path.isfile(index):
    return _shards(index)
  for pickled in [file for ending in ('bin', 'pt', 'pth')
                  for file in sorted(path.glob(f'*.{ending}'))]:
    raise InputError(
        f'{path}: {show(pickled.name)} is a pickle, which could run code; convert it with '
        'python -c "from transformers import AutoModelForCausalLM as M; '
        f"M.from_pretrained('{path}').save_pretrained('{path}', safe_serialization=True)\"")
  raise InputError(f'{path} has neither {whole.name} nor {index.name}')


def _shards(index):
  weight_map = read_json(index).get('weight_map')
  if not (isinstance(weight_map, dict) and weight_map):
    raise InputError(f'{index}: weight_map={show(weight_map)} must be a JSON object from tensors '
                     'to shards')
  for name in weight_map.values():
    # A name with a path separator could lead out of the directory.
    if not (isinstance(name, str) and re.fullmatch(r'[\w.-]+\.safetensors', name)):
      raise InputError(f'{index}: shard {show(name)} must be the name of a .safetensors file '
                       'beside it')
    if not os.path.isfile(index.parent / name):
      raise InputError(f'{index.parent / name} is missing; {index.name} asks for it')
  return [index.parent / name for name in sorted(set(weight_map.values()))]


def _open(path, family, stack):
  """All tensors, by the names that the family gives them. Reads headers only."""
  tensors = {}
  for file in _files(path):
    try:
      # NumPy knows bfloat16 here because jax imports ml_dtypes.
      handle = stack.enter_context(safe_open(file, framework='np'))
    except (SafetensorError, OSError) as error:
      raise InputError(f'{file} is not a whole safetensors file: {show(error)}') from None
    for stored_name in handle.keys():
      name = stored_name if stored_name.startswith(family.base) else family.base + stored_name
      name = f'{family.head}.weight' if stored_name in _HEADS else name
      if name in tensors:
        raise InputError(f'{file}: tensor {show(stored_name)} is a second {show(name)}')
      tensors[name] = _Tensor(file, stored_name, handle)
  return tensors


def _check(path, tensors, groups, family):
  known = {f'{family.head}.weight'}
  for group in groups:
    for name, _ in group.stored():
      if name not in tensors:
        raise InputError(f'{path}: no safetensors file has tensor {name} {list(group.shape)}')
      tensor = tensors[name].handle.get_slice(tensors[name].stored_name)
      for given, wanted in ((tensor.get_shape(), [list(group.shape)]),
                            (tensor.get_dtype(), _DTYPES)):
        if given not in wanted:
          wanted = ' or '.join(map(str, wanted))
          raise InputError(f'{tensors[name].file}: tensor {name} is {given}; config.json needs '
                           f'{wanted}')
      known.add(name)
  for name in sorted(tensors.keys() - known):
    if not _BUFFERS.fullmatch(name):
      raise InputError(f'{tensors[name].file}: tensor {show(tensors[name].stored_name)} has no '
                       'place in this model')


def _check_tied(tensors, params, family):
  head = tensors.get(f'{family.head}.weight')
  is_embedding = lambda head: np.array_equal(params['embedding'], head.read(), equal_nan=True)
  if head and 'head' not in params and not is_embedding(head):
    raise InputError(f'{head.file}: {head.stored_name} is not the embedding, but '
                     'tie_word_embeddings is true')


def _check_params(config, params):
  leaves, shapes = flatten_dict(params, sep='/'), _leaf_shapes(config)
  for name in sorted(shapes.keys() | leaves.keys()):
    given = f'{leaves[name].dtype}{list(leaves[name].shape)}' if name in leaves else 'absent'
    wanted = f'float32{list(shapes[name])}' if name in shapes else 'absent'
    if given != wanted:
      raise InputError(f'params are not of this configuration: {name} is {given} and should be '
                       f'{wanted}')


def _stored_tensors(config, family, params):
  leaves, tensors = flatten_dict(params, sep='/'), {}
  for group in _groups(config, family, _leaf_shapes(config)):
    parts = [np.asarray(leaves[name]) for name in group.leaves]
    for name, index in group.stored():
      tensors[name] = np.empty(group.shape, np.float32)
      for ours, theirs in group.aligned(parts, index, tensors[name], config, family):
        theirs[...] = ours - group.shift if group.shift else ours
  return tensors
