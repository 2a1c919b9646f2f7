"""What the hidden features of a network read and write: MLP units and value channels.

A feature is known by the residual channels that it reads and writes, as vectors. Scales
that a network can move from one matrix to another without any effect do not count: gains
of norms belong to what reads them, those behind a sublayer to what it writes, and vectors
have length 1.
"""

from collections.abc import Iterable
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.hosts import on_host
from bornbiased_jax.lineage.thresholds import BLOCK
from bornbiased_jax.models.initialization import param_shapes

UNITS, VALUES = ('gate', 'up', 'down'), ('value', 'output')
# Numbers that are stored of a network's units, and of its value channels. At the shapes of a model
# of 7 billion parameters these are 40 units and 64 value channels of each layer.
MOST_NUMBERS = 2**24
LEAST_STORED = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
  """The vectors of a network's hidden features, float16, of length 1.

  Attributes:
    config: the architecture.
    arrays: gate (if there is one), up and down of the first U units of each layer, [L, U, D];
      with experts [L, U, E, D], as the units of the first E of them at one place are one feature;
      value and output of the first C channels of the first G heads for keys and values,
      [L, G, C, D] and [L, G, C, H, D], as H query heads read each of these. U, G and C are
      `stored_sizes`. The H vectors of an output have length 1 together. Sublayers that the
      network lacks are left out.
  """

  config: ModelConfig
  arrays: dict[str, np.ndarray]


def of_network(config: ModelConfig, params: dict) -> Features:
  """The features of a network."""
  layers = (of_layer(config, jax.tree.map(lambda leaf, i=i: leaf[i], params['blocks']))
            for i in range(config.num_layers))
  return stacked(config, layers)


def stacked(config: ModelConfig, layers: Iterable[dict[str, np.ndarray]]) -> Features:
  """The features of a network from those of its layers (`of_layer`)."""
  first, *others = layers
  return Features(config, {name: np.stack([x, *(each[name] for each in others)])
                           for name, x in first.items()})


def of_layer(config: ModelConfig, block: dict) -> dict[str, np.ndarray]:
  """The features of one layer, of its parameters `init_params(...)['blocks']` without that axis."""
  return jax.tree.map(lambda x: on_host(x).astype(np.float16), _of_layer(config, block))


def of_vectors(config: ModelConfig, vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The features of one layer, of the vectors that `layouts.read` gives, its gains folded in."""
  found, (num_units, num_heads, num_channels) = {}, stored_sizes(config)
  for name, x in vectors.items():
    if name in UNITS:
      x = np.moveaxis(x[:stored_experts(config)], 0, 1) if x.ndim == 3 else x
      experts = x.shape[1] if x.ndim == 3 else 1
      found[name] = _unit(x[:num_units], -1) / experts**0.5
    elif name == 'output':
      found[name] = _unit(np.swapaxes(x, 1, 2)[:num_heads, :num_channels], (-2, -1))
    else:
      found[name] = _unit(x[:num_heads, :num_channels], -1)
  return {name: np.asarray(x).astype(np.float16) for name, x in found.items()}


def average_experts(features: Features) -> Features:
  """The same with the units of the MLP that is the mean of the experts, if there are experts."""
  if features.config.num_experts == 1:
    return features
  mean = lambda x: np.asarray(_unit(x.astype(np.float32).mean(axis=2), -1))
  return dataclasses.replace(features, arrays={
      name: mean(x) if name in UNITS else x for name, x in features.arrays.items()})


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """The shapes of the arrays that a network of this configuration has."""
  block = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
                       param_shapes(config)['blocks'])
  found = jax.eval_shape(functools.partial(_of_layer, config), block)
  return {name: (config.num_layers, *x.shape) for name, x in found.items()}


def stored_sizes(config: ModelConfig) -> tuple[int, int, int]:
  """How many units of a layer are stored, heads for keys and values, and channels of a head.

  All, if MOST_NUMBERS suffice; else the first in whole blocks, of networks of one shape the same.

  Example:
    >>> from bornbiased_jax import configs
    >>> stored_sizes(configs.get('tiny_llama2')), stored_sizes(configs.get('llama2_7b'))
    ((344, 4, 32), (40, 16, 4))
  """
  most = MOST_NUMBERS // (config.num_layers * config.width)
  units = max(LEAST_STORED, most // _vectors_of_units(config) // stored_experts(config))
  channels = max(LEAST_STORED, most // (1 + config.num_heads // config.num_kv_heads))
  G, K = config.num_kv_heads, config.head_size
  heads = min(G, max(1, channels // min(K, BLOCK)))
  whole = lambda count, most: most if count >= most else max(BLOCK, count // BLOCK * BLOCK)
  return whole(units, config.mlp_width), heads, whole(channels // heads, K)


def stored_experts(config: ModelConfig) -> int:
  """Of how many experts units are stored: of the first ones, if not of all."""
  most = MOST_NUMBERS // (config.num_layers * config.width * LEAST_STORED)
  return min(config.num_experts, max(1, most // _vectors_of_units(config)))


def _vectors_of_units(config):
  return 3 if config.gated_mlp else 2


@functools.partial(jax.jit, static_argnums=0)
def _of_layer(config, block):
  found, (num_units, num_heads, num_channels) = {}, stored_sizes(config)
  gain = lambda norm: block[norm]['scale'] if norm in block else jnp.ones(config.width)
  units = block.get('experts', block)
  if 'up' in units:
    chosen = {name: units[name]['kernel'] for name in UNITS if name in units}
    if config.num_experts > 1:
      chosen = {name: x[:stored_experts(config)] for name, x in chosen.items()}
    for name, x in chosen.items():
      x = x if name == 'down' else jnp.swapaxes(x, -1, -2)
      x = jnp.moveaxis(x[..., :num_units, :], -2, 0)  # Of experts [E, U, D] → [U, E, D].
      gain_D = gain('mlp_output_norm' if name == 'down' else 'mlp_norm')
      found[name] = x * gain_D.reshape((1,) * (x.ndim - 1) + (-1,))
  if 'value' in block:
    G, K = config.num_kv_heads, config.head_size
    value_DF = block['value']['kernel'] * gain('attention_norm')[:, None]
    found['value'] = value_DF.T.reshape(G, K, -1)[:num_heads, :num_channels]
    output_FD = block['output']['kernel'] * gain('attention_output_norm')[None]
    output_GNKD = output_FD.reshape(G, config.num_heads // G, K, config.width)
    found['output'] = jnp.swapaxes(output_GNKD, 1, 2)[:num_heads, :num_channels]
  if config.norm == 'layernorm':  # It takes the mean away, of what is read and what is written.
    found = {name: x - x.mean(axis=-1, keepdims=True) for name, x in found.items()}
  found = {name: _unit(x, (-2, -1) if name == 'output' else -1) for name, x in found.items()}
  size = stored_experts(config) ** 0.5
  return {name: x / size if name in UNITS else x for name, x in found.items()}


def _unit(x, axes):
  # Squares of very small numbers would be 0. To scale by a power of 2 first rounds nothing.
  _, exponent = jnp.frexp(jnp.max(jnp.abs(x), axis=axes, keepdims=True))
  x = jnp.ldexp(x.astype(jnp.float32), -exponent)
  length = jnp.sqrt(jnp.sum(x**2, axis=axes, keepdims=True))
  return x / jnp.maximum(length, 1e-30)
