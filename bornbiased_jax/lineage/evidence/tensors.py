"""Which tensors two models share: equal, partly equal, nearly equal, or equal up to scale."""

from collections.abc import Iterable
import dataclasses
import math
import re
import zlib

import numpy as np

from bornbiased_jax.storage import digests
from bornbiased_jax.storage.digests import LeafDigest

# Entries that are kept of each tensor, at places that all networks of its shape have in common.
SAMPLE_SIZE = 1024
# Tables of tokens and positions are sampled in their first rows, which most vocabularies have.
_FIRST_ROWS = 1024
# More equal entries than rounding makes in independent tensors.
LEAST_EQUAL = 0.05
ALIKE = 0.99
_SCALE_TOLERANCE = 0.02
# What makes equal matrices evidence (`equal_matrices`).
LEAST_SAMPLED, LEAST_ENTRIES, LEAST_DISTINCT = 8, 1024, 64
_MATRICES = re.compile(r'blocks/(experts/|shared/)?(query|key|value|output|gate|up|down)/kernel')
OF_TOKENS = ('embedding', 'head')
_TABLES = (*OF_TOKENS, 'position_embedding')


@dataclasses.dataclass(frozen=True)
class TensorSample:
  """What is kept of a tensor: digest, shape, and SAMPLE_SIZE of its entries."""

  digest: str
  shape: tuple[int, ...]
  sample: np.ndarray


class Taker:
  """Takes a tensor that it sees in pieces, one after another along the first axis."""

  def __init__(self, name: str, shape: tuple[int, ...]):
    self._places = _places(name, shape)
    self._shape, self._seen = shape, 0
    self._sample, self._digest = np.empty(SAMPLE_SIZE, np.float32), LeafDigest(shape)

  def see(self, piece: np.ndarray) -> None:
    """Takes the next rows."""
    row_S, *others = self._places
    here_S = (row_S >= self._seen) & (row_S < self._seen + len(piece))
    self._sample[here_S] = piece[(row_S[here_S] - self._seen, *(each[here_S] for each in others))]
    self._digest.update(piece)
    self._seen += len(piece)

  def tensor(self) -> TensorSample:
    """The tensor, after all of it was seen."""
    return TensorSample(self._digest.hexdigest(), self._shape, self._sample)


def take(name: str, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> TensorSample:
  """What is kept of a tensor that comes in pieces."""
  taker = Taker(name, shape)
  for piece in pieces:
    taker.see(piece)
  return taker.tensor()


def _places(name, shape):
  """Where a tensor is sampled: an array for each axis."""
  random = np.random.default_rng(zlib.crc32(name.encode()))
  sizes = (min(shape[0], _FIRST_ROWS), *shape[1:]) if name in _TABLES else shape
  return [random.integers(0, size, SAMPLE_SIZE) for size in sizes]


def digest_of(tensors: dict[str, TensorSample]) -> str:
  """SHA-256 of a model, from the digests of its tensors (`digests.digest`)."""
  return digests.joined({name: each.digest for name, each in tensors.items()})


def shared(a: dict[str, TensorSample], b: dict[str, TensorSample]) -> list[dict]:
  """The tensors that two models have in common and that are not constant in both, as JSON.

  Each has its name, how (equal, partly equal, nearly equal or equal up to scale), the correlation
  of sampled entries and the share of them that are equal and not 0.
  """
  found = []
  for name in sorted(a.keys() & b.keys()):
    x, y = a[name], b[name]
    comparable = x.shape == y.shape or name in _TABLES and x.shape[1:] == y.shape[1:]
    if comparable and np.ptp(x.sample) > 0 and np.ptp(y.sample) > 0:
      correlation = float(np.corrcoef(x.sample, y.sample)[0, 1])
      equal = float(np.mean((x.sample == y.sample) & (x.sample != 0)))
      if how := _how(x, y, correlation, equal):
        found.append({'tensor': name, 'how': how, 'correlation': correlation,
                      'equal_share': equal})
  return found


def equal_matrices(a: dict[str, TensorSample], b: dict[str, TensorSample],
                   stack: str | None = None) -> dict[str, list[int]]:
  """The layers in which matrices of units or attention are equal, entry by entry, by name.

  Of a layer all sampled entries are compared, LEAST_SAMPLED of them at least. Matrices of few
  entries or few distinct values, which a rule can make, do not count. `stack` is what stands
  before the number of a layer, if both models have names of their own; their matrices all count.
  """
  found: dict[str, list[int]] = {}
  for name in sorted(a.keys() & b.keys()):
    x, y = a[name], b[name]
    if (x.shape != y.shape or (judged := _judged(name, x.shape, stack)) is None
        or len(np.unique(x.sample)) < LEAST_DISTINCT):
      continue
    matrix, layer_S = judged
    counted_S = (x.sample != 0) | (y.sample != 0)
    same_S = (x.sample == y.sample)[counted_S]
    counts_L, equal_L = (np.bincount(layer_S[counted_S], weights) for weights in (None, same_S))
    if (is_equal_L := (counts_L >= LEAST_SAMPLED) & (equal_L == counts_L)).any():
      found[matrix] = sorted([*found.get(matrix, []), *np.flatnonzero(is_equal_L).tolist()])
  return found


def _judged(name, shape, stack):
  """The name of a matrix without its layer, and the layer of each sampled entry, or None."""
  if _MATRICES.fullmatch(name) and math.prod(shape[1:]) >= LEAST_ENTRIES:
    return name, _places(name, shape)[0]
  own = stack and re.fullmatch(re.escape(str(stack)) + r'\.(\d{1,4})\.(.+)', name)
  if own and len(shape) > 1 and math.prod(shape) >= LEAST_ENTRIES:
    return own[2], np.full(SAMPLE_SIZE, int(own[1]))
  return None


def _how(x, y, correlation, equal):
  if x.digest == y.digest:
    return 'equal'
  if equal > LEAST_EQUAL and len(np.unique(x.sample)) > SAMPLE_SIZE / 4:
    return 'partly equal'
  if abs(correlation) < ALIKE:
    return None
  # In float64, as the squares of very small numbers would be 0.
  std = lambda each: each.sample.std(dtype=np.float64)
  same_scale = abs(std(x) / std(y) - 1) < _SCALE_TOLERANCE
  return 'nearly equal' if correlation > 0 and same_scale else 'equal up to scale'
