"""Where a run begins: in its own folder, at `resume`, at `init_from`, or at its seeds."""

from collections.abc import Callable, Iterable
import dataclasses
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bornbiased_jax import storage
from bornbiased_jax.configs import LEARNED, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.storage.digests import digest
from bornbiased_jax.training.adapters import add_prefix
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.run import Run
from bornbiased_jax.training.step import (
  TrainState,
  abstract_state,
  init_state,
  start_from,
  state_shardings,
)

# What may change between a stop and a resume: where and how a step is computed, not which.
_FREE = {('config', 'remat'), ('recipe', 'accumulation'), ('data', 'name')}
# Networks of equal shapes may differ, for example in their activation; so only these may change
# where a run begins with the network of another.
_FREE_OF_PARENTS = {'remat', 'dtype', 'length', 'linear_std', 'embedding_std', 'init_scheme'}
_INTERVENTION = {'intervention', 'intervention_position', 'intervention_strength'}
# An optimizer goes on with what it has moved before, at the rates of its tensors.
_OF_OPTIMIZER = [('recipe', name) for name in ('adapter', 'rank', 'alpha')]
# What a run of an earlier version lacks had the default of its field.
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Recipe)
             if field.default is not dataclasses.MISSING}


def begin(run: Run) -> tuple[TrainState, list[dict | None]]:
  """The state that a run begins with, on its mesh, and the parent of each network.

  A parent is JSON that names where parameters come from; None for a network drawn from its seed.
  """
  there = [set(checkpoint.steps(directory)) for directory in run.directories]
  # A run that was killed during its first save left nothing to go on from.
  if not all(there) and set.union(*there) == {0}:
    for directory in run.directories:
      checkpoint.set_aside(directory, after=-1)
  elif any(there):
    return _stack(run, _own(run, there))
  if run.resume:
    return _stack(run, [_resume(run, *source) for source in parents_of(run.resume, run.seeds)])
  if run.init_from:
    sources = parents_of(run.init_from, run.seeds)
    return _stack(run, [_init_from(run, *source) for source in sources])
  init = _compiled_init(run.config, run.recipe, run.mesh, run.together)
  seeds = run.seeds if run.together else run.seeds[0]
  return init(jnp.array(seeds, jnp.uint32)), [None] * len(run.seeds)


# Runs that follow each other in one process compile once how they begin.
@functools.lru_cache(maxsize=4)
def _compiled_init(config, recipe, mesh, together):
  init = functools.partial(init_state, config, recipe)
  if together:
    # On the mesh as after a step, which would be compiled a second time for any other place.
    return jax.jit(jax.vmap(init), out_shardings=NamedSharding(mesh, PartitionSpec()))
  return jax.jit(init, out_shardings=state_shardings(config, recipe, mesh))


@functools.lru_cache(maxsize=4)
def _compiled_start(config, recipe, mesh):
  """A jitted function from the parameters of a parent and a seed to the state that they begin."""
  def begin_with(params, seed):
    params = add_prefix(config, params) if config.prefix_plus else params
    return start_from(config, recipe, params, seed)

  return jax.jit(begin_with, out_shardings=state_shardings(config, recipe, mesh))


def _stack(run, begun):
  """States of networks that train together are stacked on a leading axis."""
  states, parents = zip(*begun, strict=True)
  return _stacked(*states) if run.together else states[0], list(parents)


@jax.jit
def _stacked(*states):
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def _own(run, there):
  """Each network's state and parent at the latest step that all networks have whole."""
  common = set.intersection(*there)
  while common:
    restored = [_restore(run, directory, functools.partial(_check_own, run, seed, directory),
                         common)
                for directory, seed in zip(run.directories, run.seeds, strict=True)]
    reached = {metadata['step'] for metadata, _ in restored}
    if len(reached) == 1:
      for directory in run.directories:
        checkpoint.set_aside(directory, after=min(reached))
      return [(state, metadata.get('parent')) for metadata, state in restored]
    common = {step for step in common if step <= min(reached)}
  raise InputError(f'{run.directory}: no step at which all of '
                   f'{", ".join(path.name for path in run.directories)} have a checkpoint; '
                   'choose another folder, or remove this one')


def _check_own(run, seed, directory, metadata):
  """Raises InputError if the folder of a run is another's."""
  # With balance, which is of a part of a batch, the parts are of the step.
  free = _FREE - {('recipe', 'accumulation')} if run.recipe.balance else _FREE
  found = _facts(checkpoint.config_of(metadata), metadata)
  wanted = _facts(run.config, run.metadata(seed, None))
  earlier, now = metadata.get('parent'), run.resume or run.init_from
  if not _is_parent(run, seed, earlier, now):
    # A parent that was moved is the same one, as its digest says.
    name = 'run', 'init_from or resume'
    found, wanted = found | {name: earlier and earlier['directory']}, wanted | {name: now}
  _refuse_different(directory, found, wanted, [name for name in found | wanted if name not in free],
                    '; choose another folder (there resume= goes on from this one), or remove it',
                    'output_dir')


