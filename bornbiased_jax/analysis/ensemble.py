"""Many random networks at once: seeds under vmap, spread over all devices, reduced on the way.

Neither a sequence's outputs nor a network's parameters outlive their turn, so
memory grows with neither the number of sequences nor of seeds.
"""

from collections.abc import Callable, Iterable, Iterator
import functools
from typing import Any, NamedTuple

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.statistics import Statistic, merge
from bornbiased_jax.configs import ModelConfig, check_count
from bornbiased_jax.models.initialization import as_seed, draw_params
from bornbiased_jax.models.transformer import read

# Tokens of one network's batch: on a CPU what stays in cache, else what fills the device.
_BATCH_TOKENS = {'cpu': 2048}
_BATCH_TOKENS_ACCELERATOR = 65536
_MEMORY_SHARE = 0.5


class Network(NamedTuple):
  """A family of random networks: what a seed makes, and what it computes.

  Attributes:
    config: for the probe: vocab_size, width and embedding_std.
    draw: seed → params.
    read: (params, inputs, names) → dict of intermediates by name.
  """

  config: Any
  draw: Callable[[jax.Array], Any]
  read: Callable[[Any, jax.Array, tuple[str, ...]], dict[str, jax.Array]]


def transformer(config: ModelConfig, embedding_seed: int | None = None) -> Network:
  """Transformers of one architecture; for `embedding_seed` see `init_params`."""
  return Network(
      config=config,
      draw=lambda seed: draw_params(config, seed, embedding_seed),
      read=functools.partial(read, config),
  )


