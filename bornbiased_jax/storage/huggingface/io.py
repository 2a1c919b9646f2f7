"""Loads and saves Hugging Face model folders, without torch or pickle."""

from collections.abc import Callable, Iterable
import contextlib
import dataclasses
import functools
import json
import math
import os
from pathlib import Path
import re

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data.tokenizers import Tokenizer
from bornbiased_jax.errors import InputError, show, unlike
from bornbiased_jax.files import read_json
from bornbiased_jax.models import sharding
from bornbiased_jax.storage.huggingface import adapters
from bornbiased_jax.storage.huggingface.config import choose_family, parse_config, to_stored
from bornbiased_jax.storage.huggingface.families import (
  FAMILIES,
  IN_MEMORY,
  Family,
  Group,
  groups,
  in_memory,
  leaf_shapes,
)
from bornbiased_jax.storage.huggingface.gguf import is_gguf, open_gguf
from bornbiased_jax.storage.huggingface.quantized import AUXILIARY, dequantized
from bornbiased_jax.storage.huggingface.tensors import (
  DTYPES,
  WHOLE,
  Tensor,
  open_tensors,
  refuse_file,
  write_folder,
)
from bornbiased_jax.storage.layers import ROWS, Layers

_HEADS = {f'{family.head}.weight' for family in FAMILIES.values()}
# Tensors that no logits need: what older versions stored although it is no weight, what belongs to
# quantized activations, and heads that guess tokens further on.
_LEFT_OUT = re.compile(r'.*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq|'
                       rf'.*\.({AUXILIARY.pattern})|\w+\.mtp\w*\..*')


def load(path: str | os.PathLike, mesh: jax.sharding.Mesh | None = None,
         adapter: str | os.PathLike | None = None) -> tuple[ModelConfig, dict]:
  """Loads a checkpoint of one of the families in `families.FAMILIES`.

  These are GPT-2, GPT-NeoX (Pythia), Llama (SmolLM2, TinyLlama), Mistral, Qwen2, Qwen3, OLMo 2,
  OLMo 3, Gemma 2, Gemma 3 (text), Phi-3, and with experts Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE.

  The names, shapes and types of all tensors are checked before any memory is
  taken. Then the leaves of the result are filled one after another.

  Args:
    path: directory with config.json and either model.safetensors or
      model.safetensors.index.json and its shards. Their tensors are float32,
      float16 or bfloat16. Or a GGUF file (`gguf.py`), whose tensors are dequantized.
    mesh: from `sharding.make_mesh`. Each leaf is spread over it before the next
      is read, so that the host holds one leaf at a time. By default one device
      holds the model.
    adapter: directory of an adapter of PEFT (`adapters`), which is merged into the tensors.

  Returns:
    The configuration, and the parameters as float32 arrays in the tree of
    `initialization.init_params`. Gains of norms are what these multiply by, also of Gemma,
    which stores them less 1. How weights are drawn is what `transformers` makes of
    `initializer_range`; dtype and remat have ModelConfig's defaults.

  Raises:
    InputError: a file is missing or broken, or describes a model that
      `transformer.Transformer` cannot compute. The message names the file.
  """
  return open_files(path, adapter).load(mesh)


def load_config(path: str | os.PathLike,
                adapter: str | os.PathLike | None = None) -> ModelConfig:
  """Only the configuration; raises InputError as `load` does."""
  return open_files(path, adapter).config


