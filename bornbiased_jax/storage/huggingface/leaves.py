"""Between the tensors of a model and the leaves of our parameters: names, checks, both ways."""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import math
from pathlib import Path
import re
from typing import NamedTuple

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import leaf_shapes
from bornbiased_jax.storage.huggingface.families import Family
from bornbiased_jax.storage.huggingface.quantized import AUXILIARY
from bornbiased_jax.storage.huggingface.tensors import DTYPES, Tensor
from bornbiased_jax.storage.layers import ROWS, Layers

# Tensors that no logits need: what older versions stored although it is no weight, what belongs to
# quantized activations, and heads that guess tokens further on.
_LEFT_OUT = re.compile(r'.*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq|'
                       rf'.*\.({AUXILIARY.pattern})|\w+\.mtp\w*\..*')


class Group(NamedTuple):
  """One weight or bias of a module, in all layers, and the leaves of our tree that hold it."""

  template: str
  leaves: tuple
  counts: tuple[int, ...]  # of layers and experts, by which its leaves are stacked
  shape: tuple  # shape of a stored tensor
  transposed: bool
  shift: np.float32  # our value less the stored one
  split: Callable | None = None  # function from what several leaves fuse, and sizes, to its parts

  def stored(self, *layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name of each stored tensor, of one layer or of all, and its index in such leaves."""
    for index in _indices(self.counts[len(layer):]):
      yield self.template.format(*layer, *index), index

  def fill(self, leaves, index, tensor):
    """Fills the leaves at `index` with a stored tensor."""
    for ours, theirs in self.aligned(leaves, index, tensor):
      ours[...] = theirs
      if self.shift:
        ours += self.shift

  def aligned(self, leaves, index, tensor):
    """For each leaf, its part at `index` and its part of the stored tensor: views of one shape."""
    tensor = tensor.swapaxes(-1, -2) if self.transposed else tensor
    sizes = [leaf.shape[-1] for leaf in leaves]
    parts = self.split(tensor, sizes) if self.split and len(leaves) > 1 else [tensor]
    return [(leaf[index].reshape(part.shape), part)
            for leaf, part in zip(leaves, parts, strict=True)]


def _indices(counts):
  """All indices of arrays of this shape, one at a time: a stranger's may be huge."""
  if not counts:
    yield ()
    return
  for first in range(counts[0]):
    for others in _indices(counts[1:]):
      yield first, *others


def turned(shape: tuple[int, ...]) -> tuple[int, ...]:
  """The shape of a matrix, or of several, that is transposed."""
  return (*shape[:-2], *shape[:-3:-1])


def groups(config: ModelConfig, family: Family,
           shapes: dict[str, tuple[int, ...]] | None = None) -> Iterator[Group]:
  """What a family stores of a model, or of those of its leaves that have these shapes."""
  shapes = leaf_shapes(config) if shapes is None else shapes
  modules = {ours: family.base + theirs for ours, theirs in family.modules.items()}
  split = functools.partial(family.split, heads=config.num_heads)
  endings = {'': '.weight', '/scale': '.weight', '/kernel': '.weight', '/bias': '.bias'}
  for ours, theirs in (modules | dict(head=family.head)).items():
    for ending, suffix in endings.items():
      leaves = tuple(module + ending for module in ours.split())
      if leaves[0] in shapes:
        counts = (config.num_layers, config.num_experts)[:theirs.count('{}')]
        parts = [shapes[leaf][len(counts):] for leaf in leaves]
        shape = (*parts[0][:-1], sum(part[-1] for part in parts))
        transposed = family.transposed and ending == '/kernel'
        shape = turned(shape) if transposed else shape
        shift = np.float32(family.gain_less if ending == '/scale' else 0)
        yield Group(theirs + suffix, leaves, counts, shape, transposed, shift, split)


def untied(config: ModelConfig, tensors: dict[str, Tensor], *names: str) -> ModelConfig:
  """The configuration, with a head of its own if one is stored that is not the embedding.

  So `transformers` takes it, whatever tie_word_embeddings says. `names` are the embedding's and the
  head's; if only the head is stored, it becomes the embedding.
  """
  embedding, head = map(tensors.get, names)
  if head is None or not config.tied_head:
    return config
  if embedding is None:
    # Of two names of one tensor save_model of safetensors keeps the first in the alphabet.
    tensors[names[0]] = tensors.pop(names[1])
    return config
  for name in names:
    _check_kind(name, tensors[name], (config.vocab_size, config.width))
  size = config.vocab_size
  parts = [(first, min(first + ROWS, size)) for first in range(0, size, ROWS)]
  is_same = all(np.array_equal(embedding.read(*rows), head.read(*rows)) for rows in parts)
  return config if is_same else dataclasses.replace(config, tied_head=False)


def check_all(path: Path, tensors: dict[str, Tensor], wanted: list[Group], *others: str,
              advice: str = '') -> None:
  """Raises InputError unless all that is wanted is there, and nothing else that is not `others`.

  `advice` is for names of somebody's own, and says what to do with what is left over.
  """
  known = {*others}
  for group in wanted:
    for name, _ in group.stored():
      if name not in tensors:
        raise InputError(f'{path} has no tensor {name} {list(group.shape)}')
      share = 'needs' if len(group.leaves) == 1 else 'share it and need'
      _check_kind(name, tensors[name], group.shape, advice and f'{", ".join(group.leaves)} {share}')
      known.add(name)
  for name in sorted(tensors.keys() - known):
    if not (_LEFT_OUT.fullmatch(name) or _is_no_bias(name, tensors[name])):
      raise InputError(f'{tensors[name].file}: tensor {show(tensors[name].stored_name)} has no '
                       f'place in this model{advice}')


def _is_no_bias(name, tensor):
  """Whether it is a bias of zeros, as AutoGPTQ stores with every matrix."""
  return name.endswith('.bias') and tensor.dtype in DTYPES and not tensor.read().any()


def _check_kind(name, tensor, shape, source=''):
  # A shape may have any number of ones.
  if tensor.shape != list(shape):
    source = source or (
        'its metadata need' if tensor.file.suffix == '.gguf' else 'config.json needs')
    raise InputError(f'{tensor.file}: tensor {name} is {show(tensor.shape)}; {source} '
                     f'{list(shape)}')
  if tensor.dtype not in DTYPES:
    advice = ("load the model by from_pretrained(…, dtype='float32') of transformers, and save it "
              'by save_pretrained' if tensor.stamp else "give model.float(), or of an array "
              "array.astype('float32')")
    raise InputError(f'{tensor.file}: tensor {name} is {tensor.dtype}, and only '
                     f'{", ".join(DTYPES)} can be read; {advice}')


def filled(config: ModelConfig, tensors: dict[str, Tensor], wanted: list[Group],
           mesh: jax.sharding.Mesh | None = None) -> tuple[ModelConfig, dict]:
  """The configuration, and the parameters of tensors that were checked, one leaf after another."""
  shapes = leaf_shapes(config)
  placed = _placed(mesh, shapes)
  params: dict[str, jax.Array] = {}
  for group in wanted:
    leaves = [_empty(shapes[name]) for name in group.leaves]
    for name, index in group.stored():
      group.fill(leaves, index, tensors[name].read())
    params |= {name: jax.device_put(leaf, placed[name])
               for name, leaf in zip(group.leaves, leaves, strict=True)}
  return config, unflatten_dict(params, sep='/')


def _empty(shape):
  """Memory for a leaf, so aligned that JAX takes it as it is on a CPU, without a copy."""
  buffer = np.empty(4 * math.prod(shape) + 64, np.uint8)
  start = -buffer.ctypes.data % 64
  return buffer[start:start + 4 * math.prod(shape)].view(np.float32).reshape(shape)


def _placed(mesh, shapes):
  leaves = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
  return flatten_dict(sharding.shardings(mesh, unflatten_dict(leaves, sep='/')), sep='/')


def layers(config: ModelConfig, tensors: dict[str, Tensor], wanted: list[Group]) -> Layers:
  """The parameters of tensors that were checked; only what is asked for is read."""
  shapes = leaf_shapes(config)
  in_blocks = [group for group in wanted if group.counts]
  outside = {group.leaves[0]: group for group in wanted if not group.counts}

  def read_block(layer):
    block: dict[str, np.ndarray] = {}
    for group in in_blocks:
      leaves = [np.empty(shapes[name][1:], np.float32) for name in group.leaves]
      for name, index in group.stored(layer):
        group.fill(leaves, index, tensors[name].read())
      block |= zip(group.leaves, leaves, strict=True)
    return unflatten_dict(block, sep='/')['blocks']

  def read_rows(name, first, last):
    group = outside[name]
    tensor = tensors[group.template].read(first, last)
    leaves = [np.empty(tensor.shape, np.float32)]
    group.fill(leaves, (), tensor)
    return leaves[0]

  return Layers(config, shapes, read_block, read_rows)


def stored_tensors(config: ModelConfig, family: Family, params: dict) -> dict[str, np.ndarray]:
  """The tensors of a family by their names there."""
  leaves, tensors = flatten_dict(params, sep='/'), {}
  for group in groups(config, family):
    parts = [np.asarray(leaves[name]) for name in group.leaves]
    for name, index in group.stored():
      tensors[name] = np.empty(group.shape, np.float32)
      for ours, theirs in group.aligned(parts, index, tensors[name]):
        theirs[...] = ours - group.shift if group.shift else ours
  return tensors
