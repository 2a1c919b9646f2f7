"""Networks read probes, and what they answer is their fingerprint."""

from collections.abc import Callable, Iterable
import contextlib
import dataclasses
import functools
import io
import math
import os

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax import hosts
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.sizes import (
  batch_size_of,
  default_batch_size,
  in_batches,
  networks_at_once,
  program_bytes,
)
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of, write_atomically
from bornbiased_jax.hosts import on_host
from bornbiased_jax.lineage.fingerprints import Fingerprint, described
from bornbiased_jax.models import attention, sharding
from bornbiased_jax.models.attention_kernels import Spread
from bornbiased_jax.models.initialization import as_seed, draw_params
from bornbiased_jax.models.transformer import head_of, read
from bornbiased_jax.storage.layers import ROWS


def fingerprint(config: ModelConfig, params: dict, probe: Probe, *,
                logit_ids: tuple[int, ...] | None = None, about: dict | None = None,
                batch_size: int | None = None, parts: str | os.PathLike | None = None,
                on_batch: Callable[[int], None] = lambda sequences: None) -> Fingerprint:
  """A network's answers to a probe, computed in float32 at the highest precision.

  Args:
    config: the architecture.
    params: parameters, as from `initialization.init_params`. If they lie on a
      mesh of `sharding.make_mesh`, its devices share each batch.
    probe: the inputs.
    logit_ids: answer with the logits of these ids, [n, number of ids], instead of
      the final norm. An id means the same in all networks that know it, so
      networks trained on similar text answer alike, related or not.
    about: JSON that says which network it is.
    batch_size: sequences per forward pass, by default as `spread_batch_size` says.
    parts: folder that keeps finished batches, so that a call that was stopped
      can go on. It must serve this network and probe alone; the caller removes it.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: an answer is not a finite number, an id is outside the vocabulary,
      or the probe is longer than the model's sequences.

  Cost: one forward pass per sequence, with the last block and the final norm at
  the last position alone.
  """
  if logit_ids is not None and not all(0 <= i < config.vocab_size for i in logit_ids):
    raise InputError(f'logit_ids must be from 0 to {config.vocab_size - 1}, the vocabulary')
  n, mesh = probe.num_sequences, _mesh_of(params)
  batch_size = spread_batch_size(config, probe, mesh, batch_size)
  place = lambda index_B: (jax.device_put(index_B, NamedSharding(mesh, sharding.BATCH))
                           if mesh else index_B)
  answer = program(exact(config), probe, logit_ids, mesh)

  def answers_to(index_B):
    path = parts and path_of(parts) / f'{index_B[0]}_{batch_size}.npy'
    compute = lambda: jax.device_get(answer(params, place(index_B)))
    kept = _kept(path, lambda: np.concatenate(compute(), axis=1))
    on_batch(min(batch_size, n - int(index_B[0])))
    return kept

  answers = in_batches(answers_to, n, probe.length, batch_size)
  hidden_ND, input_ND = np.split(answers, [answers.shape[1] - config.width], axis=1)
  return described(hidden_ND, input_ND, config, probe, logit_ids, about or {})


