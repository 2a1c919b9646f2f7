"""Likenesses of features against their definition, and which layers and units they compare."""

import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import likeness
from bornbiased_jax.lineage.features import UNITS, VALUES


def unit_vectors(seed, *shape):
  x = np.random.default_rng(seed).standard_normal(shape)
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def units(seed, names=UNITS, layers=2, count=5):
  return {name: unit_vectors([seed, i], layers, count, 8) for i, name in enumerate(names)}


def of_layer(network, layer=0):
  return {name: x[layer] for name, x in network.items()}


@pytest.mark.parametrize('names', [UNITS, [name for name in UNITS if name != 'gate']])
def test_a_unit_is_wholly_like_itself_alone(names):
  own = of_layer(units(0, names))
  likeness_UU = likeness.unit_likeness(own, own)
  np.testing.assert_allclose(likeness_UU.diagonal(), 1)
  assert likeness_UU[~np.eye(5, dtype=bool)].max() < 1


def test_up_and_down_change_their_sign_together_where_there_is_a_gate():
  own, other = of_layer(units(0)), of_layer(units(1))
  flipped = other | {name: -other[name] for name in ('up', 'down')}
  compare = likeness.unit_likeness
  np.testing.assert_allclose(compare(own, flipped), compare(own, other))
  without = lambda x: {name: x[name] for name in ('up', 'down')}
  np.testing.assert_allclose(compare(without(own), without(flipped)),
                             -compare(without(own), without(other)))


def test_value_channels_are_compared_within_heads():
  own, other = ({name: unit_vectors([seed, i], 3, 4, 8) for i, name in enumerate(VALUES)}
                for seed in (0, 1))
  cosine = lambda name, head, i, j: own[name][head, i] @ other[name][head, j]
  plain = [[np.mean([cosine('value', head, i, j) * cosine('output', head, i, j)
                     for head in range(3)]) for j in range(4)] for i in range(4)]
  np.testing.assert_allclose(likeness.value_likeness(own, other), plain)


def test_layers_of_one_number_are_compared_and_otherwise_all():
  of = lambda a, b: [(float(x['up'][0]), float(y['up'][0]))
                     for x, y in likeness.layers_of(a, b, ['up'])]
  two, three = ({'up': np.arange(float(count))[:, None]} for count in (2, 3))
  assert of(two, two) == [(0, 0), (1, 1)]
  assert of(two, three) == [(i, j) for i in range(2) for j in range(3)]


def test_dead_layers_and_units_are_left_out_of_both():
  a, b = units(0, layers=3), units(1, layers=3)
  for name in UNITS:
    a[name][0] = 0
    b[name][2, 3] = 0
  left = likeness.living(a, b, list(UNITS))
  for name in UNITS:
    np.testing.assert_array_equal(left[0][name], a[name][1:][:, [0, 1, 2, 4]])
    np.testing.assert_array_equal(left[1][name], b[name][1:][:, [0, 1, 2, 4]])
  with pytest.raises(InputError, match='too few living MLP units'):
    likeness.living(a, {name: np.zeros_like(x) for name, x in b.items()}, list(UNITS))


def test_networks_that_cannot_be_compared():
  gated = units(0)
  plain = {name: x for name, x in gated.items() if name != 'gate'}
  assert set(likeness.common_names(plain, plain, UNITS, 'MLP units')) == {'up', 'down'}
  with pytest.raises(InputError, match='only one of them has gated units'):
    likeness.common_names(gated, plain, UNITS, 'MLP units')
  with pytest.raises(InputError, match='a network has no value channels'):
    likeness.common_names(gated, gated, VALUES, 'value channels')
