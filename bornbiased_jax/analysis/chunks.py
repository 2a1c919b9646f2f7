"""The programs that an ensemble runs, over a chunk of its networks, and how large a chunk is."""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax import hosts
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.statistics import Statistic, merge
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.batches import default_batch_size

# The share of a device's memory that the networks of a chunk may take.
_MEMORY_SHARE = 0.5
# A number of sequences, for shapes alone, that divides no other size: a prime above all of them.
_MANY = 1_000_003


class Ensemble(NamedTuple):
  """A family of random networks, one for each seed.

  Attributes:
    config: what a probe needs to know: vocab_size, width and embedding_std.
    draw: a function from a seed to the parameters of its network; None if these are given.
    read: a function (params, inputs, names) → dict of intermediates by name.
  """

  config: Any
  draw: Callable[[jax.Array], Any] | None
  read: Callable[[Any, jax.Array, tuple[str, ...]], dict[str, jax.Array]]


def default_chunk_size(ensemble: Ensemble, statistic: Statistic, probe: Probe, num_seeds: int,
                       batch_size: int) -> int:
  """Number of networks that all devices hold at a time: one each of those that are given."""
  num_devices = all_devices().size
  if ensemble.draw is None:
    return num_devices
  seeds_per_device = -(-num_seeds // num_devices)
  bytes_of_one = lambda: network_bytes(ensemble, statistic, probe, batch_size)
  # Hosts whose memory differs must still take the same chunks.
  return num_devices * hosts.from_first(lambda: networks_at_once(bytes_of_one, seeds_per_device))


def network_bytes(ensemble: Ensemble, statistic: Statistic, probe: Probe, batch_size: int) -> int:
  """Bytes of one network in an ensemble: its parameters and a batch's intermediates, as planned."""
  draw = jax.jit(functools.partial(_draw_one, ensemble.draw))
  batch = jax.jit(functools.partial(_sum_one, ensemble, statistic, probe, size=batch_size))
  with jax.default_matmul_precision('highest'):
    lowered = draw.lower(jnp.uint32(0)), batch.lower(jax.eval_shape(draw, jnp.uint32(0)), 0)
  return max(map(program_bytes, lowered))


def networks_at_once(bytes_of_one: Callable[[], int], num_seeds: int) -> int:
  """Number of networks under one vmap on a device: as many as fit into half its memory.

  On a CPU it is one: a single network uses all cores, and more would only compete for the
  cache. `bytes_of_one` is called on accelerators only, because finding out takes compilations.
  """
  if jax.default_backend() == 'cpu':
    return 1
  memory = jax.local_devices()[0].memory_stats()['bytes_limit']
  return max(1, min(int(_MEMORY_SHARE * memory // bytes_of_one()), num_seeds))


def program_bytes(lowered: jax.stages.Lowered) -> int:
  """Memory in bytes of a program's arguments, intermediates and outputs; compiles it.

  Example:
    >>> program_bytes(jax.jit(lambda x: x + 1).lower(jax.numpy.zeros(256))) >= 2048
    True
  """
  memory: Any = lowered.compile().memory_analysis()
  return (memory.argument_size_in_bytes + memory.temp_size_in_bytes
          + memory.output_size_in_bytes)


def batch_size_of(config: Any, probe: Probe, backend: str | None = None) -> int:
  """`default_batch_size` of a network of this configuration that reads a probe."""
  # Simplified stacks have no heads, as they average positions alike.
  return default_batch_size(probe.num_sequences, probe.length, backend,
                            num_heads=getattr(config, 'num_heads', 0))


def programs(ensemble: Ensemble, statistic: Statistic, probe: Probe,
             readout: Callable | None = None, mesh: Mesh | None = None
             ) -> tuple[Callable, Callable, Callable, Callable]:
  """The programs over a chunk of n networks that `measure` runs.

  `mesh` has devices on one axis called 'seed'; None means all devices. The last eight sets are
  kept, so that other seeds are measured without compiling again.

  Returns:
    Four functions
    - draw: seeds [n] uint32 → networks, every leaf with a leading axis of n networks. A network
      is its seed and its parameters; if they are given, they are returned as they are.
    - shapes: (networks, size) → the sums of a batch as jax.ShapeDtypeStruct; only the statistic
      knows them. What it traces is the step's.
    - step: (networks, sums, first, size=) → the sums with the sequences from `first` to
      `first + size - 1` added.
    - finish: (networks, sums) → the readout's results for each network.
  """
  given = ensemble, statistic, probe, readout, mesh or all_devices()
  try:
    return _programs(*given)
  except TypeError:  # A configuration that cannot be hashed, or reads that are a list.
    return _programs.__wrapped__(*given)


@functools.lru_cache(maxsize=8)
def _programs(ensemble, statistic, probe, readout, mesh):
  @functools.partial(jax.jit, static_argnames='size')
  def batch(drawn, first, size):
    one = functools.partial(_sum_one, ensemble, statistic, probe, first=first, size=size)
    return _over_seeds(one, mesh)(drawn)

  shapes = lambda drawn, size: jax.eval_shape(functools.partial(batch, size=size), drawn, 0)

  @functools.partial(jax.jit, static_argnames='size', out_shardings=spread(mesh))
  def step(drawn, sums, first, size):
    return merge(sums, batch(drawn, first, size=size))

  finish: Callable = lambda drawn, sums: {}
  if readout is not None:
    of_one = lambda drawn, sums: readout(drawn['params'], sums)
    finish = jax.jit(_over_seeds(of_one, mesh))
  draw = _draw_program(ensemble.draw, mesh) if ensemble.draw else lambda sources: sources
  return draw, shapes, step, finish


@functools.lru_cache(maxsize=16)
def _draw_program(draw, mesh):
  return jax.jit(_over_seeds(functools.partial(_draw_one, draw), mesh))


def _draw_one(draw, seed):
  return {'seed': seed, 'params': draw(seed)}


def _sum_one(ensemble, statistic, probe, drawn, first, size):
  """The sums of one network over one batch."""
  return statistic.measure(_read_one(ensemble, statistic, probe, drawn, first, size))


def _read_one(ensemble, statistic, probe, drawn, first, size):
  """What a statistic reads of one network in one batch."""
  inputs = probe.inputs(ensemble.config, first + jnp.arange(size), drawn['seed'])
  return ensemble.read(drawn['params'], inputs, statistic.reads)


def check_adds_up(ensemble: Ensemble, statistic: Statistic, probe: Probe, drawn: Any) -> None:
  """Raises InputError unless the sums over two sequences are those over each of them, added.

  The sequences' intermediates are random numbers, because real ones would take two more programs to
  be compiled.
  """
  one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), drawn)
  of_many = jax.eval_shape(functools.partial(
      _read_one, ensemble, statistic, probe, first=0, size=_MANY), one)
  rng = np.random.default_rng(0)
  halves: tuple[dict, dict] = ({}, {})
  whole: dict[str, np.ndarray] = {}
  for name, many in of_many.items():
    is_batch = np.array(many.shape) % _MANY == 0
    shape = np.where(is_batch, np.array(many.shape) // _MANY, many.shape)
    for half in halves:
      half[name] = rng.random(shape).astype(many.dtype)
    whole[name] = np.concatenate([half[name] for half in halves], int(np.argmax(is_batch)))
  sums_of = jax.jit(statistic.measure)
  first, second, both = jax.device_get([sums_of(part) for part in (*halves, whole)])
  for (path, a), b, sums in zip(jax.tree_util.tree_leaves_with_path(first),
                                *map(jax.tree.leaves, (second, both)), strict=True):
    largest = np.abs([a, b])[np.isfinite([a, b])].max(initial=0)
    if not np.allclose(a + b, sums, rtol=0, atol=1e-3 * largest, equal_nan=True):
      raise InputError('what this statistic measures does not add up: '
                       f'{jax.tree_util.keystr(path)} of two sequences together is not the sum of '
                       'both; return sums and counts over the batch, not means')


def _over_seeds(program, mesh):
  """Each device runs vmap over its own share of the seeds, without communication."""
  of_seeds = PartitionSpec('seed')
  return jax.shard_map(jax.vmap(program), mesh=mesh, in_specs=of_seeds, out_specs=of_seeds,
                       check_vma=False)


def zeros(shapes: Any) -> Any:
  """Sums to begin with, spread over all devices."""
  empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  return jax.device_put(empty, spread(all_devices()))


def all_devices() -> Mesh:
  """The mesh of all devices on one axis, 'seed'."""
  return jax.make_mesh((jax.device_count(),), ('seed',), axis_types=(AxisType.Auto,))


def spread(mesh: Mesh) -> NamedSharding:
  """Networks, the first axis, spread over a mesh."""
  return NamedSharding(mesh, PartitionSpec('seed'))


def shard(seeds: Sequence[int], size: int) -> jax.Array:
  """The seeds spread evenly over all devices, the last repeated: all chunks have one shape."""
  mesh = all_devices()
  size += -size % mesh.size
  padded = np.pad(np.asarray(seeds, np.uint32), (0, size - len(seeds)), mode='edge')
  return jax.device_put(padded, spread(mesh))
