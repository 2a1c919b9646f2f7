"""Models by name (`storage.open`): their hidden states, signatures and verdicts."""

from collections.abc import Callable, Iterable
import contextlib
import dataclasses
import functools
import hashlib
import json
import os

import jax

from bornbiased_jax import hosts, storage
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.environment import free_memory
from bornbiased_jax.errors import InputError, check_kind
from bornbiased_jax.files import path_of, remove_folder
from bornbiased_jax.lineage import verdict
from bornbiased_jax.lineage.evidence import array_file, by_weights, hidden_states, streaming
from bornbiased_jax.lineage.evidence import signature as signatures
from bornbiased_jax.lineage.evidence.by_weights import Weights
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates
from bornbiased_jax.lineage.evidence.signature import Signature, Survey, pairs_probe
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.models.sharding import make_mesh
from bornbiased_jax.storage import Model
from bornbiased_jax.storage.layers import Layers, in_memory

# The share of free memory that parameters may take.
_MEMORY_SHARE = 0.6
# How networks of `transformers` are read: layer by layer if they do not fit, always or never.
STREAM = 'auto', 'always', 'never'
OnBatch = Callable[[int], None]
# A network's name, or (config, params) that memory holds, or what `storage.open` made of these.
Network = str | tuple[ModelConfig, dict] | Model
# The same, or what `look_up` returned for them.
Given = Network | Signature


def look_up(name: Given) -> Model | Signature:
  """The model that a name means, or the signature that it was saved as; both have a `config`.

  Raises InputError if there is none, or its configuration or the headers of its weights cannot be
  read.
  """
  if isinstance(name, Signature | Weights):
    return name
  model = storage.open(name)
  if model.kind == 'signature':
    found = signatures.load(model.place)
    if found.states.probe['kind'] != 'pairs':
      raise InputError(f'{name} has hidden states for other sequences than a verdict reads; give '
                       'the model itself')
    return found
  # What cannot be read is refused here, before another model is computed.
  if by_weights.is_unknown(model):
    model = by_weights.weights_of(model)
  elif model.kind == 'transformers':
    model.layers()
  _ = model.config
  return model


def signature(name: Given, probe: Probe, cache: str | os.PathLike | None = None, *,
              stream: str = 'auto', on_batch: OnBatch = lambda sequences: None) -> Signature:
  """All that a verdict reads of the model `name`. All devices share parameters and batches.

  Of several hosts only the first reads and writes files of signatures.

  Args:
    name: as `storage.open` takes it, (config, params) included, or what `look_up` returned.
    probe: random tokens. A saved signature keeps its own probe.
    cache: folder that keeps signatures, made if it is missing. A call that was stopped goes on
      from there. By default nothing is kept.
    stream: whether a Hugging Face model folder is read layer by layer (streaming.py):
      'auto' if its parameters do not fit into memory, 'always' or 'never'.
    on_batch: called after each batch with its number of sequences.

  Raises:
    InputError: there is no such model or signature, it is damaged, or the model cannot read
      the probe.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
    >>> sorted(lineage.signature('tiny_gpt2:42', probe).features.arrays)
    ['down', 'output', 'up', 'value']
  """
  found = look_up(name)
  if isinstance(found, Signature):
    return found
  return _taken(found, pairs_probe(probe), cache, stream, on_batch)


def states(name: Network, probe: Probe, cache: str | os.PathLike | None = None, *,
           stream: str = 'auto', on_batch: OnBatch = lambda sequences: None) -> HiddenStates:
  """The last-token hidden states of the model `name` for any probe.

  It takes the arguments of `signature`, but no signature, and raises its errors.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('pairs', num_sequences=1000, length=4)
    >>> lineage.states('tiny_gpt2:42', probe).hidden_ND.shape
    (1000, 128)
  """
  return _taken(storage.open(name), probe, cache, stream, on_batch).states


