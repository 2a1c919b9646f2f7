"""Networks by name: a run, a step of a run, a transformers directory, or a preset and a seed."""

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
import shutil

import jax
from jax.sharding import Mesh

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprints
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.models.initialization import as_seed, draw_params, init_params
from bornbiased_jax.models.sharding import make_mesh, shardings
from bornbiased_jax.storage import checkpoint, huggingface

FORMS = 'RUN, RUN@STEP, a transformers directory, a fingerprint .npz, or PRESET:SEED'


def load(name: str, mesh: Mesh | None = None) -> tuple[ModelConfig, dict, dict]:
  """The network `name`: one of RUN, RUN@STEP, a transformers directory, PRESET:SEED; on one device or a mesh.

  Returns:
    Configuration, parameters, and JSON that identifies it: name and a checksum of the parameters.

  Raises:
    InputError: there is none of that name, or it is damaged.
  """
  config, params = _load(name, mesh)
  return config, params, {'name': name, 'checksum': int(checkpoint.checksum(params))}


def load_config(name: str) -> ModelConfig:
  """The configuration alone of the network `name`; raises as `load`."""
  kind, place, _ = _locate(name)
  return {'preset': configs.get, 'run': checkpoint.load_config, 'transformers': huggingface.load_config}[kind](place)


def _load(name, mesh):
  kind, place, number = _locate(name)
  if kind == 'run':
    return checkpoint.load_params(place, number, mesh)
  if kind == 'transformers':
    return huggingface.load(place, mesh)
  config = configs.get(place)
  if mesh is None:
    return config, init_params(config, number)
  draw, seed = functools.partial(draw_params, config), as_seed(number)
  return config, jax.jit(draw, out_shardings=shardings(mesh, jax.eval_shape(draw, seed)))(seed)


def _locate(name):
  """('preset', its name, seed), ('run', directory, step or None) or ('transformers', directory, None)."""
  preset, _, seed = name.rpartition(':')
  if preset in configs.PRESETS:
    if not seed.isdecimal():
      raise InputError(f'{name}: {seed!r} is not a seed; give {preset}:42, for instance')
    return 'preset', preset, int(seed)
  directory, step = _split(name)
  if step is None and (directory / 'config.json').is_file() and not checkpoint.steps(directory):
    return 'transformers', directory, None
  if not directory.is_dir():
    raise InputError(f'{name}: no such network; give {FORMS}; presets are {", ".join(configs.PRESETS)}')
  return 'run', directory, step  # Whose loader says what a directory misses.


def _split(name):
  """RUN@STEP, where '@' may be part of a folder's name."""
  run, _, step = name.rpartition('@')
  if run and step.isdecimal() and not Path(name).expanduser().exists():
    return Path(run).expanduser(), int(step)
  return Path(name).expanduser(), None


def fingerprint(name: str, probe: Probe, cache: str | os.PathLike | None = None, *,
                logit_ids: tuple[int, ...] | None = None,
                on_batch: Callable[[int], None] = lambda sequences: None) -> Fingerprint:
  """The fingerprint of the network `name`, which may itself be a saved fingerprint (.npz).

  All devices share the parameters and each batch.

  Args:
    name: as in `load`, or an .npz.
    probe: what it reads; an .npz keeps the probe that it was made with.
    cache: a folder of fingerprints by their content, made where missing, in
      which a stopped call goes on; None: none is kept.
    logit_ids: as in `fingerprints.fingerprint`.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: as `load` and `fingerprints.load`.
  """
  if name.endswith('.npz'):
    return fingerprints.load(name)
  config, params, about = load(name, make_mesh(1, jax.device_count()) if jax.device_count() > 1 else None)
  if cache is None:
    return fingerprints.fingerprint(config, params, probe, logit_ids=logit_ids, about=about, on_batch=on_batch)
  settings = fingerprints.probe_settings(probe, config, logit_ids)
  key = hashlib.sha256(json.dumps([about['checksum'], dataclasses.asdict(config), settings]).encode()).hexdigest()[:24]
  path = Path(cache) / f'{key}.npz'
  if path.exists():
    with contextlib.suppress(InputError):  # A damaged one is made anew.
      found = fingerprints.load(path)
      on_batch(probe.num_sequences)
      return dataclasses.replace(found, metadata=found.metadata | {'about': about})
  parts = path.with_suffix('.parts')
  made = fingerprints.fingerprint(config, params, probe, logit_ids=logit_ids, about=about, on_batch=on_batch,
                                  parts=parts)
  path.parent.mkdir(parents=True, exist_ok=True)
  made.save(path)
  shutil.rmtree(parts, ignore_errors=True)
  return made
