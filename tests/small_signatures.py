"""Small signatures: of random networks, and of nothing but random numbers."""

import functools

import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage.evidence import features, hidden_states, signature
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates
from bornbiased_jax.lineage.evidence.signature import Signature
from bornbiased_jax.lineage.evidence.tensors import TensorSample
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
  return Features(config, {name: unit(x, (-2, -1) if name == 'output' else -1)
                           for name, x in made.items()})


def random_states(config, seed, probe=PROBE):
  hidden_ND, input_ND = noise([seed, 7], 2, probe.num_sequences, config.width)
  return HiddenStates(hidden_ND, input_ND, hidden_states.probe_settings(probe, config), config,
                      {'name': f'random {seed}'})


def random_signature(config, seed, probe=PROBE):
  up = TensorSample(f'digest {seed}', (4, 32, 64), noise([seed, 8], 1024))
  numbers = {name: noise([*np.atleast_1d(seed), 9, i], config.num_layers, 64)
             for i, name in enumerate(features.INVARIANTS)}
  return Signature(random_features(config, seed), numbers, np.ones(config.width, np.float32),
                   {'blocks/up/kernel': up}, random_states(config, seed, probe))
