"""What the names of models mean; nothing else says it.

- RUN: a training run; its latest checkpoint is taken
- RUN@STEP: one checkpoint of a run
- DIRECTORY: a Hugging Face model folder
- FILE.gguf: a GGUF file of llama.cpp
- ORG/MODEL, ORG/MODEL@REVISION: a model of the Hugging Face Hub, if no folder here is called ORG
- BASE+ADAPTER: a directory or a model of the Hub with an adapter of PEFT, which is a directory or
  on the Hub too; only ADAPTER, if it names its base
- FILE.safetensors: a saved signature, which `lineage.signature` reads
- PRESET:SEED, config.json:SEED, FOLDER:SEED of a folder with config.json: a random model, such as
  tiny_gpt2:42, of any architecture that `canonical` knows

In Python a pair (config, params), which memory holds, stands for itself.
"""

import dataclasses
import difflib
import functools
import os
from pathlib import Path
import re
import textwrap

import jax
from jax.sharding import Mesh

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, unlike
from bornbiased_jax.files import local, nearest, path_of, read_json
from bornbiased_jax.models.initialization import as_seed, check_params, init_params, param_shapes
from bornbiased_jax.models.sharding import shardings
from bornbiased_jax.storage import architectures, checkpoint, hub, huggingface
from bornbiased_jax.storage.digests import digest
from bornbiased_jax.storage.huggingface import adapters, gguf, io
from bornbiased_jax.storage.huggingface.tensors import refuse_file
from bornbiased_jax.storage.layers import Layers

# What names a network.
FORMS = ('RUN, RUN@STEP, a Hugging Face model folder, a GGUF file, ORG/MODEL[@REVISION] of the '
         'Hugging Face Hub, BASE+ADAPTER, a saved signature (.safetensors), or a random model: '
         'PRESET:SEED, config.json:SEED or FOLDER:SEED')


