"""Fingerprints: a network's answers to a probe, as they are saved and compared later."""

import dataclasses
import hashlib
import json
import os
import zipfile

import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import archives

SCHEMA = 1
ARRAYS = ('hidden_ND', 'input_ND')


@dataclasses.dataclass(frozen=True, eq=False)
class Fingerprint:
  """The answers of one network to the sequences of a probe.

  Attributes:
    hidden_ND: the answer to each sequence: the final norm's output at the last
      position, or the logits of chosen ids there, float32.
    input_ND: what entered the residual stream at that position: the probe's own
      vector or the token's embedding, plus learned positions if the network has
      them, float32.
    metadata: JSON with the schema, the probe's settings, the network's
      configuration and what else is known about the network.
  """

  hidden_ND: np.ndarray
  input_ND: np.ndarray
  metadata: dict

  def named(self, about: dict) -> 'Fingerprint':
    """The same answers, of a network that is known as `about`."""
    return dataclasses.replace(self, metadata=self.metadata | {'about': about})

  def save(self, path: str | os.PathLike) -> None:
    """Writes an .npz file (arrays and JSON, no pickle), which appears whole or not at all."""
    archives.write(path, {name: getattr(self, name) for name in ARRAYS}, self.metadata)


def described(hidden_ND: np.ndarray, input_ND: np.ndarray, config: ModelConfig, probe: Probe,
              logit_ids: tuple[int, ...] | None, about: dict) -> Fingerprint:
  """A fingerprint of these answers; raises InputError if one is not a finite number."""
  for array in (hidden_ND, input_ND):
    if not np.isfinite(array).all():
      raise InputError(f'{about.get("name", "the network")}: its answers to the probe are not all '
                       'finite numbers')
  # As a file has it: JSON knows no tuples.
  model = json.loads(json.dumps(dataclasses.asdict(config)))
  metadata = {'schema': SCHEMA, 'probe': probe_settings(probe, config, logit_ids),
              'model': model, 'about': about}
  return Fingerprint(hidden_ND, input_ND, metadata)


def probe_settings(probe: Probe, config: ModelConfig,
                   logit_ids: tuple[int, ...] | None = None) -> dict:
  """All settings that the inputs and the kind of answer depend on, as JSON with their hash."""
  settings = dataclasses.asdict(probe)
  if probe.kind == 'tokens':
    settings['num_ids'] = probe.num_ids or config.vocab_size
  elif probe.kind == 'gaussian':
    # Vectors of kind 'sphere' have the length that suits each network; directions are the same.
    settings['embedding_std'] = config.embedding_std
  if logit_ids is not None:
    settings['logit_ids'] = list(logit_ids)
  encoded = json.dumps(settings, sort_keys=True).encode()
  return settings | {'hash': hashlib.sha256(encoded).hexdigest()[:16]}


def load(path: str | os.PathLike) -> Fingerprint:
  """Loads a saved fingerprint, which may come from a stranger.

  Nothing in the file is executed, and sizes are checked before memory is taken.

  Raises:
    InputError: the file is not a fingerprint of this version, is damaged, or has
      values that are not finite.
  """
  with archives.opened(path) as (archive, metadata):
    return from_archive(archive, metadata)


def from_archive(archive: zipfile.ZipFile, metadata: dict, prefix: str = '') -> Fingerprint:
  """The fingerprint whose arrays have names that begin with `prefix`."""
  if metadata['schema'] != SCHEMA:
    raise InputError(f'a fingerprint of schema {metadata["schema"]}; this version reads '
                     f'schema {SCHEMA}')
  hidden_ND, input_ND = (archives.array(archive, prefix + name, np.float32, 2) for name in ARRAYS)
  probe, about = metadata['probe'], metadata['about']
  if (len(hidden_ND) != len(input_ND) or not hidden_ND.size or not input_ND.size
      or not isinstance(about, dict) or not isinstance(metadata.get('model'), dict)
      or not isinstance(probe['hash'], str) or not isinstance(probe.get('length'), int)
      or not isinstance(probe.get('num_ids'), int | None)
      or 'logit_ids' not in probe and hidden_ND.shape != input_ND.shape):
    raise ValueError('its parts do not fit each other')
  if not (np.isfinite(hidden_ND).all() and np.isfinite(input_ND).all()):
    raise InputError('it has values that are not finite numbers')
  return Fingerprint(hidden_ND, input_ND, metadata)


def config_of(fingerprint: Fingerprint) -> ModelConfig:
  """The configuration of the network that answered; raises InputError if there is no valid one."""
  return configs.from_dict(fingerprint.metadata.get('model'), 'a fingerprint')
