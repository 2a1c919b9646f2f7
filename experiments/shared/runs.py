"""From settings of training to trained networks, and the report on their losses."""

from collections.abc import Callable, Collection
import contextlib
import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bornbiased_jax import configs, files, hosts, plotting, storage
from bornbiased_jax.data import corpus, load_tokenizer
from bornbiased_jax.environment import free_memory
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training import Run, loop, monitor, start

from . import base_settings, session
from .base_settings import Training, load_text
from .results import Results, differing, make_directory, of_other
from .settings import name_flag, pick

# Below this width one network does not fill an accelerator. On two CPU cores several at once took
# 0.64 to 1.1 times as long as one after another (`benchmark training`).
TOGETHER_WIDTH = 256
HELD_OUT = 0.05
# Settings of a training that say where something lies, which may have been moved.
PLACES = 'data', 'valid', 'tokenizer', 'init_from', 'resume'


def train(settings: Training, output_dir: Path,
          noting: Callable = contextlib.nullcontext) -> None:
  """Trains a network for each seed to OUTPUT_DIR/seed_SEED, or goes on with it."""
  runs = runs_of(settings, output_dir)
  results = record(output_dir, 'pretrain', recorded(settings), [(settings, output_dir)])
  with noting(), results.noting_time():
    rates = [loop.train(run) for run in runs]
  if hosts.is_first():
    metrics = {seed: monitor.read(output_dir / f'seed_{seed}') for seed in settings.seeds}
    summary = [summarize(seed, lines) for seed, lines in metrics.items()]
    measured = {} if results.is_measured else {'rates': rates}
    results.finish(summary, display, lambda: figure({'Training loss': metrics}, unit_of(settings)),
                   **measured)


def train_for(results: Results, trainings: dict[Path, Training]) -> None:
  """Trains to these folders what an experiment measures.

  A complete one is drawn again, also without its checkpoints. What is impossible is refused before
  anything is written.
  """
  name_flag('output_dir', files.local, results.directory)
  for settings in trainings.values():
    base_settings.check(settings)
  for output_dir, settings in trainings.items() if not results.is_measured else ():
    train(settings, output_dir, results.noting_time)


def saved_steps(settings: Any) -> list[int]:
  """The steps at which a training leaves checkpoints: its first, those kept, and its last."""
  return sorted({0, *(settings.keep_steps or ()), settings.num_steps})


def runs_of(settings: Training, output_dir: Path) -> list[Run]:
  """The runs, one after another, into which memory and devices divide the seeds."""
  base_settings.check(settings)
  data, validation = texts(settings)
  config = model(settings, data)
  for flag, text in (('data', data), ('valid' if settings.valid else 'data', validation)):
    name_flag(flag, text.check, config.vocab_size)
  mesh = name_flag('data_axis, --fsdp_axis, --tensor_axis', sharding.make_mesh,
                   settings.data_axis, settings.fsdp_axis, settings.tensor_axis)
  together = how_many_together(settings, config.width, mesh.size)
  # An adapter has an optimizer for little else.
  name_flag('together', check_memory, config, together, 4 if settings.adapter else 16)
  name_flag('output_dir', files.local, output_dir)
  runs = [
      Run(**pick(Run, settings) | dict(
          config=config, recipe=base_settings.recipe_of(settings), data=data,
          validation=validation, directory=output_dir, mesh=mesh,
          seeds=tuple(settings.seeds[first:first + together]),
          keep_steps=tuple(settings.keep_steps or ())))
      for first in range(0, len(settings.seeds), together)]
  make_directory(output_dir)  # Only now is it known that nothing is refused.
  return runs


def record(directory: Path, experiment: str, settings: Any,
           trainings: list[tuple[Training, Path]], places: Collection[str] = PLACES) -> Results:
  """The results.json of some trainings, which go on from their checkpoints and have no rows."""
  return Results(directory, experiment, settings,
                 functools.partial(_go_on, directory, trainings, places))


