"""Networks by name, and their fingerprints.

- RUN: a training run, of which the latest checkpoint is taken
- RUN@STEP: one checkpoint of a run
- DIRECTORY: a directory of `transformers`
- ORG/MODEL, ORG/MODEL@REVISION: a model of the Hugging Face Hub, if no folder has this name
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
from typing import Any

import jax
from jax.sharding import Mesh

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import dossiers, features, fingerprints, verdict, witnesses
from bornbiased_jax.lineage.dossiers import Dossier, vector_probe
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.models.initialization import as_seed, draw_params, init_params
from bornbiased_jax.models.sharding import make_mesh, shardings
from bornbiased_jax.storage import checkpoint, hub, huggingface
from bornbiased_jax.storage.digests import digest

# Seeds that people choose, and the largest networks that are drawn to recognize one.
KNOWN_SEEDS = (*range(100), 123, 1000, 1234, 2000)
MOST_RECOGNIZED = 2 * 10**7
RECOGNIZED_Z = 8.0
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
  if kind in ('transformers', 'hub'):
    return (hub if kind == 'hub' else huggingface).load(place, mesh)
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
    return 'transformers', str(directory), None
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
  if folder and Path(folder).expanduser().is_dir():
    return f' ({folder} is a folder here, and {revision!r} no step of it)'
  return ''


def _split(name):
  """Splits RUN@STEP into folder and step; '@' may also be part of the folder's name."""
  run, _, step = name.rpartition('@')
  if run and step.isdecimal() and not Path(name).expanduser().exists():
    return Path(run).expanduser(), int(step)
  return Path(name).expanduser(), None


def fingerprint(name: str, probe: Probe, cache: str | os.PathLike | None = None, *,
                on_batch: Callable[[int], None] = lambda sequences: None) -> Fingerprint:
  """The answers of the network `name` to a probe. All devices share parameters and batches.

  Args:
    name: as in `load`, or the path of a saved fingerprint, an .npz file.
    probe: what the network reads. A saved fingerprint keeps its own probe.
    cache: folder that keeps fingerprints, made if it is missing. A call that was
      stopped goes on from there. By default nothing is kept.
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
  name, about = _pinned(name)
  return _kept(about, _spread(name), probe, cache, on_batch, fingerprints.fingerprint,
               fingerprints.load)


def dossier(name: str, probe: Probe, cache: str | os.PathLike | None = None, *,
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
  name, about = _pinned(name)
  return _kept(about, _spread(name), probe, cache, on_batch, dossiers.take, dossiers.load)


def compare_networks(base: str, suspect: str, probe: Probe,
                     cache: str | os.PathLike | None = None, *,
                     on_batch: Callable[[int], None] = lambda sequences: None) -> dict:
  """The verdict of all witnesses on two networks (`verdict.compare`).

  Args:
    base: name of a network, as in `load`, or of a saved dossier or fingerprint.
    suspect: the other.
    probe: random tokens. If neither says how many ids there are, and the vocabularies
      differ, both read ids of the smaller one.
    cache: as in `fingerprint`.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: as `fingerprint` does.

  Cost: both networks are in memory at once, unless one is a saved file. Then there
  are no aligned witnesses.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
    >>> lineage.compare_networks('tiny_gpt2:1', 'tiny_gpt2:2', probe)['verdict']
    'unrelated'
  """
  names = base, suspect
  if any(name.endswith('.npz') for name in names):
    return verdict.compare(*(dossier(name, probe, cache, on_batch=on_batch) for name in names))
  pinned, abouts = zip(*map(_pinned, names), strict=True)
  known = [load_config(name) for name in pinned]
  if known[0].width != known[1].width:
    return {'base': abouts[0], 'suspect': abouts[1],
            **verdict.not_comparable(known[0].width, known[1].width)}
  if probe.num_ids is None and known[0].vocab_size != known[1].vocab_size:
    probe = dataclasses.replace(probe, num_ids=min(each.vocab_size for each in known))
  networks = [_spread(name) for name in pinned]
  taken = [_kept(about, network, probe, cache, on_batch, dossiers.take, dossiers.load)
           for about, network in zip(abouts, networks, strict=True)]
  heard, fit = witnesses.hear_aligned(networks[0], networks[1], vector_probe(known[0], probe))
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


def _pinned(name):
  """A name that stays the same network, and `about` of it: a branch of the Hub may go on."""
  if locate(name)[0] != 'hub':
    return name, {'name': name}
  exact = hub.pinned(name)
  return exact, {'name': name, 'revision': exact.rpartition('@')[2]}


def _spread(name):
  """A network over all devices."""
  return load(name, make_mesh(1, jax.device_count()) if jax.device_count() > 1 else None)


def _kept(about, network, probe, cache, on_batch, take, read):
  """What `take` makes of a network, from the cache if it is there."""
  config, params = network
  about = about | {'digest': digest(params)}
  compute = functools.partial(take, config, params, probe, about=about, on_batch=on_batch)
  if cache is None:
    return compute()
  settings = fingerprints.probe_settings(probe, config)
  identity = json.dumps([take.__module__, about['digest'], dataclasses.asdict(config), settings])
  path = Path(cache) / f'{hashlib.sha256(identity.encode()).hexdigest()[:24]}.npz'
  if path.exists():
    with contextlib.suppress(InputError):  # A damaged file is made anew.
      found = read(path)
      on_batch(probe.num_sequences)
      return found.named(about)
  parts = path.with_suffix('.parts')
  made = compute(parts=parts)
  path.parent.mkdir(parents=True, exist_ok=True)
  made.save(path)
  shutil.rmtree(parts, ignore_errors=True)
  return made
