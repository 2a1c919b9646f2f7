"""Adapters of PEFT: LoRA, rsLoRA and DoRA, merged into the tensors of a directory; LoRA written.

A merged weight is read like a tensor in a file, all of it or some rows, and only then computed:

    W + s B A, or with DoRA m (W + s B A) / |W + s B A|,   s = alpha / r, or alpha / sqrt(r)

The tensors of the adapter, not its configuration, say which modules it changes.
"""

from collections.abc import Callable
import functools
import json
import math
import os
from pathlib import Path
import re
from typing import NamedTuple

import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import COUNT, FLAG, NUMBER, entry, naming, of_type, only, read_json
from bornbiased_jax.models.initialization import leaf_shapes
from bornbiased_jax.storage.digests import digest
from bornbiased_jax.storage.huggingface.config import choose_family
from bornbiased_jax.storage.huggingface.families import Family
from bornbiased_jax.storage.huggingface.leaves import groups
from bornbiased_jax.storage.huggingface.tensors import (
  DTYPES,
  INDEX,
  WHOLE,
  Merged,
  Tensor,
  tensors_in,
  write_folder,
)

CONFIG, WEIGHTS = 'adapter_config.json', 'adapter_model.safetensors'
_TENSOR = re.compile(r'base_model\.model\.(?P<module>.+?)\.(?P<part>lora_(?:embedding_)?[AB]|'
                     r'lora_magnitude_vector|(?:base_layer\.)?(?:weight|bias))(?:\.weight)?')
# Entries of adapter_config.json that do not change the function, or that the names of the
# tensors imply. Any other must be empty: null, false, {}.
_IDLE = {'auto_mapping', 'base_model_name_or_path', 'bias', 'corda_config', 'eva_config',
         'exclude_modules', 'fan_in_fan_out', 'inference_mode', 'layers_pattern', 'loftq_config',
         'lora_dropout', 'lora_ga_config', 'megatron_config', 'megatron_core', 'peft_version',
         'qalora_group_size', 'revision', 'task_type'}
# The ways to draw A and B that leave the weights of the base as they are.
_INITS = True, False, 'gaussian', 'eva', 'orthogonal'
_TARGETS = ('the name of a module, a list of such names, or null',
            lambda value: value is None or isinstance(value, str) or _is_list_of(value, str))
_KINDS = {
    'r': COUNT, 'lora_alpha': NUMBER, 'use_rslora': FLAG, 'use_dora': FLAG,
    'target_modules': _TARGETS, 'modules_to_save': _TARGETS,
    'layers_to_transform': ('a number of a layer, a list of such numbers, or null',
                            lambda value: value is None or type(value) is int
                            or _is_list_of(value, int)),
    'init_lora_weights': (f'one of {", ".join(map(str, _INITS))}, as others change the base',
                          lambda value: type(value) in (bool, str) and value in _INITS)}
_MOST_PATTERNS = 1000
_DEFAULTS = dict(use_rslora=False, use_dora=False, target_modules=None, modules_to_save=None,
                 layers_to_transform=None, init_lora_weights=True)


def _is_list_of(value, kind):
  return isinstance(value, list) and all(type(each) is kind for each in value)


class Adapter(NamedTuple):
  """What is known of an adapter before its weights are read."""

  folder: Path
  stored: dict  # its configuration
  modules: dict[str, dict[str, Tensor]]  # by module of the base: what it has, such as 'lora_A'

  def digest(self) -> str:
    """SHA-256 of its weights as float32 (`digests.digest`)."""
    return digest({tensor.stored_name: tensor.read().astype(np.float32)
                   for parts in self.modules.values() for tensor in parts.values()})

  def unties(self, config: ModelConfig, family: Family) -> bool:
    """Whether it changes one of a head and an embedding that were the same, as PEFT does."""
    tied = f'{family.base}{family.modules["embedding"]}', family.head
    return config.tied_head and any(_full_name(module, family) in tied for module in self.modules)


def is_adapter(folder: Path) -> bool:
  """Whether a folder holds an adapter, and no model."""
  return (folder / CONFIG).is_file() and not any((folder / name).is_file()
                                                 for name in (WHOLE, INDEX))


