"""Singular values of each layer that no disguise changes, and whether two networks' agree.

No exchange of units, heads or value channels, no rotation of the residual stream, no mixing of
values or turning of queries and keys, no scale that a network can move, and no renumbering of ids
changes them. Of independent networks they agree only in what training gives to all networks.
"""

import jax
import numpy as np
import scipy

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.hosts import on_host
from bornbiased_jax.lineage.comparison.any_basis import against_neighbours

# Modes of one octave of degrees are taken together: 1, 2–3, 4–7, …, 32–63.
OCTAVES = tuple((2**i, 2**(i + 1)) for i in range(6))
# The largest and smallest singular values are left out, a share of 1 / TRIMMED of them each.
TRIMMED = 16
# Degree of the polynomial in the rank that says how far apart neighbours lie, and the least share
# of the mean that it may say.
_SMOOTH, _LEAST_SPACING = 8, 0.2


def spectra(config: ModelConfig, params: dict) -> list[np.ndarray]:
  """log of singular values, from the largest: [L, N] for each of nine matrices of a layer."""
  blocks = jax.tree.map(on_host, params['blocks'])
  layers = [_of_layer(config, jax.tree.map(lambda x, i=i: x[i].astype(np.float64), blocks))
            for i in range(config.num_layers)]
  return [np.stack(each) for each in zip(*layers, strict=True)]


def _of_layer(config, block):
  gain = lambda norm: block[norm]['scale'] if norm in block else np.ones(config.width)
  is_centred = config.norm == 'layernorm'  # Means are taken away of what is read and written.
  rank = config.width - is_centred
  centred = lambda x: x - x.mean(axis=-1, keepdims=True) if is_centred else x
  read = lambda name, norm: centred(block[name]['kernel'].T * gain(norm))
  written = lambda name, norm: centred(block[name]['kernel'] * gain(norm))
  G, K = config.num_kv_heads, config.head_size
  heads = lambda x: x.reshape(G, -1, K, config.width)
  up, down = read('up', 'mlp_norm'), written('down', 'mlp_output_norm')
  size = lambda x: np.linalg.norm(x, axis=1, keepdims=True)
  value, key, query = (heads(read(name, 'attention_norm')) for name in ('value', 'key', 'query'))
  output = heads(written('output', 'attention_output_norm'))
  found = [up * size(down), down * size(up),
           *_of_heads(value, output), *_of_heads(key, query)]
  if config.gated_mlp:
    found.append(read('gate', 'mlp_norm'))
  return [_log_singular(x, min(rank, G * K if i > 1 else rank)) for i, x in enumerate(found)]


def _of_heads(a_G1KD, b_GNKD):
  """Σ A_hᵀ B_h over heads, and the heads of each times a root of the other's Gram matrix."""
  D = a_G1KD.shape[-1]
  a_GKD, b_GKD = a_G1KD[:, 0], b_GNKD.sum(axis=1)
  yield np.einsum('gkd,gke->de', a_GKD, b_GKD, optimize=True)
  yield np.einsum('gjk,gkd->gjd', _root(b_GNKD), a_GKD, optimize=True).reshape(-1, D)
  yield np.einsum('gjk,gnkd->gnjd', _root(a_G1KD), b_GNKD, optimize=True).reshape(-1, D)


def _root(x_GNKD):
  """C with Cᵀ C = Σ_n X_n X_nᵀ, for each group of heads."""
  square, axes_GKJ = np.linalg.eigh(np.einsum('gnkd,gnjd->gkj', x_GNKD, x_GNKD, optimize=True))
  return np.sqrt(np.maximum(square, 0))[..., None] * axes_GKJ.swapaxes(1, 2)


def _log_singular(x, rank):
  gram = x.T @ x if x.shape[0] > x.shape[1] else x @ x.T
  square = np.linalg.eigvalsh(gram)[::-1][:rank]
  return np.log(np.maximum(square, 1e-30)) / 2


def modes(log_LN: np.ndarray) -> np.ndarray:
  """How far singular values lie from the mean of all layers, as cosine modes [L, M].

  In units of the mean distance of neighbours ("unfolded"), times √degree. Of a random matrix of any
  size, the modes of all degrees are then about as large (its eigenvalues are as rigid as that).
  """
  cut = -(-log_LN.shape[1] // TRIMMED)
  log_LN = log_LN[:, cut:-cut]
  N = log_LN.shape[1]
  mean_N = log_LN.mean(axis=0)
  rank_N = np.linspace(-1, 1, N)
  spacing_N = np.abs(np.gradient(np.polynomial.Chebyshev.fit(rank_N, mean_N, _SMOOTH)(rank_N)))
  spacing_N = np.maximum(spacing_N, _LEAST_SPACING * spacing_N.mean())
  degree_M = np.arange(1, min(OCTAVES[-1][1], N // 2))
  away_LN = (log_LN - mean_N) / spacing_N
  return scipy.fft.dct(away_LN, norm='ortho')[:, degree_M] * np.sqrt(degree_M / N)


def agreement(a: list[np.ndarray], b: list[np.ndarray]) -> list[list[float]]:
  """For each octave the sum, the sum of squares and the number of products of equal modes.

  a and b are the `modes` of all spectra, of networks of one depth. A product is the sum over
  layers, and there is one for each degree and spectrum.
  """
  found = []
  both = [[against_neighbours(x) for x in each] for each in (a, b)]
  for first, last in OCTAVES:
    products = [np.zeros(0)]
    for pair in zip(*both, strict=True):
      degrees = slice(first - 1, min(last - 1, *(each.shape[1] for each in pair)))
      x, y = (each[:, degrees] for each in pair)
      size = np.sqrt((x**2).sum() * (y**2).sum()) / max(1, x.size)
      products.append(np.sum(x * y, axis=0) / np.maximum(size, 1e-30))
    each = np.concatenate(products)
    found.append([float(each.sum()), float((each**2).sum()), len(each)])
  return found


def z_of(octaves: list[list[float]]) -> float:
  """Mean of the products over its standard error; the modes of a random matrix are independent."""
  total, squares, count = np.sum(octaves, axis=0)
  if count < 2:
    return np.nan
  variance = (squares - total**2 / count) / (count - 1)
  return float(total / np.sqrt(count * variance))