def _go_on(directory, trainings, places, new, stored):
  """The content of a training's record to begin with, and whether it may replace the file.

  A file of other seeds is refused, as what it says of them would be lost. One of other settings
  stays until the end, since training may refuse them. It knows whether
  the settings `places`, which may have other values, lead to what was there before. What was
  complete keeps its record and rates as long as all networks are there. Of a training that was
  begun without a record nobody knows when it started.
  """
  if stored and stored['experiment'] == new['experiment']:
    before, wanted = stored['settings'], new['settings']
    if before.get('seeds') != wanted.get('seeds'):
      raise of_other(directory / 'results.json', 'seeds', before, wanted)
  is_same = stored is not None and stored['experiment'] == new['experiment'] and (
      set(differing(stored['settings'], new['settings'])) <= set(places))
  if is_same and stored['complete'] and all(is_trained(*each) for each in trainings):
    kept = {name: stored[name] for name in ('run', 'rates') if name in stored}
    return new | kept | {'complete': True}, False
  run = stored['run'] if is_same and not stored['complete'] else None
  is_new = not any(checkpoint.steps(directory / f'seed_{seed}')
                   for training, directory in trainings for seed in training.seeds)
  may_write = stored is None or is_same and stored['settings'] == new['settings']
  return new | {'run': run or session.begin(None, is_new)()}, may_write


def is_trained(settings: Training, output_dir: Path) -> bool:
  """Whether all networks have made their last step."""
  return all(checkpoint.steps(output_dir / f'seed_{seed}')[-1:] == [settings.num_steps]
             for seed in settings.seeds)


def how_many_together(settings: Training, width: int, num_devices: int) -> int:
  """How many networks train at once: --together, or all if they are small and on one device."""
  is_small = width <= TOGETHER_WIDTH and num_devices == 1
  wanted = settings.together or (len(settings.seeds) if is_small else 1)
  return min(wanted, len(settings.seeds))


def check_memory(config: configs.ModelConfig, together: int, bytes_each: int = 16) -> None:
  """Raises InputError if networks, with gradients and two moments, are more than memory holds."""
  size = 1e-9 * bytes_each * num_parameters(config) * together
  free = 1e-9 * hosts.from_first(free_memory) * jax.process_count()
  if size > free:
    raise InputError(f'{together} at once take {size:,.1f} GB with their optimizer, and '
                     f'{free:,.1f} GB are free; train fewer at once, or smaller ones')


def texts(settings: Training) -> tuple[corpus.Corpus, corpus.Corpus]:
  """What to train on, and what to evaluate on."""
  tokenizer = name_flag('tokenizer', load_tokenizer, settings.tokenizer)
  data = load_text('data', settings.data, tokenizer)
  if settings.valid:
    flag, validation = 'valid', load_text('valid', settings.valid, tokenizer)
  else:
    flag, (data, validation) = 'data', corpus.hold_out(data, HELD_OUT)
  name_flag('data', data.check_length, settings.length)
  name_flag(flag, validation.check_length, settings.length)
  return data, validation


def model(settings: Training, data: corpus.Corpus) -> configs.ModelConfig:
  """The preset, or what the parent is, with the settings that do not change its shape."""
  names = ('dtype', 'remat', 'intervention', 'intervention_position', 'intervention_strength')
  own = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
  if settings.adapter == 'prefix_plus':
    own['prefix_plus'] = True
  if parent(settings):
    config = dataclasses.replace(parent_config(settings), **own)
  else:
    length = settings.max_length or max(settings.length, configs.get(settings.config).length)
    own |= {name: getattr(settings, name) for name in ('tied_head', 'init_scheme')
            if getattr(settings, name) is not None}
    own |= {'vocab_size': settings.vocab_size or data.vocab_size}
    config = name_flag('config', lambda: configs.get(settings.config, length=length, **own))
  for name in ('intervention_position', 'intervention_strength'):
    if name in own and config.intervention not in configs.AT_ONE_POSITION:
      raise InputError(f'--{name}: only with an --intervention at one position, of '
                       f'{", ".join(configs.AT_ONE_POSITION)}')
  return config


