"""Positions in config.json: which layers have a sliding window, and how RoPE turns.

Both are said in the words of each family, under all names and in all places that they have had.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

from bornbiased_jax.configs import ModelConfig, RopeScaling
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import COUNT, FLAG, NUMBER, entry, of_type, only

FULL, SLIDING = 'full_attention', 'sliding_attention'
_WHOLE = ('a whole number', lambda value: type(value) is int)
# Gemma and OLMo 3 make a mask of windows even if no layer uses it, and need a number for it.
_UNUSED = 4096
_NAMES = dict(rope_type='rope_type', type='rope_type', rope_theta='rope_theta',
              rotary_emb_base='rope_theta', rope_local_base_freq='rope_theta',
              partial_rotary_factor='partial_rotary_factor', rotary_pct='partial_rotary_factor')
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
# Other settings that may be there, with their only value; None stands for any.
_IDLE = {'dynamic': dict(factor=None, original_max_position_embeddings=None),
         'yarn': dict(truncate=True, mscale=None, mscale_all_dim=None)}
_FACTOR = ('a number above 0 and at most 1', lambda value: NUMBER[1](value) and value <= 1)


class WindowRules(NamedTuple):
  """How one family says which layers have a window.

  Attributes:
    slides: function from config.json to whether layer i has a window where layer_types does not
      say; it returns None if no layer has one.
    by_type: whether the family reads layer_types.
    switch: whether it has the entry use_sliding_window.
    pattern: its entry from which old versions knew the layers; layer_types must agree.
  """

  slides: Callable[[dict], Callable[[int], bool] | None] = lambda stored: None
  by_type: bool = False
  switch: bool = False
  pattern: str = ''


def _everywhere(stored):
  return None if stored['sliding_window'] is None else lambda i: True


def _from_some_layer(stored):
  first = entry(stored, 'max_window_layers', *_WHOLE)
  is_used = entry(stored, 'use_sliding_window', *FLAG) and stored['sliding_window'] is not None
  return (lambda i: i >= first) if is_used else None


def _by_pattern(stored):
  return _all_but_each(entry({'sliding_window_pattern': 6} | stored, 'sliding_window_pattern',
                             *COUNT))


def _all_but_each(period):
  return lambda i: (i + 1) % period != 0


NO_WINDOWS = WindowRules()
EVERY_LAYER = WindowRules(_everywhere)
# Qwen: from layer max_window_layers on, if use_sliding_window.
SWITCHED = WindowRules(_from_some_layer, by_type=True, switch=True)
# Gemma 3: all layers but each n-th, where n is sliding_window_pattern.
BY_PATTERN = WindowRules(_by_pattern, by_type=True, pattern='sliding_window_pattern')
# Gemma 2 and OLMo 3: all layers but each second, or each fourth.
ALL_BUT_EACH_2ND = WindowRules(lambda stored: _all_but_each(2), by_type=True)
ALL_BUT_EACH_4TH = WindowRules(lambda stored: _all_but_each(4), by_type=True)


def read_windows(stored: dict, rules: WindowRules, num_layers: int) -> tuple[int | None, ...]:
  """ModelConfig.windows by the entries of config.json; raises InputError if they are not right."""
  if not rules.switch:
    only('use_sliding_window', stored.get('use_sliding_window', False), False)
  slides = rules.slides(stored)
  slides_L = by_rule_L = [bool(slides and slides(i)) for i in range(num_layers)]
  if stored.get('layer_types') is not None:
    slides_L = _by_type(stored, num_layers)
    must_agree = not rules.by_type or rules.pattern and rules.pattern in stored
    if must_agree and slides_L != by_rule_L:
      raise InputError(f'layer_types={show(stored["layer_types"])} contradicts '
                       f'{rules.pattern or "the layers of this family"}')
  if not any(slides_L):
    return ()
  if rules.switch and not stored['use_sliding_window']:
    raise InputError(f'layer_types with {SLIDING!r} needs use_sliding_window=true')
  window = entry(stored, 'sliding_window', *COUNT)
  return tuple(window if slides else None for slides in slides_L)


def _by_type(stored, num_layers):
  types = of_type(stored, 'layer_types', list)
  for layer_type in types:
    only('layer_types', layer_type, FULL, SLIDING)
  if len(types) != num_layers:
    raise InputError(f'layer_types has {len(types)} entries for {num_layers} layers')
  return [layer_type == SLIDING for layer_type in types]


def windows_to_stored(config: ModelConfig, rules: WindowRules) -> dict:
  """The entries of config.json that describe ModelConfig.windows, as far as the family can."""
  window = next((window for window in config.windows if window is not None), None)
  if rules is NO_WINDOWS:
    return {}
  unused = _UNUSED if rules.by_type and not rules.switch else None
  stored: dict = {'sliding_window': unused if window is None else window}
  if rules.switch:
    stored['use_sliding_window'] = window is not None
  if rules.by_type:
    windows = config.windows or (None,) * config.num_layers
    stored['layer_types'] = [FULL if window is None else SLIDING for window in windows]
  return stored


class RopeRules(NamedTuple):
  """What one family reads of RoPE.

  Attributes:
    names: entries next to rope_parameters that it reads.
    others: entries next to them that belong to layers of the other kind.
    rotary_factor: the share of a head that turns, if config.json does not say; None if heads
      always turn as a whole.
    theta: rope_theta, if config.json does not say.
    types: what rope_type may be.
    of_windows: rules of layers with a window, in families where rope_parameters has two parts;
      None where all layers turn alike.
  """

  names: tuple[str, ...] = ('rope_theta',)
  others: tuple[str, ...] = ()
  rotary_factor: float | None = None
  theta: float = 10000.0
  types: tuple[str, ...] = tuple(_TYPES)
  of_windows: Any = None


def read_rope(stored: dict, rules: RopeRules, windows: tuple[int | None, ...] = ()) -> dict:
  """The fields of ModelConfig that describe RoPE."""
  if rules.of_windows is None:
    return _agreed(stored, of_type(stored, 'rope_parameters', dict), rules)
  parts = of_type(stored, 'rope_parameters', dict)
  for name in sorted(parts):
    only('a name in rope_parameters', name, FULL, SLIDING)
  # Versions of transformers before 5 read these two here, and later ones do not.
  only(_LENGTH, stored.get(_LENGTH), None)
  if 'rope_type' not in (scaling := of_type(stored, 'rope_scaling', dict)) and 'type' in scaling:
    raise InputError(f'rope_scaling with type={show(scaling["type"])} must call it rope_type')
  full = _agreed(stored, of_type(parts, FULL, dict), rules)
  local = _reading(stored, of_type(parts, SLIDING, dict), rules.of_windows)
  if windows and None not in windows:
    return local
  return full | ({'window_rope_theta': local['rope_theta']} if windows and local != full else {})


def _agreed(stored, parameters, rules):
  places = [place for place in (parameters, of_type(stored, 'rope_scaling', dict)) if place]
  readings = [_reading(stored, place, rules) for place in places or [{}]]
  # transformers reads one of the two, and which one depends on its version.
  if readings[-1] != readings[0]:
    raise InputError('rope_parameters and rope_scaling describe different RoPE')
  return readings[0]


def _reading(stored, place, rules):
  rope = dict(rope_type='default', rope_theta=rules.theta,
              partial_rotary_factor=rules.rotary_factor or 1.0)
  rope |= _settings(stored, place, rules.names)
  for name in sorted(_NAMES.keys() - {*rules.names, *rules.others, 'type'}):
    only(name, stored.get(name), None, rope[_NAMES[name]])
  only('rope_type', rope['rope_type'], *rules.types)
  share = entry(rope, 'partial_rotary_factor', *_FACTOR)
  if rules.rotary_factor is None:
    only('partial_rotary_factor', share, 1.0)
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
    given = dict(beta_slow=1, beta_fast=32, attention_factor=_attention_factor(given)) | given
  return RopeScaling(kind, **{
      ours: entry(given, name, *COUNT) if name == _LENGTH else float(entry(given, name, *NUMBER))
      for ours, name in fields.items()})


def _attention_factor(given):
  """What YaRN multiplies queries and keys by, if config.json does not say."""
  growth = 0.1 * math.log(max(entry(given, 'factor', *NUMBER), 1))
  if not (given.get('mscale') and given.get('mscale_all_dim')):
    return 1 + growth
  scale, divisor = (1 + growth * entry(given, name, *NUMBER)
                    for name in ('mscale', 'mscale_all_dim'))
  return scale / divisor


def rope_to_stored(config: ModelConfig, rules: RopeRules) -> dict:
  """The entries of config.json that describe RoPE, as far as the family can.

  Entries next to rope_parameters are what versions of transformers before 5 read.
  """
  scaling = config.rope_scaling
  kind = scaling.kind if scaling else 'default'
  changed = {'rope_type': kind} | {name: getattr(scaling, ours)
                                   for ours, name in _TYPES[kind].items()}
  rope = changed | dict(rope_theta=float(config.rope_theta),
                        partial_rotary_factor=float(config.rotary_factor))
  stored = {name: rope[_NAMES[name]] for name in rules.names}
  if rules.of_windows is None:
    stored['rope_parameters'] = rope
  else:
    theta = config.rope_theta if config.window_rope_theta is None else config.window_rope_theta
    local = dict(rope_type='default', rope_theta=float(theta))
    stored |= {name: local['rope_theta'] for name in rules.of_windows.names}
    del rope['partial_rotary_factor']
    stored['rope_parameters'] = {FULL: rope, SLIDING: local}
  return stored | ({'rope_scaling': changed} if scaling else {})
