"""Checkpoints through orbax: parameters, optimizer state and the story of a run, each an item of its own.

    DIRECTORY/STEP/params      float32, sharded as it was trained; restored on any mesh
    DIRECTORY/STEP/opt_state
    DIRECTORY/STEP/run         JSON: configuration, recipe, seeds, data, environment, checksums

A step is there once its folder has its final name; what a killed save leaves
behind has another one.
"""

import contextlib
import dataclasses
import gc
import itertools
import logging as pylogging
import os
from pathlib import Path
import shutil
import sys
from typing import Any
import warnings

from absl import logging
import jax
from jax import lax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import Mesh
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, CustomSteps, LatestN

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import draw_params

SCHEMA = 1


class Writer:
  """Saves in the background and keeps chosen steps beside the latest two.

  Two, so that a damaged one has a step before it.

  Args:
    directory: made where missing.
    keep_steps: steps that are never removed.

  Raises:
    InputError: from any method, what could not be written; a save's own
      failure is told by the call after it.
  """

  def __init__(self, directory: str | os.PathLike, keep_steps: tuple[int, ...] = ()):
    self.directory = Path(directory).expanduser().absolute()
    policy = AnyPreservationPolicy([LatestN(2), CustomSteps(list(keep_steps))])
    with self._told():
      self._manager = ocp.CheckpointManager(self.directory, options=ocp.CheckpointManagerOptions(
          preservation_policy=policy, cleanup_tmp_directories=True))

  def save(self, step: int, params: dict, opt_state: Any, story: dict) -> None:
    """Copies to the host, returns, and writes on; `story` is JSON."""
    checksums = {'params': int(checksum(params)), 'opt_state': int(checksum(opt_state))}
    story = story | {'schema': SCHEMA, 'step': step, 'environment': environment(), 'checksums': checksums}
    with self._told():
      self._manager.wait_until_finished()
      _check_room(self.directory, (params, opt_state))
      self._manager.save(step, args=ocp.args.Composite(
          params=ocp.args.StandardSave(params), opt_state=ocp.args.StandardSave(opt_state),
          run=ocp.args.JsonSave(story)))

  def close(self) -> None:
    """Waits for the last save."""
    with self._told():
      self._manager.wait_until_finished()
    self._manager.close()

  @contextlib.contextmanager
  def _told(self):
    try:
      yield
    except (OSError, ValueError) as error:
      raise InputError(f'cannot save to {self.directory}: {_reason(error)}; the steps saved before are kept, and the '
                       'same command goes on from the last of them') from error


def _check_room(directory, tree):
  """Before a save: its own failure would come late, with the traces of many threads."""
  needed, free = sum(leaf.nbytes for leaf in jax.tree.leaves(tree)), shutil.disk_usage(directory).free
  if free < needed:
    raise OSError(f'No space left on device: {needed / 1e9:.3g} GB are needed, {free / 1e9:.3g} GB are free')


def _reason(error):
  """One line; orbax and tensorstore write several, the last words of which say what happened."""
  line = ' '.join(str(error).split()) or type(error).__name__
  return line if len(line) < 200 else f'{line[:60]} … {line[-120:]}'


@jax.jit
def checksum(tree: Any) -> jax.Array:
  """A uint32 that any one changed bit of a tree of 4-byte arrays changes; the same on any mesh.

  Sum modulo 2^32 of all words, each times an odd number of its place:
  integers add exactly, in any order.
  """
  def of_leaf(leaf):
    word = lax.bitcast_convert_type(leaf, jnp.uint32)
    place = jnp.uint32(0)
    for axis, size in enumerate(leaf.shape):
      place = place * jnp.uint32(size % 2**32) + lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    return jnp.sum(word * (2 * place + 1), dtype=jnp.uint32)

  return sum((2 * i + 1) * of_leaf(leaf) for i, leaf in enumerate(jax.tree.leaves(tree)))


def steps(directory: str | os.PathLike) -> list[int]:
  """The steps whose save was finished, ascending; [] of a directory that is missing or has none."""
  directory = Path(directory).expanduser()
  if not directory.is_dir():
    return []
  return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal() and path.is_dir())


def load_params(directory: str | os.PathLike, step: int | None = None,
                mesh: Mesh | None = None) -> tuple[ModelConfig, dict]:
  """The network of a checkpoint, on one device or a mesh, whatever it was trained on.

  Args:
    directory: of one run; its folders are named by their steps.
    step: None: the latest that is whole.
    mesh: from `sharding.make_mesh`: each device reads its own shards; None: one device.

  Returns:
    Its configuration, and parameters as those of `initialization.init_params`.

  Raises:
    InputError: no checkpoint, no such step, or a damaged one.
  """
  def abstract(story):
    return {'params': sharding.abstract(mesh, jax.eval_shape(lambda: draw_params(config_of(story), 0)))}

  there = _some_steps(directory)
  if step is not None and step not in there:
    raise InputError(f'{directory} has no step {step}; it has {", ".join(map(str, there))}')
  story, items = restore(directory, abstract, there if step is None else [step])
  return config_of(story), items['params']


