"""Networks by name, and their fingerprints.

- RUN: a training run, of which the latest checkpoint is taken
- RUN@STEP: one checkpoint of a run
- DIRECTORY: a directory of `transformers`
- PRESET:SEED: a random network, such as tiny_gpt2:42
"""

from collections.abc import Callable
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import json
import os
from pathlib import Path
import shutil
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.environment import free_memory
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import (
  dossiers,
  features,
  fingerprints,
  streaming,
  verdict,
  witnesses,
)
from bornbiased_jax.lineage.dossiers import Dossier, vector_probe
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.models.initialization import as_seed, draw_params, init_params
from bornbiased_jax.models.sharding import make_mesh, shardings
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.storage.digests import digest
from bornbiased_jax.storage.layers import Layers

# Seeds that people choose, and the largest networks that are drawn to recognize one.
KNOWN_SEEDS = (*range(100), 123, 1000, 1234, 2000)
MOST_RECOGNIZED = 2 * 10**7
RECOGNIZED_Z = 8.0
# How networks of `transformers` are read, and the share of free memory that parameters may take.
STREAM = ('auto', 'always', 'never')
_MEMORY_SHARE = 0.6
FORMS = 'RUN, RUN@STEP, a transformers directory, a saved .npz, or PRESET:SEED'


def load(name: str, mesh: Mesh | None = None) -> tuple[ModelConfig, dict]:
  """Loads the network `name` onto one device or a mesh.

  Args:
    name: RUN, RUN@STEP, a directory of `transformers`, or PRESET:SEED.
    mesh: from `sharding.make_mesh`; by default one device holds the network.

  Returns:
    The configuration and the parameters.

  Raises:
    InputError: there is no network of that name, or it is damaged.

  Example:
    >>> from bornbiased_jax import lineage
    >>> config, params = lineage.load('tiny_gpt2:42')
    >>> params['embedding'].shape
    (2048, 128)
  """
  kind, place, number = locate(name)
  if kind == 'run':
    return checkpoint.load_params(place, number, mesh)
  if kind == 'transformers':
    return huggingface.load(place, mesh)
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
      'transformers': huggingface.load_config}
  return loaders[kind](place)


def locate(name: str) -> tuple[str, str, Any]:
  """What the name of a network means; raises InputError if it names none.

  Returns:
    ('preset', its name, seed), ('run', directory, step | None) or
    ('transformers', directory, None).
  """
  preset, _, seed = name.rpartition(':')
  if preset in configs.PRESETS:
    if not seed.isdecimal():
      raise InputError(f'{name}: {seed!r} is not a seed; give {preset}:42, for instance')
    return 'preset', preset, int(seed)
  directory, step = _split(name)
  if step is None and (directory / 'config.json').is_file() and not checkpoint.steps(directory):
    return 'transformers', str(directory), None
  if directory.is_file():
    raise InputError(f'{name} is a file; give {FORMS}')
  if not directory.is_dir():
    meant = difflib.get_close_matches(preset, configs.PRESETS, n=1)
    hint = f' (did you mean {meant[0]}:{seed}?)' if meant else ''
    raise InputError(f'{name}: no such network{hint}; give {FORMS}; presets are '
                     f'{", ".join(configs.PRESETS)}')
  # A directory without checkpoints also counts as a run: its loader says what is missing.
  return 'run', str(directory), step


def _split(name):
  """Splits RUN@STEP into folder and step; '@' may also be part of the folder's name."""
  run, _, step = name.rpartition('@')
  if run and step.isdecimal() and not Path(name).expanduser().exists():
    return Path(run).expanduser(), int(step)
  return Path(name).expanduser(), None


def fingerprint(name: str, probe: Probe, cache: str | os.PathLike | None = None, *,
                stream: str = 'auto',
                on_batch: Callable[[int], None] = lambda sequences: None) -> Fingerprint:
  """The answers of the network `name` to a probe. All devices share parameters and batches.

  Args:
    name: as in `load`, or the path of a saved fingerprint, an .npz file.
    probe: what the network reads. A saved fingerprint keeps its own probe.
    cache: folder that keeps fingerprints, made if it is missing. A call that was
      stopped goes on from there. By default nothing is kept.
    stream: whether a directory of `transformers` is read layer by layer (streaming.py):
      'auto' if its parameters do not fit into memory, 'always' or 'never'.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: there is no such network or fingerprint, it is damaged, or the
      network cannot read the probe.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
    >>> lineage.fingerprint('tiny_gpt2:42', probe).hidden_ND.shape
    (1000, 128)
  """
  if name.endswith('.npz'):
    return fingerprints.load(name)
  return _kept(_opened(name, streamed(name, stream)), 'fingerprint', probe, cache, on_batch)


def dossier(name: str, probe: Probe, cache: str | os.PathLike | None = None, *,
            stream: str = 'auto',
            on_batch: Callable[[int], None] = lambda sequences: None) -> Dossier:
  """All that a verdict reads of the network `name` (`dossiers.take`).

  Arguments and errors are those of `fingerprint`; the probe is one of tokens, and an
  .npz file may hold a dossier or a fingerprint.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=100, length=4)
    >>> sorted(lineage.dossier('tiny_gpt2:42', probe).sketch)
    ['down', 'output', 'up', 'value']
  """
  if name.endswith('.npz'):
    return dossiers.load(name)
  return _kept(_opened(name, streamed(name, stream)), 'dossier', probe, cache, on_batch)


