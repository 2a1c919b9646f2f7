"""Digests, which name a model and reveal damage to a checkpoint.

A `digest` is cryptographic: models of one digest have the same parameters, whoever made them.
"""

import hashlib
import json
from typing import Any

import jax
import numpy as np

from bornbiased_jax.hosts import on_host

# Every device holds a piece of this many bytes while it is gathered from several hosts.
_PIECE = 2**26


def digest(tree: Any) -> str:
  """SHA-256 of a tree of arrays, 64 hexadecimal digits, from the `leaf_digests`."""
  return joined(leaf_digests(tree))


def joined(digests: dict[str, str]) -> str:
  """The `digest` of a tree from its `leaf_digests`."""
  return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def leaf_digests(tree: Any) -> dict[str, str]:
  """SHA-256 of each array, by its name in the tree, such as 'blocks/up/kernel'.

  It covers type, shape and the bytes in row-major, little-endian order, on any mesh and hosts.
  """
  return {_name(path): _leaf_digest(leaf)
          for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path):
  return '/'.join(str(getattr(key, 'key', getattr(key, 'idx', key))) for key in path)


def _leaf_digest(leaf):
  leaf = leaf if hasattr(leaf, 'dtype') else np.asarray(leaf)
  hashed = LeafDigest(leaf.shape, leaf.dtype)
  for piece in _pieces(leaf):
    hashed.update(on_host(piece))
  return hashed.hexdigest()


def _pieces(leaf):
  """An array, or parts of it along its first axis if other hosts have some of it."""
  if getattr(leaf, 'is_fully_addressable', True) or not leaf.ndim:
    return [leaf]
  rows = max(1, leaf.shape[0] * _PIECE // leaf.nbytes)
  return (leaf[i:i + rows] for i in range(0, leaf.shape[0], rows))


class LeafDigest:
  """SHA-256 of one array as `leaf_digests` has it, from pieces of it in row-major order."""

  def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32):
    self._dtype = np.dtype(dtype).newbyteorder('<')
    self._hashed = hashlib.sha256(json.dumps([self._dtype.name, shape]).encode())

  def update(self, piece: np.ndarray) -> None:
    """Adds the elements that come next."""
    words: Any = np.ascontiguousarray(piece, self._dtype).reshape(-1)
    self._hashed.update(words.view(np.uint8))

  def hexdigest(self) -> str:
    """64 hexadecimal digits."""
    return self._hashed.hexdigest()
