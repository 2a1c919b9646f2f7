"""Hidden states of models that do not fit into memory, layer by layer.

One layer's parameters are read, all sequences pass through it, then the next layer is read.
A model of L layers is thus run as L networks of one layer, and each reads what the one before
has written. So memory holds a layer or two, and the residual stream of all sequences
before and after it, 8 n T d bytes.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import itertools
import os
from typing import Any
import zipfile

from flax.traverse_util import unflatten_dict
import jax
import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.files import path_of, replacing
from bornbiased_jax.lineage.evidence import hidden_states
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates
from bornbiased_jax.models.transformer import read
from bornbiased_jax.storage.layers import Layers


def of_layers(layers: Layers, probe: Probe, *, about: dict | None = None,
              batch_size: int | None = None, parts: str | os.PathLike | None = None,
              on_batch: Callable[[int], None] = lambda sequences: None) -> HiddenStates:
  """`hidden_states.of_network`, up to rounding, of a model that is read layer by layer.

  `parts` keeps the residual stream after the latest layer. `on_batch` is called after each
  batch of a layer with its share of the sequences.
  """
  batch_size = hidden_states.spread_batch_size(layers.config, probe, None, batch_size)
  starts = range(0, probe.num_sequences, batch_size)
  index_MB = [np.arange(first, first + batch_size) % probe.num_sequences for first in starts]
  finished, stream, inputs = _resumed(parts) or (0, _first_inputs(layers, probe, index_MB), None)
  num_layers = layers.config.num_layers
  num_steps = num_layers * len(index_MB)
  shares = iter(np.diff(probe.num_sequences * np.arange(num_steps + 1) // num_steps).tolist())
  tell = lambda count=1: on_batch(sum(itertools.islice(shares, count)))
  tell(finished * len(index_MB))
  for i in range(finished, num_layers):
    names = ('hidden_last',) if i == num_layers - 1 else ('residual',)
    found = _through(layers, i, stream, names + ('input_last',) * (i == 0), tell)
    inputs = found.get('input_last', inputs)
    stream = found[names[0]]
    _keep(parts, i + 1, stream, inputs)
  joined = lambda x_MBD: np.concatenate(x_MBD)[:probe.num_sequences]
  return hidden_states.checked(joined(stream), joined(inputs), layers.config, probe, about or {})


def _first_inputs(layers, probe, index_MB):
  """What the first layer reads of each batch: tokens, or vectors."""
  draw = jax.jit(functools.partial(probe.inputs, layers.config))
  return [np.asarray(draw(index_B)) for index_B in index_MB]


def _through(layers, i, stream, names, tell):
  """What `names` are for all batches of a stream after layer i, by name."""
  config, params, stream = _one_layer(layers, i, stream)
  params = jax.device_put(params)
  run, found = _program(config, names), {name: [] for name in names}
  for x in stream:
    for name, value in jax.device_get(run(params, x)).items():
      found[name].append(value)
    tell()
  return found


@functools.lru_cache(maxsize=8)
def _program(config: ModelConfig, names: tuple[str, ...]):
  def run(params, x):
    with jax.default_matmul_precision('highest'):
      found = read(config, params, x, names)
    return found | ({'residual': found['residual'][0]} if 'residual' in found else {})

  return jax.jit(run)


def _one_layer(layers, i, stream):
  """Layer i as a network of its own, and what it reads.

  Of the embedding the first layer has the rows that are read, the others have none. Only the first
  adds learned positions. The last has the final norm.
  """
  config = dataclasses.replace(hidden_states.exact(layers.config).layer(i), tied_head=True)
  leaves = {name: layers.read_rows(name, 0, layers.shapes[name][0])
            for name in layers.outside_blocks() if name not in ('embedding', 'head')}
  if i and 'position_embedding' in leaves:
    leaves['position_embedding'] = np.zeros_like(leaves['position_embedding'])
  leaves['embedding'] = np.zeros((1, config.width), np.float32)
  if stream[0].ndim == 2:
    ids = np.unique(np.stack(stream))
    leaves['embedding'] = layers.rows('embedding', ids)
    stream = [np.searchsorted(ids, tokens_BT).astype(np.int32) for tokens_BT in stream]
  blocks = jax.tree.map(lambda leaf: leaf[None], layers.read_block(i))
  config = dataclasses.replace(config, vocab_size=len(leaves['embedding']))
  return config, unflatten_dict(leaves, sep='/') | {'blocks': blocks}, stream


def _resumed(parts):
  """The number of finished layers, the stream after them and the inputs; None if there are none."""
  for path in sorted(path_of(parts).glob('layer_*.npz'), reverse=True) if parts else ():
    with contextlib.suppress(OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
      with path.open('rb') as file, np.load(file, allow_pickle=False) as kept:
        count = len(kept.files) // 2
        stream, inputs = ([kept[f'{name}_{i}'] for i in range(count)]
                          for name in ('stream', 'inputs'))
        return int(path.stem.removeprefix('layer_')), stream, inputs
  return None


def _numbered(name, arrays) -> dict[str, Any]:
  return {f'{name}_{i}': array for i, array in enumerate(arrays)}


def _keep(parts, finished, stream, inputs):
  if not parts:
    return
  folder = path_of(parts)
  folder.mkdir(parents=True, exist_ok=True)
  with replacing(folder / f'layer_{finished:04d}.npz') as file:
    # Batch by batch, as one array of all would be one more copy in memory.
    np.savez(file, **_numbered('stream', stream), **_numbered('inputs', inputs))
  for older in folder.glob('layer_*.npz'):
    if older.stem != f'layer_{finished:04d}':
      older.unlink(missing_ok=True)