class Files:
  """A checkpoint that `load` can load, in its files. Its configuration is read once.

  Weights need not be there before they are asked for. Made by `open_files`.
  """

  def __init__(self, path: Path, base: ModelConfig, family: Family,
               tensors: Callable[[], Iterable[Tensor]], adapter: adapters.Adapter | None):
    self._path, self.stored_config, self._family = path, base, family
    self._tensors, self._adapter = tensors, adapter

  @functools.cached_property
  def config(self) -> ModelConfig:
    """The configuration, with a head of its own if the weights, or the adapter, have one."""
    config = self.stored_config
    if config.tied_head and self._adapter and self._adapter.unties(config, self._family):
      return dataclasses.replace(config, tied_head=False)
    with contextlib.suppress(InputError):  # Weights are checked when they are asked for.
      return self._base[0]
    return config

  @functools.cached_property
  def _base(self):
    """The configuration without an adapter, and the tensors by name. The head is read for it."""
    tensors = _named(self._family, self._tensors())
    family = self._family
    embedding = f'{family.base}{family.modules["embedding"]}.weight'
    return untied(self.stored_config, tensors, embedding, f'{family.head}.weight'), tensors

  def load(self, mesh: jax.sharding.Mesh | None = None) -> tuple[ModelConfig, dict]:
    """The configuration and the parameters, as the function `load` returns them."""
    config, tensors, wanted = self._checked(self._adapter)
    return filled(config, tensors, wanted, mesh)

  def layers(self) -> Layers:
    """The parameters; only what is asked for is read.

    No file stays open or mapped between two reads. Raises InputError as `load` does; so does a read
    of a file that is gone or has changed meanwhile.
    """
    return _layers(*self._checked(self._adapter))

  def digests(self) -> dict[str, str]:
    """The digests of the base and of its adapter, if it has one; both are read for it."""
    own = {'adapter': self._adapter.digest()} if self._adapter else {}
    return {'base': _layers(*self._checked(None)).digest()} | own

  def _checked(self, adapter):
    """What is known of it from its headers, all of it checked."""
    config, tensors = self._base
    family = in_memory(self._family, tensors)
    wanted = list(groups(config, family, leaf_shapes(config)))
    check_all(self._path, tensors, wanted, f'{family.head}.weight')
    if adapter is not None:
      config, tensors = adapters.merge(adapter, config, family, tensors)
      wanted = list(groups(config, family, leaf_shapes(config)))  # An untied head is one more.
    return config, tensors, wanted


def open_files(path: str | os.PathLike, adapter: str | os.PathLike | None = None,
               entries: dict | None = None) -> Files:
  """Reads config.json, or the header of a GGUF file; raises InputError as `load` does.

  config.json itself stands for its folder. `entries` are its entries, if it was read already.
  """
  if not isinstance(path, str | os.PathLike):
    raise unlike(path, 'a path')
  path = Path(path)
  path = path.parent if path.name == 'config.json' else path
  if path.is_file():
    refuse_file(path)
  if is_gguf(path):
    if adapter is not None:
      raise InputError(f'{path}: an adapter needs its base as a Hugging Face model folder, as a '
                       'GGUF file has other names')
    config, family, found = open_gguf(path)
    return Files(path, config, family, lambda: found, None)
  if (path / adapters.CONFIG).is_file():
    raise InputError(f'{path} holds an adapter ({adapters.CONFIG}), which goes with a base: '
                     'BASE+ADAPTER; if a model is there too, move the adapter to a folder of its '
                     'own')
  file = path / 'config.json'
  config, family, quantization = parse_config(read_json(file) if entries is None else entries, file)
  return Files(path, config, family, lambda: dequantized(open_tensors(path), quantization),
               None if adapter is None else adapters.read_adapter(Path(adapter)))


def filled(config: ModelConfig, tensors: dict[str, Tensor], wanted: list[Group],
           mesh: jax.sharding.Mesh | None = None) -> tuple[ModelConfig, dict]:
  """The configuration, and the parameters of tensors that were checked, one leaf after another."""
  shapes = leaf_shapes(config)
  placed = _placed(mesh, shapes)
  params: dict[str, jax.Array] = {}
  for group in wanted:
    leaves = [_empty(shapes[name]) for name in group.leaves]
    for name, index in group.stored():
      group.fill(leaves, index, tensors[name].read())
    params |= {name: jax.device_put(leaf, placed[name])
               for name, leaf in zip(group.leaves, leaves, strict=True)}
  return config, unflatten_dict(params, sep='/')


def _empty(shape):
  """Memory for a leaf, so aligned that JAX takes it as it is on a CPU, without a copy."""
  buffer = np.empty(4 * math.prod(shape) + 64, np.uint8)
  start = -buffer.ctypes.data % 64
  return buffer[start:start + 4 * math.prod(shape)].view(np.float32).reshape(shape)


