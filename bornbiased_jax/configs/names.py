"""Architectures by name, NAME,FIELD=VALUE,…: a preset or a file, and fields that are changed."""

import dataclasses
import difflib
import importlib
import os
import typing
from typing import Any

from bornbiased_jax.configs.checks import RopeScaling
from bornbiased_jax.configs.model import ModelConfig
from bornbiased_jax.configs.presets import PRESETS
from bornbiased_jax.errors import InputError, show

_FIELDS = {field.name: field for field in dataclasses.fields(ModelConfig)}
_REQUIRED = [name for name, field in _FIELDS.items() if field.default is dataclasses.MISSING]


def get(name: str, **overrides: Any) -> ModelConfig:
  """The architecture `name`, with the given fields replaced.

  The presets are the paper's models, Pythia's smallest and, as `tiny_…`, small ones for a CPU.
  Defaults such as `linear_std` follow the replaced fields.

  Args:
    name: a preset, a JSON file, or a directory of `transformers`, of which config.json alone is
      read. Fields may follow: 'tiny_gpt2,num_layers=6,activation=relu'. 'none' is None, and ':'
      stands between the parts of a value, as in windows=8:none:8:none. A JSON file has fields of
      ModelConfig, and a 'preset' that has the others; or it is a config.json.
    overrides: fields of ModelConfig. Of those in `name` only `length` may get another value.

  Raises:
    InputError: there is no such preset, file or field, or the combination is impossible.

  Example:
    >>> from bornbiased_jax import configs
    >>> configs.get('nano_gpt2', sublayers='mlp_only').num_layers
    12
    >>> round(configs.get('tiny_gpt2').linear_std, 3)  # 0.02 sqrt(768 / 128)
    0.049
    >>> configs.get('tiny_gpt2,num_layers=6,width=192') == configs.get(
    ...     'tiny_gpt2', num_layers=6, width=192)
    True
  """
  base, given = _split(name)
  for field in overrides:
    _check_field(field)
    if field in given and field != 'length' and given[field] != overrides[field]:
      raise InputError(f'{name!r} sets {field}, which is {overrides[field]!r} here; leave it out')
  _, fields, place = _read(base)
  try:
    return ModelConfig(**(fields | given | overrides))
  except (InputError, TypeError) as error:  # Parts of a file may be of any type.
    raise InputError(f'{place}{error}', getattr(error, 'field', None)) from None


def canonical(name: str) -> str:
  """The architecture `name` as a preset and the fields in which it differs.

  It says what a file says, so that it means the same when the file has changed.

  Example:
    >>> canonical('tiny_gpt2,num_layers=06,width=128')
    'tiny_gpt2,num_layers=6'
  """
  config, preset = get(name), _read(_split(name)[0])[0]
  changes = {each: _changes(config, PRESETS[each]) for each in ([preset] if preset else PRESETS)}
  nearest = min(changes, key=lambda each: len(changes[each]))
  return ','.join([nearest, *(f'{field}={_as_text(value)}'
                              for field, value in changes[nearest].items())])


def is_name(text: str) -> bool:
  """Whether a text begins as the name of an architecture does."""
  base = text.partition(',')[0]
  has_config = bool(base) and os.path.isfile(os.path.join(base, 'config.json'))
  return base in PRESETS or base.endswith('.json') or has_config


def _split(text):
  """The name before the first comma, and the fields behind it."""
  if not isinstance(text, str):
    raise InputError(f'{text!r} is not the name of an architecture')
  base, *parts = (part.strip() for part in text.split(','))
  if '=' in base and not base.endswith('.json'):
    raise InputError(f'{text!r} must begin with a preset, one of {", ".join(PRESETS)}')
  given = {}
  for part in parts:
    field, is_set, value = (each.strip() for each in part.partition('='))
    if not is_set:
      raise InputError(f'{text!r}: {part!r} must be FIELD=VALUE, such as num_layers=6')
    _check_field(field)
    if field in given:
      raise InputError(f'{text!r} sets {field} twice')
    given[field] = _parse(field, _FIELDS[field].type, value)
  return base, given


