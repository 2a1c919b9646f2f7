"""Which stack of layers of a folder is the language model's, by the names of tensors.

A stack is what has one name before the numbers of its layers, such as `model.layers`.
"""

from collections.abc import Mapping
import math
import re

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.lineage import layout_names as names

# Name within a layer → the tensors (of each expert) of that name.
Layer = dict[str, list[str]]
Stacks = dict[str, list[Layer]]
_NUMBERED = re.compile(r'((?:[^.]+\.)*?[^.]+)\.(\d{1,6})\.(.+)')
_LONGEST_NAME = 1000
_LARGEST_ASIDE = 2  # Encoders of images can have more weights than a small language model.
_EXPERT = re.compile(r'(experts?)\.\d+\.')
_APART = re.compile(r'(attentions|ffns|layer_norm[12])\.(\d+)')  # XLM's lists, one for each kind.


def group(shapes: Mapping[str, tuple[int, ...]]) -> Stacks:
  """The layers of each stack, in the order of their numbers."""
  stacks: dict[str, dict[int, Layer]] = {}
  for name in shapes:
    plain = _APART.sub(r'layers.\2.\1', name.replace('/', '.'))
    match = _NUMBERED.fullmatch(plain) if len(name) < _LONGEST_NAME else None
    if match:
      inner = re.sub(r'(\.linear)?\.(weight|kernel|scale)$', '', match[3])
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
  so may be what has far more weights.

  Args:
    stacks: of `group`.
    found: stack → its width and layers, of those that can be read.
    shapes: of all tensors, by name.

  Raises:
    InputError: no stack, or several, can be the language model's, or it cannot be read.
  """
  likely = {stack for stack in stacks if not names.ASIDE.search(stack) and (
      stack in found or _are_layers(stacks[stack], shapes))}
  likely -= {stack for stack in likely if _has_decoder(stack, stacks)}
  if len(likely) > 1:
    raise InputError('ambiguous: the layers of the language model could be '
                     f'{show(" or ".join(sorted(likely)))}')
  is_list = any(re.search(r'\.\d+\.', sublayer.path)  # Of whole models, which have layers inside.
                for stack in likely & found.keys() for layer in found[stack][1]
                for sublayer in (*layer.units, *layer.heads))
  if not likely or is_list or not likely <= found.keys():
    raise InputError('no layers with an MLP or attention are recognized as a language model by '
                     'names and shapes')
  own = likely.pop()
  sizes = _sizes(stacks, shapes)
  if _LARGEST_ASIDE * sizes[own] < max(sizes.values()):
    raise InputError(f'ambiguous: {show(max(sizes, key=sizes.get))} has far more weights than '
                     f'{show(own)}, the language model by its name')
  return own


def _are_layers(layers, shapes):
  """Whether what has numbers are layers: several, of two matrices at least."""
  return len(layers) > 1 and any(
      sum(len(shapes[name]) > 1 or 0 in shapes[name]
          for each in layer.values() for name in each) > 1 for layer in layers)


def _has_decoder(stack, stacks):
  """Whether a stack is an encoder whose states another one reads, named as its decoder."""
  decoder = stack.replace('encoder', 'decoder')
  return decoder != stack and any(
      names.CROSS.search(name) for layer in stacks.get(decoder, ()) for name in layer)


def _sizes(stacks, shapes):
  """The number of weights of each stack, and of what is in none and no table of a vocabulary."""
  parts = {stack: [name for layer in layers for each in layer.values() for name in each]
           for stack, layers in stacks.items()}
  rest = shapes.keys() - {name for each in parts.values() for name in each}
  parts['what is in no stack'] = [name for name in rest if not names.TABLE.search(name)]
  return {stack: sum(math.prod(shapes[name]) for name in each) for stack, each in parts.items()}
