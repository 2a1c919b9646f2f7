"""Layers that correspond are found whatever was exchanged or turned, and never by an order."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.lineage.comparison.likeness import align, layer_spectra, layers_of
from bornbiased_jax.lineage.comparison.order import order_tests
from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.layouts import UNITS, VALUES
from bornbiased_jax.lineage.thresholds import ALPHA
from experiments.transforms import lossy, preserving, surgery
from small_networks import altered, trained
from small_signatures import noise, random_features, unit

DEEP = {name: configs.get(name, num_layers=6, width=64, mlp_width=128, num_heads=4, vocab_size=70)
        for name in ('tiny_llama2', 'tiny_gpt2')}
DROPPED, MOVED = [0, 1, 3, 4, 5], [0, 4, 1, 2, 3, 5]


def of_layers(network, group=UNITS):
  return layers_of(features.of_network(*network), group)


@functools.cache
def base(name):
  return DEEP[name], trained(DEEP[name], 1)


@functools.cache
def turned(name):
  return altered(preserving.rotate_channels, *base(name), jax.random.key(0))


@pytest.mark.parametrize('name, group', [
    ('tiny_llama2', UNITS), ('tiny_gpt2', UNITS), ('tiny_llama2', VALUES)],
    ids=['gated units', 'units', 'values'])
def test_neither_orders_nor_a_rotation_change_the_spectra(name, group):
  changed = altered(preserving.permute_units, *turned(name), jax.random.key(1))
  changed = altered(preserving.permute_heads, *changed, jax.random.key(2))
  ours, theirs = (layer_spectra(of_layers(each, group)) for each in (base(name), changed))
  # Features are stored as float16.
  np.testing.assert_allclose(ours, theirs, atol=2e-3 * np.abs(ours).max())


def test_signs_that_do_not_matter_do_not_count():
  """Of a gated unit, what it multiplies and what it writes may change signs together."""
  config, params = base('tiny_llama2')
  own = features.of_network(config, params)
  sign = np.sign(noise(3, *own.arrays['up'].shape[:2], 1))
  other = dataclasses.replace(own, arrays=own.arrays | {
      name: own.arrays[name] * sign for name in ('up', 'down')})
  ours, theirs = (layer_spectra(layers_of(each, UNITS)) for each in (own, other))
  np.testing.assert_allclose(ours, theirs, atol=2e-3 * np.abs(ours).max())


def test_many_units_in_one_direction_have_spectra():
  """Their Gram matrix is of rank 1, and its rounding more than what keeps others definite."""
  one = {name: unit(noise(i, 128)).astype(np.float16)
         for i, name in enumerate(('up', 'down'))}
  layers = [{name: np.tile(x.astype(dtype), (1024, 4, 1)) for name, x in one.items()}
            for dtype in (np.float32, np.float64)]
  ours, exact = (layer_spectra([layer]) for layer in layers)
  np.testing.assert_allclose(ours, exact, atol=2e-3 * np.abs(exact).max())


@pytest.mark.parametrize('name, order', [
    ('tiny_llama2', DROPPED), ('tiny_gpt2', MOVED), ('tiny_llama2', [3, 4, 5, 0, 1, 2]),
    ('tiny_llama2', [0, 3, 2, 1, 4, 5])],
    ids=['dropped', 'moved', 'halves exchanged', 'two exchanged'])
def test_layers_are_found_where_they_went(name, order):
  noisy = lossy.add_noise(*turned(name), jax.random.key(3), 0.05)
  other = altered(functools.partial(lossy.order_layers, order=order), *noisy)
  pairs, is_sure = align(layer_spectra(of_layers(base(name))), layer_spectra(of_layers(other)))
  assert is_sure and set(pairs) <= {(layer, place) for place, layer in enumerate(order)}
  assert len(pairs) >= 4
  back, _ = align(layer_spectra(of_layers(other)), layer_spectra(of_layers(base(name))))
  assert [(j, i) for i, j in back] == pairs


@pytest.mark.parametrize('name, change', [
    ('tiny_llama2', functools.partial(lossy.order_layers, order=DROPPED)),
    ('tiny_gpt2', functools.partial(lossy.order_layers, order=MOVED)),
    ('tiny_llama2', surgery.average_layers)], ids=['dropped', 'moved', 'averaged'])
def test_a_turned_copy_with_other_layers_is_found(name, change):
  own, other = (features.of_network(*each) for each in (
      base(name), altered(change, *turned(name))))
  found = order_tests(own, other)
  fitted = [each.log10_p for test, each in found.items() if test.endswith('fitted basis')]
  assert max(fitted) <= np.log10(ALPHA / 4)


def test_independent_layers_correspond_by_number_or_by_the_shortest_way():
  config = DEEP['tiny_llama2']
  shorter = dataclasses.replace(config, num_layers=4)
  a, same, short = (layer_spectra(layers_of(random_features(each, seed), UNITS))
                    for seed, each in enumerate((config, config, shorter)))
  assert align(a, same) == ([(i, i) for i in range(6)], False)
  both = np.concatenate((a, short))
  distance_LM = np.mean((a[:, None] - short)**2 / both.var(axis=0), axis=-1)
  ways = itertools.combinations(range(6), 4)
  best = min(ways, key=lambda way: sum(distance_LM[i, j] for j, i in enumerate(way)))
  for pairs, is_sure in (align(a, short), [[p[::-1] for p in align(short, a)[0]], False]):
    assert not is_sure and list(map(tuple, pairs)) == [(i, j) for j, i in enumerate(best)]


def test_orders_that_were_chosen_by_chance_are_never_evidence():
  """Random layers, aligned as sure or not: p-values are no smaller than they should be."""
  config = DEEP['tiny_gpt2']
  log10_p = []
  for seed in range(12):
    own, other = (random_features(config, 2 * seed + i) for i in (0, 1))
    order = np.random.default_rng(seed).permutation(6)
    # Layers of the other network with the units of the first, in a random order.
    mixed = {name: x[order] for name, x in own.arrays.items()}
    place = np.argsort(noise(seed, 6, 128), axis=1)
    mixed |= {name: np.take_along_axis(mixed[name], place[..., None], 1) for name in ('up', 'down')}
    for second in (other, dataclasses.replace(other, arrays=mixed)):
      log10_p += [order_tests(own, second)[name].log10_p
                  for name in ('unit order', 'unit order, fitted basis')]
  assert min(log10_p) > -4 and np.mean(np.array(log10_p) <= -1) < 0.2
