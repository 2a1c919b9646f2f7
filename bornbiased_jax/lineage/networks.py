"""Networks by name (names.py): their fingerprints, dossiers and verdicts."""

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from typing import Any, NamedTuple

import jax

from bornbiased_jax import hosts
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.environment import free_memory
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of, remove_folder
from bornbiased_jax.lineage import (
  dossiers,
  features,
  fingerprints,
  names,
  orders,
  reading,
  streaming,
  verdict,
  witnesses,
)
from bornbiased_jax.lineage.dossiers import Dossier, vector_probe
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.models.initialization import init_params, num_parameters
from bornbiased_jax.models.sharding import make_mesh
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.digests import digest
from bornbiased_jax.storage.layers import Layers

# Seeds that people choose, and the largest networks that are drawn to recognize one.
KNOWN_SEEDS = (*range(100), 123, 1000, 1234, 2000)
MOST_RECOGNIZED = 2 * 10**7
# Units are as alike as this if one network began as the other. Those of strangers that were matched
# to one reference on purpose reach 0.3.
RECOGNIZED_Z, RECOGNIZED_LIKENESS = 8.0, 0.35
# How networks of `transformers` are read, and the share of free memory that parameters may take.
STREAM = ('auto', 'always', 'never')
_MEMORY_SHARE = 0.6


def fingerprint(name: str, probe: Probe, cache: str | os.PathLike | None = None, *,
                stream: str = 'auto',
                on_batch: Callable[[int], None] = lambda sequences: None) -> Fingerprint:
  """The answers of the network `name` to a probe. All devices share parameters and batches.

  Of several hosts the first alone reads and writes files of fingerprints.

  Args:
    name: as in `names.load`, or the path of a saved fingerprint, an .npz file.
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
  opened, = _opened([names.pinned(name)], stream)
  return _kept(opened, 'fingerprint', probe, cache, on_batch)


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
  opened, = _opened([names.pinned(name)], stream)
  return _kept(opened, 'dossier', probe, cache, on_batch)


def compare_networks(base: str, suspect: str, probe: Probe,
                     cache: str | os.PathLike | None = None, *, stream: str = 'auto',
                     on_batch: Callable[[int], None] = lambda sequences: None) -> dict:
  """The verdict of all witnesses on two networks (`verdict.compare`).

  Args:
    base: name of a network, as in `names.load`, or of a saved dossier or fingerprint.
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
  if base.endswith('.npz') or suspect.endswith('.npz'):
    return verdict.compare(*(dossier(name, probe, cache, stream=stream, on_batch=on_batch)
                             for name in (base, suspect)))
  pinned = [names.pinned(name) for name in (base, suspect)]
  known = [names.load_config(name) for name, _ in pinned]
  if known[0].width != known[1].width:
    return {'base': pinned[0][1], 'suspect': pinned[1][1],
            **verdict.not_comparable(known[0].width, known[1].width)}
  if probe.num_ids is None and known[0].vocab_size != known[1].vocab_size:
    probe = dataclasses.replace(probe, num_ids=min(each.vocab_size for each in known))
  opened = _opened(pinned, stream)
  taken = [_kept(each, 'dossier', probe, cache, on_batch) for each in opened]
  heard, fit = None, None
  if not any(isinstance(each.network, Layers) for each in opened):
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
    >>> from bornbiased_jax.lineage import features, names
    >>> config, params = names.load('tiny_gpt2:3')
    >>> seed_of(config, features.sketch(config, params))
    3
  """
  if config.sublayers == 'attention_only' or num_parameters(config) > MOST_RECOGNIZED:
    return None
  for seed in KNOWN_SEEDS:
    drawn = features.sketch(config, init_params(config, seed))
    try:
      found = orders.unit_order(drawn, sketch, num_permutations=0)
      if found.z > RECOGNIZED_Z and found.statistic > RECOGNIZED_LIKENESS:
        return seed
    except InputError:  # It has no living units.
      return None
  return None


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
  folder = names.transformers_folder(name)
  if folder is None or stream == 'never':
    return None
  num_bytes = 4 * num_parameters(huggingface.load_config(folder))
  free = hosts.from_first(free_memory) * jax.process_count()
  if stream == 'auto' and num_bytes * (1 + beside) <= _MEMORY_SHARE * free:
    return None
  if jax.process_count() > 1:
    raise InputError(f'{name} would be read layer by layer, by one host: it is too large for the '
                     'memory of all, or stream=\'always\' asks for it')
  return huggingface.open_layers(folder)


class _Opened(NamedTuple):
  """A network that can be asked: in memory, or layer by layer."""

  about: dict
  config: ModelConfig
  network: Any  # Configuration and parameters, or Layers.
  ask: dict[str, Callable]  # What makes its fingerprint, and its dossier.


def _opened(pinned, stream):
  """Networks by what `names.pinned` says of them, for which memory has room together."""
  # That is asked before one of them is there.
  layers = [streamed(name, stream, beside=len(pinned) - 1) for name, _ in pinned]
  return [_layer_by_layer(about, own) if own else _whole(name, about)
          for (name, about), own in zip(pinned, layers, strict=True)]


def _layer_by_layer(about, layers):
  surveyed = streaming.survey(layers)
  ask = {'fingerprint': functools.partial(streaming.fingerprint, layers),
         'dossier': functools.partial(streaming.dossier, layers, surveyed)}
  about = about | {'digest': surveyed.digest, 'read': 'layer by layer'}
  return _Opened(about, layers.config, layers, ask)


def _whole(name, about):
  mesh = make_mesh(1, jax.device_count()) if jax.device_count() > 1 else None
  config, params = names.load(name, mesh)
  ask = {'fingerprint': functools.partial(reading.fingerprint, config, params),
         'dossier': functools.partial(dossiers.take, config, params)}
  return _Opened(about | {'digest': digest(params)}, config, (config, params), ask)


def _kept(opened, what, probe, cache, on_batch):
  """The fingerprint or dossier of a network, from the cache if it is there."""
  module = {'fingerprint': fingerprints, 'dossier': dossiers}[what]
  compute = functools.partial(opened.ask[what], probe, about=opened.about, on_batch=on_batch)
  if cache is None:
    return compute()
  settings = fingerprints.probe_settings(probe, opened.config)
  identity = json.dumps([module.__name__, opened.about['digest'],
                         dataclasses.asdict(opened.config), settings])
  path = path_of(cache) / f'{hashlib.sha256(identity.encode()).hexdigest()[:24]}.npz'
  if (found := hosts.from_first(lambda: _stored(module, path))) is not None:
    on_batch(probe.num_sequences)
    return found.named(opened.about)
  parts = path.with_suffix('.parts')
  made = compute(parts=parts)
  if hosts.is_first():
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(path)
    remove_folder(parts)
  return made


def _stored(module, path):
  if path.exists():
    with contextlib.suppress(InputError):  # A damaged file is made anew.
      return module.load(path)
  return None