def compare_networks(base: str, suspect: str, probe: Probe,
                     cache: str | os.PathLike | None = None, *, stream: str = 'auto',
                     on_batch: Callable[[int], None] = lambda sequences: None) -> dict:
  """The verdict of all witnesses on two networks (`verdict.compare`).

  Args:
    base: name of a network, as in `load`, or of a saved dossier or fingerprint.
    suspect: the other.
    probe: random tokens. If neither says how many ids there are, and the vocabularies
      differ, both read ids of the smaller one.
    cache: as in `fingerprint`.
    stream: as in `fingerprint`; 'auto' wants room for both networks.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: as `fingerprint` does.

  Cost: both networks are in memory at once, unless one is a saved file or is read layer by
  layer. Then there are no aligned witnesses.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
    >>> lineage.compare_networks('tiny_gpt2:1', 'tiny_gpt2:2', probe)['verdict']
    'unrelated'
  """
  names = base, suspect
  if any(name.endswith('.npz') for name in names):
    return verdict.compare(*(dossier(name, probe, cache, on_batch=on_batch) for name in names))
  known = [load_config(name) for name in names]
  if known[0].width != known[1].width:
    return {'base': {'name': base}, 'suspect': {'name': suspect},
            **verdict.not_comparable(known[0].width, known[1].width)}
  if probe.num_ids is None and known[0].vocab_size != known[1].vocab_size:
    probe = dataclasses.replace(probe, num_ids=min(each.vocab_size for each in known))
  layers = [streamed(name, stream, beside=1) for name in names]
  opened = [_opened(*each) for each in zip(names, layers, strict=True)]
  taken = [_kept(each, 'dossier', probe, cache, on_batch) for each in opened]
  heard, fit = None, None
  if not any(layers):
    heard, fit = witnesses.hear_aligned(opened[0].network, opened[1].network,
                                        vector_probe(known[0], probe))
  report = verdict.compare(*taken, aligned=heard, embedding_fit=fit)
  if report['verdict'] == 'related':
    seeds = {seed_of(config, each.sketch) for config, each in zip(known, taken, strict=True)}
    if len(seeds) == 1 and None not in seeds:
      report['reasons'].append("Both began as this package's random network of seed "
                               f'{seeds.pop()}.')
  return report


def seed_of(config: ModelConfig, sketch: dict) -> int | None:
  """The seed of KNOWN_SEEDS from which this package drew what a network began as, or None.

  Args:
    config: the architecture; of more than MOST_RECOGNIZED parameters none is drawn.
    sketch: `features.sketch` of the network.

  Cost: drawing a network per seed that is tried.

  Example:
    >>> from bornbiased_jax.lineage import features
    >>> config, params = load('tiny_gpt2:3')
    >>> seed_of(config, features.sketch(config, params))
    3
  """
  shapes = jax.eval_shape(functools.partial(draw_params, config), as_seed(0))
  size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
  if config.sublayers == 'attention_only' or size > MOST_RECOGNIZED:
    return None
  for seed in KNOWN_SEEDS:
    drawn = features.sketch(config, init_params(config, seed))
    if features.unit_order(drawn, sketch, num_permutations=0).z > RECOGNIZED_Z:
      return seed
  return None


class _Opened(NamedTuple):
  """A network that can be asked: in memory, or layer by layer."""

  about: dict
  config: ModelConfig
  network: Any  # Configuration and parameters, or Layers.
  ask: dict[str, Callable]  # What makes its fingerprint, and its dossier.


def _opened(name, layers):
  """The network `name`: these `layers` of it one by one, or if they are None whole."""
  if layers:
    surveyed = streaming.survey(layers)
    ask = {'fingerprint': functools.partial(streaming.fingerprint, layers),
           'dossier': functools.partial(streaming.dossier, layers, surveyed)}
    about = {'name': name, 'digest': surveyed.digest, 'read': 'layer by layer'}
    return _Opened(about, layers.config, layers, ask)
  config, params = load(name, make_mesh(1, jax.device_count()) if jax.device_count() > 1 else None)
  ask = {'fingerprint': functools.partial(fingerprints.fingerprint, config, params),
         'dossier': functools.partial(dossiers.take, config, params)}
  return _Opened({'name': name, 'digest': digest(params)}, config, (config, params), ask)


def streamed(name: str, stream: str, beside: int = 0) -> Layers | None:
  """The layers of a network that is to be read one by one, else None.

  Args:
    name: the network.
    stream: as in `fingerprint`.
    beside: the number of networks of its size for which memory must have room as well.

  Raises:
    InputError: there is no such network, or no such choice.
  """
  if stream not in STREAM:
    raise InputError(f'stream={stream!r} is not one of {", ".join(STREAM)}')
  kind, place, _ = locate(name)
  if kind != 'transformers' or stream == 'never':
    return None
  layers = huggingface.open_layers(place)
  too_large = layers.num_bytes * (1 + beside) > _MEMORY_SHARE * free_memory()
  return layers if too_large or stream == 'always' else None


def _kept(opened, what, probe, cache, on_batch):
  """The fingerprint or dossier of a network, from the cache if it is there."""
  module = {'fingerprint': fingerprints, 'dossier': dossiers}[what]
  compute = functools.partial(opened.ask[what], probe, about=opened.about, on_batch=on_batch)
  if cache is None:
    return compute()
  settings = fingerprints.probe_settings(probe, opened.config)
  identity = json.dumps([module.__name__, opened.about['digest'],
                         dataclasses.asdict(opened.config), settings])
  path = Path(cache) / f'{hashlib.sha256(identity.encode()).hexdigest()[:24]}.npz'
  if path.exists():
    with contextlib.suppress(InputError):  # A damaged file is made anew.
      found = module.load(path)
      on_batch(probe.num_sequences)
      return found.named(opened.about)
  parts = path.with_suffix('.parts')
  made = compute(parts=parts)
  path.parent.mkdir(parents=True, exist_ok=True)
  made.save(path)
  shutil.rmtree(parts, ignore_errors=True)
  return made
