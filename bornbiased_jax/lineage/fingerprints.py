"""Fingerprints: what a network answers to a probe, computed once, saved, and compared by `seedprint`."""

from collections.abc import Callable, Iterable
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import math
import os
from pathlib import Path
import zipfile

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.analysis.ensemble import default_batch_size, in_batches, networks_at_once, program_bytes
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import as_seed, draw_params
from bornbiased_jax.models.transformer import head_of, read

SCHEMA = 1
_ARRAYS = ('hidden_ND', 'input_ND')
_MOST_METADATA_BYTES = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Fingerprint:
  """Answers of one network to the sequences of a probe.

  Attributes:
    hidden_ND: final-norm output at the last position, or logits of chosen ids, float32.
    input_ND: what entered the residual stream there: the probe's own vector
      or the token's embedding, positions included, float32.
    metadata: JSON: schema, the probe's settings, and what is known of the network.
  """

  hidden_ND: np.ndarray
  input_ND: np.ndarray
  metadata: dict

  def save(self, path: str | os.PathLike) -> None:
    """Writes an .npz (numpy arrays and JSON, no pickle), whole or not at all."""
    content = io.BytesIO()
    encoded = np.frombuffer(json.dumps(self.metadata).encode(), np.uint8)
    np.savez(content, **{name: getattr(self, name) for name in _ARRAYS}, metadata=encoded)
    write_atomically(path, content.getvalue())


def fingerprint(config: ModelConfig, params: dict, probe: Probe, *, logit_ids: tuple[int, ...] | None = None,
                about: dict | None = None, batch_size: int | None = None, parts: str | os.PathLike | None = None,
                on_batch: Callable[[int], None] = lambda sequences: None) -> Fingerprint:
  """The network's answers to a probe.

  Args:
    config: the architecture; it computes in float32 at the highest precision.
    params: as of `initialization.init_params`; on a mesh of `sharding.make_mesh`
      they stay where they are, and its devices share each batch.
    probe: the inputs.
    logit_ids: answer with the logits of these ids, [n, their number], instead
      of the final norm. An id means the same in all networks that know it:
      those trained on similar text answer alike, related or not.
    about: JSON that says which network it is.
    batch_size: sequences a forward pass; None: `ensemble.default_batch_size`.
    parts: folder of the batches that are done, of this network and probe
      alone, from which a stopped call goes on; the caller's to remove.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: an answer is not a finite number, an id is outside the
      vocabulary, or the probe is longer than the model's sequences.

  Cost: one forward pass of each sequence, its last block and norm at the last position alone.
  """
  if logit_ids is not None and not all(0 <= i < config.vocab_size for i in logit_ids):
    raise InputError(f'logit_ids must be from 0 to {config.vocab_size - 1}, the vocabulary')
  n, mesh = probe.num_sequences, _mesh_of(params)
  batch_size = spread_batch_size(probe, mesh, batch_size)
  place = lambda index_B: jax.device_put(index_B, NamedSharding(mesh, sharding.BATCH)) if mesh else index_B
  answer = program(exact(config), probe, logit_ids, mesh)

  def answers_to(index_B):
    path = parts and Path(parts) / f'{index_B[0]}_{batch_size}.npy'
    kept = _kept(path, lambda: np.concatenate(jax.device_get(answer(params, place(index_B))), axis=1))
    on_batch(min(batch_size, n - int(index_B[0])))
    return kept

  answers = in_batches(answers_to, n, probe.length, batch_size)
  hidden_ND, input_ND = np.split(answers, [answers.shape[1] - config.width], axis=1)
  return _described(hidden_ND, input_ND, config, probe, logit_ids, about or {})


