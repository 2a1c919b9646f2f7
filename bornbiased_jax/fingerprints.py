"""Fingerprints: what a network answers to a probe, computed once, saved, and compared by `seedprint`."""

from collections.abc import Callable, Iterable
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
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.ensemble import default_batch_size
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically
from bornbiased_jax.initialization import draw_params
from bornbiased_jax.probes import Probe
from bornbiased_jax.transformer import Transformer

SCHEMA = 1
_ARRAYS = ('hidden_ND', 'input_ND')
_MOST_METADATA_BYTES = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Fingerprint:
  """Answers of one network to the sequences of a probe.

  Attributes:
    hidden_ND: final-norm output at the last position, float32.
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


def fingerprint(params: dict, config: ModelConfig, probe: Probe, *, about: dict | None = None,
                batch_size: int | None = None, on_batch: Callable[[int], None] = lambda sequences: None) -> Fingerprint:
  """The network's answers to a probe.

  Args:
    params: as of `initialization.init_params`; on a mesh they stay where they are.
    config: the architecture; it computes in float32 at the highest precision.
    probe: the inputs.
    about: JSON that says which network it is.
    batch_size: sequences a forward pass; None: `ensemble.default_batch_size`.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: an answer is not a finite number, or the probe is longer than the model's sequences.

  Cost: one forward pass of each sequence, its last block and norm at the last position alone.
  """
  batch_size = min(batch_size or default_batch_size(probe.num_sequences, probe.length), probe.num_sequences)
  answer, parts = _answer(_exact(config), probe), []
  for first in range(0, probe.num_sequences, batch_size):
    size = min(batch_size, probe.num_sequences - first)
    parts.append(jax.device_get(answer(params, first, size=size)))
    on_batch(size)
  hidden_ND, input_ND = (np.concatenate(columns) for columns in zip(*parts, strict=True))
  return _described(hidden_ND, input_ND, config, probe, about or {})


def of_seeds(config: ModelConfig, seeds: Iterable[int], probe: Probe, *, embedding_seed: int | None = None,
             on_network: Callable[[], None] = lambda: None) -> list[Fingerprint]:
  """Fingerprints of random networks, drawn and read by one program; raises as `fingerprint`."""
  seeds = list(seeds)
  batch_size = default_batch_size(probe.num_sequences, probe.length)
  read, fingerprints = _read_seed(_exact(config), probe, batch_size, embedding_seed), []
  for seed in seeds:
    hidden_ND, input_ND = jax.device_get(read(jnp.uint32(seed)))
    fingerprints.append(_described(hidden_ND, input_ND, config, probe, {'seed': int(seed)}))
    on_network()
  return fingerprints


def _exact(config):
  return dataclasses.replace(config, dtype='float32', remat='none')


@functools.lru_cache(maxsize=8)
def _answer(config, probe):
  @functools.partial(jax.jit, static_argnames='size')
  def answer(params, first, size):
    with jax.default_matmul_precision('highest'):
      return _answers(config, probe, params, first + jnp.arange(size))
  return answer


@functools.lru_cache(maxsize=8)
def _read_seed(config, probe, batch_size, embedding_seed):
  """A network in one go: its batches, the last one wrapping around to be as large as the others."""
  num_batches = -(-probe.num_sequences // batch_size)

  @jax.jit
  def read(seed):
    with jax.default_matmul_precision('highest'):
      params = draw_params(config, seed, embedding_seed)
      index_MB = (jnp.arange(num_batches * batch_size) % probe.num_sequences).reshape(num_batches, batch_size)
      answers = jax.lax.map(lambda index_B: _answers(config, probe, params, index_B), index_MB)
    return jax.tree.map(lambda x_MBD: x_MBD.reshape(-1, x_MBD.shape[-1])[:probe.num_sequences], answers)

  return read


def _answers(config, probe, params, index_B):
  read = Transformer(config).apply({'params': params}, probe.inputs(config, index_B), ('hidden_last', 'input_last'),
                                   method='read')
  return read['hidden_last'], read['input_last']


def _described(hidden_ND, input_ND, config, probe, about):
  for array in (hidden_ND, input_ND):
    if not np.isfinite(array).all():
      raise InputError(f'{about or "the network"}: its answers to the probe are not all finite numbers')
  return Fingerprint(hidden_ND, input_ND, {'schema': SCHEMA, 'probe': probe_settings(probe, config),
                                           'model': dataclasses.asdict(config), 'about': about})


def probe_settings(probe: Probe, config: ModelConfig) -> dict:
  """All that the inputs depend on, with a hash of it: fingerprints of different probes cannot be compared."""
  settings = dataclasses.asdict(probe) | (
      {'num_ids': probe.num_ids or config.vocab_size} if probe.kind == 'tokens'
      else {'embedding_std': config.embedding_std})
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
    probe_hash, about = metadata['probe']['hash'], metadata['about']
  except OSError as error:
    raise InputError(f'{path}: {error.strerror or error}') from None
  except InputError:
    raise
  except (zipfile.BadZipFile, LookupError, TypeError, ValueError, EOFError, RecursionError, RuntimeError) as error:
    raise InputError(f'{path} is not a fingerprint, or damaged: {error}') from None
  if hidden_ND.shape != input_ND.shape or not isinstance(probe_hash, str) or not isinstance(about, dict):
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
  """The architecture that answered; raises InputError if the metadata tells of none."""
  try:
    return ModelConfig(**fingerprint.metadata['model'])
  except (TypeError, KeyError) as error:
    raise InputError(f'a fingerprint whose model is not one of this version: {error}') from None
