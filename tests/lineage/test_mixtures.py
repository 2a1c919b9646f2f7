"""Mixtures of experts: descendants are found, and copies of one expert are no evidence."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.comparison.any_basis import units_test
from bornbiased_jax.lineage.comparison.likeness import layers_of
from bornbiased_jax.lineage.comparison.order import order_tests
from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.layouts import UNITS as UNIT_VECTORS
from experiments.transforms import lossy, preserving
from small_networks import DEEP, SMALL, born, logits, random_networks

MIXTURE = configs.get('tiny_moe', **SMALL | dict(num_layers=4, mlp_width=32), num_experts=4)
UNITS = 'unit order', 'unit order, fitted basis'


def drifted(network, seed, strength=1.0):
  """What training makes of a network, each expert by itself: noise of the size of its weights."""
  config, params = network
  normal = np.random.default_rng([seed, 4]).standard_normal
  added = lambda x: x + np.float32(strength) * np.std(x) * normal(x.shape, np.float32)
  return config, params | {'blocks': jax.tree.map(
      lambda x: added(np.asarray(x)) if x.ndim > 2 else x, params['blocks'])}


def upcycled(seed, strength):
  dense = DEEP, born(DEEP, seed)
  return dense, drifted(preserving.upcycle(*dense, jax.random.key(seed), 4), seed, strength)


def z_of(a, b):
  found = order_tests(*(features.of_network(*network) for network in (a, b)))
  return [found[name].z for name in UNITS]


def test_upcycling_changes_nothing_that_is_computed():
  dense, mixture = upcycled(1, 0.0)
  assert mixture[0].num_experts == 4
  np.testing.assert_allclose(logits(*mixture), logits(*dense), atol=2e-5)


def test_an_upcycled_network_is_related_to_its_parent():
  dense, mixture = upcycled(1, 1.0)
  assert min(z_of(dense, mixture)) > 8
  # And an average of its experts to both.
  averaged = lossy.average_experts(*mixture, jax.random.key(0))
  assert averaged[0] == DEEP
  assert min(z_of(dense, averaged)) > 8 and min(z_of(mixture, averaged)) > 8


def test_a_trained_mixture_is_related_to_its_parent():
  parent = MIXTURE, born(MIXTURE, 3)
  assert min(z_of(parent, drifted(parent, 4))) > 8
  averaged = lossy.average_experts(*parent, jax.random.key(0))
  assert min(z_of(parent, averaged)) > 6  # Each expert is alike to a half.


@pytest.mark.parametrize('strength', [0.0, 0.5])
def test_experts_in_another_order_are_no_other_network(strength):
  config, params = drifted((MIXTURE, born(MIXTURE, 3)), 4, strength)
  blocks = params['blocks']
  rolled = {'experts': jax.tree.map(lambda x: np.roll(x, 1, axis=1), blocks['experts']),
            'router': {'kernel': np.roll(blocks['router']['kernel'], 1, axis=2)}}
  other = config, params | {'blocks': blocks | rolled}
  np.testing.assert_allclose(logits(*other), logits(config, params), atol=2e-5)
  assert min(z_of((MIXTURE, born(MIXTURE, 3)), other)) > 5


def test_units_of_experts_in_any_order_and_basis():
  network = MIXTURE, born(MIXTURE, 3)
  a = layers_of(features.of_network(*network), UNIT_VECTORS)
  order_F = np.random.default_rng(0).permutation(32)

  def shuffled(name, kernel_LEXY):
    axis = -2 if name == 'down' else -1
    return {'kernel': np.take(np.asarray(kernel_LEXY), order_F, axis=axis)[:, ::-1]}

  experts = {name: shuffled(name, leaf['kernel'])
             for name, leaf in network[1]['blocks']['experts'].items()}
  changed = network[1] | {'blocks': network[1]['blocks'] | {'experts': experts}}
  embedding = np.asarray(network[1]['embedding'])
  for other, is_alike in ((changed, True), (born(MIXTURE, 5), False)):
    b = layers_of(features.of_network(MIXTURE, other), UNIT_VECTORS)
    assert units_test(a, b, embedding, embedding).is_alike(1) is is_alike


@pytest.mark.parametrize('make', [
    lambda seed: upcycled(seed, 0.0)[1],  # Copies: the evidence of one expert, not of four.
    lambda seed: upcycled(seed, 0.2)[1],
    lambda seed: (MIXTURE, born(MIXTURE, seed))], ids=['copies', 'nearly copies', 'drawn'])
def test_unrelated_mixtures_are_not_related(make):
  networks = [features.of_network(*make(seed)) for seed in range(5)]
  dense = [features.of_network(DEEP, born(DEEP, 50))]
  pairs = [(a, b) for i, a in enumerate(networks) for b in networks[:i]]
  pairs += [(a, b) for a in networks for b in dense]
  z_PU = np.array([[order_tests(*pair)[name].z for name in UNITS] for pair in pairs])
  assert z_PU.max() < 3.5 and (z_PU.mean(axis=0) < 0.5).all()
  assert (z_PU.std(axis=0) < 1.5).all()


def test_only_the_first_experts_of_a_large_mixture_are_stored(monkeypatch):
  # With room for 16 units of two experts a layer. The programs of MIXTURE know all four.
  config = dataclasses.replace(MIXTURE, mlp_width=40)
  monkeypatch.setattr(features, 'MOST_NUMBERS', 2 * 16 * 3 * config.num_layers * config.width)
  found = features.of_network(config, *random_networks(config, 1))
  assert found.arrays['up'].shape == (4, 16, 2, 32)
  assert {name: x.shape for name, x in found.arrays.items()} == features.shapes(config)


@pytest.mark.parametrize('change', [
    preserving.permute_units, preserving.rotate_channels, preserving.scale_channels,
    lambda *network: lossy.remove_units(*network, 0.5),
    lambda *network: preserving.upcycle(*network, 2)])
def test_what_knows_no_experts_says_so(change):
  with pytest.raises(InputError, match='num_experts=4'):
    change(MIXTURE, born(MIXTURE, 1), jax.random.key(0))


def test_a_network_without_experts_has_none_to_average():
  with pytest.raises(InputError, match='no experts'):
    lossy.average_experts(DEEP, born(DEEP, 0), jax.random.key(0))


def test_units_of_the_average_expert_have_length_one():
  found = features.average_experts(features.of_network(MIXTURE, born(MIXTURE, 3))).arrays
  np.testing.assert_allclose(np.linalg.norm(found['up'], axis=-1), 1, rtol=1e-5)
