"""Networks by name (resolve.py): their hidden states, signatures and verdicts."""

from collections.abc import Callable
import contextlib
import dataclasses
import hashlib
import json
import os
from typing import Any

import jax

from bornbiased_jax import hosts
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.environment import free_memory
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of, remove_folder
from bornbiased_jax.lineage import resolve, verdict
from bornbiased_jax.lineage.evidence import archive, hidden_states, streaming
from bornbiased_jax.lineage.evidence import signature as signatures
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates
from bornbiased_jax.lineage.evidence.signature import Signature, Survey, pairs_probe
from bornbiased_jax.lineage.resolve import Resolved
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.models.sharding import make_mesh
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.layers import Layers

# The share of free memory that parameters may take.
_MEMORY_SHARE = 0.6
# How networks of `transformers` are read: layer by layer if they do not fit, always or never.
STREAM = 'auto', 'always', 'never'
OnBatch = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Opened:
  """A network that can be asked: in memory, or layer by layer, with what its parameters say."""

  resolved: Resolved
  network: Any  # Configuration and parameters, or Layers.
  surveyed: Survey

  @property
  def about(self) -> dict:
    """JSON that says which network it is."""
    read = {'read': 'layer by layer'} if isinstance(self.network, Layers) else {}
    resolved = self.resolved
    return resolved.about | resolved.sources | {'digest': self.surveyed.digest} | read

  def states(self, probe: Probe, on_batch: OnBatch, parts: Any) -> HiddenStates:
    """Its hidden states for a probe."""
    options: dict[str, Any] = dict(about=self.about, on_batch=on_batch, parts=parts)
    if isinstance(self.network, Layers):
      return streaming.of_layers(self.network, probe, **options)
    config, params = self.network
    return hidden_states.of_network(config, params, probe, **options)

  def signature(self, probe: Probe, on_batch: OnBatch, parts: Any) -> Signature:
    """Its signature for a probe of random tokens."""
    return self.surveyed.signature(self.states(pairs_probe(probe), on_batch, parts))


def signature(name: str, probe: Probe, cache: str | os.PathLike | None = None, *,
              stream: str = 'auto', on_batch: OnBatch = lambda sequences: None) -> Signature:
  """All that a verdict reads of the network `name`. All devices share parameters and batches.

  Of several hosts the first alone reads and writes files of signatures.

  Args:
    name: as in `resolve.load`, or the path of a saved signature, a .safetensors file.
    probe: random tokens. A saved signature keeps its own probe.
    cache: folder that keeps signatures, made if it is missing. A call that was stopped goes on
      from there. By default nothing is kept.
    stream: whether a directory of `transformers` is read layer by layer (streaming.py):
      'auto' if its parameters do not fit into memory, 'always' or 'never'.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: there is no such network or signature, it is damaged, or the network cannot read
      the probe.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
    >>> sorted(lineage.signature('tiny_gpt2:42', probe).features.arrays)
    ['down', 'output', 'up', 'value']
  """
  if resolve.is_signature(name):
    return signatures.load(name)
  return _taken(resolve.resolve(name), signatures, pairs_probe(probe), cache, stream, on_batch)


def states(name: str, probe: Probe, cache: str | os.PathLike | None = None, *,
           stream: str = 'auto', on_batch: OnBatch = lambda sequences: None) -> HiddenStates:
  """The last-token hidden states of the network `name` for any probe.

  Arguments and errors are those of `signature`.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('pairs', num_sequences=1000, length=4)
    >>> lineage.states('tiny_gpt2:42', probe).hidden_ND.shape
    (1000, 128)
  """
  return _taken(resolve.resolve(name), hidden_states, probe, cache, stream, on_batch)


def compare_networks(base: str, suspect: str, probe: Probe,
                     cache: str | os.PathLike | None = None, *, stream: str = 'auto',
                     on_batch: OnBatch = lambda sequences: None) -> dict:
  """The verdict on two networks (`verdict.compare`).

  Args:
    base: name of a network, as in `resolve.load`, or of a saved signature.
    suspect: the other.
    probe: random tokens. If one of the networks is a saved signature, both read its probe. If
      nothing says how many ids there are, and the vocabularies differ, both read ids of the
      smaller one.
    cache, stream, on_batch: as in `signature`.

  Raises:
    InputError: as `signature` does.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
    >>> lineage.compare_networks('tiny_gpt2:1', 'tiny_gpt2:2', probe)['verdict']
    'unrelated'
  """
  saved = {name: signatures.load(name) for name in (base, suspect) if resolve.is_signature(name)}
  named = {name: resolve.resolve(name) for name in (base, suspect) if name not in saved}
  probe = common_probe(probe, list(saved.values()), [each.config for each in named.values()])
  taken = saved | {name: _taken(each, signatures, probe, cache, stream, on_batch)
                   for name, each in named.items()}
  return verdict.compare(taken[base], taken[suspect])


def common_probe(probe: Probe, saved: list[Signature], known: list[ModelConfig]) -> Probe:
  """The probe that signatures have, and networks of these configurations can read."""
  if saved:
    return hidden_states.probe_of(saved[0].states.probe)
  sizes = {config.vocab_size for config in known}
  num_ids = probe.num_ids or (min(sizes) if len(sizes) > 1 else None)
  return pairs_probe(dataclasses.replace(probe, num_ids=num_ids))


def open_network(resolved: Resolved, stream: str = 'auto') -> Opened:
  """A network that can be asked; its parameters are read, and hashed, once."""
  if layers := streamed(resolved, stream):
    return Opened(resolved, layers, streaming.survey(layers))
  mesh = make_mesh(1, jax.device_count()) if jax.device_count() > 1 else None
  config, params = resolved.load(mesh)
  return Opened(resolved, (config, params), signatures.survey(config, params))


def streamed(resolved: Resolved, stream: str) -> Layers | None:
  """The layers of a network that is to be read one by one (`signature`), else None."""
  if stream not in STREAM:
    raise InputError(f'stream={stream!r} is not one of {", ".join(STREAM)}')
  if resolved.folder is None or stream == 'never':
    return None
  num_bytes = 4 * num_parameters(resolved.config)
  free = hosts.from_first(free_memory) * jax.process_count()
  if stream == 'auto' and num_bytes <= _MEMORY_SHARE * free:
    return None
  if jax.process_count() > 1:
    raise InputError(f'{resolved.name} would be read layer by layer, by one host: it is too large '
                     "for the memory of all, or stream='always' asks for it")
  return huggingface.open_layers(resolved.folder, resolved.adapter)


def _taken(resolved, kind, probe, cache, stream, on_batch):
  """What the module `kind` keeps of a network: from the cache, or of a network given up again."""
  opened = open_network(resolved, stream)
  compute = opened.states if kind is hidden_states else opened.signature
  if cache is None:
    return compute(probe, on_batch, None)
  config = opened.surveyed.features.config
  identity = json.dumps([
      archive.SCHEMA, kind.KIND, opened.about['digest'], dataclasses.asdict(config),
      hidden_states.probe_settings(probe, config)])
  name = hashlib.sha256(identity.encode()).hexdigest()[:24]
  path = path_of(cache) / f'{name}{archive.SUFFIX}'
  if (found := hosts.from_first(lambda: _stored(kind.load, path))) is not None:
    on_batch(probe.num_sequences)
    return found.named(opened.about)
  parts = path.with_suffix('.parts')
  made = compute(probe, on_batch, parts)
  if hosts.is_first():
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(path)
    remove_folder(parts)
  return made


def _stored(load, path):
  if path.exists():
    with contextlib.suppress(InputError):  # A damaged file is made anew.
      return load(path)
  return None
