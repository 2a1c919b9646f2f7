"""Networks by name: a run, a step of a run, a transformers directory, or a preset and a seed."""

from collections.abc import Callable
import dataclasses
import hashlib
import json
import os
from pathlib import Path

from bornbiased_jax import checkpoint, configs, fingerprints, huggingface
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.fingerprints import Fingerprint
from bornbiased_jax.initialization import init_params
from bornbiased_jax.probes import Probe

FORMS = 'RUN, RUN@STEP, a transformers directory, a fingerprint .npz, or PRESET:SEED'


def load(name: str) -> tuple[ModelConfig, dict, dict]:
  """The network `name`: one of RUN, RUN@STEP, a transformers directory, PRESET:SEED.

  Returns:
    Configuration, parameters, and JSON that identifies it: name and a checksum of the parameters.

  Raises:
    InputError: there is none of that name, or it is damaged.
  """
  config, params = _load(name)
  return config, params, {'name': name, 'checksum': int(checkpoint.checksum(params))}


def _load(name):
  preset, _, seed = name.rpartition(':')
  if preset in configs.PRESETS:
    if not seed.isdecimal():
      raise InputError(f'{name}: {seed!r} is not a seed; give {preset}:42, for instance')
    config = configs.get(preset)
    return config, init_params(config, int(seed))
  directory, step = _split(name)
  if checkpoint.steps(directory):
    return checkpoint.load_params(directory, step)
  if step is None and (directory / 'config.json').is_file():
    return huggingface.load(directory)
  if not directory.is_dir():
    raise InputError(f'{name}: no such network; give {FORMS}')
  return checkpoint.load_params(directory, step)  # Which says what it misses.


def _split(name):
  """RUN@STEP, where '@' may be part of a folder's name."""
  run, _, step = name.rpartition('@')
  if run and step.isdecimal() and not Path(name).expanduser().exists():
    return Path(run).expanduser(), int(step)
  return Path(name).expanduser(), None


def fingerprint(name: str, probe: Probe, cache: str | os.PathLike | None = None,
                on_batch: Callable[[int], None] = lambda sequences: None) -> Fingerprint:
  """The fingerprint of the network `name`, which may itself be a saved fingerprint (.npz).

  Args:
    name: as in `load`, or an .npz.
    probe: what it reads; an .npz keeps the probe that it was made with.
    cache: a folder of fingerprints by their content, made where missing; None: none is kept.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: as `load` and `fingerprints.load`.
  """
  if name.endswith('.npz'):
    return fingerprints.load(name)
  config, params, about = load(name)
  if cache is None:
    return fingerprints.fingerprint(params, config, probe, about=about, on_batch=on_batch)
  key = json.dumps([about['checksum'], dataclasses.asdict(config), fingerprints.probe_settings(probe, config)])
  path = Path(cache) / f'{hashlib.sha256(key.encode()).hexdigest()[:24]}.npz'
  if path.exists():
    on_batch(probe.num_sequences)
    found = fingerprints.load(path)
    return dataclasses.replace(found, metadata=found.metadata | {'about': about})
  made = fingerprints.fingerprint(params, config, probe, about=about, on_batch=on_batch)
  path.parent.mkdir(parents=True, exist_ok=True)
  made.save(path)
  return made
