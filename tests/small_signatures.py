"""Small signatures: of random networks, and of nothing but random numbers."""

import functools

import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage.evidence import features, hidden_states, invariants, signature
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates
from bornbiased_jax.lineage.evidence.signature import Signature
from bornbiased_jax.lineage.evidence.tensors import Tensor
from bornbiased_jax.lineage.layouts import UNITS
from small_networks import trained

PROBE = Probe('pairs', 1000, 4)
shapes = functools.cache(features.shapes)


def noise(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def unit(x, axes=-1):
  return x / np.sqrt((x**2).sum(axis=axes, keepdims=True))


@functools.cache
def of_seed(config, seed, probe=PROBE):
  """The signature of a random network, with gains and biases as of a trained one."""
  return signature.of_network(config, trained(config, seed), probe)


def random_features(config, seed):
  """Features that have nothing in common with those of another seed."""
  made = {name: noise([*np.atleast_1d(seed), i], *shape)
          for i, (name, shape) in enumerate(sorted(shapes(config).items()))}
  return features_of(config, {name: unit(x, (-2, -1) if name == 'output' else -1)
                              for name, x in made.items()})


def features_of(config, arrays):
  """Features with these arrays, and the invariants that layers with such vectors have."""
  def of_layer(i):
    own = {name: x[i].astype(np.float32) for name, x in arrays.items()}
    heads = {'value': own['value'], 'output': np.swapaxes(own['output'], 1, 2)
             } if 'value' in own else {}
    units = {name: x for name, x in own.items() if name in UNITS}
    return invariants.of_layer([part for part in (units, heads) if part])

  layers = [of_layer(i) for i in range(min(map(len, arrays.values())))]
  return Features(config, arrays, {name: np.stack([each[name] for each in layers])
                                   for name in layers[0]})


def random_states(config, seed, probe=PROBE):
  hidden_ND, input_ND = noise([seed, 7], 2, probe.num_sequences, config.width)
  return HiddenStates(hidden_ND, input_ND, hidden_states.probe_settings(probe, config), config,
                      {'name': f'random {seed}'})


def random_signature(config, seed, probe=PROBE):
  tensors = {'blocks/up/kernel': Tensor(f'digest {seed}', (4, 32, 64), noise([seed, 8], 1024))}
  return Signature(random_features(config, seed), np.ones(config.width, np.float32),
                   tensors, random_states(config, seed, probe))