def compare_networks(base: Given, suspect: Given, probe: Probe,
                     cache: str | os.PathLike | None = None, *, stream: str = 'auto',
                     on_batch: OnBatch = lambda sequences: None) -> dict:
  """The verdict on two models (`verdict.compare`).

  Args:
    base: a model, as `signature` takes it.
    suspect: the other.
    probe: random tokens. If one of the models is a saved signature, both read its probe. If
      nothing says how many ids there are, and the vocabularies differ, both read ids of the
      smaller one.
    cache, stream, on_batch: as `signature` takes them.

  Raises:
    InputError: as `signature` does.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
    >>> lineage.compare_networks('tiny_gpt2:1', 'tiny_gpt2:2', probe)['verdict']
    'unrelated'
  """
  pair = [look_up(base), look_up(suspect)]
  check_kind(probe, Probe, 'an analysis.Probe')
  probe = common_probe(probe, pair)
  taken = {each: signature(each, probe, cache, stream=stream, on_batch=on_batch)
           for each in dict.fromkeys(pair)}
  return verdict.compare(*(taken[each] for each in pair))


def common_probe(probe: Probe, networks: list[Model | Signature]) -> Probe:
  """The probe that the signatures have and the models can read; both as from `look_up`."""
  for each in networks:
    if isinstance(each, Signature):
      return hidden_states.probe_of(each.states.probe)
  return probe_of_all(probe, [each.config for each in networks])


def probe_of_all(probe: Probe, configs: Iterable[ModelConfig]) -> Probe:
  """The probe that models of these architectures can read, whatever their vocabularies."""
  sizes = {config.vocab_size for config in configs}
  num_ids = probe.num_ids or (min(sizes) if len(sizes) > 1 else None)
  return pairs_probe(dataclasses.replace(probe, num_ids=num_ids))


def streamed(model: Model, stream: str) -> Layers | None:
  """The layers of a model that is to be read one by one (`signature`), else None."""
  if stream not in STREAM:
    raise InputError(f'stream={stream!r} is not one of {", ".join(STREAM)}')
  if model.files is None or stream == 'never' or isinstance(model, Weights):
    return None
  num_bytes = 4 * num_parameters(model.config)
  free = hosts.from_first(free_memory) * jax.process_count()
  if stream == 'auto' and num_bytes <= _MEMORY_SHARE * free:
    return None
  if jax.process_count() > 1:
    raise InputError(f'{model.name} would be read layer by layer, by one host: it is too large '
                     "for the memory of all, or stream='always' asks for it")
  return model.layers()


def _taken(model, probe, cache, stream, on_batch) -> Signature:
  """The signature of a network: from the cache, or of a network given up again."""
  about, surveyed, states_of = _read(model, stream)
  compute = lambda parts: surveyed.signature(states_of(
      probe, about=about, on_batch=on_batch, parts=parts))
  if cache is None:
    return compute(None)
  config = surveyed.features.config
  identity = json.dumps([
      array_file.SCHEMA, array_file.KIND, about['digest'], dataclasses.asdict(config),
      hidden_states.probe_settings(probe, config)])
  name = hashlib.sha256(identity.encode()).hexdigest()[:24]
  path = path_of(cache) / f'{name}{array_file.SUFFIX}'
  if (found := hosts.from_first(lambda: _stored(path))) is not None:
    on_batch(probe.num_sequences)
    return surveyed.signature(found.states.named(about))
  parts = path.with_suffix('.parts')
  made = compute(parts)
  if hosts.is_first():
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(path)
    remove_folder(parts)
  return made


def _read(model, stream) -> tuple[dict, Survey, Callable[..., HiddenStates]]:
  """Which network it is, what its parameters say, and what gives its hidden states.

  Parameters are read, and hashed, once.
  """
  how: dict[str, str] = {}
  if isinstance(model, Weights):
    surveyed, states_of = model.survey(), model.no_states
  elif layers := streamed(model, stream):
    surveyed, how = signatures.survey(layers), {'read': 'layer by layer'}
    states_of = functools.partial(streaming.of_layers, layers)
  else:
    mesh = make_mesh(1, jax.device_count()) if jax.device_count() > 1 else None
    config, params = model.load(mesh)
    surveyed = signatures.survey(in_memory(config, params))
    states_of = functools.partial(hidden_states.of_network, config, params)
  return model.about | model.sources | {'digest': surveyed.digest} | how, surveyed, states_of


def _stored(path):
  if path.exists():
    with contextlib.suppress(InputError):  # A damaged file is made anew.
      return signatures.load(path)
  return None
