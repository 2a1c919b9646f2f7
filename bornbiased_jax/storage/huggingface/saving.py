"""Folders for other libraries: written whole or not at all, and those of adapters of PEFT."""

import json
import os
from pathlib import Path
import shutil
import uuid

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.storage.huggingface.adapters import CONFIG, WEIGHTS
from bornbiased_jax.storage.huggingface.config import choose_family
from bornbiased_jax.storage.huggingface.weights import Group, groups, leaf_shapes


def write_folder(path: str | os.PathLike, files: dict[str, bytes], weights: str,
                 tensors: dict[str, np.ndarray]) -> None:
  """Writes files, and tensors to a safetensors file `weights`; the folder appears complete.

  Raises:
    InputError: `path` is there and not an empty directory, or cannot be written.
  """
  path = Path(os.path.realpath(path))
  partial = path.with_name(f'.{path.name}.{uuid.uuid4().hex}')
  try:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
      raise InputError(f'{path} exists and is not an empty directory; give a new one')
    partial.mkdir(parents=True)
    for file, content in files.items():
      (partial / file).write_bytes(content)
    # Older versions of transformers refuse a file whose metadata has no format.
    save_file(tensors, partial / weights, metadata=dict(format='pt'))
    # safetensors lets only the owner read its file, so take the usual permissions.
    shutil.copymode(partial / next(iter(files)), partial / weights)
    partial.rename(path)
  except (OSError, SafetensorError) as error:
    raise InputError(f'{path} cannot be written: {show(error)}') from None
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def save_adapter(path: str | os.PathLike, config: ModelConfig,
                 factors: dict[str, dict[str, np.ndarray]], scale: float, base: str | None) -> None:
  """Writes an adapter that `peft` can load, and `load(base, adapter=path)`.

  Args:
    path: directory to make; it must be missing or empty.
    config: that of the base.
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
    ranks[_ending(group)] = rank = sum(part['A'].shape[-1] for part in parts)
    tensors |= _tensors(group, parts, rank, config, family)
  least = min(ranks.values())
  larger = {name: rank for name, rank in ranks.items() if rank > least}
  stored = dict(
      peft_type='LORA', task_type='CAUSAL_LM', base_model_name_or_path=base, bias='none',
      r=least, lora_alpha=scale * least, rank_pattern=larger,
      alpha_pattern={name: scale * rank for name, rank in larger.items()},
      target_modules=sorted(ranks), lora_dropout=0.0, fan_in_fan_out=not family.transposed,
      inference_mode=True)
  write_folder(path, {CONFIG: (json.dumps(stored, indent=2) + '\n').encode()}, WEIGHTS, tensors)


def _ending(group: Group):
  """What all layers call a module."""
  return group.template.rpartition('{}.')[2].removesuffix('.weight')


def _tensors(group, parts, rank, config, family):
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
    for ours, theirs in group.aligned(widened, layer, b, config, family):
      theirs[...] = ours
    a = np.concatenate([np.asarray(part['A'][layer]).T for part in parts])
    prefix = f'base_model.model.{name.removesuffix(".weight")}'
    tensors[f'{prefix}.lora_A.weight'] = np.ascontiguousarray(a)
    tensors[f'{prefix}.lora_B.weight'] = np.ascontiguousarray(b if group.transposed else b.T)
  return tensors
