"""What the names of networks mean.

- RUN: a training run, of which the latest checkpoint is taken
- RUN@STEP: one checkpoint of a run
- DIRECTORY: a directory of `transformers`
- FILE.gguf: a GGUF file of llama.cpp
- ORG/MODEL, ORG/MODEL@REVISION: a model of the Hugging Face Hub, if no folder here is called ORG
- BASE+ADAPTER: one of the two, with an adapter of PEFT; ADAPTER alone, if it names its base
- PRESET:SEED: a random network, such as tiny_gpt2:42; in the preset's place may stand all that
  `configs.get` knows
"""

import dataclasses
import difflib
import functools
from pathlib import Path
import re
from typing import Any

import jax
from jax.sharding import Mesh

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import local, path_of
from bornbiased_jax.models.initialization import as_seed, draw_params, init_params
from bornbiased_jax.models.sharding import shardings
from bornbiased_jax.storage import adapted, checkpoint, hub, huggingface
from bornbiased_jax.storage.huggingface import adapters
from bornbiased_jax.storage.huggingface.tensors import INDEX, WHOLE

# Files of weights that only config.json makes a network of. Others may be signatures or text.
_WEIGHTS = re.compile(r'(adapter_)?model(-.*)?\.safetensors(\.index\.json)?|pytorch_model.*\.bin|'
                      r'.*\.pth?')

# What names a network.
FORMS = ('RUN, RUN@STEP, a transformers directory, a GGUF file, ORG/MODEL[@REVISION] of the '
         'Hugging Face Hub, BASE+ADAPTER, a saved signature (.safetensors), or PRESET:SEED')


@dataclasses.dataclass(frozen=True)
class Resolved:
  """What the name of a network means.

  Attributes:
    name: the name; a branch of the Hub may go on, so that it has the commit there.
    kind: 'preset', 'run', 'transformers' or 'hub'.
    place: the architecture's name, the directory or GGUF file, or the name on the Hub.
    number: the seed of a preset, or the step of a run, if it is given.
    about: JSON that says which network it is.
    adapter: the folder of an adapter of the network in `place`.
  """

  name: str
  kind: str
  place: str
  number: Any
  about: dict
  adapter: Path | None = None

  @functools.cached_property
  def config(self) -> ModelConfig:
    """The configuration, read once; raises InputError as `load` does."""
    if self.kind in ('preset', 'run'):
      return (configs.get if self.kind == 'preset' else checkpoint.load_config)(self.place)
    return (hub if self.kind == 'hub' else huggingface).load_config(self.place, self.adapter)

  @functools.cached_property
  def sources(self) -> dict:
    """JSON with the digests of base and adapter, which are read for it; {} without an adapter."""
    if self.adapter is None or self.folder is None:
      return {}
    base = huggingface.open_layers(self.folder).digest()
    adapter = adapters.read_adapter(self.adapter).digest()
    return {'base': {'name': self.place, 'digest': base},
            'adapter': {'name': str(self.adapter), 'digest': adapter}}

  @functools.cached_property
  def folder(self) -> Path | None:
    """The directory of a model of `transformers`, which the Hub may have to give, or GGUF file."""
    if self.kind == 'hub':
      return hub.fetch(self.place)
    return Path(self.place) if self.kind == 'transformers' else None

  def load(self, mesh: Mesh | None = None) -> tuple[ModelConfig, dict]:
    """Configuration and parameters, as `load` returns them."""
    if self.kind == 'run':
      return checkpoint.load_params(self.place, self.number, mesh)
    if self.folder:
      return huggingface.load(self.folder, mesh, self.adapter)
    if mesh is None:
      return self.config, init_params(self.config, self.number)
    draw, seed = functools.partial(draw_params, self.config), as_seed(self.number)
    drawn = jax.jit(draw, out_shardings=shardings(mesh, jax.eval_shape(draw, seed)))(seed)
    return self.config, drawn


def resolve(name: str) -> Resolved:
  """What the name of a network means; raises InputError if it names none."""
  kind, place, number, adapter = _located(name)
  if kind != 'hub':
    about = {'name': f'{place}:{number}' if kind == 'preset' else name}
    return Resolved(name, kind, place, number, about, adapter)
  exact = hub.pinned(place)
  about = {'name': name, 'revision': exact.rpartition('@')[2]}
  return Resolved(f'{exact}+{adapter}' if adapter else exact, kind, exact, None, about, adapter)