def spread_batch_size(config: ModelConfig, probe: Probe, mesh: Mesh | None,
                      batch_size: int | None = None, backend: str | None = None) -> int:
  """Sequences per forward pass, rounded up so that all devices of a mesh have as many.

  They are `batch_size`, but at most all. By default each device has as many of its share of the
  sequences as `sizes.default_batch_size` says: where parameters are spread, each batch
  gathers all of them, so that few large batches pass fewer bytes between devices.
  """
  n, shards = probe.num_sequences, sharding.batch_shards(mesh)
  share = -(-min(batch_size or n, n) // shards)
  if batch_size is None:
    share = default_batch_size(share, probe.length, backend, num_heads=config.num_heads)
  return shards * share


def _mesh_of(params):
  placed = getattr(jax.tree.leaves(params)[0], 'sharding', None)
  mesh = placed.mesh if isinstance(placed, NamedSharding) else None
  return mesh if mesh and mesh.size > 1 and mesh.axis_names == sharding.AXES else None


def _kept(path, make):
  """The array in a file. If that is missing, removed meanwhile or damaged, it is made anew."""
  if path and (kept := hosts.from_first(lambda: _stored(path))) is not None:
    return kept
  array = make()
  if path and hosts.is_first():
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    write_atomically(path, content.getvalue())
  return array


def _stored(path):
  with contextlib.suppress(OSError, ValueError, EOFError):
    return np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
  return None


def of_seeds(config: ModelConfig, seeds: Iterable[int], probe: Probe, *,
             embedding_seed: int | None = None,
             on_network: Callable[[], None] = lambda: None) -> list[Fingerprint]:
  """Fingerprints of random networks, as many at a time under vmap as memory holds.

  With `embedding_seed`, all take their embedding and head from that seed.
  `on_network` is called after each network. Raises InputError as `fingerprint` does.
  """
  seeds = [int(as_seed(seed)) for seed in seeds]
  batch_size = batch_size_of(config, probe)
  answers_of = _read_seeds(exact(config), probe, batch_size, embedding_seed)
  bytes_of_one = lambda: program_bytes(answers_of.lower(jnp.zeros(1, jnp.uint32)))
  chunk_size, made = networks_at_once(bytes_of_one, len(seeds)), []
  for first in range(0, len(seeds), chunk_size):
    chunk = seeds[first:first + chunk_size]
    answers = jax.device_get(answers_of(jnp.array(chunk, jnp.uint32)))
    for seed, hidden_ND, input_ND in zip(chunk, *answers, strict=True):
      made.append(described(hidden_ND, input_ND, config, probe, None, {'seed': int(seed)}))
      on_network()
  return made


def exact(config: ModelConfig) -> ModelConfig:
  """The configuration with which fingerprints are computed: float32, nothing recomputed."""
  return dataclasses.replace(config, dtype='float32', remat='none')


def sized(config: ModelConfig, params: dict) -> ModelConfig:
  """The configuration with which random vectors are as large as the network's embeddings."""
  embedding_VD = params['embedding']
  pieces = (on_host(embedding_VD[first:first + ROWS])
            for first in range(0, len(embedding_VD), ROWS))
  return with_size(config, mean_square(pieces))


def mean_square(pieces: Iterable[np.ndarray]) -> float:
  """The mean square of all numbers, in float64."""
  sums = np.array([(np.sum(np.square(piece, dtype=np.float64)), piece.size) for piece in pieces])
  return float(np.divide(*sums.sum(axis=0)))


def with_size(config: ModelConfig, mean_square: float) -> ModelConfig:
  """The configuration of `sized`, from the mean square of the embedding's entries.

  Their size beside what the blocks add to the stream matters. It is the root mean square of
  the entries as they enter the stream, as the nearest power of 2: few sizes need few programs.

  Raises:
    InputError: it is not a finite number.
  """
  if not math.isfinite(mean_square):
    raise InputError('the embedding has numbers that are not finite')
  size = max(1e-30, config.embedding_factor * math.sqrt(mean_square))
  return dataclasses.replace(config, embedding_std=2.0**round(math.log2(size)))


@functools.lru_cache(maxsize=8)
def program(config: ModelConfig, probe: Probe, logit_ids: tuple[int, ...] | None = None,
            mesh: Mesh | None = None) -> Callable[[dict, jax.Array], tuple[jax.Array, jax.Array]]:
  """The jitted function (params, index_B) → (answers [B, …], inputs [B, D]) of `fingerprint`.

  The configuration is an `exact` one. On a mesh params are placed by
  `sharding.shardings` and index_B by `sharding.BATCH`.
  """
  # Left alone, the compiler divides matrix products rather than the batch, and reduces the
  # activations of all sequences over the devices.
  attend = Spread(attention.plain, mesh) if mesh else attention.plain

  def answer(params, index_B):
    with jax.default_matmul_precision('highest'):
      hidden_BD, input_BD = _answers(config, probe, params, index_B, attend)
      if logit_ids is None:
        return hidden_BD, input_BD
      return hidden_BD @ head_of(config, params)[np.array(logit_ids)].T, input_BD

  return jax.jit(answer, out_shardings=NamedSharding(mesh, PartitionSpec()) if mesh else None)


@functools.lru_cache(maxsize=8)
def _read_seeds(config, probe, batch_size, embedding_seed):
  """A jitted function from seeds to the answers and inputs of their networks."""
  num_batches = -(-probe.num_sequences // batch_size)

  def answers_of(seed):
    with jax.default_matmul_precision('highest'):
      params = draw_params(config, seed, embedding_seed)
      # The last batch wraps around to the first sequences, to be as large as the others.
      index_N = jnp.arange(num_batches * batch_size) % probe.num_sequences
      answers = jax.lax.map(lambda index_B: _answers(config, probe, params, index_B),
                            index_N.reshape(num_batches, batch_size))
    joined = lambda x_MBD: x_MBD.reshape(-1, x_MBD.shape[-1])[:probe.num_sequences]
    return jax.tree.map(joined, answers)

  return jax.jit(jax.vmap(answers_of))


def _answers(config, probe, params, index_B, attend=attention.plain):
  names = ('hidden_last', 'input_last')
  found = read(config, params, probe.inputs(config, index_B), names, attend)
  return found['hidden_last'], found['input_last']