def load_config(directory: str | os.PathLike) -> ModelConfig:
  """The configuration alone, of the latest step whose story can be read; raises as `load_params`."""
  return config_of(restore(directory, lambda story: {}, _some_steps(directory))[0])


def _some_steps(directory):
  there = steps(directory)
  if not there:
    raise InputError(f'{directory}: {_why_none(Path(directory).expanduser())}')
  return there


def restore(directory: str | os.PathLike, abstract, candidates: list[int]) -> tuple[dict, dict]:
  """Story and items of the latest step that is whole; a warning names each that is damaged.

  Args:
    directory: of one run.
    abstract: function from the story to a dict with 'params', 'opt_state' or
      both, trees of jax.ShapeDtypeStruct with the shardings wanted.
    candidates: steps to choose from.

  Raises:
    InputError: none of them is whole.
  """
  wanted = sorted(candidates, reverse=True)
  for step, previous in itertools.zip_longest(wanted, wanted[1:]):
    try:
      return _restore_step(Path(directory).expanduser().absolute(), step, abstract)
    except _Damaged as damage:
      message = f'{directory}: step {step} is damaged ({damage})'
      if previous is None:
        raise InputError(message) from damage
      logging.warning('%s; using step %d', message, previous)
  raise InputError(f'{directory}: no checkpoint')


class _Damaged(Exception):
  """A step that cannot be restored, and why."""


def _restore_step(directory, step, abstract):
  story = _read(ocp.JsonCheckpointHandler(), directory / str(step) / 'run')
  try:
    if story['schema'] != SCHEMA:
      raise InputError(f'a checkpoint of schema {story["schema"]}, and this version reads {SCHEMA}')
    checksums = {name: story['checksums'][name] for name in ('params', 'opt_state')}
    wanted = abstract(story)
  except (TypeError, KeyError, AttributeError) as error:
    raise _Damaged(f'run: {_reason(error)}') from error
  items = {name: _read(ocp.StandardCheckpointHandler(), directory / str(step) / name,
                       args=ocp.args.StandardRestore(tree)) for name, tree in wanted.items()}
  for name, tree in items.items():
    if int(checksum(tree)) != checksums[name]:
      raise _Damaged(f'the checksum of {name} does not hold')
  return story | {'step': step}, items


def _read(handler, path, **how):
  try:
    with ocp.Checkpointer(handler) as checkpointer:
      return checkpointer.restore(path, **how)
  except (MemoryError, jax.errors.JaxRuntimeError):
    raise
  except Exception as error:  # Orbax and tensorstore raise whatever the damaged bytes lead to.
    reason = f'{path.name}: {_reason(error)}'
  _forget_the_others()
  raise _Damaged(reason)


def _forget_the_others():
  """Lets the failures of a step's other arrays pass, which else fill the screen once the collector finds them."""
  log, hook = pylogging.getLogger('asyncio'), sys.unraisablehook
  log.disabled, sys.unraisablehook = True, lambda unraisable: None
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      gc.collect()
  finally:
    log.disabled, sys.unraisablehook = False, hook


def _why_none(directory):
  if not directory.is_dir():
    return 'no such directory'
  runs = sorted(path.name for path in directory.iterdir() if path.is_dir() and steps(path))
  if not runs:
    return 'no checkpoint'
  return f'holds several runs; give one of {", ".join(str(directory / run) for run in runs)}'


def set_aside(directory: str | os.PathLike, after: int) -> None:
  """Renames the steps after the one that a run goes on from, so that they can be saved anew."""
  if jax.process_index() == 0:
    for step in steps(directory):
      if step > after:
        path = Path(directory).expanduser() / str(step)
        path.rename(path.with_name(f'aside_{step}_{os.urandom(4).hex()}'))
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices('set_aside')


def config_of(story: dict) -> ModelConfig:
  """The configuration that a story tells; raises as `configs.from_dict`."""
  return configs.from_dict(story.get('config'), 'a checkpoint')


def as_story(**parts: Any) -> dict:
  """JSON of a run's parts; dataclasses become dicts."""
  return {name: dataclasses.asdict(part) if dataclasses.is_dataclass(part) else part for name, part in parts.items()}
