"""What the hidden features of a model read and write: MLP units and value channels.

A feature is known by the residual channels that it reads and writes, as vectors. Scales
that a model can move from one matrix to another without any effect do not count: gains
of norms belong to what reads them, those behind a sublayer to what it writes, and vectors
have length 1.

A copy may exchange units, heads and residual channels, rotate the residual stream, move scales
between what a unit reads and writes, and mix the values of a head, all without any effect. What
stays are *invariants*: the size of each unit, the cosines between its own vectors, and of each head
the singular values of what its values write. All units, or heads, of a layer are described together
by quantiles, as they may stand in any order.
"""

from collections import defaultdict
from collections.abc import Iterable
import dataclasses
import functools

from flax.traverse_util import flatten_dict
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.lineage import layouts
from bornbiased_jax.lineage.layouts import UNITS
from bornbiased_jax.lineage.thresholds import BLOCK
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.storage.layers import in_memory

# Numbers that are stored of a network's units, and of its value channels. At the shapes of a model
# of 7 billion parameters these are 40 units and 64 value channels of each layer.
MOST_NUMBERS = 2**24
LEAST_STORED = 16
_NUMBERS_AT_ONCE = 2**20
_OWN = 'blocks/0/'
INVARIANTS = ('unit size', 'gate size', 'up and down', 'gate and up', 'gate and down', 'head')
QUANTILES = (np.arange(64) + 0.5) / 64


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
  """The vectors of a model's hidden features, of length 1; float16, but for means of experts.

  Attributes:
    config: the architecture.
    arrays: gate (if there is one), up and down of the first U units of each layer, [L, U, D];
      with experts [L, U, E, D], as the units of the first E of them at one place are one feature;
      value and output of the first C channels of the first G heads for keys and values,
      [L, G, C, D] and [L, G, C, H, D], as H query heads read each of these. U, G and C are
      `stored_sizes`. The H vectors of an output have length 1 together. Sublayers that the
      model lacks are left out.
    kept: what tests computed of this model, so that all its pairs compute it once.
  """

  config: ModelConfig
  arrays: dict[str, np.ndarray]
  kept: dict = dataclasses.field(init=False, repr=False, default_factory=dict)


def of_network(config: ModelConfig, params: dict) -> Features:
  """The features of a model."""
  layers = in_memory(config, params)
  return stacked(config, (of_layer(config, layers.read_block(i)) for i in range(config.num_layers)))


def stacked(config: ModelConfig, layers: Iterable[dict[str, np.ndarray]]) -> Features:
  """The features of a model from its layers' features (`of_layer`)."""
  first, *others = layers
  return Features(config, {name: np.stack([x, *(each[name] for each in others)])
                           for name, x in first.items()})


def of_layer(config: ModelConfig, block: dict) -> dict[str, np.ndarray]:
  """The features of one layer, of its parameters `init_params(...)['blocks']` without that axis."""
  return of_vectors(layouts.read(_stored_layout(config), 0, _reader(block)))


def invariants_of_layer(config: ModelConfig, block: dict) -> dict[str, np.ndarray]:
  """`invariants` of these parameters."""
  return invariants(layouts.read_pieces(_own_layout(config), 0, _reader(block),
                                        units_at_once(config)))


def units_at_once(config: ModelConfig) -> int:
  """How many units of each expert are in memory once more for the invariants of a layer."""
  return max(1, _NUMBERS_AT_ONCE // (config.num_experts * config.width))


def _reader(block):
  leaves = flatten_dict(block, sep='/')
  return lambda name, first: leaves[name.removeprefix(_OWN)][:first]


def of_vectors(vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The features of one layer, of the vectors that `layouts.read` gives, its gains folded in."""
  found = {}
  for name, x in vectors.items():
    if name in UNITS:
      x = np.moveaxis(x, 0, 1) if x.ndim == 3 else x  # Of experts [E, U, D] → [U, E, D].
      found[name] = _unit(x, -1) / (x.shape[1] ** 0.5 if x.ndim == 3 else 1)
    elif name == 'output':
      found[name] = _unit(np.swapaxes(x, 1, 2), (-2, -1))
    else:
      found[name] = _unit(x, -1)
  return {name: x.astype(np.float16) for name, x in found.items()}


def average_experts(features: Features) -> Features:
  """The same with the units of the MLP that is the mean of the experts, if there are experts."""
  if features.config.num_experts == 1:
    return features
  mean = lambda x: _unit(x.astype(np.float32).mean(axis=2), -1)
  if 'mean' not in features.kept:
    features.kept['mean'] = dataclasses.replace(features, arrays={
        name: mean(x) if name in UNITS else x for name, x in features.arrays.items()})
  return features.kept['mean']


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """The shapes of the arrays that a model of this configuration has."""
  experts, U, G, K = stored_sizes(config)
  of_unit = (U, experts) if config.num_experts > 1 else (U,)
  found: dict[str, tuple[int, ...]] = {
      name: of_unit for name in UNITS
      if config.sublayers != 'attention_only' and (name != 'gate' or config.gated_mlp)}
  if config.sublayers != 'mlp_only':
    found |= {'value': (G, K), 'output': (G, K, config.num_heads // config.num_kv_heads)}
  return {name: (config.num_layers, *shape, config.width) for name, shape in found.items()}


def stored_sizes(config: ModelConfig) -> tuple[int, int, int, int]:
  """How many experts, their units, heads for keys and values, and channels of a head are stored.

  All, if MOST_NUMBERS suffice; else the first of each layer, of units and channels in whole blocks,
  of models of one shape the same.

  Example:
    >>> from bornbiased_jax import configs
    >>> stored_sizes(configs.get('tiny_llama2')), stored_sizes(configs.get('llama2_7b'))
    ((1, 344, 4, 32), (1, 40, 16, 4))
  """
  most = MOST_NUMBERS // (config.num_layers * config.width)
  of_units = most // (3 if config.gated_mlp else 2)
  experts = min(config.num_experts, max(1, of_units // LEAST_STORED))
  channels = max(LEAST_STORED, most // (1 + config.num_heads // config.num_kv_heads))
  G, K = config.num_kv_heads, config.head_size
  heads = min(G, max(1, channels // min(K, BLOCK)))
  whole = lambda count, most: most if count >= most else max(BLOCK, count // BLOCK * BLOCK)
  units = whole(max(LEAST_STORED, of_units // experts), config.mlp_width)
  return experts, units, heads, whole(channels // heads, K)


@functools.lru_cache(maxsize=32)
def _own_layout(config):
  """Where the features of one of our own layers lie."""
  own = {_OWN + name: x.shape[1:]
         for name, x in flatten_dict(param_shapes(config)['blocks'], sep='/').items()}
  norm = 'layer_norm_eps' if config.norm == 'layernorm' else 'rms_norm_eps'
  settings = {'hidden_size': config.width, 'num_attention_heads': config.num_heads, norm: 1e-5}
  return layouts.find(own, settings)


@functools.lru_cache(maxsize=32)
def _stored_layout(config):
  return layouts.beginning(_own_layout(config), *stored_sizes(config))


def _unit(x, axes):
  # Squares of very small numbers would be 0. To scale by a power of 2 first rounds nothing.
  _, exponent = np.frexp(np.abs(x).max(axis=axes, keepdims=True))
  x = np.ldexp(x, -exponent)
  length = np.sqrt((x**2).sum(axis=axes, keepdims=True))
  return x / np.maximum(length, np.float32(1e-30))


def invariants(pieces: Iterable[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Quantiles [64], float32, of those of INVARIANTS that a layer has.

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
