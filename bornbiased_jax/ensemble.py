"""Many random networks at once: seeds under vmap, spread over all devices, reduced on the way.

Neither a sequence's outputs nor a network's parameters outlive their turn, so
memory grows with neither the number of sequences nor of seeds.
"""

from collections.abc import Callable, Iterator, Sequence
import functools

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.initialization import draw_params
from bornbiased_jax.probes import Probe
from bornbiased_jax.statistics import Statistic, merge
from bornbiased_jax.transformer import Transformer

# Tokens of one network's batch: on a CPU what stays in cache, else what fills the device.
_BATCH_TOKENS = {'cpu': 2048}
_BATCH_TOKENS_ACCELERATOR = 65536
_MEMORY_SHARE = 0.5


def default_batch_size(num_sequences: int, length: int) -> int:
  """Sequences a batch: enough to keep the backend busy, in batches of nearly equal size."""
  tokens = _BATCH_TOKENS.get(jax.default_backend(), _BATCH_TOKENS_ACCELERATOR)
  num_batches = -(-num_sequences // max(1, tokens // length))
  return -(-num_sequences // num_batches)


def default_chunk_size(config: ModelConfig, num_seeds: int, batch_size: int, length: int) -> int:
  """Networks at once on all devices: as many as fit half the devices' memory, a device at least one.

  On a CPU one network already fills the cores, and the next ones only its cache.
  """
  num_devices = jax.device_count()
  stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != 'cpu' else None
  if not stats or 'bytes_limit' not in stats:
    return num_devices
  per_device = int(_MEMORY_SHARE * stats['bytes_limit'] // network_bytes(config, batch_size, length))
  return num_devices * max(1, min(per_device, -(-num_seeds // num_devices)))


def network_bytes(config: ModelConfig, batch_size: int, length: int) -> int:
  """Estimated peak memory of one network's forward pass of a batch, in bytes.

  Float32 parameters, and the largest simultaneous activations: attention
  scores with their softmax, or the MLP's hidden units, beside the residual
  stream and the logits of the last position.
  """
  shapes = jax.eval_shape(functools.partial(draw_params, config), 0)
  num_params = sum(leaf.size for leaf in jax.tree.leaves(shapes))
  scores = 3 * config.num_heads * length
  hidden = 3 * config.mlp_width
  a_token = max(scores, hidden) + 6 * config.width
  return 4 * (num_params + batch_size * (length * a_token + 2 * config.vocab_size))


def measure(config: ModelConfig, statistic: Statistic, probe: Probe, seeds: Sequence[int], *,
            embedding_seed: int | None = None, readout: Callable | None = None,
            batch_size: int | None = None, chunk_size: int | None = None,
            on_batch: Callable[[int], None] = lambda tokens: None) -> Iterator[dict]:
  """The statistic of every network in `seeds` over one probe.

  Args:
    config: the architecture.
    statistic: what to measure.
    probe: the inputs, the same for every network.
    seeds: the networks.
    embedding_seed: see `init_params`.
    readout: (params, sums) of one network → dict of arrays that need the
      parameters once more at the end, merged into the result. Jittable.
    batch_size: sequences a forward pass; None: `default_batch_size`.
    chunk_size: networks at once, over all devices; None: `default_chunk_size`.
    on_batch: called after each batch with the number of tokens it was, over
      all networks of the chunk.

  Yields:
    One dict a network, in the order of `seeds`: `seed` and the statistic's
    and the readout's results, as numpy arrays.

  Cost: one forward pass of every sequence for every network; three
  compilations (four if batch_size does not divide the number of sequences).
  """
  batch_size = min(batch_size or default_batch_size(probe.num_sequences, probe.length), probe.num_sequences)
  chunk_size = chunk_size or default_chunk_size(config, len(seeds), batch_size, probe.length)
  draw, step, read = _programs(config, statistic, probe, embedding_seed, readout)
  for start in range(0, len(seeds), chunk_size):
    chunk = seeds[start:start + chunk_size]
    with jax.default_matmul_precision('highest'):
      params, sums = draw(_shard(chunk))
      for first in range(0, probe.num_sequences, batch_size):
        size = min(batch_size, probe.num_sequences - first)
        previous, sums = sums, step(params, sums, first, size=size)
        # Waiting for the batch before keeps the progress honest and the device busy.
        jax.block_until_ready(previous)
        on_batch(size * probe.length * len(chunk))
      gathered = multihost_utils.process_allgather((sums, read(params, sums)), tiled=True)
    for i, seed in enumerate(chunk):
      own_sums, extras = jax.tree.map(lambda leaf, i=i: leaf[i], gathered)
      yield {'seed': seed} | statistic.summarize(own_sums) | extras


def _mesh():
  return jax.make_mesh((jax.device_count(),), ('seed',), axis_types=(AxisType.Auto,))


def _shard(seeds):
  """The seeds spread over all devices, the last one repeated until they share out evenly."""
  padded = np.pad(np.asarray(seeds, np.uint32), (0, -len(seeds) % jax.device_count()), mode='edge')
  return jax.device_put(padded, NamedSharding(_mesh(), PartitionSpec('seed')))


def _programs(config, statistic, probe, embedding_seed, readout):
  """The three programs over a chunk of networks: draw them, add a batch, read out."""
  model = Transformer(config)

  def batch_sums(params, first, size):
    inputs = probe.inputs(config, first + jnp.arange(size))
    return statistic.measure(model.apply({'params': params}, inputs, statistic.reads, method='read'))

  def draw(seed):
    params = draw_params(config, seed, embedding_seed)
    shapes = jax.eval_shape(lambda: batch_sums(params, 0, 1))
    return params, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

  def step(params, sums, first, size):
    return merge(sums, batch_sums(params, first, size))

  def over_seeds(program):
    # On each device vmap over its own share of the seeds: devices never talk.
    spread = PartitionSpec('seed')
    return jax.shard_map(jax.vmap(program), mesh=_mesh(), in_specs=spread, out_specs=spread, check_vma=False)

  @functools.partial(jax.jit, static_argnames='size')
  def spread_step(params, sums, first, size):
    return over_seeds(functools.partial(step, first=first, size=size))(params, sums)

  return jax.jit(over_seeds(draw)), spread_step, jax.jit(over_seeds(readout or (lambda params, sums: {})))
