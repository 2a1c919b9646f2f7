"""A statistic of many networks: seeds under vmap, spread over all devices.

Networks are drawn in chunks and sequences are read in batches. Outputs are reduced to
sums at once, and a chunk's parameters are freed before the next chunk is drawn, so that
memory does not grow with the number of sequences or seeds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import functools
import itertools
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from bornbiased_jax.analysis import chunks
from bornbiased_jax.analysis.chunks import Ensemble
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.statistics import Statistic
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count, check_kind, unlike
from bornbiased_jax.models.initialization import as_seed, check_params, init_params
from bornbiased_jax.models.transformer import read


def transformer(config: ModelConfig, embedding_seed: int | None = None) -> Ensemble:
  """The random transformers of one architecture; for `embedding_seed` see `init_params`.

  Example:
    >>> from bornbiased_jax import analysis, configs
    >>> analysis.transformer(configs.get('tiny_gpt2')).config.vocab_size
    2048
  """
  check_kind(config, ModelConfig, 'a ModelConfig')
  return _transformer(config, embedding_seed)


# One ensemble for equal arguments, so that what draws and reads its networks is compiled once.
@functools.cache
def _transformer(config, embedding_seed):
  return Ensemble(config, lambda seed: init_params(config, seed, embedding_seed),
                  functools.partial(read, config))


def measure(ensemble: Ensemble | Iterable[tuple[ModelConfig, Any]], statistic: Statistic,
            probe: Probe, seeds: Iterable[int] | None = None, *,
            readout: Callable | None = None, batch_size: int | None = None,
            chunk_size: int | None = None,
            on_batch: Callable[[int], None] = lambda sequences: None) -> Iterator[dict]:
  """Measures a statistic of every network of an ensemble over one probe.

  Args:
    ensemble: random networks, such as `transformer(config)`; or given models of one
      architecture, each its configuration and parameters, as from `storage.Model.load` or
      `storage.huggingface.from_transformers`; or one such model. They are
      taken one chunk after the other, so that an iterator need not hold all of them.
    statistic: what to measure.
    probe: the inputs, the same for every network unless it is `of_each`.
    seeds: which random networks; of given models, None.
    readout: a function (params, sums) of one network → dict of arrays, for results that
      need the parameters again when all sequences have been read. Can be jitted.
    batch_size: number of sequences per forward pass; None means `batch_size_of`.
    chunk_size: number of networks held at a time by all devices together; None means
      `default_chunk_size`, and one per device of given models.
    on_batch: called after each batch with the number of sequences that it read, where a
      sequence counts once for each network of the chunk.

  Yields:
    One dict per network, in the order of `seeds`: `seed`, and the results of the
    statistic and of the readout, as numpy arrays. Of given models, `seed` is their
    number, from 0.

  Raises:
    InputError: a seed outside its range, batch_size or chunk_size below one, networks of
      different architectures, sums that do not add up (tried once, on two sequences), or what the
      statistic raises. Like in every generator, only when the first result is asked for.

  Example:
    >>> from bornbiased_jax import analysis, configs
    >>> ensemble = analysis.transformer(configs.get('tiny_gpt2', num_layers=2))
    >>> probe = analysis.Probe('tokens', num_sequences=300, length=16)
    >>> rows = analysis.measure(ensemble, analysis.predictions(2048), probe, seeds=range(4))
    >>> [(row['seed'], len(row['top_ids'])) for row in rows]
    [(0, 20), (1, 20), (2, 20), (3, 20)]
  """
  for name, size in (('batch_size', batch_size), ('chunk_size', chunk_size)):
    if size is not None:
      check_count(name, size)
  check_kind(statistic, Statistic, 'a statistic, such as analysis.predictions(vocab_size)')
  check_kind(probe, Probe, 'an analysis.Probe')
  family, members, count = _members(ensemble, seeds)
  batch_size = batch_size or chunks.batch_size_of(family.config, probe)
  batch_size = min(batch_size, probe.num_sequences)
  chunk_size = chunk_size or chunks.default_chunk_size(family, statistic, probe, count, batch_size)
  draw, shapes, step, finish = chunks.programs(family, statistic, probe, readout)
  is_checked = False
  while chunk := list(itertools.islice(members, chunk_size)):
    drawn = sums = None  # Frees the previous chunk before the next one is drawn.
    chunk_seeds, sources = _sources(family, chunk, chunk_size)
    with jax.default_matmul_precision('highest'):
      drawn = draw(sources)
      if not is_checked:
        chunks.check_adds_up(family, statistic, probe, drawn)
        is_checked = True
      sums = _sums_of_all(step, drawn, chunks.zeros(shapes(drawn, batch_size)), probe, batch_size,
                          lambda size: on_batch(size * len(chunk)))
      gathered = multihost_utils.process_allgather((sums, finish(drawn, sums)), tiled=True)
    del chunk, sources
    for i, seed in enumerate(chunk_seeds):
      own_sums, extras = jax.tree.map(lambda leaf, i=i: leaf[i], gathered)
      yield {'seed': seed} | statistic.summarize(own_sums) | extras


def _sums_of_all(step, drawn, sums, probe, batch_size, on_batch):
  """The sums of a chunk's networks over all sequences of a probe, batch by batch."""
  for first_index in range(0, probe.num_sequences, batch_size):
    size = min(batch_size, probe.num_sequences - first_index)
    before, sums = sums, step(drawn, sums, first_index, size=size)
    # Waiting for the previous batch rather than for this one keeps the device at work,
    # and on_batch is never more than one batch ahead of what has been done.
    jax.block_until_ready(before)
    on_batch(size)
  return sums


