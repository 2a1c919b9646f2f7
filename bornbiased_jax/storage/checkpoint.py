"""Orbax checkpoints of a training run: parameters, optimizer state and metadata.

    DIRECTORY/STEP/params      float32, sharded like in training; restored on any mesh
    DIRECTORY/STEP/opt_state   the optimizer's state
    DIRECTORY/STEP/run         JSON: configuration, recipe, seeds, data, environment, digests

A folder is renamed to its step when the save is complete. What a killed save
leaves behind has another name and is never read.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import os
from pathlib import Path
import shutil
from typing import Any

from absl import logging
import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, CustomSteps, LatestN

from bornbiased_jax import configs, hosts
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import in_bucket, path_of
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.storage.digests import digest

SCHEMA = 3
_PARTS = 'params', 'opt_state', 'run', '_CHECKPOINT_METADATA'
# These carry checksums that are not made any more.
_UNCHECKED = 1, 2


class Writer:
  """Saves checkpoints in the background. Keeps chosen steps and two, in case one is damaged.

  Args:
    directory: folder of the run; made if it is missing.
    keep_steps: steps whose checkpoints are never removed.
  """

  def __init__(self, directory: str | os.PathLike, keep_steps: tuple[int, ...] = ()):
    self.directory = path_of(directory).absolute()
    policy = AnyPreservationPolicy([LatestN(2), CustomSteps(list(keep_steps))])
    with self._told():
      self._manager = ocp.CheckpointManager(self.directory, options=ocp.CheckpointManagerOptions(
          preservation_policy=policy, cleanup_tmp_directories=True))

  def save(self, step: int, params: dict, opt_state: Any, metadata: dict) -> None:
    """Copies the state and JSON, as from `as_metadata`, and returns while they are written."""
    digests = {'params': digest(params), 'opt_state': digest(opt_state)}
    metadata = metadata | {'schema': SCHEMA, 'step': step, 'environment': environment(),
                           'digests': digests}
    with self._told():
      self._manager.wait_until_finished()
      _check_room(self.directory, (params, opt_state))
      self._manager.save(step, args=ocp.args.Composite(
          params=ocp.args.StandardSave(params), opt_state=ocp.args.StandardSave(opt_state),
          run=ocp.args.JsonSave(metadata)))

  def close(self) -> None:
    """Waits until the last save is complete."""
    with self._told():
      self._manager.wait_until_finished()
    self._manager.close()

  @contextlib.contextmanager
  def _told(self):
    try:
      yield
    except (OSError, ValueError) as error:
      raise InputError(f'cannot save to {self.directory}: {_reason(error)}; the steps saved '
                       'before are kept, and the same command goes on from the last of '
                       'them') from error


def _check_room(directory, tree):
  """Raises OSError before a save that would not fit, and would fail late in many threads."""
  if in_bucket(directory):  # It has no end.
    return
  needed = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
  free = shutil.disk_usage(directory).free
  if free < needed:
    raise OSError(f'No space left on device: {needed / 1e9:.3g} GB are needed, '
                  f'{free / 1e9:.3g} GB are free')


def _reason(error):
  """An error in one line; messages of orbax and tensorstore say at the end what happened."""
  line = ' '.join(str(error).split()) or type(error).__name__
  return line if len(line) < 200 else f'{line[:60]} … {line[-120:]}'


def steps(directory: str | os.PathLike) -> list[int]:
  """Steps of the complete checkpoints, ascending; [] if the directory is missing or has none."""
  directory = path_of(directory)
  if not directory.is_dir():
    return []
  return sorted(int(path.name) for path in directory.iterdir()
                if path.name.isdecimal() and path.is_dir() and _is_step(path))


def _is_step(folder):
  """Whether a folder has any part of a checkpoint, or nothing; others have numbers as names too.

  One that cannot be read, or was removed meanwhile, is taken for one.
  """
  try:
    inside = {child.name for child in folder.iterdir()}
  except OSError:
    return True
  return not inside or not inside.isdisjoint(_PARTS)


def holds_network(folder: Path) -> bool:
  """Whether a folder is a model of transformers or a run, and so no checkpoint of a run.

  A folder that cannot be read, or was removed meanwhile, does not count.
  """
  try:
    return any(child.name == 'config.json' or (child.name.isdecimal() and child.is_dir())
               for child in folder.iterdir())
  except OSError:
    return False


def load_params(directory: str | os.PathLike, step: int | None = None,
                mesh: Mesh | None = None) -> tuple[ModelConfig, dict]:
  """Loads the model of a checkpoint onto one device or a mesh, whatever it was trained on.

  Args:
    directory: folder of one run, with a folder for each step.
    step: the step to load, by default the latest whose checkpoint is whole.
    mesh: from `sharding.make_mesh`; each device reads its own shards. By default
      one device holds the model.

  Returns:
    The configuration, and the parameters in the tree of
    `initialization.init_params`.

  Raises:
    InputError: there is no checkpoint or no such step, or it is damaged.
  """
  def abstract(metadata):
    return {'params': sharding.abstract(mesh, param_shapes(config_of(metadata)))}

  metadata, items = restore(directory, abstract, None if step is None else [step])
  return config_of(metadata), items['params']


def restore(directory: str | os.PathLike, abstract: Callable[[dict], dict],
            candidates: list[int] | None = None) -> tuple[dict, dict]:
  """The metadata and trees of the latest whole checkpoint; a warning names each damaged one.

  Of the metadata `abstract` makes what is wanted: 'params', 'opt_state' or both, as trees of
  jax.ShapeDtypeStruct with shardings. `candidates` are the steps to choose from, by default all.
  """
  there = steps(directory)
  if not there:
    raise InputError(f'{directory}: {_why_no_run(path_of(directory))}')
  if missing := set(candidates or ()) - set(there):
    raise InputError(f'{directory} has no step {min(missing)}; it has '
                     f'{", ".join(map(str, there))}')
  step, *earlier = sorted(candidates or there, reverse=True)
  try:
    return _restore_step(path_of(directory).absolute(), step, abstract)
  except _Damaged as damage:
    message = f'{directory}: step {step} is damaged ({damage})'
    if not earlier:
      raise InputError(message) from damage
  logging.warning('%s; using step %d', message, earlier[0])
  return restore(directory, abstract, earlier)


class _Damaged(Exception):
  """A step that cannot be restored, and why."""


def _restore_step(directory, step, abstract):
  metadata = _read(ocp.JsonCheckpointHandler(), directory / str(step) / 'run')
  try:
    schema = metadata['schema']
    if schema not in (*_UNCHECKED, SCHEMA):
      raise InputError(f'checkpoint has schema {schema}; this version reads 1 to {SCHEMA}')
    digests = {name: metadata['digests'][name] for name in ('params', 'opt_state')
               if schema not in _UNCHECKED}
    wanted = abstract(metadata)
  except (TypeError, KeyError, AttributeError) as error:
    raise _Damaged(f'run: {_reason(error)}') from error
  items = {name: _read(ocp.StandardCheckpointHandler(), directory / str(step) / name,
                       args=ocp.args.StandardRestore(tree)) for name, tree in wanted.items()}
  if items and not digests:
    logging.warning('%s: step %d has the checksums of an older version, and is read unchecked',
                    directory, step)
  for name, tree in items.items():
    if digests and digest(tree) != digests[name]:
      raise _Damaged(f'{name} does not have the digest that was saved with it')
  return metadata | {'step': step}, items


def _read(handler, path, **how):
  try:
    with ocp.Checkpointer(handler) as checkpointer:
      return checkpointer.restore(path, **how)
  except (MemoryError, jax.errors.JaxRuntimeError):
    raise
  # Orbax and tensorstore raise exceptions of any kind, depending on the damaged bytes.
  except Exception as error:
    raise _Damaged(f'{path.name}: {_reason(error)}') from error


def _why_no_run(directory):
  """Why a folder holds no checkpoint, in words."""
  if not directory.is_dir():
    run, _, step = directory.name.rpartition('@')  # As programs are given a step.
    is_step = step.isdecimal() and bool(run) and steps(directory.with_name(run))
    return 'no such directory' + (f'; give {run} and step={step}' if is_step else '')
  runs = sorted(path.name for path in directory.iterdir() if path.is_dir() and steps(path))
  if not runs:
    is_other = (directory / 'config.json').is_file()
    return 'no checkpoint' + (', but a model of transformers, which storage.open reads' if is_other
                              else ' of a run, and no config.json with safetensors')
  return f'holds several runs; give one of {", ".join(str(directory / run) for run in runs)}'


def runs_in(folder: str | os.PathLike) -> list[Path]:
  """The runs seed_SEED in a folder, in the order of their seeds; none if it is a run itself."""
  runs = [run for run in path_of(folder).glob('seed_*') if steps(run)]
  return sorted(runs, key=lambda run: (len(run.name), run.name))


def set_aside(directory: str | os.PathLike, after: int) -> None:
  """Renames the folders of all steps after `after`, so that a run can save these steps anew."""
  if hosts.is_first():
    for step in steps(directory):
      if step > after:
        path = path_of(directory) / str(step)
        aside = path.with_name(f'aside_{step}_{os.urandom(4).hex()}')
        path.rename(aside)
        logging.warning('the run goes on from an earlier step than %d; what was saved of it is in '
                        '%s, which can be deleted', step, aside)
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices('set_aside')


def config_of(metadata: dict) -> ModelConfig:
  """The configuration in a checkpoint's metadata; raises InputError if there is no valid one."""
  return configs.from_dict(metadata.get('config'), 'a checkpoint')


def as_metadata(**parts: Any) -> dict:
  """The parts of a run as JSON for `Writer.save`; dataclasses become dicts."""
  return {name: dataclasses.asdict(part)
          if dataclasses.is_dataclass(part) and not isinstance(part, type) else part
          for name, part in parts.items()}
