"""Models of families without a forward pass here, read by the names and shapes of their tensors.

`layouts` says where units and heads lie. There are no hidden states, so such a model can be found
related, and is never cleared.
"""

import collections
from collections.abc import Callable, Iterator
import dataclasses
import functools
import math
import os

import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import plain
from bornbiased_jax.lineage import layouts
from bornbiased_jax.lineage.evidence import features, hidden_states, tensors
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates
from bornbiased_jax.lineage.evidence.signature import Survey
from bornbiased_jax.lineage.layouts import UNITS, VALUES
from bornbiased_jax.storage import Model, hub
from bornbiased_jax.storage.huggingface.adapters import read_adapter
from bornbiased_jax.storage.huggingface.config import has_head
from bornbiased_jax.storage.huggingface.families import FAMILIES
from bornbiased_jax.storage.huggingface.io import stored_tensors
from bornbiased_jax.storage.huggingface.tensors import Merged, Tensor
from bornbiased_jax.storage.layers import ROWS

# Of more experts what no disguise changes is not read.
_MOST_EXPERTS = 32
READ = 'by names and shapes of tensors, without a forward pass'


@dataclasses.dataclass(frozen=True)
class Weights(Model):
  """A model whose `config` has only its sizes; it cannot be loaded or run."""

  @functools.cached_property
  def config(self) -> ModelConfig:
    """The sizes of its residual stream, MLPs and heads, as a configuration of theirs."""
    return _sizes(self.layout, self._shapes)

  @functools.cached_property
  def layout(self) -> layouts.Layout:
    """Where its features lie; raises InputError if its names or shapes do not fit."""
    return layouts.find(self._shapes, self._settings)

  @property
  def about(self) -> dict:
    """JSON that says which model it is, and what of it was read."""
    of_type = plain(str(self._settings.get('model_type')))[:200]
    about = super().about | {'read': READ, 'model_type': of_type,
                             'stack': plain(self.layout.stack)[:200]}
    left_out = plain(', '.join(self.layout.left_out))[:200]
    return about | ({'left_out': left_out} if left_out else {})

  @property
  def sources(self) -> dict:
    """JSON with the digests of base and adapter, of which the base is read for it; or {}."""
    if self.adapter is None:
      return {}
    base = dataclasses.replace(self, name=self.place, adapter=None)
    return {'base': {'name': base.place, 'digest': tensors.digest_of(base._taken())},
            'adapter': {'name': str(self.adapter), 'digest': read_adapter(self.adapter).digest()}}

  @property
  def num_parameters(self) -> int:
    """The number of all parameters."""
    return sum(math.prod(shape) for shape in self._shapes.values())

  def survey(self) -> Survey:
    """What its weights say. The tensors of one layer are in memory at a time."""
    layers = [self._features_of(i) for i in range(len(self.layout.layers))]
    arrays: dict[str, np.ndarray] = {}
    for group, names in (('units', UNITS), ('heads', VALUES)):
      numbers = _alike_layers(self.layout, group, self._shapes)
      arrays |= {name: np.stack([layers[i][name] for i in numbers]) for name in names
                 if numbers and name in layers[numbers[0]]}
    return Survey(Features(self.config, arrays), self._invariants(),
                  np.ones(self.config.width, np.float32), self._taken())

  def _taken(self):
    return {name: tensors.take(name, tuple(each.shape) or (1,), self._pieces(each))
            for name, each in self._tensors.items() if math.prod(each.shape)}

  def no_states(self, probe: Probe, *, about: dict, on_batch: Callable[[int], None],
                parts: str | os.PathLike | None) -> HiddenStates:
    """The hidden states of a model that cannot be run: none, for no sequence."""
    on_batch(probe.num_sequences)
    nothing = np.zeros((0, self.config.width), np.float32)
    settings = hidden_states.probe_settings(probe, self.config)
    return HiddenStates(nothing, nothing, settings, self.config, about)

  def _features_of(self, number):
    """The stored features of one layer, of whose tensors no more is read than they need."""
    read = functools.cache(lambda name, first: self._tensors[name].read(0, first))
    return features.of_vectors(layouts.read(self._stored, number, read))

  def _invariants(self):
    """What no disguise changes; of many experts it would take too long, and is left out."""
    if self.config.num_experts > _MOST_EXPERTS:
      return {}
    layers = [features.invariants(layouts.read_pieces(
        self.layout, number, functools.cache(lambda name, first: self._tensors[name].read()),
        features.units_at_once(self.config))) for number in range(len(self.layout.layers))]
    layers = _of_most(layers, tuple)
    return {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}

  def _pieces(self, tensor) -> Iterator[np.ndarray]:
    # What no feature reads, such as a mask, may be anything.
    read = tensor.read if isinstance(tensor, Merged) or tensor.stored_name in self._used else (
        lambda first, last: np.nan_to_num(tensor.values(first, last).astype(np.float32)))
    if not tensor.shape:  # A number is one row of one entry.
      yield read(0, None)[None].astype(np.float32)
      return
    step = max(1, ROWS // math.prod(tensor.shape[1:-1]))  # Of experts in one tensor a few.
    for first in range(0, tensor.shape[0], step):
      yield read(first, min(first + step, tensor.shape[0])).astype(np.float32)

  @functools.cached_property
  def _used(self):
    roles = [where for layer in self.layout.layers for sublayer in (*layer.units, *layer.heads)
             for where in sublayer.roles.values()]
    return {name for where in roles for name in (*where.tensors, *(where.through or ()))}

  @functools.cached_property
  def _stored(self):
    return layouts.beginning(self.layout, *features.stored_sizes(self.config))

  @property
  def _settings(self):
    return self.entries or {}

  @functools.cached_property
  def _tensors(self) -> dict[str, Tensor | Merged]:
    if self.kind == 'hub':
      hub.fetch(self.place)
    assert self.files is not None  # `is_unknown` has seen the folder.
    return stored_tensors(self.files, self._settings, self.adapter)

  @functools.cached_property
  def _shapes(self):
    return {name: tuple(each.shape) for name, each in self._tensors.items()}


def is_unknown(model: Model) -> bool:
  """Whether a model is in files, of a family that has no forward pass here, or has no head."""
  entries = model.entries
  if entries is None:
    return False
  family = FAMILIES.get(str(entries.get('model_type')))
  return family is None or not has_head(entries, family)


def weights_of(model: Model) -> Weights:
  """The same model; only its weights are read."""
  return Weights(**{each.name: getattr(model, each.name) for each in dataclasses.fields(model)})


def _sizes(layout, shapes):
  """The configuration with the sizes that most layers have."""
  of_units, of_heads = (_alike_layers(layout, group, shapes) for group in ('units', 'heads'))
  units = layout.layers[of_units[0]].units[0].roles if of_units else {}
  heads = layout.layers[of_heads[0]].heads[0].roles if of_heads else {}
  experts = 1
  if units:
    down = units['down']
    rows, shape = down.rows.shape, shapes[down.tensors[0]]
    stacked = rows[0] if len(rows) == 2 else shape[0] if len(shape) == 3 else 1
    experts = max(len(down.tensors), stacked)
  G, H, K = heads['output'].rows.shape if heads else (1, 1, 2)
  return ModelConfig(
      num_layers=len(layout.layers), width=layout.width, num_heads=G * H, num_kv_heads=G,
      head_size=K, mlp_width=units['down'].rows.shape[-1] if units else 1,
      vocab_size=layout.vocab_size, num_experts=experts, gated_mlp='gate' in units,
      positions='none', norm='layernorm' if layout.centred else 'rmsnorm', length=2**20)


def _alike_layers(layout, group, shapes):
  """The numbers of the layers whose first 'units', or 'heads', are of the most common kind."""
  roles = {i: found[0].roles for i, layer in enumerate(layout.layers)
           if (found := getattr(layer, group))}
  kind = lambda i: tuple(sorted(
      (role, where.rows.shape, len(where.tensors), shapes[where.tensors[0]])
      for role, where in roles[i].items() if where.tensors))
  return _of_most(roles, kind)


def _of_most(items, kind):
  """Those of the most common kind."""
  common = collections.Counter(map(kind, items)).most_common(1)
  return [each for each in items if kind(each) == common[0][0]]