def _named(family: Family, found: Iterable[Tensor]) -> dict[str, Tensor]:
  """The tensors by the names of the family."""
  tensors: dict[str, Tensor] = {}
  for tensor in found:
    name = tensor.stored_name
    name = name if name.startswith(family.base) else family.base + name
    name = f'{family.head}.weight' if tensor.stored_name in _HEADS else name
    name = f'{name}.weight' if name.endswith(IN_MEMORY) else name
    if name in tensors:
      raise InputError(f'{tensor.file}: tensor {show(tensor.stored_name)} is a second {show(name)}')
    tensors[name] = tensor
  return tensors


def untied(config: ModelConfig, tensors: dict[str, Tensor], *names: str) -> ModelConfig:
  """The configuration, with a head of its own if one is stored that is not the embedding.

  So `transformers` takes it, whatever tie_word_embeddings says. `names` are the embedding's and the
  head's; if only the head is stored, it becomes the embedding.
  """
  embedding, head = map(tensors.get, names)
  if head is None or not config.tied_head:
    return config
  if embedding is None:
    # Of two names of one tensor save_model of safetensors keeps the first in the alphabet.
    tensors[names[0]] = tensors.pop(names[1])
    return config
  for name in names:
    _check_kind(name, tensors[name], (config.vocab_size, config.width))
  size = config.vocab_size
  parts = [(first, min(first + ROWS, size)) for first in range(0, size, ROWS)]
  is_same = all(np.array_equal(embedding.read(*rows), head.read(*rows)) for rows in parts)
  return config if is_same else dataclasses.replace(config, tied_head=False)


def check_all(path: Path, tensors: dict[str, Tensor], wanted: list[Group], *others: str,
              advice: str = '') -> None:
  """Raises InputError unless all that is wanted is there, and nothing else that is not `others`.

  `advice` is for names of somebody's own, and says what to do with what is left over.
  """
  known = {*others}
  for group in wanted:
    for name, _ in group.stored():
      if name not in tensors:
        raise InputError(f'{path} has no tensor {name} {list(group.shape)}')
      share = 'needs' if len(group.leaves) == 1 else 'share it and need'
      _check_kind(name, tensors[name], group.shape, advice and f'{", ".join(group.leaves)} {share}')
      known.add(name)
  for name in sorted(tensors.keys() - known):
    if not (_LEFT_OUT.fullmatch(name) or _is_no_bias(name, tensors[name])):
      raise InputError(f'{tensors[name].file}: tensor {show(tensors[name].stored_name)} has no '
                       f'place in this model{advice}')


def _is_no_bias(name, tensor):
  """Whether it is a bias of zeros, as AutoGPTQ stores with every matrix."""
  return name.endswith('.bias') and tensor.dtype in DTYPES and not tensor.read().any()


def _check_kind(name, tensor, shape, source=''):
  # A shape may have any number of ones.
  if tensor.shape != list(shape):
    source = source or (
        'its metadata need' if tensor.file.suffix == '.gguf' else 'config.json needs')
    raise InputError(f'{tensor.file}: tensor {name} is {show(tensor.shape)}; {source} '
                     f'{list(shape)}')
  if tensor.dtype not in DTYPES:
    advice = ("load the model by from_pretrained(…, dtype='float32') of transformers, and save it "
              'by save_pretrained' if tensor.stamp else "give model.float(), or of an array "
              "array.astype('float32')")
    raise InputError(f'{tensor.file}: tensor {name} is {tensor.dtype}, and only '
                     f'{", ".join(DTYPES)} can be read; {advice}')


def _layers(config, tensors, wanted):
  shapes = leaf_shapes(config)
  in_blocks = [group for group in wanted if group.counts]
  outside = {group.leaves[0]: group for group in wanted if not group.counts}

  def read_block(layer):
    block: dict[str, np.ndarray] = {}
    for group in in_blocks:
      leaves = [np.empty(shapes[name][1:], np.float32) for name in group.leaves]
      for name, index in group.stored(layer):
        group.fill(leaves, index, tensors[name].read())
      block |= zip(group.leaves, leaves, strict=True)
    return unflatten_dict(block, sep='/')['blocks']

  def read_rows(name, first, last):
    group = outside[name]
    tensor = tensors[group.template].read(first, last)
    leaves = [np.empty(tensor.shape, np.float32)]
    group.fill(leaves, (), tensor)
    return leaves[0]

  return Layers(config, shapes, read_block, read_rows)