def default_batch_size(num_sequences: int, length: int, backend: str | None = None) -> int:
  """Sequences a batch: enough to keep the backend (None: the one at hand) busy, in batches of nearly equal size."""
  tokens = _BATCH_TOKENS.get(backend or jax.default_backend(), _BATCH_TOKENS_ACCELERATOR)
  num_batches = -(-num_sequences // max(1, tokens // length))
  return -(-num_sequences // num_batches)


def in_batches(measure: Callable[[np.ndarray], Any], num_sequences: int, length: int, size: int | None = None) -> Any:
  """`measure(index_B)` of sequences 0 to n - 1 in batches (None: of `default_batch_size`), as numpy arrays [n, …].

  The last batch wraps around: as large as the others, it needs no other program.
  """
  size = size or default_batch_size(num_sequences, length)
  parts = [jax.device_get(measure(np.arange(first, first + size) % num_sequences))
           for first in range(0, num_sequences, size)]
  return jax.tree.map(lambda *columns: np.concatenate(columns)[:num_sequences], *parts)


def default_chunk_size(network: Network, statistic: Statistic, probe: Probe, num_seeds: int, batch_size: int) -> int:
  """Networks at once on all devices: `networks_at_once` on each of them."""
  num_devices = jax.device_count()
  return num_devices * networks_at_once(lambda: network_bytes(network, statistic, probe, batch_size),
                                        -(-num_seeds // num_devices))


def networks_at_once(bytes_of_one: Callable[[], int], num_seeds: int) -> int:
  """Networks under one vmap on a device: as many as half its memory holds, at least one.

  On a CPU one network already fills the cores, and others only its cache.

  Args:
    bytes_of_one: memory of one network, asked for on accelerators alone.
    num_seeds: more are not needed.
  """
  if jax.default_backend() == 'cpu':
    return 1
  memory = jax.local_devices()[0].memory_stats()['bytes_limit']
  return max(1, min(int(_MEMORY_SHARE * memory // bytes_of_one()), num_seeds))


def network_bytes(network: Network, statistic: Statistic, probe: Probe, batch_size: int) -> int:
  """Memory of one network in an ensemble, parameters and a batch's intermediates, as compiled.

  Cost: two compilations.
  """
  draw, step = _one_network(network, statistic, probe)
  params, sums = jax.eval_shape(draw, jnp.uint32(0))
  with jax.default_matmul_precision('highest'):
    programs = (jax.jit(draw).lower(jnp.uint32(0)),
                jax.jit(step, static_argnames='size').lower(params, sums, 0, size=batch_size))
  return max(map(program_bytes, programs))


def program_bytes(lowered: jax.stages.Lowered) -> int:
  """Memory of a program's arguments, intermediates and outputs; compiles it."""
  memory = lowered.compile().memory_analysis()
  return memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes


def measure(network: Network, statistic: Statistic, probe: Probe, seeds: Iterable[int], *,
            readout: Callable | None = None, batch_size: int | None = None, chunk_size: int | None = None,
            on_batch: Callable[[int], None] = lambda sequences: None) -> Iterator[dict]:
  """The statistic of every network in `seeds` over one probe.

  Args:
    network: what a seed makes, such as `transformer(config)`.
    statistic: what to measure.
    probe: the inputs, the same for every network.
    seeds: the networks.
    readout: (params, sums) of one network → dict of arrays that need the
      parameters once more at the end, merged into the result. Jittable.
    batch_size: sequences a forward pass; None: `default_batch_size`.
    chunk_size: networks at once, over all devices; None: `default_chunk_size`.
    on_batch: called after each batch with its number of sequences, counted
      once for each network of the chunk.

  Yields:
    One dict a network, in the order of `seeds`: `seed` and the statistic's
    and the readout's results, as numpy arrays.

  Raises:
    InputError (when the first result is asked for): a seed outside its range,
      batch_size or chunk_size below one, or what the statistic raises.

  Cost: one forward pass of every sequence for every network; three
  compilations (four if batch_size does not divide the number of sequences).
  """
  for name, size in (('batch_size', batch_size), ('chunk_size', chunk_size)):
    if size is not None:
      check_count(name, size)
  seeds = [int(as_seed(seed)) for seed in seeds]
  batch_size = min(batch_size or default_batch_size(probe.num_sequences, probe.length), probe.num_sequences)
  chunk_size = chunk_size or default_chunk_size(network, statistic, probe, len(seeds), batch_size)
  draw, step, read = programs(network, statistic, probe, readout)
  for start in range(0, len(seeds), chunk_size):
    chunk = seeds[start:start + chunk_size]
    params = sums = None  # Frees the chunk before, so that no two are held at once.
    with jax.default_matmul_precision('highest'):
      params, sums = draw(_shard(chunk, chunk_size))
      for first in range(0, probe.num_sequences, batch_size):
        size = min(batch_size, probe.num_sequences - first)
        before, sums = sums, step(params, sums, first, size=size)
        # Waiting for the batch before keeps the progress honest and the device busy.
        jax.block_until_ready(before)
        on_batch(size * len(chunk))
      gathered = multihost_utils.process_allgather((sums, read(params, sums)), tiled=True)
    for i, seed in enumerate(chunk):
      own_sums, extras = jax.tree.map(lambda leaf, i=i: leaf[i], gathered)
      yield {'seed': seed} | statistic.summarize(own_sums) | extras


def programs(network: Network, statistic: Statistic, probe: Probe, readout: Callable | None = None,
             mesh: Mesh | None = None) -> tuple[Callable, Callable, Callable]:
  """The jitted programs over a chunk of networks that `measure` runs, at the highest matmul precision.

  Args:
    network, statistic, probe, readout: as in `measure`.
    mesh: devices on one axis, 'seed'; None: all at hand. Name it to compile for others.

  Returns:
    draw: seeds [n] uint32 → (params, empty sums), each leaf with a leading axis of n networks.
    step: (params, sums, first, size=) → sums with `size` more sequences, from `first` on.
    read: (params, sums) → what `readout` makes of each.
  """
  draw, step = _one_network(network, statistic, probe)

  def over_seeds(program):
    # On each device vmap over its own share of the seeds: devices never talk.
    spread = PartitionSpec('seed')
    return jax.shard_map(jax.vmap(program), mesh=mesh or _mesh(), in_specs=spread, out_specs=spread, check_vma=False)

  @functools.partial(jax.jit, static_argnames='size')
  def spread_step(params, sums, first, size):
    return over_seeds(functools.partial(step, first=first, size=size))(params, sums)

  return jax.jit(over_seeds(draw)), spread_step, jax.jit(over_seeds(readout or (lambda params, sums: {})))


def _mesh():
  return jax.make_mesh((jax.device_count(),), ('seed',), axis_types=(AxisType.Auto,))


def _shard(seeds, size):
  """At least `size` seeds spread evenly over all devices, the last one repeated to fill up."""
  size += -size % jax.device_count()
  padded = np.pad(np.asarray(seeds, np.uint32), (0, size - len(seeds)), mode='edge')
  return jax.device_put(padded, NamedSharding(_mesh(), PartitionSpec('seed')))


def _one_network(network, statistic, probe):
  """Draw a network with empty sums, and add a batch to the sums."""

  def batch_sums(params, first, size):
    inputs = probe.inputs(network.config, first + jnp.arange(size))
    return statistic.measure(network.read(params, inputs, statistic.reads))

  def draw(seed):
    params = network.draw(seed)
    shapes = jax.eval_shape(lambda: batch_sums(params, 0, 1))
    return params, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

  def step(params, sums, first, size):
    return merge(sums, batch_sums(params, first, size))

  return draw, step
