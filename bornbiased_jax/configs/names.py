"""Architectures by name, PRESET,FIELD=VALUE,…: a preset, and fields that are changed.

The presets are the paper's models, Pythia's smallest, and small ones for a CPU.
`storage.architectures` makes such a name of a file.
"""

from collections.abc import Iterable
import dataclasses
import difflib
import math
import typing
from typing import Any

from bornbiased_jax.configs.checks import RopeScaling
from bornbiased_jax.configs.model import ModelConfig
from bornbiased_jax.errors import InputError, check_kind, show

# Each family as its differences from GPT-2, which the defaults of ModelConfig describe.
_LLAMA2 = dict(norm='rmsnorm', activation='silu', gated_mlp=True, qkv_bias=False,
               output_bias=False, mlp_bias=False, tied_head=False, length=2048)
_QWEN2 = dict(_LLAMA2, qkv_bias=True, norm_epsilon=1e-6)
# GPT-NeoX calls the std of its other layers 'small init' (Nguyen and Salazar 2019).
_SMALL_INIT_512 = math.sqrt(2 / (5 * 512))
_NANO = dict(num_layers=12, num_heads=12, width=768)
_TINY = dict(num_layers=4, num_heads=4, width=128, vocab_size=2048)

PRESETS: dict[str, dict[str, Any]] = {
    'nano_gpt2': dict(_NANO, mlp_width=3072, vocab_size=50257),
    'nano_llama2': dict(_LLAMA2, **_NANO, mlp_width=2048, vocab_size=32000),
    'nano_qwen2': dict(_QWEN2, **_NANO, mlp_width=3072, vocab_size=151936),
    'gpt2_1b2': dict(num_layers=24, num_heads=32, width=2048, mlp_width=8192, vocab_size=50257),
    'llama2_7b': dict(_LLAMA2, num_layers=32, num_heads=32, width=4096, mlp_width=11008,
                      vocab_size=32000, length=4096),
    'pythia_70m': dict(num_layers=6, num_heads=8, width=512, mlp_width=2048, vocab_size=50304,
                       length=2048, activation='gelu', rotary_factor=0.25, parallel_residual=True,
                       tied_head=False, init_scheme='wang', linear_std=_SMALL_INIT_512,
                       embedding_std=_SMALL_INIT_512),
    'tiny_gpt2': dict(_TINY, mlp_width=512),
    'tiny_llama2': dict(_LLAMA2, **_TINY, mlp_width=344),
    'tiny_qwen2': dict(_QWEN2, **_TINY, mlp_width=344),
    # As Mixtral, with as many units at work as tiny_llama2 has.
    'tiny_moe': dict(_LLAMA2, **_TINY, mlp_width=172, num_experts=8, experts_per_token=2),
}

_FIELDS = {field.name: field for field in dataclasses.fields(ModelConfig)}


def get(name: str, **overrides: Any) -> ModelConfig:
  """The architecture `name`, with the given fields replaced.

  The presets are the paper's models, Pythia's smallest and, as `tiny_…`, small ones for a CPU.
  Defaults such as `linear_std` follow the replaced fields.

  Args:
    name: a preset. Fields may follow: 'tiny_gpt2,num_layers=6,activation=relu'. 'none' is None,
      and ':' stands between the parts of a value, like windows=8:none:8:none. Of a JSON file, or
      a Hugging Face model folder, `storage.canonical` makes such a name.
    overrides: fields of ModelConfig. Of those in `name` only `length` may get another value.

  Raises:
    InputError: there is no such preset or field, or the combination is impossible.

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
  base, given = split(name)
  for field in overrides:
    check_field(field)
    if field in given and field != 'length' and given[field] != overrides[field]:
      raise InputError(f'{name!r} sets {field}, which is {overrides[field]!r} here; leave it out, '
                       f'or, of a file, write FILE,{field}={overrides[field]}')
  if base not in PRESETS:
    raise InputError(f'no preset {base!r}{hint(base, PRESETS)}; the presets are '
                     f'{", ".join(PRESETS)}; storage.canonical reads files')
  return ModelConfig(**(PRESETS[base] | given | overrides))


def name_of(config: ModelConfig, preset: str | None = None) -> str:
  """A name of an architecture; `get` makes the architecture from it again.

  It begins with `preset`, or with the preset that differs in the fewest fields.

  Example:
    >>> name_of(get('tiny_gpt2,num_layers=06,width=128'))
    'tiny_gpt2,num_layers=6'
  """
  changes = {each: changes_of(config, PRESETS[each]) for each in ([preset] if preset else PRESETS)}
  nearest = min(changes, key=lambda each: len(changes[each]))
  return ','.join([nearest, *(f'{field}={_as_text(value)}'
                              for field, value in changes[nearest].items())])


def changes_of(config: ModelConfig, base: dict[str, Any]) -> dict[str, Any]:
  """The fields that make `config` of those in `base`, without what follows from others."""
  defaults = {name: field.default for name, field in _FIELDS.items()}
  implied = defaults | config.computed() | base
  return {field: value for field, value in vars(config).items() if value != implied[field]}


def split(text: str) -> tuple[str, dict[str, Any]]:
  """What a name has before the first comma, and the fields behind it."""
  check_kind(text, str, 'the name of an architecture, such as tiny_gpt2')
  base, *parts = (part.strip() for part in text.split(','))
  given: dict[str, Any] = {}
  for part in parts:
    field, is_set, value = (each.strip() for each in part.partition('='))
    if not is_set:
      raise InputError(f'{text!r}: {part!r} must be FIELD=VALUE, such as num_layers=6')
    check_field(field)
    if field in given:
      raise InputError(f'{text!r} sets {field} twice')
    given[field] = _parse(field, _FIELDS[field].type, value)
  return base, given


def check_field(field: str) -> None:
  """Raises InputError unless a name is a field of ModelConfig."""
  if field not in _FIELDS:
    raise InputError(f'no field {show(field)} in ModelConfig{hint(field, _FIELDS)}; the fields '
                     f'are {", ".join(_FIELDS)}')


def hint(word: str, known: Iterable[str]) -> str:
  """What somebody may have meant by a word that is not known."""
  meant = ([name for name in known if word in name.split('_')[1:]]  # num_layers, for layers.
           or difflib.get_close_matches(word, list(known), n=1))
  return f' (did you mean {meant[0]}?)' if meant else ''


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
  """The text of a value; `_parse` makes the value from it again."""
  if isinstance(value, tuple | RopeScaling):
    parts = value if isinstance(value, tuple) else dataclasses.astuple(value)
    return ':'.join(map(_as_text, parts))
  return str(value).lower() if value is None or isinstance(value, bool) else str(value)