@dataclasses.dataclass(frozen=True)
class Model:
  """A model that a name means. What is read of it is read when it is asked for.

  Attributes:
    name: the name.
    kind: 'preset', 'run', 'transformers' (also a GGUF file), 'hub', 'memory' or 'signature'.
    place: the architecture's name, the directory or file, the name on the Hub with its commit, or
      the architecture's name and the digest of a model in memory.
    number: the seed of a preset, or the step of a run, if it is given.
    adapter: the folder of an adapter of the model in `place`.
    files: the directory or the GGUF file of a model of `transformers`; of one of the Hub the
      folder that has config.json, and the rest once it was fetched.
    held: the configuration and parameters that memory holds.
  """

  name: str
  kind: str
  place: str
  number: int | None = None
  adapter: Path | None = None
  files: Path | None = None
  held: tuple[ModelConfig, dict] | None = dataclasses.field(default=None, compare=False, repr=False)

  def __str__(self):
    return self.name

  @functools.cached_property
  def config(self) -> ModelConfig:
    """The configuration, read once; raises InputError as `load` does."""
    if self.held:
      return self.held[0]
    if self.kind == 'preset':
      return configs.get(self.place)
    if self.kind == 'run':
      return checkpoint.config_of(self.recorded)
    # Only weights say whether a head that should be the embedding is another one.
    return (self._whole if self._opened.stored_config.tied_head else self._opened).config

  def load(self, mesh: Mesh | None = None) -> tuple[ModelConfig, dict]:
    """Loads the model onto one device or a mesh.

    Args:
      mesh: from `sharding.make_mesh`; by default one device holds the model.

    Returns:
      The configuration and the parameters. How the model was drawn (linear_std, embedding_std,
      init_scheme) is what `transformers` makes of config.json; what really drew it may have done
      otherwise, as GPT-NeoX did with Pythia. For theory of another initialization give it, with
      dataclasses.replace(config, linear_std=0.02).

    Raises:
      InputError: the model is damaged, or the Hub does not give it.
    """
    if self.held:
      config, params = self.held
      return config, params if mesh is None else jax.device_put(params, shardings(mesh, params))
    if self.kind == 'run':
      return checkpoint.load_params(self.place, self.number, mesh)
    if self.kind != 'preset' or self.number is None:
      return self._whole.load(mesh)
    if mesh is None:
      return self.config, init_params(self.config, self.number)
    places = shardings(mesh, param_shapes(self.config))
    draw = jax.jit(functools.partial(init_params, self.config), out_shardings=places)
    return self.config, draw(as_seed(self.number))

  def layers(self) -> Layers:
    """The model read layer by layer, if it has `files`; raises InputError as `load` does."""
    return self._whole.layers()

  @functools.cached_property
  def recorded(self) -> dict:
    """The JSON of a checkpoint about its run, of the step or else the latest one."""
    steps = None if self.number is None else [self.number]
    return checkpoint.restore(self.place, lambda metadata: {}, steps)[0]

  @property
  def about(self) -> dict:
    """JSON that says which model it is."""
    if self.kind == 'preset':
      return {'name': f'{self.place}:{self.number}'}
    return {'name': self.name} | ({'revision': self.revision} if self.revision else {})

  @property
  def revision(self) -> str | None:
    """The commit that a model of the Hub is of."""
    return self.place.rpartition('@')[2] if self.kind == 'hub' else None

  @functools.cached_property
  def sources(self) -> dict:
    """JSON with the digests of base and adapter, which are read for it; {} without an adapter."""
    if self.adapter is None:
      return {}
    names = {'base': self.place, 'adapter': str(self.adapter)}
    return {part: {'name': names[part], 'digest': digest}
            for part, digest in self._whole.digests().items()}

  @functools.cached_property
  def entries(self) -> dict | None:
    """What config.json holds, read once, or what it would in place of a GGUF file; else None."""
    if self.files is None:
      return None
    return (gguf.read_entries(self.files) if huggingface.is_gguf(self.files) else
            read_json(self.files / 'config.json'))

  @functools.cached_property
  def _opened(self):
    if self.files is None:
      raise InputError(f'{self.name} is a saved signature; give the model itself'
                       if self.kind == 'signature' else
                       f'{self.name} is in no files; load() gives it')
    return huggingface.open_files(self.files, self.adapter, self.entries)

  @functools.cached_property
  def _whole(self):
    """What `_opened` is, whose weights are there: config.json is right before they are fetched."""
    opened = self._opened
    if self.kind == 'hub':
      hub.fetch(self.place)
    return opened


def open(name: str | os.PathLike | Model | tuple[ModelConfig, dict]) -> Model:
  """The model that a name means.

  Args:
    name: one of the forms above; a Model stands for itself, and so does (config, params).

  Raises:
    InputError: there is no model of that name, or the Hub does not give it.

  Example:
    >>> from bornbiased_jax import storage
    >>> model = storage.open('tiny_gpt2:42')
    >>> model.kind, model.config.width
    ('preset', 128)
    >>> config, params = model.load()
    >>> params['embedding'].shape
    (2048, 128)
  """
  if isinstance(name, Model):
    return name
  if isinstance(name, tuple) and name and isinstance(name[0], ModelConfig):
    check_params(*name)
    held, own = digest(name[1]), configs.name_of(name[0])
    return Model(f'model {held[:12]}', 'memory', f'{own} {held}', held=name)
  if not isinstance(name, str | os.PathLike):
    raise unlike(name, f'a model by its name ({FORMS}) or as (config, params)')
  name = os.fspath(name)
  preset, _, seed = name.rpartition(':')
  if architectures.is_name(preset) and not path_of(name).exists():
    if not seed.isdecimal():
      raise InputError(f'{name}: {seed!r} is not a seed; give {preset}:42, for instance')
    return Model(name, 'preset', architectures.canonical(preset), int(seed))
  if is_signature(name):
    if (path_of(name).parent / 'config.json').is_file():
      refuse_file(path_of(name))
    return Model(name, 'signature', name)
  base, adapter = _split_adapter(name)
  return _with_adapter(name, base, adapter) if adapter else _in_place(name)


