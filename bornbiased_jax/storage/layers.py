"""A model that is read layer by layer, from its files or from memory."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses

from flax.traverse_util import flatten_dict
import jax
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.hosts import on_host
from bornbiased_jax.storage.digests import LeafDigest, joined

# Rows of a table, such as the embedding, that are in memory at a time.
ROWS = 4096


@dataclasses.dataclass(frozen=True)
class Layers:
  """The parameters of a model, read when they are asked for, as float32.

  Attributes:
    config: the architecture.
    shapes: the shape of each leaf of `initialization.init_params`, by a name such as
      'blocks/up/kernel'.
    read_block: the parameters of one layer by its number, in the tree of
      `init_params(...)['blocks']` without the layer axis.
    read_rows: (name, first, last) → these rows of a leaf outside the blocks.
  """

  config: ModelConfig
  shapes: Mapping[str, tuple[int, ...]]
  read_block: Callable[[int], dict]
  read_rows: Callable[[str, int, int], np.ndarray]

  def outside_blocks(self) -> list[str]:
    """The names of the leaves that are not in a block."""
    return [name for name in self.shapes if not name.startswith('blocks/')]

  def digest(self) -> str:
    """The `digests.digest` of all parameters; each is read once."""
    hashed = {name: LeafDigest(shape) for name, shape in self.shapes.items()}
    for name, piece in self.leaves():
      hashed[name].update(piece)
    return joined({name: each.hexdigest() for name, each in hashed.items()})

  def leaves(self, on_block: Callable[[dict], None] = lambda block: None
             ) -> Iterator[tuple[str, np.ndarray]]:
    """Every leaf in pieces along its first axis, by its name; all is read once.

    Of a leaf in the blocks a piece is one layer; `on_block` is called with the parameters of each,
    after its pieces. Of others a piece has ROWS rows at most.
    """
    for layer in range(self.config.num_layers):
      block = self.read_block(layer)
      for name, leaf in flatten_dict(block, sep='/').items():
        yield f'blocks/{name}', leaf[None]
      on_block(block)
    for name in self.outside_blocks():
      size = self.shapes[name][0]
      for first in range(0, size, ROWS):
        yield name, self.read_rows(name, first, min(first + ROWS, size))

  def rows(self, name: str, index_N: np.ndarray) -> np.ndarray:
    """The rows of a leaf outside the blocks that `index_N`, in ascending order, names."""
    found = []
    for first in np.unique(index_N // ROWS) * ROWS:
      last = min(int(first) + ROWS, self.shapes[name][0])
      inside_N = (index_N >= first) & (index_N < last)
      found.append(self.read_rows(name, int(first), last)[index_N[inside_N] - first])
    return np.concatenate(found)


def in_memory(config: ModelConfig, params: dict) -> Layers:
  """The layers of a model of these parameters, which may lie on devices."""
  leaves = flatten_dict(params, sep='/')
  of_layer = lambda i: jax.tree.map(lambda leaf: _part(leaf, i), params['blocks'])
  return Layers(config, {name: leaf.shape for name, leaf in leaves.items()}, of_layer,
                lambda name, first, last: _part(leaves[name], slice(first, last)))


def _part(leaf, index):
  """A part of a leaf, on the host. Of what is there already numpy takes it and compiles nothing."""
  is_there = isinstance(leaf, jax.Array) and leaf.is_fully_replicated and all(
      device.platform == 'cpu' for device in leaf.devices())
  return on_host((np.asarray(leaf) if is_there else leaf)[index])