def load(name: str, mesh: Mesh | None = None) -> tuple[ModelConfig, dict]:
  """Loads the network `name` onto one device or a mesh.

  Args:
    name: RUN, RUN@STEP, a directory of `transformers`, a GGUF file, ORG/MODEL[@REVISION] of the
      Hugging Face Hub, or PRESET:SEED.
    mesh: from `sharding.make_mesh`; by default one device holds the network.

  Returns:
    The configuration and the parameters. Files of transformers and GGUF do not say how networks
    were drawn: linear_std, embedding_std and init_scheme are this package's defaults. For theory of
    their initialization give the right ones, as in dataclasses.replace(config, linear_std=0.02).

  Raises:
    InputError: there is no network of that name, it is damaged, or the Hub does not give it.

  Example:
    >>> from bornbiased_jax import lineage
    >>> config, params = lineage.load('tiny_gpt2:42')
    >>> params['embedding'].shape
    (2048, 128)
  """
  return resolve(name).load(mesh)


def load_config(name: str) -> ModelConfig:
  """The configuration alone of the network `name`; raises InputError as `load` does."""
  kind, place, number, adapter = _located(name)  # A branch need not be asked for its commit.
  return Resolved(name, kind, place, number, {}, adapter).config


def is_signature(name: str) -> bool:
  """Whether a name is that of a saved file: a signature, or one of an older version."""
  return name.endswith(('.safetensors', '.npz'))


def locate(name: str) -> tuple[str, str, Any]:
  """(kind, place, number) of `Resolved`, of an adapter those of its base."""
  return _located(name)[:3]


def _located(name):
  """What `locate` returns, and the folder of an adapter or None."""
  preset, _, seed = name.rpartition(':')
  if configs.is_name(preset) and not path_of(name).exists():
    if not seed.isdecimal():
      raise InputError(f'{name}: {seed!r} is not a seed; give {preset}:42, for instance')
    return 'preset', configs.canonical(preset), int(seed), None
  base, adapter = adapted.split(name)
  if adapter:
    kind, place, *_ = ('adapter', '') if adapters.is_adapter(path_of(base)) else _located(base)
    if kind not in ('transformers', 'hub'):
      raise InputError(f'{base} is no directory of transformers, as the base of {adapter} must be')
    return kind, place, None, adapter
  directory, step = _split(name)
  if huggingface.is_gguf(name) and directory.is_file():
    return 'transformers', str(local(directory)), None, None
  if step is None and _has_model(directory) and not checkpoint.steps(directory):
    return 'transformers', str(local(directory)), None, None
  if directory.is_file():
    raise InputError(f'{name} is a file; give {FORMS}')
  if hub.is_name(name):
    return 'hub', name, None, None
  if not directory.is_dir():
    raise InputError(f'{name}: no such network{_hint(name)}; give {FORMS}; presets are '
                     f'{", ".join(configs.PRESETS)}')
  if step is None and (reason := why_none(directory)):
    raise InputError(f'{name} {reason}')
  # A directory without checkpoints also counts as a run: its loader says what is missing.
  return 'run', str(directory), step, None


def why_none(folder: Path) -> str | None:
  """Why a folder without config.json is no network and holds none; None if it may be, or may."""
  inside = sorted(path.name for path in folder.iterdir())
  if not inside:
    return 'is empty'
  if adapters.CONFIG in inside:
    return f'is an adapter; give BASE+{folder}'
  weights = next(filter(_WEIGHTS.fullmatch, inside), None)
  return weights and f'has {weights} but no config.json'


def _has_model(directory):
  """Whether a folder has any file of a model of `transformers`; its loader says what is missing."""
  return any((directory / file).is_file() for file in ('config.json', WHOLE, INDEX))


def _hint(name):
  """What somebody may have meant by a name that is none."""
  if name in configs.PRESETS:
    return f' (did you mean {name}:42? A random network has a seed)'
  preset, _, seed = name.rpartition(':')
  if meant := difflib.get_close_matches(preset, configs.PRESETS, n=1):
    return f' (did you mean {meant[0]}:{seed}?)'
  folder, _, revision = name.rpartition('@')
  if folder and path_of(folder).is_dir():
    return f' ({folder} is a folder here, and {revision!r} no step of it)'
  place = path_of(name)
  if name == str(place) and place.parent.is_dir() and place.parent != path_of('.'):
    beside = [path.name for path in place.parent.iterdir()]
    if meant := difflib.get_close_matches(place.name, beside, n=1):
      return f' (did you mean {place.parent / meant[0]}?)'
  return ''


def _split(name):
  """Splits RUN@STEP into folder and step; '@' may also be part of the folder's name."""
  run, _, step = name.rpartition('@')
  if run and step.isdecimal() and not path_of(name).exists():
    return path_of(run), int(step)
  return path_of(name), None
