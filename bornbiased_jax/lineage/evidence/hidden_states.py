"""The last-token hidden states of a model that reads a probe."""

from collections.abc import Callable, Iterable
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax import configs, hosts
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of, write_atomically
from bornbiased_jax.lineage.evidence import array_file
from bornbiased_jax.models import attention, sharding
from bornbiased_jax.models.attention_kernels import Spread
from bornbiased_jax.models.batches import default_batch_size, in_batches
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import read

ARRAYS = ('hidden_ND', 'input_ND')
# Inputs of two networks whose cosine is above this count as shared and are projected out. An
# embedding and its copy lie above it after rounding to 8 bits or a little training.
SHARED_ABOVE = 0.99
# The fields of the probes that are recorded, which are of random sequences.
_SETTINGS = ('kind', 'num_sequences', 'length', 'seed', 'num_ids', 'of_each')


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenStates:
  """The last-token states of one model that read a probe.

  Attributes:
    hidden_ND: the final norm's output at the last position of each sequence, float32.
    input_ND: what entered the residual stream there: the probe's own vector or the token's
      embedding, plus learned positions if the model has them, float32.
    probe: the probe's settings, as JSON with their hash.
    config: the model's architecture.
    about: JSON that says which model it is.
  """

  hidden_ND: np.ndarray
  input_ND: np.ndarray
  probe: dict
  config: ModelConfig
  about: dict

  def named(self, about: dict) -> 'HiddenStates':
    """The same states, of a model that is known as `about`."""
    return dataclasses.replace(self, about=about)

  def metadata(self) -> dict:
    """All but the arrays, as JSON."""
    return {'probe': self.probe, 'config': dataclasses.asdict(self.config), 'about': self.about}


def from_archive(arrays: dict[str, np.ndarray], metadata: dict) -> HiddenStates:
  """The hidden states in a signature; raises ValueError or the like if its parts do not fit."""
  hidden_ND, input_ND = (arrays[name] for name in ARRAYS)
  config = configs.from_dict(metadata['config'], 'a signature')
  probe = metadata['probe']
  read = probe_of(probe)
  array_file.check(hidden_ND.dtype == input_ND.dtype == np.float32
                and hidden_ND.shape == input_ND.shape
                and hidden_ND.shape in ((read.num_sequences, config.width), (0, config.width))
                and probe == probe_settings(read, config) and isinstance(metadata['about'], dict))
  return HiddenStates(hidden_ND, input_ND, probe, config, metadata['about'])


def probe_of(settings: dict) -> Probe:
  """The probe that has these `probe_settings`; raises KeyError or the like if none has."""
  return Probe(**{name: settings[name] for name in _SETTINGS})


def probe_settings(probe: Probe, config: ModelConfig) -> dict:
  """All settings that the inputs depend on, as JSON with their hash."""
  if probe.text or probe.start_id is not None:
    raise InputError(f'hidden states are of random sequences, not of {probe.kind!r} or a start_id')
  settings = {name: getattr(probe, name) for name in _SETTINGS}
  if probe.kind in ('tokens', 'pairs'):
    settings['num_ids'] = probe.num_ids or config.vocab_size
  elif probe.kind == 'gaussian':
    # Vectors of kind 'sphere' have the length that suits each network; directions are the same.
    settings['embedding_std'] = config.embedding_std
  encoded = json.dumps(settings, sort_keys=True).encode()
  return settings | {'hash': hashlib.sha256(encoded).hexdigest()[:16]}


def input_is_shared(base: HiddenStates, suspect: HiddenStates) -> bool:
  """Whether two models read the same vectors, or almost: their cosine is above SHARED_ABOVE.

  The mean over sequences does not count, as learned positions add the same to each.
  """
  if base.input_ND.shape != suspect.input_ND.shape or not len(base.input_ND):
    return False
  a_ND, b_ND = (each.input_ND - each.input_ND.mean(axis=0) for each in (base, suspect))
  return bool(np.vdot(a_ND, b_ND) > SHARED_ABOVE * np.linalg.norm(a_ND) * np.linalg.norm(b_ND))


