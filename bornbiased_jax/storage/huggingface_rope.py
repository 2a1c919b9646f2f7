"""Settings of RoPE in config.json, under all names and in all places that they have had."""

import math

from bornbiased_jax.configs import ModelConfig, RopeScaling
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage.huggingface_entries import COUNT, NUMBER, entry, of_type, only, show

_NAMES = dict(rope_type='rope_type', type='rope_type', rope_theta='rope_theta',
              rotary_emb_base='rope_theta', partial_rotary_factor='partial_rotary_factor',
              rotary_pct='partial_rotary_factor')
_LENGTH = 'original_max_position_embeddings'
# For each rope_type the fields of RopeScaling, and what they are called there. 'dynamic' lowers
# frequencies for sequences of more than max_position_embeddings tokens, which we do not read.
_TYPES = {
    'default': {},
    'dynamic': {},
    'linear': dict(factor='factor'),
    'llama3': dict(factor='factor', original_length=_LENGTH, slow='low_freq_factor',
                   fast='high_freq_factor'),
    'yarn': dict(factor='factor', original_length=_LENGTH, slow='beta_slow', fast='beta_fast',
                 attention_factor='attention_factor'),
}
# Settings that change nothing if they have this value; None stands for any.
_IDLE = {'dynamic': dict(factor=None, original_max_position_embeddings=None),
         'yarn': dict(truncate=True)}
_FACTOR = ('a number above 0 and at most 1', lambda value: NUMBER[1](value) and value <= 1)


def read_rope(stored: dict, own_names: tuple[str, ...], rotary_factor: float | None) -> dict:
  """The fields of ModelConfig that describe RoPE.

  Args:
    stored: config.json.
    own_names: entries beside rope_parameters that this family reads.
    rotary_factor: the family's share of a head that turns, if config.json does not say; None
      if heads of this family always turn as a whole.

  Raises:
    InputError: a setting is wrong, contradicts another, or cannot be computed.
  """
  places = [place for name in ('rope_parameters', 'rope_scaling')
            if (place := of_type(stored, name, dict))]
  readings = [_reading(stored, place, own_names, rotary_factor) for place in places or [{}]]
  # transformers reads one of the two, and which one depends on its version.
  if readings[-1] != readings[0]:
    raise InputError('rope_parameters and rope_scaling describe different RoPE')
  return readings[0]


def _reading(stored, place, own_names, rotary_factor):
  rope = dict(rope_type='default', rope_theta=10000.0,
              partial_rotary_factor=rotary_factor or 1.0) | _settings(stored, place, own_names)
  for name in sorted(_NAMES.keys() - {*own_names, 'type'}):
    if stored.get(name) not in (None, rope[_NAMES[name]]):
      raise InputError(f'{name}={show(stored[name])} is not supported in this family')
  if not isinstance(rope['rope_type'], str) or rope['rope_type'] not in _TYPES:
    raise InputError(f'rope_type={show(rope["rope_type"])} is not supported; {", ".join(_TYPES)} '
                     'are')
  share = entry(rope, 'partial_rotary_factor', *_FACTOR)
  if rotary_factor is None:
    only(rope, 'partial_rotary_factor', 1.0)
  return dict(rope_theta=float(entry(rope, 'rope_theta', *NUMBER)), rotary_factor=float(share),
              rope_scaling=_scaling(rope, stored))


def _settings(stored, place, own_names):
  """All settings by their present names; the same setting twice must be the same."""
  rope = {}
  given = [(_NAMES[name], stored.get(name)) for name in own_names]
  given += [('rope_type' if name == 'type' else name, value) for name, value in place.items()]
  for name, value in given:
    # Without a value most settings have their default, but this one is off.
    if value is None and name != 'truncate':
      continue
    if rope.setdefault(name, value) != value:
      raise InputError(f'{name} is both {show(rope[name])} and {show(value)}')
  return rope


def _scaling(rope, stored):
  kind, fields = rope['rope_type'], _TYPES[rope['rope_type']]
  idle = _IDLE.get(kind, {})
  for name in sorted(rope.keys() - {*_NAMES.values(), *fields.values()}):
    if name not in idle or idle[name] not in (None, rope[name]):
      raise InputError(f'RoPE with {show(name)}={show(rope[name])} is not supported in '
                       f'rope_type={show(kind)}')
  if not fields:
    return None
  # This one has priority where it stands outside of the settings.
  given = {_LENGTH: stored['max_position_embeddings']} | rope
  if stored.get(_LENGTH) is not None:
    given[_LENGTH] = stored[_LENGTH]
  if kind == 'yarn':
    factor = entry(given, 'factor', *NUMBER)
    given = dict(beta_slow=1, beta_fast=32,
                 attention_factor=1 + 0.1 * math.log(max(factor, 1))) | given
  try:
    return RopeScaling(kind, **{
        ours: entry(given, name, *COUNT) if name == _LENGTH else float(entry(given, name, *NUMBER))
        for ours, name in fields.items()})
  except InputError as error:
    raise InputError(f'RoPE: {error}') from None


def rope_to_stored(config: ModelConfig, earlier_names: tuple[str, ...]) -> dict:
  """The entries of config.json that describe RoPE.

  Args:
    config: the architecture.
    earlier_names: entries that versions of transformers before 5 read in this family.
  """
  scaling = config.rope_scaling
  kind = scaling.kind if scaling else 'default'
  changed = {'rope_type': kind} | {name: getattr(scaling, ours)
                                   for ours, name in _TYPES[kind].items()}
  rope = changed | dict(rope_theta=float(config.rope_theta),
                        partial_rotary_factor=float(config.rotary_factor))
  stored = {name: rope[_NAMES[name]] for name in earlier_names} | {'rope_parameters': rope}
  return stored | ({'rope_scaling': changed} if scaling else {})