def _check_field(field):
  if field not in _FIELDS:
    raise InputError(f'no field {show(field)} in ModelConfig{_hint(field, _FIELDS)}; the fields '
                     f'are {", ".join(_FIELDS)}')


def _hint(word, known):
  meant = ([name for name in known if word in name.split('_')[1:]]  # num_layers, for layers.
           or difflib.get_close_matches(word, known, n=1))
  return f' (did you mean {meant[0]}?)' if meant else ''


def _read(base):
  """A preset or None, the fields that a name stands for, and the file they come from, or ''."""
  if base in PRESETS:
    return base, PRESETS[base], ''
  from bornbiased_jax.files import path_of, read_json  # They import JAX.
  is_directory = os.path.isdir(base)
  if not is_directory and not base.endswith('.json'):
    raise InputError(f'no preset {base!r}{_hint(base, PRESETS)}; the presets are '
                     f'{", ".join(PRESETS)}; a JSON file or a directory of transformers will do, '
                     'too')
  file = path_of(base) / 'config.json' if is_directory else path_of(base)
  if is_directory and not file.is_file():
    raise InputError(f'{base} has no config.json: an architecture is read of a directory of '
                     'transformers, a JSON file or a preset, and not of a training run')
  stored = read_json(file)
  if is_directory or 'model_type' in stored:
    # This room lies above, and knows the families of transformers.
    reader = importlib.import_module('bornbiased_jax.storage.huggingface.config')
    return None, _changes(reader.read_config(file)[0], {}), f'{file}: '
  return _fields_in(file, stored)


def _fields_in(file, stored):
  preset = stored.pop('preset', None)
  if preset is not None and preset not in list(PRESETS):
    raise InputError(f'{file}: preset={show(preset)} is not one of {", ".join(PRESETS)}')
  try:
    for field in stored:
      _check_field(field)
  except InputError as error:
    raise InputError(f'{file}: {error}') from None
  fields = PRESETS.get(preset, {}) | stored
  if missing := [field for field in _REQUIRED if field not in fields]:
    raise InputError(f'{file} lacks {", ".join(missing)}; give a "preset" that has them, one of '
                     f'{", ".join(PRESETS)}')
  return preset, fields, f'{file}: '


def _changes(config, base):
  """The fields that make `config` of those in `base`, without what follows from others."""
  changes = {field: value for field, value in vars(config).items()
             if field not in base or base[field] != value}
  for field in list(changes):
    others = {name: value for name, value in changes.items() if name != field}
    try:
      if ModelConfig(**(base | others)) == config:
        changes = others
    except (InputError, TypeError):  # The field is needed.
      continue
  return changes


def _parse(field, kind, text) -> Any:
  """The value of a field from its text."""
  if kind is bool:
    if text.lower() not in ('true', 'false'):
      raise InputError(f'{field}={text!r} must be true or false', field)
    return text.lower() == 'true'
  if text == 'none' and kind is not str:
    return None
  if typing.get_origin(kind) is tuple:
    return tuple(_parse(field, typing.get_args(kind)[0], part) for part in text.split(':'))
  kind, *_ = typing.get_args(kind) or (kind,)
  if kind is RopeScaling:
    return _parse_rope_scaling(text)
  try:
    if kind is not str and ('_' in text or not text.isascii()):  # Python takes 1_0 for 10.
      raise ValueError
    return kind(text)
  except ValueError:
    what = 'a whole number' if kind is int else 'a number'
    raise InputError(f'{field}={text!r} must be {what}', field) from None


def _parse_rope_scaling(text):
  parts, texts = dataclasses.fields(RopeScaling), text.split(':')
  if len(texts) > len(parts):
    raise InputError(f'rope_scaling={text!r} must be {":".join(part.name for part in parts)}')
  return RopeScaling(*(_parse(part.name, part.type, each)
                       for part, each in zip(parts, texts, strict=False)))


def _as_text(value):
  """The text of a value, of which `_parse` makes it again."""
  if isinstance(value, tuple | RopeScaling):
    parts = value if isinstance(value, tuple) else dataclasses.astuple(value)
    return ':'.join(map(_as_text, parts))
  return str(value).lower() if value is None or isinstance(value, bool) else str(value)