def _is_parent(run, seed, earlier, now):
  """Whether a run began with the parent that it has now, which may have been moved since."""
  if earlier is None or now is None:
    return earlier is now
  if earlier['directory'] == str(now):
    return True
  (_, place), = parents_of(now, [seed])
  return digest(storage.open(place).load(run.mesh)[1]) == earlier.get('digest')


def _check_parent(run, seed, place, config, metadata, is_resumed=False):
  """Raises InputError if a run may not begin with this network.

  It descends from the network of its seed, and keeps the start token of its parent.
  """
  found, wanted = _facts(config, metadata), _facts(run.config, run.metadata(seed, None))
  free = set(_FREE_OF_PARENTS)
  # An intervention may begin or end here, unless it has parameters of its own.
  if not {config.intervention, run.config.intervention} & set(LEARNED):
    free |= _INTERVENTION
  if run.recipe.adapter == 'prefix_plus' and not config.prefix_plus:
    free.add('prefix_plus')
  names = [('run', 'seed'), ('recipe', 'start_id')]
  names = [name for name in names if found.get(name) is not None]
  names += [('config', name) for name in vars(config) if name not in free]
  _refuse_different(place, found, wanted, names)
  if is_resumed:
    is_mup = 'mup' in (config.init_scheme, run.config.init_scheme)
    _refuse_different(place, found, wanted, _OF_OPTIMIZER + [('config', 'init_scheme')] * is_mup,
                      ', and its optimizer goes on as it was; init_from takes only the parameters')


def _facts(config: ModelConfig, metadata: dict) -> dict[tuple[str, str], Any]:
  """What defines a run, by part and name."""
  parts = {'config': vars(config), 'recipe': _DEFAULTS | (metadata.get('recipe') or {}),
           'run': {name: metadata.get(name) for name in ('seed', 'data_seed')},
           'data': metadata.get('data') or {}}
  return {(part, name): value for part, values in parts.items() for name, value in values.items()}


def _refuse_different(place, found, wanted, names, advice='', field=None):
  for name in names:
    if found.get(name) != wanted.get(name):
      raise InputError(f'{place} has {name[1]}={found.get(name)}, not {wanted.get(name)}{advice}',
                       field)


def parents_of(path: str | os.PathLike | storage.Model, seeds: Iterable[int]
               ) -> list[tuple[int, Any]]:
  """Each seed with what its network begins with: its run in a folder of runs, or `path` itself."""
  if isinstance(path, storage.Model):
    return [(seed, path) for seed in seeds]
  runs = {run.name: run for run in checkpoint.runs_in(path)}
  for seed in seeds:
    if runs and f'seed_{seed}' not in runs:
      raise InputError(f'{path} has no seed_{seed}; it has {", ".join(runs)}')
  return [(seed, runs.get(f'seed_{seed}', path_of(path))) for seed in seeds]


def _resume(run, seed, directory):
  def check(metadata):
    _check_parent(run, seed, directory, checkpoint.config_of(metadata), metadata, is_resumed=True)

  metadata, state = _restore(run, directory, check)
  if metadata['step'] >= run.recipe.num_steps:
    raise InputError(f'{directory} is at step {metadata["step"]}, and num_steps='
                     f'{run.recipe.num_steps} counts from step 0; give more', 'num_steps')
  return state, _parent(run.resume, metadata)


def _restore(run, directory, check: Callable[[dict], None], candidates=None):
  """Metadata and state of the latest whole candidate step, unless `check(metadata)` refuses it."""
  def select(metadata):
    check(metadata)
    return {'params': abstract.params, 'opt_state': abstract.opt_state}

  abstract = abstract_state(run.config, run.recipe, run.mesh)
  metadata, items = checkpoint.restore(directory, select, candidates and list(candidates))
  everywhere = NamedSharding(run.mesh, PartitionSpec())
  step = jax.device_put(jnp.int32(metadata['step']), everywhere)
  return metadata, TrainState(step, items['params'], items['opt_state'])


def _init_from(run, seed, place):
  def select(metadata):
    config = checkpoint.config_of(metadata)
    _check_parent(run, seed, place, config, metadata)
    own = dataclasses.replace(run.config, prefix_plus=config.prefix_plus)
    return {'params': abstract_state(own, run.recipe, run.mesh).params}

  model = storage.open(place)
  if model.kind == 'run':
    step = None if model.number is None else [model.number]
    metadata, items = checkpoint.restore(model.place, select, step)
    params, parent = items['params'], _parent(run.init_from, metadata)
  else:
    _check_parent(run, seed, place, model.config, {})
    params = model.load(run.mesh)[1]
    parent = {'directory': str(run.init_from), 'digest': digest(params)}
    parent |= {'revision': model.revision} if model.revision else {}

  begin_with = _compiled_start(run.config, run.recipe, run.mesh)
  return begin_with(params, jnp.uint32(seed)), parent


def _parent(path, metadata):
  return {'directory': str(path), 'seed': metadata.get('seed'), 'step': metadata['step'],
          'digest': metadata.get('digests', {}).get('params')}