def is_signature(name: str) -> bool:
  """Whether a name is of a saved signature."""
  return name.endswith('.safetensors') and not path_of(name).is_dir()


def _with_adapter(name, base, adapter):
  found = None if adapters.is_adapter(path_of(base)) else _in_place(base)
  if found is None or found.files is None:
    raise InputError(f'{base} is no Hugging Face model folder, as the base of {adapter} must be')
  return dataclasses.replace(found, name=name, adapter=adapter)


def _in_place(name):
  """A run, a directory or file of `transformers`, or a model of the Hub."""
  directory, step = _split_step(name)
  is_gguf = directory.is_file() and huggingface.is_gguf(directory)
  if is_gguf or (step is None and io.has_model(directory) and not checkpoint.steps(directory)):
    path = local(directory)
    return Model(name, 'transformers', str(path), files=path)
  if directory.is_file():
    refuse_file(directory)
    hint = f'; {name}:42 is a random model of it, with seed 42' if name.endswith('.json') else ''
    raise InputError(f'{name} is a file{hint}; give {FORMS}')
  if hub.is_name(name):
    try:
      exact, folder = hub.pinned(name)
    except InputError as error:
      raise InputError(f'{error}{_hint(name)}') from None
    return Model(name, 'hub', exact, files=folder)
  if not directory.is_dir():
    raise InputError(f'{name}: no such model{_hint(name)}; give {FORMS}; presets are '
                     f'{", ".join(configs.PRESETS)}')
  if step is None and not checkpoint.steps(directory):
    inside = [path for path in directory.iterdir()
              if io.has_model(path) or huggingface.is_gguf(path)]
    if inside := sorted(inside, key=lambda path: (len(path.name), path)):
      names = textwrap.shorten(', '.join(path.name for path in inside), 60, placeholder=' …')
      raise InputError(f'{name} holds models: {names}; give one of them, such as {inside[-1]}')
  if step is None and (reason := io.why_none(directory)):
    raise InputError(f'{name} {reason}')
  # A directory without checkpoints also counts as a run: its loader says what is missing.
  return Model(name, 'run', str(directory), step)


def _hint(name):
  """What somebody may have meant by a name that is none."""
  if name in configs.PRESETS:
    return f' (did you mean {name}:42? A random model has a seed)'
  preset, _, seed = name.rpartition(':')
  if meant := difflib.get_close_matches(preset, configs.PRESETS, n=1):
    return f' (did you mean {meant[0]}:{seed}?)'
  folder, _, revision = name.rpartition('@')
  if folder and path_of(folder).is_dir():
    return f' ({folder} is a folder here, and {revision!r} no step of it)'
  meant = nearest(path_of(name))
  return f' (did you mean {meant}?)' if meant else ''


def _split_step(name):
  """Splits RUN@STEP into folder and step; '@' may also be part of the folder's name."""
  run, _, step = name.rpartition('@')
  if run and step.isdecimal() and not path_of(name).exists():
    return path_of(run), int(step)
  return path_of(name), None


def _split_adapter(name):
  """The base and the folder of the adapter that a name means; (name, None) if it means none."""
  if adapters.is_adapter(path_of(name)):
    return hub.base_of(path_of(name)), path_of(name)
  if path_of(name).exists():
    return name, None
  pairs = [(name[:plus.start()], name[plus.end():]) for plus in re.finditer(r'\+', name)]
  # A folder comes first, as its parent may be called like a model of the Hub.
  for is_base in (os.path.exists, hub.is_name):
    for base, adapter in pairs:
      if is_base(base):
        return base, hub.fetch_adapter(adapter) if hub.is_name(adapter) else path_of(adapter)
  return name, None
