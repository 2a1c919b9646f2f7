"""Which tensors of a transformer hold its MLP units and its heads, found by names and shapes.

A layout says for each layer which rows of which tensors hold its features, so that one reader
serves all architectures. That a layout is right is a property of the function: to permute units,
or value channels within their heads, through it changes no output.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import re

import numpy as np

from bornbiased_jax.lineage import layout_names as names
from bornbiased_jax.lineage import layout_shapes, layout_stacks
from bornbiased_jax.lineage.layout_shapes import Sublayer

UNITS, VALUES = ('gate', 'up', 'down'), ('value', 'output')
_VOCABULARY = 'vocab_size', 'n_vocab'
_WIDTHS = 8  # As many tables are tried if config.json does not say how wide the stream is.


@dataclasses.dataclass(frozen=True)
class Layer:
  """The MLPs of a layer (routed experts first) and its attentions, those that can be read."""

  units: tuple[Sublayer, ...]
  heads: tuple[Sublayer, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where the features of a transformer lie.

  Attributes:
    width: the size D of the residual stream.
    vocab_size: the number of token ids that config.json gives, or 1.
    stack: the full name before the number of a layer.
    layers: in the order of their numbers.
    left_out: names of other stacks, which are not read.
    zero_centred: whether norms scale by 1 + gain.
    centred: whether norms take the mean away.
  """

  width: int
  vocab_size: int
  stack: str
  layers: tuple[Layer, ...]
  left_out: tuple[str, ...]
  zero_centred: bool
  centred: bool


def find(shapes: Mapping[str, tuple[int, ...]], settings: Mapping) -> Layout:
  """The layout of the tensors with these shapes.

  Args:
    shapes: of all tensors, by name.
    settings: the entries of config.json.

  Raises:
    InputError: no stack of layers, or several, can be the language model's, or it is not read.
  """
  settings, stacks = _flat(settings), layout_stacks.group(shapes)
  found: dict[str, tuple[int, tuple[Layer, ...]]] = {}
  for width in _widths(shapes, settings):
    for stack in [stack for stack in stacks if stack not in found]:
      read = _read_stack(stacks[stack], width, settings, shapes)
      if any(layer.units or layer.heads for layer in read):
        found[stack] = width, read
  own = layout_stacks.choose(stacks, found, shapes)
  width, layers = found[own]
  kind = str(settings.get('model_type', ''))
  left_out = tuple(sorted(stack for stack in stacks if stack != own))
  vocab_size = layout_shapes.number(settings, _VOCABULARY, 1)
  return Layout(width, vocab_size, own, layers, left_out, bool(names.ZERO_CENTRED.match(kind)),
                _is_centred(kind, own, shapes, settings))


def beginning(layout: Layout, num_experts: int, num_units: int, num_heads: int,
              num_channels: int) -> Layout:
  """The layout of only the first experts, units, heads for keys and values, and channels."""
  def cut(sublayer):
    roles = {role: where.begin(
        where.rows[:num_heads, ..., :num_channels] if 'value' in sublayer.roles else
        where.rows[:num_units] if where.rows.ndim == 1 else where.rows[:num_experts, :num_units],
        num_experts) for role, where in sublayer.roles.items() if where.tensors}
    return dataclasses.replace(sublayer, roles=roles)

  layers = tuple(Layer(tuple(map(cut, layer.units)), tuple(map(cut, layer.heads)))
                 for layer in layout.layers)
  return dataclasses.replace(layout, layers=layers)


def read(layout: Layout, number: int, read_tensor: Callable[[str, int | None], np.ndarray]
         ) -> dict[str, np.ndarray]:
  """The features of one layer, float32, with the gains of norms folded in.

  Args:
    layout: of `find`.
    number: of the layer, from 0.
    read_tensor: returns a tensor by its name; its first entries are enough if their number is
      given. It is asked for a fused one once for each role.

  Returns:
    Of the first MLP of the layer gate, up and down [U, D] (of experts [E, U, D]); of its first
    attention value [G, K, D] and output [G, H, K, D].
  """
  layer = layout.layers[number]
  return {role: _vectors(layout, sublayer, role, read_tensor)
          for group, wanted in ((layer.units, UNITS), (layer.heads, VALUES))
          for sublayer in group[:1] for role, where in sublayer.roles.items()
          if role in wanted and where.tensors}