def read_adapter(folder: Path) -> Adapter:
  """An adapter; only its headers are read. Raises InputError, which names the file."""
  stored = _read_settings(folder / CONFIG)
  modules: dict[str, dict[str, Tensor]] = {}
  if not (folder / WEIGHTS).is_file() and (folder / 'adapter_model.bin').is_file():
    raise InputError(f'{folder}: adapter_model.bin is a pickle, which could run code; load it with '
                     'peft, whose save_pretrained writes safetensors')
  for tensor in tensors_in(folder / WEIGHTS):
    match = _TENSOR.fullmatch(tensor.stored_name)
    if not match:
      raise _refusal(tensor, 'is of no kind that can be merged')
    parts = modules.setdefault(match['module'], {})
    if parts.setdefault(match['part'].removeprefix('base_layer.'), tensor) != tensor:
      raise _refusal(tensor, 'is there twice')
    if tensor.dtype not in DTYPES:
      raise _refusal(tensor, f'is {tensor.dtype}, not {" or ".join(DTYPES)}')
  if not modules:
    raise InputError(f'{folder / WEIGHTS} holds no tensors')
  return Adapter(folder, stored, modules)


def _refusal(tensor, words):
  return InputError(f'{tensor.file}: tensor {show(tensor.stored_name)} {words}')


def _read_settings(file):
  stored = _DEFAULTS | read_json(file)
  with naming(file):
    only('peft_type', stored.get('peft_type'), 'LORA')
    for name, kind in _KINDS.items():
      entry(stored, name, *kind)
    for name, kind in dict(rank_pattern=COUNT, alpha_pattern=NUMBER).items():
      stored[name] = of_type(stored, name, dict)
      if len(stored[name]) > _MOST_PATTERNS:
        raise InputError(f'{name} has {len(stored[name])} patterns, more than {_MOST_PATTERNS}')
      for pattern, value in stored[name].items():
        entry({f'{name} of {show(pattern)}': value}, f'{name} of {show(pattern)}', *kind)
        _compile(pattern)
    known = {'peft_type', 'rank_pattern', 'alpha_pattern'} | _KINDS.keys() | _IDLE
    for name in sorted(name for name in stored.keys() - known if stored[name]):
      only(show(name), stored[name], None)
  return stored


@functools.lru_cache(maxsize=4096)
def _compile(pattern):
  """A regular expression for the end of a module's name, if it is one that is soon matched."""
  if len(re.findall('[*+?{]', pattern)) > 4 or re.search(r'\)[*+{]', pattern):
    raise InputError(f'the pattern {show(pattern)} has too many repetitions')
  try:
    return re.compile(rf'(.*\.)?({pattern})$')
  except (re.error, OverflowError, RecursionError) as error:
    raise InputError(f'the pattern {show(pattern)} is not regular: {show(error)}') from None


def merge(adapter: Adapter, family: Family, tensors: dict[str, Tensor],
          full_name: Callable[[str, Family], str] | None = None) -> dict[str, Tensor | Merged]:
  """The tensors of a model with an adapter; raises InputError if they do not belong together."""
  changed: dict[str, Tensor | Merged] = dict(tensors)
  known = dict(tensors)
  for module, parts in adapter.modules.items():
    name = (full_name or _full_name)(module, family)
    for part in parts.keys() & {'weight', 'bias'}:
      _check_shape(parts[part], known.get(f'{name}.{part}'))
      known[f'{name}.{part}'] = changed[f'{name}.{part}'] = parts[part]
    if lora := {part: tensor for part, tensor in parts.items() if part.startswith('lora')}:
      changed[f'{name}.weight'] = _merged(adapter, module, name, lora, known, family)
  return changed


def merge_by_names(adapter: Adapter, tensors: dict[str, Tensor]) -> dict[str, Tensor | Merged]:
  """`merge` into a model of any architecture, whose files may lack the prefix of its modules."""
  def full_name(module, family):
    return module if f'{module}.weight' in tensors else module.partition('.')[2]

  family = Family('', {}, {}, {}, {}, base='',
                  transposed=adapter.stored.get('fan_in_fan_out') is not True)
  tables = [full_name(module, family) for module, parts in adapter.modules.items()
            if 'lora_embedding_A' in parts]
  family = family._replace(modules=dict(zip(['embedding'], tables, strict=False)))
  return merge(adapter, family, tensors, full_name)


def _full_name(module, family):
  """The name of a module as `weights.find` has it; that of a bare model lacks the prefix."""
  return module if module.startswith((family.base, family.head)) else family.base + module


def _check_shape(tensor, base, shape=None):
  if base is None:
    raise _refusal(tensor, 'has no place in the base')
  wanted = base.shape if shape is None else shape
  if tensor.shape != wanted:
    raise _refusal(tensor, f'is {show(tensor.shape)}; the base needs {show(wanted)}')


