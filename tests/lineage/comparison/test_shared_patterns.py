"""Patterns that unrelated networks share are no evidence, and would be without the bounds."""

import numpy as np
import pytest

from bornbiased_jax.lineage.comparison import shared_patterns
from bornbiased_jax.lineage.comparison.likeness import likeness, mean_of
from bornbiased_jax.lineage.comparison.permutation import block_test
from bornbiased_jax.lineage.layouts import VALUES
from bornbiased_jax.lineage.thresholds import ALPHA, level_z
from small_signatures import unit

WIDTH, COUNT, LAYERS = 24, 48, 4
RELATED = level_z(ALPHA / 4)
PUBLIC = np.random.default_rng(7).choice([-1.0, 1.0], (LAYERS, COUNT, 3))


def network(random, kind, names=('up', 'down')):
  """The features of a random network with a pattern, layer by layer."""
  def vectors(layer):
    x = random.standard_normal((COUNT, WIDTH))
    if kind == 'near the identity':
      x += 1.5 * np.tile(np.eye(WIDTH), (2, 1))
    if kind == 'near another one in every second layer':
      x += 2.5 * np.tile(np.eye(WIDTH)[::-1 if layer % 2 else 1], (2, 1))
    if kind == 'tiled':
      x = np.tile(x[:6], (8, 1))
    if kind == 'of one factor':
      x = PUBLIC[layer] @ random.standard_normal((3, WIDTH))
    shape = {'value': (2, -1, 4, WIDTH), 'output': (2, -1, 4, 1, WIDTH)}
    return lambda name: unit(x).reshape(shape.get(name, (-1, 4, WIDTH)))

  return [{name: vectors(layer)(name) for name in names} for layer in range(LAYERS)]


def pairs_of(kind, count, names=('up', 'down')):
  random = np.random.default_rng(0)
  return [(network(random, kind, names), network(random, kind, names)) for _ in range(count)]


def z_of(a, b, *guards):
  return block_test(mean_of(map(likeness, a, b)), *guards).z


def guards(a, b):
  pairs = list(zip(a, b, strict=True))
  return shared_patterns.unconnected_bound(a, b), shared_patterns.inflation(pairs)


@pytest.mark.parametrize('kind, names', [
    ('near the identity', ('up', 'down')), ('near the identity', ('gate', 'up', 'down')),
    ('near another one in every second layer', ('up', 'down')),
    ('near the identity', VALUES), ('tiled', ('up', 'down')), ('tiled', VALUES),
    ('of one factor', ('up', 'down'))])
def test_a_public_pattern_is_no_evidence(kind, names):
  pairs = pairs_of(kind, 60, names)
  assert max(z_of(*pair) for pair in pairs) > RELATED
  assert max(z_of(*pair, *guards(*pair)) for pair in pairs) < RELATED - 0.5


@pytest.mark.parametrize('kind, spread', [('none', 1), ('tiled', 8**0.5), ('of one factor', None)])
def test_z_spreads_as_much_as_the_inflation_says(kind, spread):
  """Of units that are repeated 8 times an eighth is independent."""
  pairs = pairs_of(kind, 120)
  z = np.array([z_of(*pair) for pair in pairs])
  said = np.array([guards(*pair)[1] for pair in pairs])
  assert 0.75 < np.std(z / said) < 1.25
  assert said.mean() == pytest.approx(spread, rel=0.1) if spread else said.mean() > 2


def test_the_bound_is_of_what_both_have():
  a, b = (network(np.random.default_rng(seed), 'near the identity') for seed in (0, 1))
  plain = network(np.random.default_rng(2), 'none')
  bound = shared_patterns.unconnected_bound
  assert bound(a, b) > 1.5 * max(bound(a, plain), bound(plain, b)) > 0
  in_common = block_test(mean_of(map(likeness, a, b))).statistic
  assert in_common < bound(a, b) < 2 * in_common


def test_layers_grown_from_one_are_seen_however_far_apart():
  """Of a stacked network that went on to train: layer 6 + i resembles layer i."""
  random = np.random.default_rng(0)
  small = [layer for _ in range(2) for layer in network(random, 'none')][:6]
  own = [layer for _ in range(3) for layer in network(random, 'none')]
  grown = [{name: unit(0.5 * small[i % 6][name] + 0.75**0.5 * x) for name, x in layer.items()}
           for i, layer in enumerate(own)]
  assert shared_patterns.distinct_layers(grown) == grown
  assert shared_patterns.unconnected_bound(grown, grown) > 0.15 > 0.03 > (
      shared_patterns.unconnected_bound(own, own))


def test_copies_of_a_layer_are_left_out():
  random = np.random.default_rng(1)
  layers = network(random, 'none')
  noisy = {name: unit(x + 0.15 * random.standard_normal(x.shape)) for name, x in layers[1].items()}
  found = shared_patterns.distinct_layers([*layers, noisy, layers[0]])
  assert found == layers


@pytest.mark.parametrize('depths, strength', [((6, 6), 0.6), ((6, 6), 1.5), ((2, 6), 0.6)])
def test_a_pattern_of_every_other_layer_is_no_evidence_however_strong(depths, strength):
  """Strong ones make layers look like copies, and two layers alone do not show that it recurs."""
  def layers(seed, depth):
    random, pattern = np.random.default_rng(seed), np.tile(np.eye(WIDTH), (2, 1))
    return [{name: unit(random.standard_normal((COUNT, WIDTH)) / WIDTH**0.5
                        + strength * pattern[:, ::-1 if layer % 2 else 1]).reshape(-1, 4, WIDTH)
             for name in ('up', 'down')} for layer in range(depth)]

  whole = [layers(seed, depth) for seed, depth in enumerate(depths)]
  a, b = map(shared_patterns.distinct_layers, whole)
  assert len(b) == (2 if strength > 1 else 6)
  bound = max(shared_patterns.unconnected_bound(a, b), shared_patterns.recurring_bound(*whole))
  found = mean_of(likeness(x, y) for x in a for y in b)
  assert block_test(found).z > 6 and block_test(found, bound).z < 2


def test_of_many_blocks_some_stand_for_all(monkeypatch):
  pairs = [(a[0], b[0]) for a, b in pairs_of('of one factor', 12)]
  whole = shared_patterns.inflation(pairs)
  monkeypatch.setattr(shared_patterns, '_MOST_BLOCKS', 6)
  assert whole > 1.5 and shared_patterns.inflation(pairs) == pytest.approx(whole, rel=0.2)