def _placed(mesh, shapes):
  leaves = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
  return flatten_dict(sharding.shardings(mesh, unflatten_dict(leaves, sep='/')), sep='/')


def save(path: str | os.PathLike, config: ModelConfig, params: dict,
         tokenizer: Tokenizer | None = None) -> None:
  """Writes a directory that `transformers.AutoModelForCausalLM.from_pretrained` can load.

  The directory appears complete or not at all. It does not say how the model is computed
  (dtype, remat), because config.json has no entries for that; how weights were drawn is in
  `initializer_range`, or in an entry that only `load` knows. All parameters come back
  exactly, except gains of Gemma below 1/2: stored less 1, they are rounded by up to 3e-8.

  Args:
    path: directory to make; it must be missing or empty.
    config: the architecture.
    params: its parameters, as from `initialization.init_params`.
    tokenizer: from `load_tokenizer`. `AutoTokenizer.from_pretrained` then loads one
      that gives the same ids, and `generate` stops where a document ends. A model of
      the family qwen2 cannot have one, as `transformers` 5 always takes Qwen2's own.

  Raises:
    InputError: no family of `transformers` computes this architecture (the
      message names the fields in the way), the parameters do not belong to the
      configuration, `transformers` cannot have this tokenizer (`tokenizer_files`), or
      `path` is not empty or cannot be written.
  """
  family, stored = described(config, params, tokenizer)
  files = _tokenizer_files(stored['model_type'], config, tokenizer) if tokenizer else {}
  write_folder(path, {'config.json': (json.dumps(stored, indent=2) + '\n').encode()} | files,
               WHOLE, stored_tensors(config, family, params))


def described(config: ModelConfig, params: dict, tokenizer: Tokenizer | None = None
              ) -> tuple[Family, dict]:
  """The family of a model and its config.json; raises InputError as `save` does."""
  name, family = choose_family(config)
  _check_params(config, params)
  if not isinstance(tokenizer, Tokenizer | None):
    raise InputError(f'{show(tokenizer)} is no tokenizer; data.load_tokenizer gives one')
  header = dict(model_type=name, architectures=[family.architecture], dtype='float32',
                bos_token_id=None, pad_token_id=None,
                eos_token_id=tokenizer.end_id if tokenizer else None)
  return family, header | to_stored(config, family)


def _tokenizer_files(family_name, config, tokenizer):
  if family_name == 'qwen2':
    raise InputError('transformers 5 takes the tokenizer of every qwen2 model for Qwen2\'s own; '
                     'save it without one')
  if tokenizer.vocab_size > config.vocab_size:
    raise InputError(f'tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids, and the model '
                     f'only vocab_size={config.vocab_size}')
  return tokenizer.files()


def _check_params(config, params):
  leaves, shapes = flatten_dict(params, sep='/'), leaf_shapes(config)
  for name in sorted(shapes.keys() | leaves.keys()):
    given = f'{leaves[name].dtype}{list(leaves[name].shape)}' if name in leaves else 'absent'
    wanted = f'float32{list(shapes[name])}' if name in shapes else 'absent'
    if given != wanted:
      raise InputError(f'params are not of this configuration: {name} is {given} and should be '
                       f'{wanted}')


def stored_tensors(config: ModelConfig, family: Family, params: dict) -> dict[str, np.ndarray]:
  """The tensors of a family by their names there."""
  leaves, tensors = flatten_dict(params, sep='/'), {}
  for group in groups(config, family, leaf_shapes(config)):
    parts = [np.asarray(leaves[name]) for name in group.leaves]
    for name, index in group.stored():
      tensors[name] = np.empty(group.shape, np.float32)
      for ours, theirs in group.aligned(parts, index, tensors[name]):
        theirs[...] = ours - group.shift if group.shift else ours
  return tensors
