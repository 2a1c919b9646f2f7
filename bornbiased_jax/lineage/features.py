"""What the hidden features of a network read and write: MLP units and value channels.

A feature is known by the residual channels that it reads and writes, as vectors. Scales
that a network can move from one matrix to another without any effect do not count: gains
of norms belong to what reads them, those behind a sublayer to what it writes, and vectors
have length 1.
"""

from collections.abc import Iterable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.hosts import on_host
from bornbiased_jax.models.initialization import stream_key

# The first units of each layer, which are as good as any others.
MOST_UNITS = 512
# Numbers to which a sketch reduces each vector; about 1 / sqrt(64) of noise in a cosine.
SKETCH_SIZE = 64
UNITS, VALUES = ('gate', 'up', 'down'), ('value', 'output')


def vectors(config: ModelConfig, params: dict) -> dict[str, jax.Array]:
  """What each hidden feature reads and writes, as vectors of length 1.

  Returns:
    gate (if there is one), up and down of each MLP unit, [L, U, D] with at most
    MOST_UNITS units, and value and output of each value channel, [L, G, K, D];
    the output has [L, G, K, N D] if N query heads share it. Sublayers that the
    network lacks are left out.

  Example:
    >>> from bornbiased_jax import lineage
    >>> {name: x.shape for name, x in vectors(*lineage.load('tiny_gpt2:1')).items()}['up']
    (4, 512, 128)
  """
  return _vectors(config, params['blocks'])


@functools.partial(jax.jit, static_argnums=0)
def _vectors(config, blocks):
  found = {}
  read_through = lambda norm, kernel_LDF: kernel_LDF * _gain(config, blocks, norm)[..., None]
  written_through = lambda norm, kernel_LFD: kernel_LFD * _gain(config, blocks, norm)[:, None]
  if 'up' in blocks:
    for name in {'gate', 'up'} & blocks.keys():
      found[name] = read_through('mlp_norm', blocks[name]['kernel'][:, :, :MOST_UNITS]).mT
    found['down'] = written_through('mlp_output_norm', blocks['down']['kernel'][:, :MOST_UNITS])
  if 'value' in blocks:
    L, G, K = config.num_layers, config.num_kv_heads, config.head_size
    value_LDF = read_through('attention_norm', blocks['value']['kernel'])
    found['value'] = value_LDF.mT.reshape(L, G, K, -1)
    output_LFD = written_through('attention_output_norm', blocks['output']['kernel'])
    output_LGNKD = output_LFD.reshape(L, G, config.num_heads // G, K, config.width)
    found['output'] = jnp.swapaxes(output_LGNKD, 2, 3)
  centre = lambda x: x - x.mean(axis=-1, keepdims=True) if config.norm == 'layernorm' else x
  unit = lambda x: x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-30)
  found = {name: centre(x) for name, x in found.items()}
  if 'output' in found:
    found['output'] = found['output'].reshape(*found['output'].shape[:3], -1)
  return {name: unit(x) for name, x in found.items()}


def _gain(config, blocks, norm):
  """The gain [L, D] of a norm, of 1 where sublayers have no such norm."""
  return blocks[norm]['scale'] if norm in blocks else jnp.ones((config.num_layers, config.width))


def turned(found: dict[str, jax.Array], change_DD: jax.Array | np.ndarray) -> dict[str, jax.Array]:
  """The `vectors` of a network carried back from a basis: x to x W', for `basis_change` W."""
  change_DD = jnp.asarray(change_DD, jnp.float32)
  D = len(change_DD)
  with jax.default_matmul_precision('highest'):
    return {name: (x.reshape(*x.shape[:-1], -1, D) @ change_DD.T).reshape(x.shape)
            for name, x in found.items()}


def sketch(config: ModelConfig, params: dict) -> dict[str, np.ndarray]:
  """The `vectors` in SKETCH_SIZE random directions, the same for all networks of a width.

  Cosines are kept up to noise, so that two sketches can be compared as two
  networks can. The order of the features, on which the test rests, is kept exactly.
  """
  return stacked(sketch_layer(config, jax.tree.map(lambda leaf, i=i: leaf[i], params['blocks']))
                 for i in range(config.num_layers))


def stacked(sketches: Iterable[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """The `sketch` of a network from those of its layers (`sketch_layer`)."""
  first, *others = sketches
  return {name: np.stack([x, *(each[name] for each in others)]) for name, x in first.items()}


def sketch_layer(config: ModelConfig, block: dict) -> dict[str, np.ndarray]:
  """The `sketch` of one layer, without an axis of layers.

  Args:
    config: the architecture of the network.
    block: the parameters of the layer, `init_params(...)['blocks']` without the layer axis.
  """
  found = _vectors(config.layer(0), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], block))
  key = stream_key('sketch', 0)

  def project(x):
    size = x.shape[-1]
    if size <= SKETCH_SIZE:
      return on_host(x)
    with jax.default_matmul_precision('highest'):
      shorter = x @ jax.random.normal(jax.random.fold_in(key, size), (size, SKETCH_SIZE))
    length = jnp.linalg.norm(shorter, axis=-1, keepdims=True)
    return on_host(shorter / jnp.maximum(length, 1e-30))

  return {name: project(x[0]) for name, x in found.items()}