def _merged(adapter, module, name, lora, known, family):
  stored = adapter.stored
  tables = [family.base + family.modules[ours] for ours in ('embedding', 'position_embedding')
            if ours in family.modules]
  kind = 'lora_embedding_' if name in tables else 'lora_'
  names = [f'{kind}A', f'{kind}B'] + ['lora_magnitude_vector'] * stored['use_dora']
  for part in sorted(lora.keys() ^ set(names)):
    what = 'is not expected here' if part in lora else f'has no {part} next to it'
    raise _refusal(lora.get(part) or next(iter(lora.values())), what)
  a, b, *magnitude = (lora[part] for part in names)
  base = known.get(f'{name}.weight')
  if base is None or len(base.shape) != 2 or not _is_target(stored, module):
    raise _refusal(a, f'is of no module that {CONFIG} or the base knows')
  transposed = name in tables or (not family.transposed and name != family.head)
  ins, outs = base.shape if transposed else base.shape[::-1]
  rank, alpha = (_by_pattern(stored[pattern], module, stored[default])
                 for pattern, default in (('rank_pattern', 'r'), ('alpha_pattern', 'lora_alpha')))
  for tensor, shape in zip((a, b, *magnitude), ([rank, ins], [outs, rank], [outs]), strict=False):
    _check_shape(tensor, base, shape)
  scale = alpha / (math.sqrt(rank) if stored['use_rslora'] else rank)
  return Merged(base, a, b, scale, *(magnitude or [None]), transposed, base.shape)


def _is_target(stored, module):
  """Whether the configuration lets an adapter change a module. A pattern is taken at its word."""
  targets, layers = stored['target_modules'], stored['layers_to_transform']
  if not isinstance(targets, list):
    return True
  index = re.search(r'\.(\d+)\.', module)
  layers = layers if isinstance(layers, list | None) else [layers]
  return (any(f'.{module}'.endswith(f'.{target}') for target in targets)
          and (not layers or bool(index and int(index[1]) in layers)))


def _by_pattern(patterns, module, default):
  return next((value for pattern, value in patterns.items() if _compile(pattern).match(module)),
              default)


def save_adapter(path: str | os.PathLike, config: ModelConfig,
                 factors: dict[str, dict[str, np.ndarray]], scale: float, base: str | None) -> None:
  """Writes an adapter that `peft` can load, and `load(base, adapter=path)`.

  Args:
    path: directory to make; it must be missing or empty.
    config: the base's.
    factors: of modules in a block, such as 'query', A [layers, in, rank] and B [layers, rank, out].
    scale: by which A B is multiplied.
    base: the name of the base for adapter_config.json, if it has one.

  Raises:
    InputError: `transformers` has no such model, or `path` is not empty or cannot be written.
  """
  _, family = choose_family(config)
  names = {f'blocks/{name}/kernel': name for name in factors}
  shapes = {leaf: shape for leaf, shape in leaf_shapes(config).items() if leaf in names}
  tensors: dict[str, np.ndarray] = {}
  ranks: dict[str, int] = {}
  for group in groups(config, family, shapes):
    parts = [factors[names[leaf]] for leaf in group.leaves]
    module = group.template.rpartition('{}.')[2].removesuffix('.weight')  # In all layers.
    ranks[module] = rank = sum(part['A'].shape[-1] for part in parts)
    tensors |= _tensors(group, parts, rank)
  least = min(ranks.values())
  larger = {name: rank for name, rank in ranks.items() if rank > least}
  stored = dict(
      peft_type='LORA', task_type='CAUSAL_LM', base_model_name_or_path=base, bias='none',
      r=least, lora_alpha=scale * least, rank_pattern=larger,
      alpha_pattern={name: scale * rank for name, rank in larger.items()},
      target_modules=sorted(ranks), lora_dropout=0.0, fan_in_fan_out=not family.transposed,
      inference_mode=True)
  write_folder(path, {CONFIG: (json.dumps(stored, indent=2) + '\n').encode()}, WEIGHTS, tensors)


def _tensors(group, parts, rank):
  """The factors of all layers; of modules that are fused, B has a block of rows for each."""
  widened, first = [], 0
  for part in parts:
    layers, own, outs = part['B'].shape
    widened.append(np.zeros((layers, rank, outs), np.float32))
    widened[-1][:, first:first + own] = part['B']
    first += own
  tensors = {}
  for name, layer in group.stored():
    outs = sum(b.shape[-1] for b in widened)
    b = np.empty((outs, rank) if group.transposed else (rank, outs), np.float32)
    for ours, theirs in group.aligned(widened, layer, b):
      theirs[...] = ours
    a = np.concatenate([np.asarray(part['A'][layer]).T for part in parts])
    prefix = f'base_model.model.{name.removesuffix(".weight")}'
    tensors[f'{prefix}.lora_A.weight'] = np.ascontiguousarray(a)
    tensors[f'{prefix}.lora_B.weight'] = np.ascontiguousarray(b if group.transposed else b.T)
  return tensors