def spread_batch_size(probe: Probe, mesh: Mesh | None, batch_size: int | None = None,
                      backend: str | None = None) -> int:
  """Sequences a forward pass: `batch_size` (None: the backend's default) or all, as many on each device of the mesh."""
  n, shards = probe.num_sequences, mesh.shape['data'] * mesh.shape['fsdp'] if mesh else 1
  return shards * -(-min(batch_size or default_batch_size(n, probe.length, backend), n) // shards)


def _mesh_of(params):
  placed = getattr(jax.tree.leaves(params)[0], 'sharding', None)
  mesh = placed.mesh if isinstance(placed, NamedSharding) else None
  return mesh if mesh and mesh.size > 1 and mesh.axis_names == sharding.AXES else None


def _kept(path, make):
  """An array from its file, or made and written there."""
  if path:
    with contextlib.suppress(OSError, ValueError, EOFError):  # Missing, removed meanwhile or damaged: made anew.
      return np.load(path, allow_pickle=False)
  array = make()
  if path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    write_atomically(path, content.getvalue())
  return array


def of_seeds(config: ModelConfig, seeds: Iterable[int], probe: Probe, *, embedding_seed: int | None = None,
             on_network: Callable[[], None] = lambda: None) -> list[Fingerprint]:
  """Fingerprints of random networks, drawn and read under vmap, as many at once as memory holds.

  Raises as `fingerprint`.
  """
  seeds = [int(as_seed(seed)) for seed in seeds]
  batch_size = default_batch_size(probe.num_sequences, probe.length)
  answers_of = _read_seeds(exact(config), probe, batch_size, embedding_seed)
  chunk_size, made = networks_at_once(lambda: program_bytes(answers_of.lower(jnp.zeros(1, jnp.uint32))), len(seeds)), []
  for first in range(0, len(seeds), chunk_size):
    chunk = seeds[first:first + chunk_size]
    answers = jax.device_get(answers_of(jnp.array(chunk, jnp.uint32)))
    for seed, hidden_ND, input_ND in zip(chunk, *answers, strict=True):
      made.append(_described(hidden_ND, input_ND, config, probe, None, {'seed': int(seed)}))
      on_network()
  return made


def exact(config: ModelConfig) -> ModelConfig:
  """The architecture as fingerprints compute it: in float32."""
  return dataclasses.replace(config, dtype='float32', remat='none')


@functools.lru_cache(maxsize=8)
def program(config: ModelConfig, probe: Probe, logit_ids: tuple[int, ...] | None = None,
            mesh: Mesh | None = None) -> Callable[[dict, jax.Array], tuple[jax.Array, jax.Array]]:
  """What `fingerprint` jits for a batch, of an `exact` config: (params, index_B) → answers [B, …] and inputs [B, D].

  On a mesh params are placed by `sharding.shardings` and index_B by `sharding.BATCH`.
  """

  def answer(params, index_B):
    with jax.default_matmul_precision('highest'):
      hidden_BD, input_BD = _answers(config, probe, params, index_B)
      if logit_ids is None:
        return hidden_BD, input_BD
      return hidden_BD @ head_of(config, params)[np.array(logit_ids)].T, input_BD

  return jax.jit(answer, out_shardings=NamedSharding(mesh, PartitionSpec()) if mesh else None)


@functools.lru_cache(maxsize=8)
def _read_seeds(config, probe, batch_size, embedding_seed):
  """Networks in one go, each in batches, the last one wrapping around to be as large as the others."""
  num_batches = -(-probe.num_sequences // batch_size)

  def answers_of(seed):
    with jax.default_matmul_precision('highest'):
      params = draw_params(config, seed, embedding_seed)
      index_MB = (jnp.arange(num_batches * batch_size) % probe.num_sequences).reshape(num_batches, batch_size)
      answers = jax.lax.map(lambda index_B: _answers(config, probe, params, index_B), index_MB)
    return jax.tree.map(lambda x_MBD: x_MBD.reshape(-1, x_MBD.shape[-1])[:probe.num_sequences], answers)

  return jax.jit(jax.vmap(answers_of))


def _answers(config, probe, params, index_B):
  found = read(config, params, probe.inputs(config, index_B), ('hidden_last', 'input_last'))
  return found['hidden_last'], found['input_last']


def _described(hidden_ND, input_ND, config, probe, logit_ids, about):
  for array in (hidden_ND, input_ND):
    if not np.isfinite(array).all():
      raise InputError(f'{about or "the network"}: its answers to the probe are not all finite numbers')
  return Fingerprint(hidden_ND, input_ND, {'schema': SCHEMA, 'probe': probe_settings(probe, config, logit_ids),
                                           'model': dataclasses.asdict(config), 'about': about})


def probe_settings(probe: Probe, config: ModelConfig, logit_ids: tuple[int, ...] | None = None) -> dict:
  """What was asked, all that the inputs depend on, with a hash: fingerprints of different probes cannot be compared."""
  settings = dataclasses.asdict(probe) | (
      {'num_ids': probe.num_ids or config.vocab_size} if probe.kind == 'tokens'
      else {'embedding_std': config.embedding_std}) | ({'logit_ids': list(logit_ids)} if logit_ids is not None else {})
  return settings | {'hash': hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]}


def load(path: str | os.PathLike) -> Fingerprint:
  """A saved fingerprint, from whomever: nothing in it is executed, and sizes are checked before memory is taken.

  Raises:
    InputError: not a fingerprint of this version, damaged, or with values that are not finite.
  """
  path = Path(path).expanduser()
  try:
    with zipfile.ZipFile(path) as archive:
      hidden_ND, input_ND = (_array(archive, name, np.float32, 2) for name in _ARRAYS)
      metadata = json.loads(_array(archive, 'metadata', np.uint8, 1).tobytes())
    if metadata['schema'] != SCHEMA:
      raise InputError(f'{path}: a fingerprint of schema {metadata["schema"]}, and this version reads {SCHEMA}')
    probe_hash, num_ids, about = metadata['probe']['hash'], metadata['probe'].get('num_ids'), metadata['about']
  except OSError as error:
    raise InputError(f'{path}: {error.strerror or error}') from None
  except InputError:
    raise
  except (zipfile.BadZipFile, LookupError, TypeError, ValueError, EOFError, RecursionError, RuntimeError) as error:
    raise InputError(f'{path} is not a fingerprint, or damaged: {error}') from None
  if (len(hidden_ND) != len(input_ND) or not isinstance(about, dict)
      or not isinstance(probe_hash, str) or not isinstance(num_ids, int | None)):
    raise InputError(f'{path} is not a fingerprint: its parts do not fit each other')
  if not (np.isfinite(hidden_ND).all() and np.isfinite(input_ND).all()):
    raise InputError(f'{path} has values that are not finite numbers')
  return Fingerprint(hidden_ND, input_ND, metadata)


def _array(archive, name, dtype, ndim):
  """One member: stored as it is (no zip bomb), of the type and as long as its header says."""
  info = archive.getinfo(f'{name}.npy')
  if info.compress_type != zipfile.ZIP_STORED or info.file_size > os.fstat(archive.fp.fileno()).st_size:
    raise ValueError(f'{name} is not stored as savez stores it')
  if name == 'metadata' and info.file_size > _MOST_METADATA_BYTES:
    raise ValueError('its metadata is too long')
  content = io.BytesIO(archive.read(info))
  if np.lib.format.read_magic(content) != (1, 0):
    raise ValueError(f'{name} has an unknown header')
  shape, fortran_order, found = np.lib.format.read_array_header_1_0(content)
  data = content.getbuffer()[content.tell():]
  if found != dtype or len(shape) != ndim or fortran_order or math.prod(shape) * found.itemsize != len(data):
    raise ValueError(f'{name} is {found}{list(shape)} in {len(data)} bytes')
  return np.frombuffer(data, dtype).reshape(shape)


def config_of(fingerprint: Fingerprint) -> ModelConfig:
  """The architecture that answered; raises as `configs.from_dict`."""
  return configs.from_dict(fingerprint.metadata.get('model'), 'a fingerprint')
