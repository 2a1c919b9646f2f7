"""What the names of networks mean.

- RUN: a training run, of which the latest checkpoint is taken
- RUN@STEP: one checkpoint of a run
- DIRECTORY: a directory of `transformers`
- ORG/MODEL, ORG/MODEL@REVISION: a model of the Hugging Face Hub, if no folder has this name
- PRESET:SEED: a random network, such as tiny_gpt2:42
"""

from collections.abc import Callable
import difflib
import functools
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import local, path_of
from bornbiased_jax.models.initialization import as_seed, draw_params, init_params
from bornbiased_jax.models.sharding import shardings
from bornbiased_jax.storage import checkpoint, hub, huggingface

FORMS = ('RUN, RUN@STEP, a transformers directory, ORG/MODEL[@REVISION] of the Hugging Face Hub, a '
         'saved .npz, or PRESET:SEED')


def load(name: str, mesh: Mesh | None = None) -> tuple[ModelConfig, dict]:
  """Loads the network `name` onto one device or a mesh.

  Args:
    name: RUN, RUN@STEP, a directory of `transformers`, ORG/MODEL[@REVISION] of the Hugging
      Face Hub, or PRESET:SEED.
    mesh: from `sharding.make_mesh`; by default one device holds the network.

  Returns:
    The configuration and the parameters.

  Raises:
    InputError: there is no network of that name, it is damaged, or the Hub does not give it.

  Example:
    >>> from bornbiased_jax import lineage
    >>> config, params = lineage.load('tiny_gpt2:42')
    >>> params['embedding'].shape
    (2048, 128)
  """
  kind, place, number = locate(name)
  if kind == 'run':
    return checkpoint.load_params(place, number, mesh)
  if folder := transformers_folder(name):
    return huggingface.load(folder, mesh)
  config = configs.get(place)
  if mesh is None:
    return config, init_params(config, number)
  draw, seed = functools.partial(draw_params, config), as_seed(number)
  return config, jax.jit(draw, out_shardings=shardings(mesh, jax.eval_shape(draw, seed)))(seed)


def load_config(name: str) -> ModelConfig:
  """The configuration alone of the network `name`; raises InputError as `load` does."""
  kind, place, _ = locate(name)
  loaders: dict[str, Callable[..., ModelConfig]] = {
      'preset': configs.get, 'run': checkpoint.load_config,
      'transformers': huggingface.load_config, 'hub': hub.load_config}
  return loaders[kind](place)


def transformers_folder(name: str) -> Path | None:
  """The directory of a model of `transformers`, which the Hub may have to give first; else None.

  Raises InputError as `load` does.
  """
  kind, place, _ = locate(name)
  if kind == 'hub':
    return hub.fetch(place)
  return Path(place) if kind == 'transformers' else None


def pinned(name: str) -> tuple[str, dict]:
  """A name that stays that of one network, and what is known of it: a branch of the Hub may go on.

  Raises InputError as `load_config` does.
  """
  if locate(name)[0] != 'hub':
    return name, {'name': name}
  exact = hub.pinned(name)
  return exact, {'name': name, 'revision': exact.rpartition('@')[2]}


def locate(name: str) -> tuple[str, str, Any]:
  """What the name of a network means; raises InputError if it names none.

  Returns:
    ('preset', its name, seed), ('run', directory, step | None),
    ('transformers', directory, None) or ('hub', its name there, None).
  """
  preset, _, seed = name.rpartition(':')
  if preset in configs.PRESETS:
    if not seed.isdecimal():
      raise InputError(f'{name}: {seed!r} is not a seed; give {preset}:42, for instance')
    return 'preset', preset, int(seed)
  directory, step = _split(name)
  if step is None and (directory / 'config.json').is_file() and not checkpoint.steps(directory):
    return 'transformers', str(local(directory)), None
  if directory.is_file():
    raise InputError(f'{name} is a file; give {FORMS}')
  if hub.is_name(name):
    return 'hub', name, None
  if not directory.is_dir():
    raise InputError(f'{name}: no such network{_hint(name)}; give {FORMS}; presets are '
                     f'{", ".join(configs.PRESETS)}')
  # A directory without checkpoints also counts as a run: its loader says what is missing.
  return 'run', str(directory), step


def _hint(name):
  """What somebody may have meant by a name that is none."""
  preset, _, seed = name.rpartition(':')
  if meant := difflib.get_close_matches(preset, configs.PRESETS, n=1):
    return f' (did you mean {meant[0]}:{seed}?)'
  folder, _, revision = name.rpartition('@')
  if folder and path_of(folder).is_dir():
    return f' ({folder} is a folder here, and {revision!r} no step of it)'
  return ''


def _split(name):
  """Splits RUN@STEP into folder and step; '@' may also be part of the folder's name."""
  run, _, step = name.rpartition('@')
  if run and step.isdecimal() and not path_of(name).exists():
    return path_of(run), int(step)
  return path_of(name), None
