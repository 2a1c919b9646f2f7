"""What names a network, and what notices damage to a checkpoint.

A `digest` is cryptographic: networks of one digest have the same parameters,
whoever made them. It passes every byte through the host. A `checksum` stays on
the devices and is made at every save; it notices accidents, not forgeries.
"""

import hashlib
import json
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.hosts import on_host


def digest(tree: Any) -> str:
  """SHA-256 of a tree of arrays, 64 hexadecimal digits, from the `leaf_digests`.

  Example:
    >>> a, b = {'x': np.float32([1, 2])}, {'x': np.float32([-1, -2])}
    >>> digest(a) == digest(dict(a)), digest(a) == digest(b)
    (True, False)
  """
  return joined(leaf_digests(tree))


def joined(digests: dict[str, str]) -> str:
  """The `digest` of a tree from its `leaf_digests`."""
  return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def leaf_digests(tree: Any) -> dict[str, str]:
  """SHA-256 of each array, by its name in the tree, such as 'blocks/up/kernel'.

  It covers type, shape and the bytes in row-major, little-endian order, and is
  the same on any mesh and any number of hosts.

  Cost: each array is on the host once, one at a time; about 1 second per GB. On
  several hosts each array is first gathered on every device.
  """
  return {_name(path): _leaf_digest(leaf)
          for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path):
  return '/'.join(str(getattr(key, 'key', getattr(key, 'idx', key))) for key in path)


def _leaf_digest(leaf):
  array = on_host(leaf)
  hashed = LeafDigest(array.shape, array.dtype)
  hashed.update(array)
  return hashed.hexdigest()


class LeafDigest:
  """SHA-256 of one array as in `leaf_digests`, from pieces of it in row-major order.

  Example:
    >>> x = np.float32([[1, 2], [3, 4]])
    >>> hashed = LeafDigest(x.shape, x.dtype)
    >>> for row in x:
    ...   hashed.update(row)
    >>> hashed.hexdigest() == leaf_digests({'x': x})['x']
    True
  """

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


def checksum(tree: Any) -> str:
  """16 hexadecimal digits that damage to a tree of 4-byte arrays changes; the same on any mesh.

  Each word is mixed with its place before the words are added, twice modulo
  2^32. Integers add exactly in any order. The mixing is not linear, so that
  pairs of flipped signs, swapped words and changes that cancel in a plain sum
  are noticed too, but for one chance in 2^64.
  """
  return ''.join(f'{half:08x}' for half in np.asarray(_mixed_sums(tree)).tolist())


@jax.jit
def _mixed_sums(tree):
  return sum(_mixed_sum(leaf, i) for i, leaf in enumerate(jax.tree.leaves(tree)))


def _mixed_sum(leaf, i):
  """Both halves of one array's sum, in one reduction: two would keep copies of it in memory."""
  word, place = lax.bitcast_convert_type(leaf, jnp.uint32), _place(leaf.shape)
  mixed = tuple(_mix(word ^ _mix(place + _mix(jnp.uint32(2 * i + half + 1)))) for half in (0, 1))
  zeros = jnp.uint32(0), jnp.uint32(0)
  add = lambda a, b: (a[0] + b[0], a[1] + b[1])
  return jnp.stack(lax.reduce(mixed, zeros, add, tuple(range(leaf.ndim))))


def _mix(x):
  """The finalizer of MurmurHash3: a bijection of 32 bits, each of which depends on all others."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _place(shape):
  """The row-major index of each element, modulo 2^32."""
  place = jnp.zeros(shape, jnp.uint32)
  for axis, size in enumerate(shape):
    place = place * jnp.uint32(size % 2**32) + lax.broadcasted_iota(jnp.uint32, shape, axis)
  return place


@jax.jit
def linear_checksum(tree: Any) -> jax.Array:
  """The checksum of checkpoints of schema 1, a uint32; an even number of flipped signs escapes it.

  It is the sum modulo 2^32 of all words, each multiplied by an odd number that
  depends on its place.
  """
  def of_leaf(leaf):
    word = lax.bitcast_convert_type(leaf, jnp.uint32)
    return jnp.sum(word * (2 * _place(leaf.shape) + 1), dtype=jnp.uint32)

  return sum((2 * i + 1) * of_leaf(leaf) for i, leaf in enumerate(jax.tree.leaves(tree)))
