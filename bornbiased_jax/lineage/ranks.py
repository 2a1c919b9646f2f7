"""Ranks of columns: sorted by numpy on a CPU, and by XLA elsewhere and in traced code.

On a CPU numpy sorts words with vector instructions, about ten times as fast as XLA.
So each number and its row are packed into one word, and the word is sorted.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

PLACE_BITS = np.uint64(32)
PLACES = np.uint64(2**32 - 1)


def on_host(*arrays: jax.Array | np.ndarray) -> bool:
  """Whether numpy computes with these arrays: on a CPU, outside of jit and vmap.

  Traced code does not call back to numpy: a callback that waits for its operands can wait forever
  on a CPU (https://github.com/jax-ml/jax/issues/24255).
  """
  traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
  return not traced and jax.default_backend() == 'cpu'


def mean_ranks(x_ND: jax.Array | np.ndarray) -> jax.Array:
  """Ranks [n, D] of each column of [n, D], float32, from 1; equal numbers share their mean rank.

  Costs a sort of n numbers a column. Works inside jit and vmap.

  Args:
    x_ND: real numbers of at most 32 bits; columns with a NaN have any ranks.

  Example:
    >>> from bornbiased_jax.lineage import ranks
    >>> ranks.mean_ranks(np.float32([[5], [7], [5]])).T.tolist()
    [[1.5, 3.0, 1.5]]
  """
  if not on_host(x_ND):
    return jax.scipy.stats.rankdata(x_ND, axis=0)
  rank_DN = np.empty(x_ND.shape[::-1], np.float32)
  for rank_N, key_N in zip(rank_DN, host_keys(x_ND), strict=True):
    column = sort(key_N)
    rank_N[column.place_N] = _shared_ranks(column)
  return jnp.asarray(rank_DN.T)


class Sorted(NamedTuple):
  """A sorted column.

  Attributes:
    place_N: where each number was.
    is_new_N: whether it differs from the number before it.
  """

  place_N: np.ndarray
  is_new_N: np.ndarray

  @property
  def has_ties(self) -> bool:
    return not self.is_new_N.all()

  @property
  def dense_rank_N(self) -> np.ndarray:
    """For each number, how many different numbers are lower."""
    return np.cumsum(self.is_new_N) - 1


def key(x: jax.Array) -> jax.Array:
  """Unsigned integers in the order of x, equal where x is equal; -0 equals 0."""
  if x.dtype.itemsize < 4:
    x = x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32)
  if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
    return x
  num_bits = x.dtype.itemsize * 8
  if jnp.issubdtype(x.dtype, jnp.floating):
    x = lax.bitcast_convert_type(x, f'int{num_bits}')
    x = jnp.where(x < 0, -(x & jnp.iinfo(x.dtype).max), x)
  return lax.bitcast_convert_type(x ^ jnp.iinfo(x.dtype).min, f'uint{num_bits}')


def host_keys(x_ND: jax.Array | np.ndarray) -> np.ndarray:
  """The same of each column by numpy, [D, n]: words of 32 bits."""
  x_ND = np.asarray(x_ND)
  x_ND = x_ND.astype(x_ND.dtype.newbyteorder('='), copy=False)
  if jnp.issubdtype(x_ND.dtype, jnp.floating):
    # The sum turns -0 into 0.
    word_DN = (np.ascontiguousarray(x_ND.T, np.float32) + np.float32(0)).view(np.int32)
    return (word_DN ^ (word_DN >> 31 | np.iinfo(np.int32).min)).view(np.uint32)
  if x_ND.dtype == np.uint32:
    return np.ascontiguousarray(x_ND.T)
  return np.ascontiguousarray(x_ND.T, np.int32).view(np.uint32) ^ np.uint32(2**31)


def sort(key_N: np.ndarray, place_N: np.ndarray | None = None) -> Sorted:
  """Sorts words of 32 bits, and by their places where words are equal.

  Args:
    key_N: the words.
    place_N: a permutation of 0 … n - 1, uint64, by default the order of the words.
  """
  word_N = key_N.astype(np.uint64)
  word_N <<= PLACE_BITS
  word_N |= np.arange(len(key_N), dtype=np.uint64) if place_N is None else place_N
  word_N.sort()
  is_new_N = np.ones(len(key_N), bool)
  np.greater(word_N[1:] ^ word_N[:-1], PLACES, out=is_new_N[1:])
  return Sorted((word_N & PLACES).view(np.int64), is_new_N)


def _shared_ranks(column):
  """The rank of each number of a sorted column, from 1; the mean rank in runs of equal numbers."""
  if not column.has_ties:
    return np.arange(1, 1 + len(column.is_new_N))
  first = np.flatnonzero(column.is_new_N)
  length = np.diff(first, append=len(column.is_new_N))
  return np.repeat(first + (length + 1) / 2, length)