def _members(ensemble, seeds):
  """The ensemble, its seeds or the numbers and parameters of its networks, and how many there are.

  How many networks are given is not known before the last is taken.
  """
  is_given = not isinstance(ensemble, Ensemble)
  if is_given and isinstance(ensemble, tuple) and isinstance(ensemble[0], ModelConfig):
    ensemble = [ensemble]
  if is_given and (isinstance(ensemble, str | Mapping | ModelConfig)
                   or not isinstance(ensemble, Iterable)):
    raise unlike(ensemble, 'a family of random networks, or (config, params) of given ones')
  if is_given != (seeds is None):
    raise InputError('random networks need seeds=, such as range(3), and given models have none')
  if not is_given:
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
      raise InputError(f'seeds={seeds!r} are not several; give them, such as range(3) or [42]')
    seeds = [int(as_seed(seed)) for seed in seeds]
    return ensemble, iter(seeds), len(seeds)
  pairs = iter(ensemble)
  if (first := next(pairs, None)) is None:
    raise InputError('there is no model to measure')
  if not (isinstance(first, tuple | list) and isinstance(first[0], ModelConfig)):
    raise unlike(first, 'a model, (config, params)')
  family = transformer(first[0])._replace(draw=None)
  return family, _of_one_architecture(first, pairs), 0


def _of_one_architecture(first, pairs):
  """The number and the parameters of each network."""
  for number, (config, params) in enumerate(itertools.chain([first], pairs)):
    if config != first[0]:
      raise InputError(f'model {number} has another configuration than model 0; models that are '
                       'measured together have one')
    check_params(config, params)
    yield number, params


def _sources(ensemble, chunk, size):
  """The seeds of a chunk, and what its networks are drawn from, spread over all devices."""
  if ensemble.draw:
    return chunk, chunks.shard(chunk, size)
  numbers = [number for number, _ in chunk]
  mesh = chunks.all_devices()
  spread = chunks.spread(mesh)
  size += -size % mesh.size
  params = [params for _, params in chunk]
  params += params[-1:] * (size - len(params))  # All chunks have one shape.
  stacked = jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves), spread), *params)
  return numbers, {'seed': chunks.shard(numbers, size), 'params': stacked}


