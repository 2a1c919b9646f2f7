"""Where a run begins, in this order: its own folder, `resume`, `init_from`, scratch."""

from collections.abc import Iterable
import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training.step import TrainState, init_state, start_from

# What may change between a stop and a resume: where and how a step is computed, not which.
_FREE = {'config': ('remat',), 'recipe': ('accumulation',), 'data': ('name',)}


def begin(run) -> tuple[TrainState, list[dict | None]]:
  """The state that `run` (a loop.Run) begins with, placed on its mesh, and for each network its parent.

  Raises:
    InputError: the folder holds another run, or what it should begin with is
      damaged, of another shape, or not there.
  """
  there = [set(checkpoint.steps(directory)) for directory in run.directories]
  if not all(there) and set.union(*there) == {0}:  # Killed in the first save, from which nothing is to be had.
    for directory in run.directories:
      checkpoint.set_aside(directory, after=-1)
  elif any(there):
    states, stories = _own(run, there)
    return _stack(run, states), [story.get('parent') for story in stories]
  if run.resume:
    states, parents = zip(*(_resume(run, *source) for source in parents_of(run.resume, run.seeds)), strict=True)
    return _stack(run, states), list(parents)
  if run.init_from:
    states, parents = zip(*(_init_from(run, *source) for source in parents_of(run.init_from, run.seeds)), strict=True)
    return _stack(run, states), list(parents)
  init = functools.partial(init_state, run.config, run.recipe)
  if run.together:
    return jax.jit(jax.vmap(init))(jnp.array(run.seeds, jnp.uint32)), [None] * len(run.seeds)
  return jax.jit(init, out_shardings=state_shardings(run))(jnp.uint32(run.seeds[0])), [None]


def abstract_state(run) -> TrainState:
  """Shapes, types and places of one network's state."""
  return sharding.abstract(run.mesh, jax.eval_shape(functools.partial(init_state, run.config, run.recipe), 0))


def state_shardings(run) -> TrainState:
  """Places of one network's state on the mesh."""
  return jax.tree.map(lambda leaf: leaf.sharding, abstract_state(run))


def _own(run, there):
  """The latest step that all networks have whole: one that was killed between two saves has others ahead."""
  common = set.intersection(*there)
  while common:
    restored = [_restore(run, directory, common, functools.partial(_refuse_other, run, seed, directory))
                for directory, seed in zip(run.directories, run.seeds, strict=True)]
    reached = {story['step'] for story, _ in restored}
    if len(reached) == 1:
      for directory in run.directories:
        checkpoint.set_aside(directory, after=min(reached))
      return [state for _, state in restored], [story for story, _ in restored]
    common = {step for step in common if step <= min(reached)}
  raise InputError(f'{run.directory}: no step at which all of {", ".join(path.name for path in run.directories)} have '
                   'a checkpoint; choose another folder, or remove this one')


def _refuse_other(run, seed, directory, story):
  parent = run.resume or run.init_from
  wanted = run.story(seed, None) | {'parent': parent and {'directory': str(parent)}}
  # Through ModelConfig, which knows the fields that a run of an earlier version lacks.
  story = story | {'config': vars(checkpoint.config_of(story))}
  for part in ('config', 'recipe', 'seed', 'data', 'data_seed', 'parent'):
    for name, was, now in _pairs(part, story.get(part), wanted[part]):
      if was != now and name not in _FREE.get(part, ()):
        raise InputError(f'{directory} holds a run with {name}={was}, not {now}; choose another folder, '
                         'or remove this one')


def _pairs(part, earlier, now):
  if part == 'parent':
    asked = lambda parent: parent and parent['directory']
    return [('init_from or resume', asked(earlier), asked(now))]
  if not isinstance(now, dict):
    return [(part, earlier, now)]
  return [(name, (earlier or {}).get(name), now.get(name)) for name in {**(earlier or {}), **now}]


def runs_in(path: str | os.PathLike) -> list[Path]:
  """The runs seed_SEED of a folder of runs, in the order of their seeds; none of what is a run or a model itself."""
  runs = [run for run in Path(path).expanduser().glob('seed_*') if checkpoint.steps(run)]
  return sorted(runs, key=lambda run: (len(run.name), run.name))


def parents_of(path: str | os.PathLike, seeds: Iterable[int]) -> list[tuple[int, Path]]:
  """Each seed and what it begins with: its own run of a folder of runs, or the one run or model that `path` is.

  Raises:
    InputError: the folder has no run of a seed.
  """
  runs = {run.name: run for run in runs_in(path)}
  for seed in seeds:
    if runs and f'seed_{seed}' not in runs:
      raise InputError(f'{path} has no seed_{seed}; it has {", ".join(runs)}')
  return [(seed, runs.get(f'seed_{seed}', Path(path).expanduser())) for seed in seeds]


def _resume(run, seed, directory):
  there = checkpoint.steps(directory)
  if not there:
    raise InputError(f'{directory}: no checkpoint to resume from')
  story, state = _restore(run, directory, there, functools.partial(_refuse_other_network, run, seed, directory))
  if story['step'] >= run.recipe.num_steps:
    raise InputError(f'{directory} is at step {story["step"]} of num_steps={run.recipe.num_steps} already')
  return state, _parent(run.resume, story)


def _restore(run, directory, candidates, check):
  """Story and state; `check(story)` comes before anything large is read."""
  abstract = abstract_state(run)

  def wanted(story):
    check(story)
    return {'params': abstract.params, 'opt_state': abstract.opt_state}

  story, items = checkpoint.restore(directory, wanted, list(candidates))
  step = jax.device_put(jnp.int32(story['step']), NamedSharding(run.mesh, PartitionSpec()))
  return story, TrainState(step, items['params'], items['opt_state'])


def _init_from(run, seed, directory):
  def wanted(story):
    _refuse_other_network(run, seed, directory, story)
    return {'params': abstract_state(run).params}

  if checkpoint.steps(directory):
    story, items = checkpoint.restore(directory, wanted, checkpoint.steps(directory))
    params, parent = items['params'], _parent(run.init_from, story)
  else:
    _refuse_other_model(run, directory, huggingface.load_config(directory))
    _, params = huggingface.load(directory, run.mesh)
    parent = {'directory': str(run.init_from), 'checksum': int(checkpoint.checksum(params))}
  return jax.jit(functools.partial(start_from, run.recipe), out_shardings=state_shardings(run))(params), parent


def _refuse_other_network(run, seed, directory, story):
  """A run that bears a seed descends from the network which that seed is."""
  if story.get('seed') not in (None, seed):
    raise InputError(f'{directory} descends from seed {story["seed"]}, not {seed}')
  _refuse_other_model(run, directory, checkpoint.config_of(story))


def _refuse_other_model(run, directory, config: ModelConfig):
  """Networks of equal shapes may still differ, in an activation, say; an intervention may begin or end here."""
  free = ('remat', 'dtype', 'length', 'linear_std', 'embedding_std', 'init_scheme')
  if 'rmsnorm' not in (config.intervention, run.config.intervention):  # Which has parameters of its own.
    free += 'intervention', 'intervention_position', 'intervention_strength'
  for name, was, now in _pairs('config', vars(config), vars(run.config)):
    if was != now and name not in free:
      raise InputError(f'{directory} is of a model with {name}={was}, not {now}')


def _parent(path, story):
  return {'directory': str(path), 'seed': story.get('seed'), 'step': story['step'],
          'checksum': story['checksums']['params']}


def _stack(run, states):
  if not run.together:
    return states[0]
  return jax.jit(lambda *states: jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))(*states)