def read_pieces(layout: Layout, number: int,
                read_tensor: Callable[[str, int | None], np.ndarray], most_units: int
                ) -> Iterator[dict[str, np.ndarray]]:
  """What `read` returns, in pieces: at most so many units of each expert, or one value head."""
  layer = layout.layers[number]
  parts = [Layer((_cut(sublayer, np.s_[..., first:first + most_units]),), ())
           for sublayer in layer.units[:1]
           for first in range(0, sublayer.roles['up'].rows.shape[-1], most_units)]
  parts += [Layer((), (_cut(sublayer, np.s_[head:head + 1]),)) for sublayer in layer.heads[:1]
            for head in range(len(sublayer.roles['value'].rows))]
  for part in parts:
    yield read(dataclasses.replace(layout, layers=(part,)), 0, read_tensor)


def _cut(sublayer, index):
  return dataclasses.replace(sublayer, roles={
      role: dataclasses.replace(where, rows=where.rows[index])
      for role, where in sublayer.roles.items() if where.tensors})


def _vectors(layout, sublayer, role, read_tensor):
  where = sublayer.roles[role]
  read = lambda name: np.asarray(read_tensor(name, None)).astype(np.float32)
  each = [where.get(np.asarray(read_tensor(name, where.first))).astype(np.float32)
          for name in where.tensors]
  x = np.stack(each) if where.apart else each[0]
  if where.through:
    matrix, gain = where.through
    first = read(matrix)[:x.shape[-1]]
    x = x @ (first * read(gain)[:, None])
  norm = sublayer.behind if role in ('down', 'output') else sublayer.before
  if norm:
    x = x * (read(norm) + (1 if layout.zero_centred else 0))
  return x - x.mean(axis=-1, keepdims=True) if layout.centred else x


def _flat(settings):
  """Settings, replaced by the settings of the language model inside."""
  flat = dict(settings)
  for name in ('thinker_config', 'text_config', 'language_config', 'llm_config', 'decoder',
               'attn_config', 'ffn_config'):
    if isinstance(flat.get(name), Mapping):
      inner = _flat(flat[name])
      if name.startswith(('attn', 'ffn')):
        inner.pop('model_type', None)
      flat.update(inner)
  return flat


def _widths(shapes, settings):
  """The width of the residual stream, or what it may be if config.json does not say."""
  given = layout_shapes.number(settings, names.WIDTHS)
  tables = [shape for name, shape in shapes.items() if len(shape) == 2 and names.EMBEDDING.search(
      re.sub(r'\.(weight|kernel|embedding)$', '', name.replace('/', '.')))]
  return [given] if given else list(dict.fromkeys(x for _, x in sorted(tables)[::-1]))[:_WIDTHS]


def _is_centred(kind, stack, shapes, settings):
  """Whether norms take the mean away."""
  if kind in names.CENTRED_TYPES | names.NOT_CENTRED_TYPES:
    return kind in names.CENTRED_TYPES
  plain = (name.replace('/', '.') for name in shapes)
  biased = any(x.startswith(stack + '.') and names.BIAS_OF_NORM.search(x) for x in plain)
  return biased or 'rms_norm_eps' not in settings and any(
      name in settings for name in ('layer_norm_eps', 'layer_norm_epsilon'))


def _read_stack(layers, width, settings, shapes):
  matched = [[*layout_shapes.match(layer, shapes)] for layer in layers]
  votes = {}  # number of axes → whether matrices of the stack are flipped, where shapes tell.
  for kind, _, roles in (x for layer in matched for x in layer):
    for role, tensors in roles.items() if kind != 'latent' else ():
      flipped = layout_shapes.is_flipped(shapes[tensors[0]], role in ('down', 'output'), width)
      if flipped is not None:
        votes.setdefault(len(shapes[tensors[0]]), set()).add(flipped)
  read = []
  for layer, matches in zip(layers, matched, strict=True):
    build = layout_shapes.Builder(layer, width, settings, shapes, votes)
    done = [(kind, sublayer) for kind, path, roles in matches
            if (sublayer := build.sublayer(kind, path, roles))]
    first = sorted((x for kind, x in done if kind == 'units'), key=lambda x: 'shared' in x.path)
    read.append(Layer(tuple(first), tuple(x for kind, x in done if kind != 'units')))
  return tuple(read)
