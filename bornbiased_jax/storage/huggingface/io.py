"""Loads and saves Hugging Face model folders, without torch or pickle."""

from collections.abc import Callable, Iterable
import contextlib
import dataclasses
import functools
import json
import os
from pathlib import Path

import jax

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data.tokenizers import Tokenizer
from bornbiased_jax.errors import InputError, show, unlike
from bornbiased_jax.files import read_json
from bornbiased_jax.models.initialization import check_params
from bornbiased_jax.storage.huggingface import adapters, leaves
from bornbiased_jax.storage.huggingface.config import choose_family, parse_config, to_stored
from bornbiased_jax.storage.huggingface.families import FAMILIES, IN_MEMORY, Family, named_in_memory
from bornbiased_jax.storage.huggingface.gguf import is_gguf, named_tensors, open_gguf
from bornbiased_jax.storage.huggingface.quantized import dequantized, read_quantization
from bornbiased_jax.storage.huggingface.tensors import (
  INDEX,
  WEIGHTS,
  WHOLE,
  Merged,
  Tensor,
  open_tensors,
  refuse_file,
  write_folder,
)
from bornbiased_jax.storage.layers import Layers

_HEADS = {f'{family.head}.weight' for family in FAMILIES.values()}


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
      float16 or bfloat16, or of a quantized format (`quantized.py`). Or a GGUF file (`gguf.py`).
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
    return leaves.untied(self.stored_config, tensors, embedding, f'{family.head}.weight'), tensors

  def load(self, mesh: jax.sharding.Mesh | None = None) -> tuple[ModelConfig, dict]:
    """The configuration and the parameters, as the function `load` returns them."""
    config, tensors, wanted = self._checked(self._adapter)
    return leaves.filled(config, tensors, wanted, mesh)

  def layers(self) -> Layers:
    """The parameters; only what is asked for is read.

    No file stays open or mapped between two reads. Raises InputError as `load` does; so does a read
    of a file that is gone or has changed meanwhile.
    """
    return leaves.layers(*self._checked(self._adapter))

  def digests(self) -> dict[str, str]:
    """The digests of the base and of its adapter, if it has one; both are read for it."""
    own = {'adapter': self._adapter.digest()} if self._adapter else {}
    return {'base': leaves.layers(*self._checked(None)).digest()} | own

  def _checked(self, adapter):
    """What is known of it from its headers, all of it checked."""
    config, tensors = self._base
    family = named_in_memory(self._family, tensors)
    wanted = list(leaves.groups(config, family))
    leaves.check_all(self._path, tensors, wanted, f'{family.head}.weight')
    if adapter is not None:
      if adapter.unties(config, family):
        config = dataclasses.replace(config, tied_head=False)
        embedding = tensors[f'{family.base}{family.modules["embedding"]}.weight']
        tensors = tensors | {f'{family.head}.weight': embedding}
        wanted = list(leaves.groups(config, family))  # The head is one more.
      tensors = adapters.merge(adapter, family, tensors)
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
      _refuse_gguf(path)
    config, family, found = open_gguf(path)
    return Files(path, config, family, lambda: found, None)
  _refuse_adapter_inside(path)
  file = path / 'config.json'
  config, family, quantization = parse_config(read_json(file) if entries is None else entries, file)
  return Files(path, config, family, lambda: dequantized(open_tensors(path), quantization),
               None if adapter is None else adapters.read_adapter(Path(adapter)))


def _refuse_gguf(path):
  if is_gguf(path):
    raise InputError(f'{path}: an adapter needs its base as a Hugging Face model folder, as a '
                     'GGUF file has other names')


def _refuse_adapter_inside(path):
  if (path / adapters.CONFIG).is_file():
    raise InputError(f'{path} holds an adapter ({adapters.CONFIG}), which goes with a base: '
                     'BASE+ADAPTER; if a model is there too, move the adapter to a folder of its '
                     'own')


def stored_tensors(path: Path, entries: dict, adapter: Path | None
                   ) -> dict[str, Tensor | Merged]:
  """The tensors of any folder or GGUF file by its own names; only headers are read.

  Args:
    path: the folder or file.
    entries: of its config.json.
    adapter: the folder of an adapter, which is merged where its names are those of tensors.

  Raises InputError if a file is not right, or the adapter does not belong to it.
  """
  if adapter is not None:
    _refuse_gguf(path)
  if path.is_file():
    found = _named(None, named_tensors(path))
  else:
    _refuse_adapter_inside(path)
    found = _named(None, dequantized(open_tensors(path, whole=True), read_quantization(entries)))
  if adapter is None:
    return {**found}
  return adapters.merge_by_names(adapters.read_adapter(adapter), found)


def why_none(folder: Path) -> str | None:
  """Why a folder without config.json is no model and holds none; None if it may be one."""
  inside = sorted(path.name for path in folder.iterdir())
  if not inside:
    return 'is empty'
  if adapters.CONFIG in inside:
    return f'is an adapter; give BASE+{folder}'
  weights = next(filter(WEIGHTS.fullmatch, inside), None)
  return weights and f'has {weights} but no config.json'


def has_model(directory: Path) -> bool:
  """Whether a folder has any file of a model of `transformers`; its loader says what is missing."""
  return any((directory / file).is_file() for file in ('config.json', WHOLE, INDEX))


def _named(family: Family | None, found: Iterable[Tensor]) -> dict[str, Tensor]:
  """The tensors by the names of the family, or by their own."""
  tensors: dict[str, Tensor] = {}
  for tensor in found:
    name = tensor.stored_name
    if family:
      name = name if name.startswith(family.base) else family.base + name
      name = f'{family.head}.weight' if tensor.stored_name in _HEADS else name
      name = f'{name}.weight' if name.endswith(IN_MEMORY) else name
    if name in tensors:
      raise InputError(f'{tensor.file}: tensor {show(tensor.stored_name)} is a second {show(name)}')
    tensors[name] = tensor
  return tensors


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
               WHOLE, leaves.stored_tensors(config, family, params))


def described(config: ModelConfig, params: dict, tokenizer: Tokenizer | None = None
              ) -> tuple[Family, dict]:
  """The family of a model and its config.json; raises InputError as `save` does."""
  name, family = choose_family(config)
  check_params(config, params, 'float32')
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
