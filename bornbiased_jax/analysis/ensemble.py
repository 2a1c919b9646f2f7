"""A statistic of many networks: seeds under vmap, spread over all devices.

Networks are drawn in chunks and sequences are read in batches. Outputs are reduced to
sums at once, and a chunk's parameters are freed before the next chunk is drawn, so that
memory grows neither with the number of sequences nor with the number of seeds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import functools
import itertools
from typing import Any, NamedTuple

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax import hosts
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.statistics import Statistic, merge
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count, unlike
from bornbiased_jax.models.batches import default_batch_size
from bornbiased_jax.models.initialization import as_seed, draw_params
from bornbiased_jax.models.transformer import read

# The share of a device's memory that the networks of a chunk may take.
_MEMORY_SHARE = 0.5


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


def transformer(config: ModelConfig, embedding_seed: int | None = None) -> Ensemble:
  """The random transformers of one architecture; for `embedding_seed` see `init_params`.

  Example:
    >>> from bornbiased_jax import analysis, configs
    >>> analysis.transformer(configs.get('tiny_gpt2')).config.vocab_size
    2048
  """
  if not isinstance(config, ModelConfig):
    raise unlike(config, 'a ModelConfig')
  return Ensemble(config, _draw_of(config, embedding_seed), functools.partial(read, config))


@functools.cache
def _draw_of(config, embedding_seed):
  """One function per ensemble, so that it is compiled once whatever its networks read."""
  return lambda seed: draw_params(config, seed, embedding_seed)


def default_chunk_size(ensemble: Ensemble, statistic: Statistic, probe: Probe, num_seeds: int,
                       batch_size: int) -> int:
  """Number of networks that all devices hold at a time: one each of those that are given."""
  num_devices = _mesh().size
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

  On a CPU it is one: a single network keeps all cores busy, and more would only compete for the
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


def measure(ensemble: Ensemble | Iterable[tuple[ModelConfig, Any]], statistic: Statistic,
            probe: Probe, seeds: Iterable[int] | None = None, *,
            readout: Callable | None = None, batch_size: int | None = None,
            chunk_size: int | None = None,
            on_batch: Callable[[int], None] = lambda sequences: None) -> Iterator[dict]:
  """Measures a statistic of every network of an ensemble over one probe.

  Args:
    ensemble: random networks, such as `transformer(config)`; or given networks of one
      architecture, each its configuration and parameters, as from `storage.Model.load` or
      `storage.huggingface.from_transformers`; or one such network. They are
      taken one chunk after the other, so that an iterator need not hold all of them.
    statistic: what to measure.
    probe: the inputs, the same for every network unless it is `of_each`.
    seeds: which random networks; of networks that are given, None.
    readout: a function (params, sums) of one network → dict of arrays, for results that
      need the parameters again when all sequences have been read. Can be jitted.
    batch_size: number of sequences per forward pass; None means `batch_size_of`.
    chunk_size: number of networks held at a time by all devices together; None means
      `default_chunk_size`, and one per device of networks that are given.
    on_batch: called after each batch with the number of sequences that it read, where a
      sequence counts once for each network of the chunk.

  Yields:
    One dict per network, in the order of `seeds`: `seed`, and the results of the
    statistic and of the readout, as numpy arrays. Of networks that are given, `seed` is their
    number, from 0.

  Raises:
    InputError: a seed outside its range, batch_size or chunk_size below one, networks of
      different architectures, sums that do not add up (tried once, on two sequences), or what the
      statistic raises. As in every generator, only when the first result is asked for.

  Example:
    >>> from bornbiased_jax import analysis, configs
    >>> ensemble = analysis.transformer(configs.get('tiny_gpt2'))
    >>> probe = analysis.Probe('tokens', num_sequences=8, length=4)
    >>> rows = analysis.measure(ensemble, analysis.predictions(2048), probe, seeds=range(2))
    >>> [(row['seed'], len(row['top_ids'])) for row in rows]
    [(0, 20), (1, 20)]
  """
  for name, size in (('batch_size', batch_size), ('chunk_size', chunk_size)):
    if size is not None:
      check_count(name, size)
  family, members, count = _members(ensemble, seeds)
  batch_size = batch_size or batch_size_of(family.config, probe)
  batch_size = min(batch_size, probe.num_sequences)
  chunk_size = chunk_size or default_chunk_size(family, statistic, probe, count, batch_size)
  draw, shapes, step, finish = programs(family, statistic, probe, readout)
  is_checked = False
  while chunk := list(itertools.islice(members, chunk_size)):
    drawn = sums = None  # Frees the previous chunk before the next one is drawn.
    chunk_seeds, sources = _sources(family, chunk, chunk_size)
    with jax.default_matmul_precision('highest'):
      drawn = draw(sources)
      if not is_checked:
        _check_adds_up(family, statistic, probe, drawn)
        is_checked = True
      sums = _zeros(shapes(drawn, batch_size))
      for first_index in range(0, probe.num_sequences, batch_size):
        size = min(batch_size, probe.num_sequences - first_index)
        before, sums = sums, step(drawn, sums, first_index, size=size)
        # Waiting for the previous batch rather than for this one keeps the device busy,
        # and on_batch is never more than one batch ahead of what has been done.
        jax.block_until_ready(before)
        on_batch(size * len(chunk))
      gathered = multihost_utils.process_allgather((sums, finish(drawn, sums)), tiled=True)
    del chunk, sources
    for i, seed in enumerate(chunk_seeds):
      own_sums, extras = jax.tree.map(lambda leaf, i=i: leaf[i], gathered)
      yield {'seed': seed} | statistic.summarize(own_sums) | extras


def _members(ensemble, seeds):
  """The ensemble, its seeds or the numbers and parameters of its networks, and how many there are.

  How many networks are given is not known before the last is taken.
  """
  is_given = not isinstance(ensemble, Ensemble)
  if is_given and isinstance(ensemble, tuple) and isinstance(ensemble[0], ModelConfig):
    ensemble = [ensemble]
  if is_given and (isinstance(ensemble, str | Mapping | ModelConfig)
                   or not isinstance(ensemble, Iterable)):
    raise unlike(ensemble, 'a family of random networks, nor (config, params) of given ones')
  if is_given != (seeds is None):
    raise InputError('a family of random networks needs seeds=, and given networks have none')
  if not is_given:
    seeds = [int(as_seed(seed)) for seed in seeds]
    return ensemble, iter(seeds), len(seeds)
  pairs = iter(ensemble)
  if (first := next(pairs, None)) is None:
    raise InputError('there is no network to measure')
  if not (isinstance(first, tuple | list) and isinstance(first[0], ModelConfig)):
    raise unlike(first, 'a network, (config, params)')
  family = transformer(first[0])._replace(draw=None)
  return family, _of_one_architecture(first, pairs), 0


def _of_one_architecture(first, pairs):
  """The number and the parameters of each network."""
  for number, (config, params) in enumerate(itertools.chain([first], pairs)):
    if config != first[0]:
      raise InputError(f'network {number} has another configuration than network 0; networks that '
                       'are measured together have one')
    yield number, params


def _sources(ensemble, chunk, size):
  """The seeds of a chunk, and what its networks are drawn from, spread over all devices."""
  if ensemble.draw:
    return chunk, _shard(chunk, size)
  numbers = [number for number, _ in chunk]
  mesh = _mesh()
  size += -size % mesh.size
  params = [params for _, params in chunk]
  params += params[-1:] * (size - len(params))  # All chunks have one shape.
  spread = _spread(mesh)
  stacked = jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves), spread), *params)
  return numbers, {'seed': _shard(numbers, size), 'params': stacked}


def programs(ensemble: Ensemble, statistic: Statistic, probe: Probe,
             readout: Callable | None = None, mesh: Mesh | None = None
             ) -> tuple[Callable, Callable, Callable, Callable]:
  """The programs over a chunk of n networks that `measure` runs.

  `mesh` has devices on one axis called 'seed'; None means all devices of this process.

  Returns:
    Four functions
    - draw: seeds [n] uint32 → networks, every leaf with a leading axis of n networks. A network
      is its seed and its parameters; if they are given, they are returned as they are.
    - shapes: (networks, size) → the sums of a batch as jax.ShapeDtypeStruct, of which only the
      statistic knows. What it traces is the step's.
    - step: (networks, sums, first, size=) → the sums with the sequences from `first` to
      `first + size - 1` added.
    - finish: (networks, sums) → the readout's results for each network.
  """
  mesh = mesh or _mesh()

  @functools.partial(jax.jit, static_argnames='size')
  def batch(drawn, first, size):
    one = functools.partial(_sum_one, ensemble, statistic, probe, first=first, size=size)
    return _over_seeds(one, mesh)(drawn)

  shapes = lambda drawn, size: jax.eval_shape(functools.partial(batch, size=size), drawn, 0)

  @functools.partial(jax.jit, static_argnames='size', out_shardings=_spread(mesh))
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


def _check_adds_up(ensemble, statistic, probe, drawn):
  """Raises InputError unless the sums over two sequences are those over each of them, added.

  The sequences' intermediates are random numbers, because those of the network would take two more
  programs to be compiled.
  """
  one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), drawn)
  of_one, of_two = (jax.eval_shape(functools.partial(
      _read_one, ensemble, statistic, probe, first=0, size=size), one) for size in (1, 2))
  rng, whole, halves = np.random.default_rng(0), {}, ({}, {})
  for name, shape in of_two.items():
    axis = int(np.argmax(np.array(shape.shape) != of_one[name].shape))
    whole[name] = jnp.asarray(rng.random(shape.shape), shape.dtype)
    for half, values in zip(halves, jnp.split(whole[name], 2, axis), strict=True):
      half[name] = values
  first, second, both = map(statistic.measure, (*halves, whole))
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


def _zeros(shapes):
  zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  return jax.device_put(zeros, _spread(_mesh()))


def _mesh():
  return jax.make_mesh((jax.device_count(),), ('seed',), axis_types=(AxisType.Auto,))


def _spread(mesh):
  return NamedSharding(mesh, PartitionSpec('seed'))


def _shard(seeds, size):
  """The seeds spread evenly over all devices, the last repeated: all chunks have one shape."""
  mesh = _mesh()
  size += -size % mesh.size
  padded = np.pad(np.asarray(seeds, np.uint32), (0, size - len(seeds)), mode='edge')
  return jax.device_put(padded, _spread(mesh))
