"""Which stack of layers of a folder is the language model's, by the names of tensors.

A stack is what has one name before the numbers of its layers, such as `model.layers`.
"""

import collections
from collections.abc import Mapping
import math
import re

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.lineage import layout_names as names

# Name within a layer → the tensors (of each expert) of that name.
Layer = dict[str, list[str]]
Stacks = dict[str, list[Layer]]
_NUMBERED = re.compile(r'((?:[^.]+\.)*?[^.]+)\.(\d{1,6})\.(.+)')
_LONGEST_NAME = 250
_REST = 'what is in no stack, or in others'
_EXPERT = re.compile(r'(experts?)\.(expert_)?\d+\.')
_APART = re.compile(r'(attentions|ffns|layer_norm[12])\.(\d+)')  # XLM's lists, one for each kind.


def group(shapes: Mapping[str, tuple[int, ...]]) -> Stacks:
  """The layers of each stack, in the order of their numbers."""
  stacks: dict[str, dict[int, Layer]] = {}
  for name in shapes:
    plain = _APART.sub(r'layers.\2.\1', name.replace('/', '.'))
    match = _NUMBERED.fullmatch(plain) if len(name) < _LONGEST_NAME else None
    if match:
      inner = re.sub(r'(\.linear|\.base_layer)?\.(weight|kernel|scale)$', '', match[3])
      inner = re.sub(r'(\.bias|_bias)$', ':bias', inner)
      layer = stacks.setdefault(match[1], {}).setdefault(int(match[2]), {})
      layer.setdefault(_EXPERT.sub(r'\1.*.', inner), []).append(name)
  for layers in stacks.values():
    for number in [i for i, layer in layers.items() if any(map(names.DRAFT.search, layer))]:
      del layers[number]
  return {stack: [layers[i] for i in sorted(layers)] for stack, layers in stacks.items()}


def choose(stacks: Stacks, found: Mapping, shapes: Mapping[str, tuple[int, ...]]) -> str:
  """The only stack that can be a language model's.

  Products share public towers, text encoders, teachers and draft heads. What is not known to be
  one of these by its name may be the language model, whether or not its layers can be read; and
  so may be what has more weights.

  Args:
    stacks: of `group`.
    found: stack → its width and layers, of those that can be read.
    shapes: of all tensors, by name.

  Raises:
    InputError: no stack, or several, can be the language model's, or it cannot be read.
  """
  likely = {stack for stack in stacks if not names.ASIDE.search(stack) and (
      stack in found or _are_layers(stacks[stack], shapes))}
  likely -= _encoders(likely, stacks)
  if len(likely) > 1:
    shown = ', '.join(map(show, sorted(likely)[:3]))
    raise InputError(f'ambiguous: each of these may be the language model: {shown}; copy the '
                     'folder without the tensors of the others')
  own = min(likely, default='')
  layers = found[own][1] if own in found else ()
  is_list = any(re.search(r'(^|\.)\d+\.', sublayer.path)  # Of models, which have layers inside.
                for layer in layers for sublayer in (*layer.units, *layer.heads))
  if not layers or is_list:
    raise InputError('no layers with an MLP or attention are recognized as a language model by '
                     'names and shapes')
  if larger := _larger(own, stacks, shapes):
    raise InputError(f'ambiguous: {show(larger)} has more weights than {show(own)}, the language '
                     'model by its name')
  return own


def _are_layers(layers, shapes):
  """Whether what has numbers are layers: several, of two matrices at least."""
  return len(layers) > 1 and any(
      sum(len(shapes[name]) > 1 or 0 in shapes[name]
          for each in layer.values() for name in each) > 1 for layer in layers)


def _encoders(likely, stacks):
  """Those whose states a decoder of the same name reads."""
  reads = {stack for stack in likely if any(
      names.CROSS.search(name) for layer in stacks[stack] for name in layer)}
  return {stack for stack in likely if stack.replace('encoder', 'decoder') in reads - {stack}}


def _larger(own, stacks, shapes):
  """What has more weights than a stack, if anything has.

  An encoder of images may, and the stack's own encoder; tables of tokens do not count.
  """
  outside, sizes = dict(shapes), collections.Counter()
  for stack, layers in stacks.items():
    size = sum(math.prod(outside.pop(name))
               for layer in layers for each in layer.values() for name in each)
    if stack == own:
      sizes[own] += size
    elif not names.VISION.search(stack) and stack.replace('encoder', 'decoder') != own:
      sizes[stack if names.ASIDE.search(stack) else _REST] += size
  sizes[_REST] += sum(math.prod(shape) for name, shape in outside.items()
                      if not names.TABLE.search(name) and not names.VISION.search(name))
  [(largest, most)] = sizes.most_common(1)
  return largest if most > sizes[own] else None
