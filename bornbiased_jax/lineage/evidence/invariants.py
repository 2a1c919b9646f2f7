"""Numbers of a layer that no change of its parts can alter, however a copy is disguised.

Units, heads and residual channels can be exchanged, the residual stream can be rotated, scales can
move between what a unit reads and writes, and the values of a head can be mixed, all without any
effect. What stays is the size of each unit and the cosines between its own vectors, and of each
head the singular values of what its values write. All units, or heads, of a layer are described
together by quantiles, as they may stand in any order.
"""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

QUANTILES = (np.arange(64) + 0.5) / 64
NAMES = ('unit size', 'gate size', 'up and down', 'gate and up', 'gate and down', 'head')


def of_layer(pieces: Iterable[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """The quantiles [64], float32, of those of NAMES that a layer has.

  Args:
    pieces: parts of `layouts.read`: some of the units, or some of the heads.
  """
  found = defaultdict(list)
  for piece in pieces:
    of_part = _of_heads(piece) if 'value' in piece else _of_units(piece)
    for name, numbers in of_part.items():
      found[name].append(numbers.ravel())
  return {name: np.quantile(np.concatenate(each), QUANTILES).astype(np.float32)
          for name, each in found.items()}


def _of_units(piece):
  """Of units [..., D]; up and down may change their signs together, if there is a gate."""
  piece, scale = _scaled(piece)
  inner = lambda a, b: np.einsum('...d,...d->...', piece[a], piece[b])
  size = {name: np.sqrt(inner(name, name)) for name in piece}
  log_size = {name: scale[name] + _log(each) for name, each in size.items()}
  cosine = lambda a, b: inner(a, b) / np.maximum(size[a] * size[b], 1e-30)
  found = {'unit size': log_size['up'] + log_size['down'], 'up and down': cosine('up', 'down')}
  if 'gate' in piece:
    found |= {'gate size': log_size['gate'], 'gate and up': np.abs(cosine('gate', 'up')),
              'gate and down': np.abs(cosine('gate', 'down'))}
  return found


def _of_heads(piece):
  """log of the singular values of V_gᵀ O_gh, by K x K matrices that have the same."""
  piece, scale = _scaled(piece)
  square_GKK, written_GHKK = ((piece[name] @ piece[name].swapaxes(-1, -2)).astype(np.float64)
                              for name in ('value', 'output'))
  eigen_GK, axes_GKK = np.linalg.eigh(square_GKK)
  root_G1KK = (np.sqrt(np.maximum(eigen_GK, 0))[:, None] * axes_GKK)[:, None]
  product_GHKK = root_G1KK.swapaxes(-1, -2) @ written_GHKK @ root_G1KK
  return {'head': sum(scale.values()) + _log(np.linalg.eigvalsh(product_GHKK)) / 2}


def _scaled(piece):
  """Vectors with numbers of at most 1, whose squares are finite, and the log of each scale."""
  largest = {name: np.float32(max(np.abs(x).max(), 1e-30)) for name, x in piece.items()}
  return ({name: x / largest[name] for name, x in piece.items()},
          {name: np.log(each) for name, each in largest.items()})


def _log(x):
  """The logarithm. What is below 1e-6 of the largest counts as that: squares are float32."""
  return np.log(np.maximum(x, 1e-6 * x.max(axis=-1, keepdims=True) + 1e-30))
