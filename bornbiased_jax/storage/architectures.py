"""Architectures by name, NAME,FIELD=VALUE,…, where NAME is a preset, a file or a folder."""

import dataclasses
import os

from bornbiased_jax import configs
from bornbiased_jax.configs import PRESETS, ModelConfig
from bornbiased_jax.configs.names import changes_of, check_field, hint, split
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import path_of, read_json
from bornbiased_jax.storage.huggingface.config import parse_config

_REQUIRED = [field.name for field in dataclasses.fields(ModelConfig)
             if field.default is dataclasses.MISSING]


def canonical(name: str) -> str:
  """The architecture `name` as `configs.get` takes it: a preset and the fields that differ.

  It has the content of a file, so that it means the same when the file has changed.

  Args:
    name: a preset, a JSON file, or a Hugging Face model folder, whose config.json is read.
      Fields may follow, as `configs.get` takes them; defaults such as `linear_std` follow them. A
      JSON file has fields of ModelConfig, and a 'preset' that has the others; or it is a
      config.json.

  Raises:
    InputError: there is no such preset, file or field, or the combination is impossible.

  Example:
    >>> canonical('tiny_gpt2,num_layers=06,width=128')
    'tiny_gpt2,num_layers=6'
  """
  base, given = split(name)
  preset, fields, place = _read(base)
  try:
    return configs.name_of(ModelConfig(**(fields | given)), preset)
  except (InputError, TypeError) as error:  # Parts of a file may be of any type.
    raise InputError(f'{place}{error}', getattr(error, 'field', None)) from None


def is_name(text: str) -> bool:
  """Whether a text begins as the name of an architecture does."""
  base = text.partition(',')[0]
  has_config = bool(base) and os.path.isfile(os.path.join(base, 'config.json'))
  return base in PRESETS or base.endswith('.json') or has_config


def _read(base):
  """A preset or None, the fields that a name stands for, and the file they come from, or ''."""
  if base in PRESETS:
    return base, PRESETS[base], ''
  is_directory = os.path.isdir(base)
  if not is_directory and not base.endswith('.json'):
    raise InputError(f'no preset {base!r}{hint(base, PRESETS)}; the presets are '
                     f'{", ".join(PRESETS)}; a JSON file or a Hugging Face model folder will do, '
                     'too')
  file = path_of(base) / 'config.json' if is_directory else path_of(base)
  if is_directory and not file.is_file():
    raise InputError(f'{base} has no config.json: give a Hugging Face model folder, a JSON file or '
                     'a preset, and no training run')
  stored = read_json(file)
  if is_directory or 'model_type' in stored:
    return None, changes_of(parse_config(stored, file)[0], {}), f'{file}: '
  return *_fields_in(file, stored), f'{file}: '


def _fields_in(file, stored):
  preset = stored.pop('preset', None)
  if preset is not None and preset not in list(PRESETS):
    raise InputError(f'{file}: preset={show(preset)} is not one of {", ".join(PRESETS)}')
  try:
    for field in stored:
      check_field(field)
  except InputError as error:
    raise InputError(f'{file}: {error}') from None
  fields = PRESETS.get(preset, {}) | stored
  if missing := [field for field in _REQUIRED if field not in fields]:
    raise InputError(f'{file} lacks {", ".join(missing)}; give a "preset" that has them, one of '
                     f'{", ".join(PRESETS)}')
  return preset, fields
