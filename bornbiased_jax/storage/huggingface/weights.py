"""Which tensor of a directory of `transformers` holds which of our parameters."""

from collections.abc import Iterable, Iterator
from pathlib import Path
import re
from typing import NamedTuple

from flax.traverse_util import flatten_dict
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.storage.huggingface.families import Family
from bornbiased_jax.storage.huggingface.tensors import DTYPES, Tensor
from bornbiased_jax.storage.layers import ROWS

_HEADS = ('lm_head.weight', 'embed_out.weight')
# Tensors that older versions stored although they are no weights.
_BUFFERS = re.compile(r'.*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq')


class Group(NamedTuple):
  """One weight or bias of a module, in all layers, and the leaves of our tree that hold it."""

  template: str
  leaves: tuple
  counts: tuple[int, ...]  # of layers and experts, by which its leaves are stacked
  shape: tuple  # shape of a stored tensor
  transposed: bool
  shift: np.float32  # our value less the stored one

  def stored(self, *layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name of each stored tensor, of one layer or of all, and its index in such leaves."""
    for index in _indices(self.counts[len(layer):]):
      yield self.template.format(*layer, *index), index

  def fill(self, leaves, index, tensor, config, family):
    """Fills the leaves at `index` with a stored tensor."""
    for ours, theirs in self.aligned(leaves, index, tensor, config, family):
      ours[...] = theirs
      if self.shift:
        ours += self.shift

  def aligned(self, leaves, index, tensor, config, family):
    """For each leaf, its part at `index` and its part of the stored tensor: views of one shape."""
    tensor = tensor.T if self.transposed else tensor
    sizes = [leaf.shape[-1] for leaf in leaves]
    parts = family.split(tensor, sizes, config.num_heads) if len(leaves) > 1 else [tensor]
    return [(leaf[index].reshape(part.shape), part)
            for leaf, part in zip(leaves, parts, strict=True)]


def _indices(counts):
  """All indices of arrays of this shape, of which a stranger's may be huge."""
  if not counts:
    yield ()
    return
  for first in range(counts[0]):
    for others in _indices(counts[1:]):
      yield first, *others


def leaf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """The shape of each leaf of the parameters, by its name."""
  return {name: leaf.shape for name, leaf in flatten_dict(param_shapes(config), sep='/').items()}


def groups(config: ModelConfig, family: Family,
           shapes: dict[str, tuple[int, ...]]) -> Iterator[Group]:
  """What a family stores of a network whose leaves have these shapes."""
  modules = {ours: family.base + theirs for ours, theirs in family.modules.items()}
  endings = {'': '.weight', '/scale': '.weight', '/kernel': '.weight', '/bias': '.bias'}
  for ours, theirs in (modules | dict(head=family.head)).items():
    for ending, suffix in endings.items():
      leaves = tuple(module + ending for module in ours.split())
      if leaves[0] in shapes:
        counts = (config.num_layers, config.num_experts)[:theirs.count('{}')]
        parts = [shapes[leaf][len(counts):] for leaf in leaves]
        shape = (*parts[0][:-1], sum(part[-1] for part in parts))
        transposed = family.transposed and ending == '/kernel'
        shape = shape[::-1] if transposed else shape
        shift = np.float32(family.gain_less if ending == '/scale' else 0)
        yield Group(theirs + suffix, leaves, counts, shape, transposed, shift)


def find(path: Path, config: ModelConfig, family: Family, wanted: list[Group],
         found: Iterable[Tensor]) -> dict[str, Tensor]:
  """The tensors by the names of the family: those that are wanted, of right shapes, no others."""
  tensors: dict[str, Tensor] = {}
  for tensor in found:
    name = tensor.stored_name
    name = name if name.startswith(family.base) else family.base + name
    name = f'{family.head}.weight' if tensor.stored_name in _HEADS else name
    if name in tensors:
      raise InputError(f'{tensor.file}: tensor {show(tensor.stored_name)} is a second {show(name)}')
    tensors[name] = tensor
  head, embedding = f'{family.head}.weight', f'{family.base}{family.modules["embedding"]}.weight'
  # Of two names of one tensor save_model of safetensors keeps the first in the alphabet.
  if config.tied_head and embedding not in tensors and head in tensors:
    tensors[embedding] = tensors.pop(head)
  _check(path, tensors, wanted, family)
  _check_tied(tensors, config, family)
  return tensors


def _check(path, tensors, wanted, family):
  known = {f'{family.head}.weight'}
  for group in wanted:
    for name, _ in group.stored():
      if name not in tensors:
        raise InputError(f'{path} has no tensor {name} {list(group.shape)}')
      _check_kind(name, tensors[name], group.shape)
      known.add(name)
  for name in sorted(tensors.keys() - known):
    if not _BUFFERS.fullmatch(name):
      raise InputError(f'{tensors[name].file}: tensor {show(tensors[name].stored_name)} has no '
                       'place in this model')


def _check_kind(name, tensor, shape):
  # A shape may have any number of ones.
  if tensor.shape != list(shape):
    source = 'its metadata need' if tensor.file.suffix == '.gguf' else 'config.json needs'
    raise InputError(f'{tensor.file}: tensor {name} is {show(tensor.shape)}; {source} '
                     f'{list(shape)}')
  if tensor.dtype not in DTYPES:
    raise InputError(f'{tensor.file}: tensor {name} is {tensor.dtype}, and only '
                     f'{", ".join(DTYPES)} can be read; load the model by from_pretrained(…, '
                     "dtype='float32') of transformers, and save it by save_pretrained")


def _check_tied(tensors, config, family):
  head = tensors.get(f'{family.head}.weight')
  if not (head and config.tied_head):
    return
  _check_kind(f'{family.head}.weight', head, (config.vocab_size, config.width))
  embedding = tensors[f'{family.base}{family.modules["embedding"]}.weight']
  for first in range(0, config.vocab_size, ROWS):
    last = min(first + ROWS, config.vocab_size)
    rows = [tensor.read(first, last) for tensor in (embedding, head)]
    if not np.array_equal(*rows, equal_nan=True):
      raise InputError(f'{head.file}: {head.stored_name} is not the embedding, but '
                       'tie_word_embeddings is true')
