"""Sliding windows in config.json: which layers have one, in the words of each family."""

from collections.abc import Callable
from typing import NamedTuple

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.storage.huggingface.entries import COUNT, FLAG, entry, of_type, only

FULL, SLIDING = 'full_attention', 'sliding_attention'
_WHOLE = ('a whole number', lambda value: type(value) is int)
# A stranger's num_hidden_layers takes no memory before its tensors are looked for.
_MOST_LAYERS = 10_000
# Gemma and OLMo 3 make a mask of windows even if no layer uses it, and need a number for it.
_UNUSED = 4096


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
    only({'use_sliding_window': False} | stored, 'use_sliding_window', False)
  slides = rules.slides(stored)
  if stored.get('layer_types') is None:
    slides_L = _by_rule(slides, num_layers)
  else:
    slides_L = _by_type(stored, num_layers)
    must_agree = not rules.by_type or rules.pattern and rules.pattern in stored
    if must_agree and slides_L != [bool(slides and slides(i)) for i in range(num_layers)]:
      raise InputError(f'layer_types={show(stored["layer_types"])} contradicts '
                       f'{rules.pattern or "the layers of this family"}')
  if not any(slides_L):
    return ()
  if rules.switch and not stored['use_sliding_window']:
    raise InputError(f'layer_types with {SLIDING!r} needs use_sliding_window=true')
  window = entry(stored, 'sliding_window', *COUNT)
  return tuple(window if slides else None for slides in slides_L)


def _by_rule(slides, num_layers):
  if slides is None:
    return []
  if num_layers > _MOST_LAYERS:
    raise InputError(f'num_hidden_layers={num_layers} is not supported with windows; '
                     f'{_MOST_LAYERS} is the most')
  return [slides(i) for i in range(num_layers)]


def _by_type(stored, num_layers):
  types = of_type(stored, 'layer_types', list)
  for layer_type in types:
    if layer_type not in (FULL, SLIDING):
      raise InputError(f'layer_types with {show(layer_type)} is not supported; {FULL!r} and '
                       f'{SLIDING!r} are')
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