def parent(settings: Training) -> str | None:
  """Where parameters come from, if not from seeds."""
  return settings.resume or settings.init_from


def parent_config(settings: Training) -> configs.ModelConfig:
  """The model of a run, of a folder of runs (of its first), or of one of `transformers`."""
  for name in ('vocab_size', 'max_length', 'tied_head', 'init_scheme'):
    if getattr(settings, name) is not None:
      raise InputError(f'--{name}: the parent brings its own')
  flag, source = 'resume' if settings.resume else 'init_from', parent(settings)
  is_folder, found = path_of(source).is_dir(), checkpoint.runs_in(source)
  model = name_flag(flag, storage.open, str(next(iter(found), source))) if (
      is_folder or flag == 'init_from') else None
  if model is None or model.kind not in ('run', 'transformers', 'hub'):
    raise InputError(f'--{flag}: {source} is no directory; give a run, a folder of runs, or a '
                     'Hugging Face model folder')
  if not found and len(settings.seeds) > 1:
    raise InputError(f'--seeds: {len(settings.seeds)} models that all go on from {source} would '
                     'be the same; give one seed, such as --seeds=42')
  config = name_flag(flag, lambda: model.config)
  name_flag('seeds', start.parents_of, source, settings.seeds)
  return config


def recorded(settings: Training) -> Training:
  """The settings as results.json has them: without a preset if the model is the parent's."""
  return dataclasses.replace(settings, config=None) if parent(settings) else settings


def validation_losses(run: Path) -> dict[int, float]:
  """The validation loss at each step at which a run was evaluated."""
  return {line['step']: line['validation_loss'] for line in monitor.read(run)
          if line.get('validation_loss') is not None}


def unit_of(settings: Training) -> str:
  """What losses are per."""
  return 'byte' if settings.tokenizer == 'bytes' else 'token'


def summarize(seed: int, lines: list[dict]) -> dict:
  """A row per network: its training loss over the last twentieth of the steps, and validation."""
  trained = [line for line in lines if 'loss' in line]
  evaluated = [line for line in lines if 'perplexity' in line]
  tail = np.mean([line['loss'] for line in trained[-max(1, len(trained) // 20):]])
  return {'seed': seed, 'step': trained[-1]['step'], 'loss': float(tail),
          'validation_loss': evaluated[-1]['validation_loss'],
          'perplexity': evaluated[-1]['perplexity']}


def display(row: dict) -> dict[str, str]:
  text = lambda value: f'{value:.3f}' if value < 1e9 else f'{value:.3g}'
  return {name: text(value) if isinstance(value, float) else str(value)
          for name, value in row.items()}


def figure(panels: dict[str, dict[int, list[dict]]], unit: str) -> 'plotting.Figure':
  """Losses by title of a panel and seed: of training a line, of validation dots."""
  colors = dict(zip(next(iter(panels.values())), itertools.cycle(plotting.COLORS)))
  drawn = plotting.figure(6 if len(panels) == 1 else 3.7 * len(panels), 3.4)
  axes = drawn.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for ax, (title, metrics_of_seed) in zip(axes, panels.items(), strict=True):
    for seed, lines in metrics_of_seed.items():
      plotting.loss_curve(ax, lines, label=f'seed {seed}', color=colors[seed], linewidth=1)
    ax.set(xlabel='optimizer step', title=f'{title} (dots: validation)')
    if len(metrics_of_seed) <= len(plotting.COLORS):
      ax.legend(fontsize='small')
    else:
      ax.text(0.97, 0.95, f'{len(metrics_of_seed)} networks', transform=ax.transAxes,
              ha='right', va='top')
  axes[0].set_ylabel(f'loss (nats per {unit})')
  return drawn
