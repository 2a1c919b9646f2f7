"""The signature of a model: all that a verdict reads of it, taken once, saved, compared later.

It holds the configuration, the directions of hidden features and what no disguise changes of them
(`features`), the last-token hidden states for a probe, and of each tensor a SHA-256 digest and
1,024 entries. At the shapes of a model of 7 billion parameters, with 2,000 sequences, these are
about 130 MB. Whoever gets it learns the directions of the stored features, some of the weights, and
nothing of the text that was learned.
"""

from collections.abc import Callable
import dataclasses
import math
import os

import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, is_plain
from bornbiased_jax.lineage.evidence import array_file, features, hidden_states, tensors
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates
from bornbiased_jax.lineage.evidence.tensors import TensorSample
from bornbiased_jax.lineage.layouts import UNITS, VALUES
from bornbiased_jax.storage.layers import Layers, in_memory

_PREFIX, _INVARIANT = 'feature ', 'invariant '
# What `about` says in one text, such as a path.
_LONGEST = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
  """The part of a signature that parameters give without a forward pass.

  Attributes:
    features: the model's hidden features.
    invariants: what no disguise changes of its layers (`features.invariants`), [L, 64] each.
    gain_D: the gains of its final norm.
    tensors: its tensors by name.
  """

  features: Features
  invariants: dict[str, np.ndarray]
  gain_D: np.ndarray
  tensors: dict[str, TensorSample]

  @property
  def digest(self) -> str:
    """SHA-256 of all parameters (`digests.digest`)."""
    return tensors.digest_of(self.tensors)

  def signature(self, states: HiddenStates) -> 'Signature':
    """The signature of the model that has these hidden states."""
    return Signature(**vars(self), states=states)


@dataclasses.dataclass(frozen=True, eq=False)
class Signature(Survey):
  """What a verdict reads of a model.

  Attributes:
    states: its hidden states for a probe, of kind 'pairs' if it is for a verdict.
  """

  states: HiddenStates

  @property
  def config(self) -> ModelConfig:
    """The model's architecture."""
    return self.states.config

  @property
  def about(self) -> dict:
    """JSON that says which model it is."""
    return self.states.about

  @property
  def num_parameters(self) -> int:
    """The number of all parameters."""
    return sum(math.prod(each.shape) for each in self.tensors.values())

  @property
  def normalized_ND(self) -> np.ndarray:
    """The hidden states without the gains of the final norm, which belong to a basis."""
    return np.divide(self.states.hidden_ND, self.gain_D, where=self.gain_D != 0,
                     out=np.zeros_like(self.states.hidden_ND))

  def save(self, path: str | os.PathLike) -> None:
    """Writes a safetensors file, which appears whole or not at all."""
    arrays = {_PREFIX + name: x for name, x in self.features.arrays.items()}
    arrays |= {_INVARIANT + name: x for name, x in self.invariants.items()}
    arrays |= {name: getattr(self.states, name) for name in hidden_states.ARRAYS}
    arrays |= {'gain_D': self.gain_D,
               'samples': np.stack([each.sample for each in self.tensors.values()])}
    array_file.write(path, arrays, self.states.metadata() | {'tensors': {
        name: {'digest': each.digest, 'shape': each.shape}
        for name, each in self.tensors.items()}})


def survey(layers: Layers) -> Survey:
  """Reads every parameter of a model once."""
  takers = {name: tensors.Taker(name, shape) for name, shape in layers.shapes.items()}
  found: list[dict[str, np.ndarray]] = []
  numbers: list[dict[str, np.ndarray]] = []

  def on_block(block):
    found.append(features.of_layer(layers.config, block))
    numbers.append(features.invariants_of_layer(layers.config, block))

  for name, piece in layers.leaves(on_block):
    takers[name].see(piece)
  scale = 'final_norm/scale'
  return Survey(features.stacked(layers.config, found),
                {name: np.stack([layer[name] for layer in numbers]) for name in numbers[0]},
                np.array(layers.read_rows(scale, 0, layers.shapes[scale][0])),
                {name: taker.tensor() for name, taker in takers.items()})


def load(path: str | os.PathLike) -> Signature:
  """Loads a saved signature, which may come from a stranger."""
  return array_file.read(path, _from_archive)


def _from_archive(arrays, metadata):
  states = hidden_states.from_archive(arrays, metadata)
  found, numbers = ({name.removeprefix(prefix): x for name, x in arrays.items()
                     if name.startswith(prefix)} for prefix in (_PREFIX, _INVARIANT))
  wanted = features.shapes(states.config)
  # A network that was read by names may lack features, in some of its layers or in all.
  by_names, most = not len(states.hidden_ND), states.config.num_layers
  array_file.check((found.keys() == wanted.keys() or by_names)
                and all(x.shape[1:] == wanted[name][1:] and x.dtype == np.float16
                        and (0 < len(x) <= most if by_names else len(x) == most)
                        for name, x in found.items())
                and all(found.keys() >= {*group} - {'gate'} for group in (UNITS, VALUES)
                        if found.keys() & {*group})
                and numbers.keys() <= {*features.INVARIANTS}
                and all(x.ndim == 2 and x.dtype == np.float32 and 0 < len(x) <= most
                        and x.shape[1] == len(features.QUANTILES) for x in numbers.values())
                and len({*map(len, numbers.values())}) < 2
                and arrays['gain_D'].shape == (states.config.width,) and _is_about(states.about))
  return Signature(Features(states.config, found), numbers, arrays['gain_D'],
                   _tensors(arrays['samples'], metadata['tensors']), states)


def _is_about(about) -> bool:
  """Whether JSON that goes to reports has texts and numbers of one line; of parts it may too."""
  return all(_is_about(value) if name in ('base', 'adapter') and isinstance(value, dict) else
             type(value) is int or (isinstance(value, str) and len(value) < _LONGEST
                                    and is_plain(value)) for name, value in about.items())


def _tensors(sample_MS, described) -> dict[str, TensorSample]:
  array_file.check(sample_MS.shape == (len(described), tensors.SAMPLE_SIZE)
                and sample_MS.dtype == np.float32)
  return {str(name): TensorSample(str(each['digest']), tuple(map(int, each['shape'])), sample)
          for (name, each), sample in zip(described.items(), sample_MS, strict=True)}


def pairs_probe(probe: Probe) -> Probe:
  """The probe of a signature that goes with a probe of random tokens."""
  if probe.kind not in ('tokens', 'pairs'):
    raise InputError(f'a signature reads random tokens, not a probe of kind {probe.kind!r}')
  return dataclasses.replace(probe, kind='pairs')


def of_network(config: ModelConfig, params: dict, probe: Probe, about: dict | None = None,
               on_batch: Callable[[int], None] = lambda sequences: None) -> Signature:
  """The signature of a model.

  Raises:
    InputError: as `hidden_states.of_network` does.

  Example:
    >>> from bornbiased_jax import analysis, configs, models
    >>> config = configs.get('tiny_gpt2')
    >>> params = models.init_params(config, 42)
    >>> of_network(config, params, analysis.Probe('tokens', 1000, 4)).states.hidden_ND.shape
    (1000, 128)
  """
  states = hidden_states.of_network(config, params, pairs_probe(probe), about=about,
                                    on_batch=on_batch)
  return survey(in_memory(config, params)).signature(states)