def of_network(config: ModelConfig, params: dict, probe: Probe, *, about: dict | None = None,
               batch_size: int | None = None, parts: str | os.PathLike | None = None,
               on_batch: Callable[[int], None] = lambda sequences: None) -> HiddenStates:
  """A model's hidden states, computed in float32 at the highest precision.

  The devices of a mesh on which the parameters lie share each batch. `parts` keeps finished
  batches of only this model and probe, so that a call that was stopped can go on.

  Raises:
    InputError: a state is not a finite number, or the probe is longer than the model's sequences.
  """
  n, mesh = probe.num_sequences, _mesh_of(params)
  batch_size = spread_batch_size(config, probe, mesh, batch_size)
  place = lambda index_B: (jax.device_put(index_B, NamedSharding(mesh, sharding.BATCH))
                           if mesh else index_B)
  states_of = program(exact(config), without_vocabulary(probe, config), mesh)

  def compute(index_B):
    path = parts and path_of(parts) / f'{index_B[0]}_{batch_size}.npy'
    kept = _kept(path, lambda: np.stack(jax.device_get(states_of(params, place(index_B)))))
    on_batch(min(batch_size, n - int(index_B[0])))
    return kept.swapaxes(0, 1)

  states_N2D = in_batches(compute, n, probe.length, batch_size)
  return checked(states_N2D[:, 0], states_N2D[:, 1], config, probe, about or {})


def checked(hidden_ND: np.ndarray, input_ND: np.ndarray, config: ModelConfig, probe: Probe,
            about: dict) -> HiddenStates:
  """Hidden states; raises InputError if one is not a finite number."""
  for array in (hidden_ND, input_ND):
    if not np.isfinite(array).all():
      raise InputError(f'{about.get("name", "the model")}: its hidden states are not all finite '
                       'numbers')
  return HiddenStates(np.ascontiguousarray(hidden_ND), np.ascontiguousarray(input_ND),
                      probe_settings(probe, config), config, about)


def spread_batch_size(config: ModelConfig, probe: Probe, mesh: Mesh | None,
                      batch_size: int | None = None, backend: str | None = None) -> int:
  """Sequences per forward pass: `batch_size`, by default as `batches.default_batch_size` says.

  It is rounded up so that all devices of a mesh have as many. Few large batches gather parameters
  that are spread less often.
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
    content = io.BytesIO()  # NumPy says nothing of why it cannot write into a file.
    np.save(content, array, allow_pickle=False)
    write_atomically(path, content.getvalue())
  return array


def _stored(path):
  with contextlib.suppress(OSError, ValueError, EOFError):
    return np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
  return None


def of_seeds(config: ModelConfig, seeds: Iterable[int], probe: Probe, *,
             embedding_seed: int | None = None,
             on_network: Callable[[], None] = lambda: None) -> list[HiddenStates]:
  """Hidden states of random models; with `embedding_seed` all have embedding and head of it."""
  made = []
  for seed in seeds:
    params = init_params(config, seed, embedding_seed)
    made.append(of_network(config, params, probe, about={'seed': int(seed)}))
    on_network()
  return made


def exact(config: ModelConfig) -> ModelConfig:
  """The configuration with which hidden states are computed: float32, nothing recomputed."""
  return dataclasses.replace(config, dtype='float32', remat='none')


def without_vocabulary(probe: Probe, config: ModelConfig) -> Probe:
  """The probe without a number of ids that the model has anyway: one program for both."""
  return dataclasses.replace(probe, num_ids=None) if probe.num_ids == config.vocab_size else probe


@functools.lru_cache(maxsize=32)
def program(config: ModelConfig, probe: Probe,
            mesh: Mesh | None = None) -> Callable[[dict, jax.Array], tuple[jax.Array, jax.Array]]:
  """The jitted function (params, index_B) → (states [B, D], inputs [B, D]) of `of_network`."""
  # Left to itself, the compiler divides matrix products rather than the batch, and reduces the
  # activations of all sequences over the devices.
  attend = Spread(attention.plain, mesh) if mesh else attention.plain

  def states(params, index_B):
    with jax.default_matmul_precision('highest'):
      inputs, names = probe.inputs(config, index_B), ('hidden_last', 'input_last')
      found = read(config, params, inputs, names, attend)
    return found['hidden_last'], found['input_last']

  return jax.jit(states, out_shardings=NamedSharding(mesh, PartitionSpec()) if mesh else None)
