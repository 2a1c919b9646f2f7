"""Patterns that unrelated networks share are no evidence, and would be without the bounds."""

import numpy as np
import pytest

from bornbiased_jax.lineage.testing import structure
from bornbiased_jax.lineage.testing.likeness import likeness, mean_of
from bornbiased_jax.lineage.testing.permutation import block_test

WIDTH, UNITS, LAYERS = 24, 48, 4


def network(random, kind, public):
  """Units of a network of random features with a pattern."""
  layers = []
  for layer in range(LAYERS):
    layer_of = {}
    for name in ('up', 'down'):
      x = random.standard_normal((UNITS, WIDTH))
      if kind == 'near the identity':
        x += 1.5 * np.tile(np.eye(WIDTH), (2, 1))
      if kind == 'tiled':
        x = np.tile(x[:6], (8, 1))
      if kind == 'low rank':
        x = public[layer] @ random.standard_normal((3, WIDTH))
      x /= np.linalg.norm(x, axis=1, keepdims=True)
      layer_of[name] = x.reshape(-1, 4, WIDTH)
    layers.append(layer_of)
  return layers


@pytest.mark.parametrize('kind', ['near the identity', 'tiled', 'low rank'])
def test_a_public_pattern_is_no_evidence(kind):
  random = np.random.default_rng(0)
  public = random.choice([-1.0, 1.0], (LAYERS, UNITS, 3))
  plain, guarded = [], []
  for _ in range(60):
    a, b = (network(random, kind, public) for _ in range(2))
    pairs = list(zip(a, b, strict=True))
    matrix = mean_of(likeness(*pair) for pair in pairs)
    plain.append(block_test(matrix).z)
    guarded.append(block_test(matrix, structure.unconnected_bound(a, b),
                              structure.inflation(pairs)).z)
  assert max(plain) > 4.06 > 3.5 > max(guarded)


def test_copies_of_a_layer_are_left_out():
  layers = network(np.random.default_rng(1), 'none', None)
  assert len(structure.distinct_layers([*layers, layers[1], layers[0]])) == LAYERS


def test_independent_features_are_not_inflated():
  random = np.random.default_rng(2)
  found = [structure.inflation(list(zip(network(random, 'none', None),
                                        network(random, 'none', None), strict=True)))
           for _ in range(5)]
  assert max(found) < 1.15
