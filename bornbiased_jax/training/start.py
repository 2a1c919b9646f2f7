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

# What may change between a stop and a resume: where and how a step is computed, not which. The
# balance of experts is one of a part of a batch, so that with it the parts are of the step.
_FREE = {'config': ('remat',), 'recipe': ('accumulation',), 'data': ('name',)}


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


def _abstract(run):
  return abstract_state(run.config, run.recipe, run.mesh)


def _own(run, there):
  """Each network's state and parent at the latest step that all networks have whole."""
  common = set.intersection(*there)
  while common:
    restored = [_restore(run, directory, functools.partial(_refuse_other, run, seed, directory),
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


def _refuse_other(run, seed, directory, metadata):
  parent = run.resume or run.init_from
  wanted = run.metadata(seed, None) | {
      'config': vars(run.config), 'parent': parent and {'directory': str(parent)}}
  # What a run of an earlier version lacks had the default of its field.
  defaults = {field.name: field.default for field in dataclasses.fields(Recipe)
              if field.default is not dataclasses.MISSING}
  found = metadata | {'config': vars(checkpoint.config_of(metadata)),
                      'recipe': defaults | (metadata.get('recipe') or {})}
  for part in ('config', 'recipe', 'seed', 'data', 'data_seed', 'parent'):
    for name, was, now in _pairs(part, found.get(part), wanted[part]):
      is_free = name in _FREE.get(part, ()) and not (name == 'accumulation' and run.recipe.balance)
      if was != now and not is_free:
        raise InputError(f'{directory} holds a run with {name}={was}, not {now}; choose another '
                         'folder, or remove this one', 'output_dir')


def _pairs(part, earlier, now):
  """(name, earlier value, present value) of everything in one part of a run's metadata."""
  if part == 'parent':
    directory_of = lambda parent: parent and parent['directory']
    return [('init_from or resume', directory_of(earlier), directory_of(now))]
  if not isinstance(now, dict):
    return [(part, earlier, now)]
  earlier = earlier or {}
  return [(name, earlier.get(name), now.get(name)) for name in {**earlier, **now}]


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
  if not checkpoint.steps(directory):
    raise InputError(f'{directory}: no checkpoint to resume from')

  def refuse(metadata):
    _refuse_other_network(run, seed, directory, metadata)
    _refuse_other_optimizer(run, directory, metadata)

  metadata, state = _restore(run, directory, refuse)
  if metadata['step'] >= run.recipe.num_steps:
    raise InputError(f'{directory} is at step {metadata["step"]} of '
                     f'num_steps={run.recipe.num_steps} already')
  return state, _parent(run.resume, metadata)


def _restore(run, directory, check: Callable[[dict], None], candidates=None):
  """Metadata and state of the latest whole candidate step, unless `check(metadata)` refuses it."""
  def select(metadata):
    check(metadata)
    return {'params': abstract.params, 'opt_state': abstract.opt_state}

  abstract = _abstract(run)
  metadata, items = checkpoint.restore(directory, select, candidates and list(candidates))
  everywhere = NamedSharding(run.mesh, PartitionSpec())
  step = jax.device_put(jnp.int32(metadata['step']), everywhere)
  return metadata, TrainState(step, items['params'], items['opt_state'])


def _init_from(run, seed, place):
  def select(metadata):
    _refuse_other_network(run, seed, place, metadata)
    own = dataclasses.replace(run.config, prefix_plus=checkpoint.config_of(metadata).prefix_plus)
    return {'params': abstract_state(own, run.recipe, run.mesh).params}

  model = place if isinstance(place, storage.Model) else storage.open(str(place))
  if model.kind == 'run':
    step = None if model.number is None else [model.number]
    metadata, items = checkpoint.restore(model.place, select, step)
    params, parent = items['params'], _parent(run.init_from, metadata)
  else:
    _refuse_other_model(run, place, model.config)
    params = model.load(run.mesh)[1]
    parent = {'directory': str(run.init_from), 'digest': digest(params)}
    parent |= {'revision': model.revision} if model.revision else {}

  begin_with = _compiled_start(run.config, run.recipe, run.mesh)
  return begin_with(params, jnp.uint32(seed)), parent


def _refuse_other_network(run, seed, directory, metadata):
  """A run descends from the network of its seed, and keeps the start token of its parent."""
  if metadata.get('seed') not in (None, seed):
    raise InputError(f'{directory} descends from seed {metadata["seed"]}, not {seed}')
  start_id = (metadata.get('recipe') or {}).get('start_id')
  if start_id is not None and start_id != run.recipe.start_id:
    raise InputError(f'{directory} read sequences that begin with start_id={start_id}, not '
                     f'{run.recipe.start_id}')
  _refuse_other_model(run, directory, checkpoint.config_of(metadata))


def _refuse_other_optimizer(run, directory, metadata):
  """An optimizer goes on with what it has moved before, at the rates of its tensors."""
  earlier = metadata.get('recipe') or {}
  pairs = [(name, earlier.get(name), getattr(run.recipe, name))
           for name in ('adapter', 'rank', 'alpha')]
  schemes = checkpoint.config_of(metadata).init_scheme, run.config.init_scheme
  for name, was, now in pairs + [('init_scheme', *schemes)] * ('mup' in schemes):
    if was != now:
      raise InputError(f'{directory} was trained with {name}={was}, not {now}, and its optimizer '
                       'goes on as it was; init_from takes the parameters alone')


def _refuse_other_model(run, directory, config: ModelConfig):
  """Networks of equal shapes may still differ, for example in their activation."""
  free: tuple[str, ...] = ('remat', 'dtype', 'length', 'linear_std', 'embedding_std', 'init_scheme')
  # An intervention may begin or end here, unless it has parameters of its own.
  if not {config.intervention, run.config.intervention} & set(LEARNED):
    free += 'intervention', 'intervention_position', 'intervention_strength'
  if run.recipe.adapter == 'prefix_plus' and not config.prefix_plus:
    free += 'prefix_plus',
  for name, was, now in _pairs('config', vars(config), vars(run.config)):
    if was != now and name not in free:
      raise InputError(f'{directory} is of a model with {name}={was}, not {now}')


def _parent(path, metadata):
  return {'directory': str(path), 'seed': metadata.get('seed'), 'step': metadata['step'],
          'digest': metadata.get('digests', {}).get('params')}
