"""Order tests find descendants in any basis, width and depth, and nothing in unrelated networks."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from bornbiased_jax import configs
from bornbiased_jax.lineage import layouts
from bornbiased_jax.lineage.comparison.likeness import layers_of
from bornbiased_jax.lineage.comparison.order import Public, order_tests, orthonormal, plain_test
from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.thresholds import ALPHA
from experiments.transforms import preserving
from small_networks import (
  DEEP,
  DEEP_GPT2,
  GEMMA2,
  GROUPED,
  OLMO3,
  altered,
  random_networks,
  trained,
)
from small_signatures import noise, random_features, unit

UNITS, VALUES, FITTED = 'unit order', 'value order', ', fitted basis'
RELATED = np.log10(ALPHA / 4)
WIDE = {name: configs.get(name, num_layers=4, width=64, mlp_width=128, num_heads=4, vocab_size=70)
        for name in ('tiny_llama2', 'tiny_gpt2')}


@functools.cache
def base(config):
  return config, trained(config, 1)


def judged(first, *changes):
  """Results of a network and what changes make of it."""
  second = first
  for change in changes:
    second = change(*second)
  return order_tests(features.of_network(*first), features.of_network(*second))


def noisy(config, params):
  """With noise of half the size of the matrices, drawn in numpy."""
  normal = np.random.default_rng(1).standard_normal
  added = lambda x: x + 0.5 * np.std(x) * normal(x.shape, np.float32) if x.ndim == 3 else x
  return config, params | {'blocks': jax.tree.map(added, params['blocks'])}


def found(results):
  return {name for name, each in results.items() if each.counts and each.log10_p <= RELATED}


@pytest.mark.parametrize('config', [DEEP, DEEP_GPT2, GROUPED], ids=['llama', 'gpt2', 'grouped'])
def test_unrelated_networks_have_nothing_in_common(config):
  networks = [random_features(config, seed) for seed in range(8)]
  results = [order_tests(*pair) for pair in itertools.combinations(networks, 2)]
  for name in results[0]:
    log10_p = np.array([each[name].log10_p for each in results])
    assert np.mean(log10_p <= -1) < 0.15 and log10_p.min() > -3


@pytest.mark.parametrize('config', [GROUPED, DEEP_GPT2, OLMO3, GEMMA2],
                         ids=['grouped', 'gpt2', 'olmo3', 'gemma2'])
def test_descendants_keep_the_order_of_all_that_was_not_permuted(config):
  assert {UNITS, VALUES} <= found(judged(base(config), noisy))
  permuted = judged(base(config), noisy, lambda *x: preserving.permute_units(
      *x, jax.random.key(2)))
  assert VALUES in found(permuted) and not {UNITS, UNITS + FITTED} & found(permuted)


@pytest.mark.slow
@pytest.mark.parametrize('config, change', [
    (WIDE['tiny_llama2'], preserving.rotate_channels),
    (WIDE['tiny_llama2'], preserving.flip_channels)])
def test_a_descendant_in_another_basis_is_found_in_the_fitted_one(config, change):
  results = judged(base(config), lambda *x: altered(change, *x, jax.random.key(0)), noisy)
  assert {UNITS + FITTED, VALUES + FITTED} <= found(results)
  assert UNITS not in found(results)
  # If most channels change their sign, so do both cosines of which values have the product.
  assert (VALUES in found(results)) == (change is preserving.flip_channels)


@pytest.mark.parametrize('width', [40, 48, 96])
def test_a_narrower_or_wider_descendant_is_found(width):
  """Its residual channels are mixtures of those of its ancestor."""
  config = WIDE['tiny_llama2']
  own = features.of_network(*base(config))
  left, _, right = np.linalg.svd(np.random.default_rng(0).standard_normal((64, width)),
                                 full_matrices=False)
  other = Features(dataclasses.replace(config, width=width, head_size=16),
                   {name: x @ (left @ right) for name, x in own.arrays.items()})
  results = order_tests(own, other)
  assert '64 and' in results[UNITS].reason and not results[UNITS].applies
  assert found(results) == {UNITS + FITTED, VALUES + FITTED}
  unrelated = order_tests(random_features(config, 2), other)
  assert not found(unrelated) and unrelated[UNITS + FITTED].counts


def of_layers(order):
  """Takes layers in an order; of an unrelated network, counted from 10."""
  def change(config, params):
    both = jax.tree.map(lambda x, y: np.concatenate((x, y)), params['blocks'],
                        trained(config, 2)['blocks'])
    index = np.array([i if i < 10 else i - 10 + config.num_layers for i in order])
    return (dataclasses.replace(config, num_layers=len(order)),
            params | {'blocks': jax.tree.map(lambda x: x[index], both)})

  return change


@pytest.mark.parametrize('order', [
    (1, 2, 3, 0), (0, 2, 1, 3), (0, 1, 1, 2, 3), (0, 1, 2), (0, 1, 10, 2, 3), (10, 0, 1, 2)])
def test_layers_that_were_moved_repeated_dropped_or_inserted(order):
  results = judged(base(DEEP), of_layers(order), noisy)
  assert {UNITS, VALUES} <= found(results) and results[UNITS].statistic > 0.3


def test_each_layer_counts_once_if_it_is_found_elsewhere():
  """Two of four layers, which correspond to others than was thought, are all that is there."""
  a = layers_of(features.of_network(*base(DEEP)), layouts.UNITS)
  b = [a[2], a[0]]
  result = plain_test(a, b, [(a[0], b[0]), (a[1], b[1])], Public(0.0, 1.0, {}), is_sure=False)
  assert result.statistic == pytest.approx(1, abs=0.1)


def test_two_layers_that_agree_are_more_than_one_wherever_they_are():
  """Which layers were kept may be matched wrongly; what remains without the best pair shows it."""
  for seed in range(8):
    whole, own = (random_features(dataclasses.replace(DEEP, num_layers=each), [seed, each])
                  for each in (4, 2))
    kept = {name: unit(0.7 * whole.arrays[name][[0, 3]] + 0.7 * x,
                       (-2, -1) if name == 'output' else -1) for name, x in own.arrays.items()}
    assert order_tests(whole, Features(own.config, kept))[UNITS].log10_p_of_rest <= RELATED


def test_one_distinct_layer_does_not_apply():
  results = order_tests(*(features.of_network(*of_layers(order)(*base(DEEP)))
                          for order in ((1, 1, 1, 1), (1, 1))))
  assert all('one layer' in each.reason and not each.applies for each in results.values())


def test_heads_that_differ_in_number_are_compared_all_with_all():
  """Here heads are cut, and grouped ones repeated for each of their query heads."""
  def cut(config, params):
    size, blocks = 3 * config.head_size, params['blocks']
    kept = {name: {'kernel': blocks[name]['kernel'][..., -size:]}
            for name in ('query', 'key', 'value')}
    kept['output'] = {'kernel': blocks['output']['kernel'][:, -size:]}
    return (dataclasses.replace(config, num_heads=3, num_kv_heads=3, head_size=config.head_size),
            params | {'blocks': blocks | kept})

  def repeated(config, params):
    def each(x):
      x = x.reshape(*x.shape[:2], config.num_kv_heads, config.head_size)
      return jnp.repeat(x, 2, axis=2).reshape(*x.shape[:2], -1)

    blocks = params['blocks'] | {
        name: {'kernel': each(params['blocks'][name]['kernel'])} for name in ('key', 'value')}
    return dataclasses.replace(config, num_kv_heads=4), params | {'blocks': blocks}

  for config, change, heads in (
      (WIDE['tiny_llama2'], cut, '4 and 3 query heads, 4 and 3 key/value heads, and'),
      (dataclasses.replace(WIDE['tiny_llama2'], num_kv_heads=2), repeated,
       'they have 2 and 4 key/value heads')):
    results = judged(base(config), change)
    assert {UNITS, VALUES} <= found(results)
    assert heads in results[VALUES + FITTED].reason
    assert results[VALUES].statistic > 0.4  # Over heads, of which each has one counterpart.


def test_heads_of_so_few_channels_that_no_copy_is_evidence_have_no_power():
  config = dataclasses.replace(WIDE['tiny_llama2'], num_heads=16, num_kv_heads=16, head_size=4)
  params, = random_networks(config, 1)
  fewer = dataclasses.replace(config, num_heads=15, num_kv_heads=15)
  blocks = params['blocks'] | {name: {'kernel': params['blocks'][name]['kernel'][..., :60]}
                               for name in ('query', 'key', 'value')}
  blocks['output'] = {'kernel': params['blocks']['output']['kernel'][:, :60]}
  values = judged((config, params), lambda *_: (fewer, params | {'blocks': blocks}))[VALUES]
  assert values.statistic > 0.6 and not values.is_alike(4) and np.isinf(values.detectable(4))


@pytest.mark.parametrize('num_layers', [3, 4])
def test_patterns_by_turns_are_no_evidence(num_layers):
  """Layers are near one public matrix and another in turn."""
  config = dataclasses.replace(DEEP, num_layers=num_layers)
  shapes = {'up': (32, 64), 'gate': (32, 64), 'down': (64, 32)}
  public = {name: 0.6 * noise(i, 2, *shape) for i, (name, shape) in enumerate(shapes.items())}

  def near(params):
    blocks = params['blocks'] | {
        name: {'kernel': params['blocks'][name]['kernel'] + np.std(
            params['blocks'][name]['kernel']) * x[np.arange(num_layers) % 2]}
        for name, x in public.items()}
    return features.of_network(config, params | {'blocks': blocks})

  results = order_tests(*map(near, random_networks(config, 2)))
  assert not {UNITS, UNITS + FITTED} & found(results)


@pytest.mark.parametrize('change', ['sorted', 'cut'])
def test_sorted_and_cut_units_are_no_evidence(change):
  """Both networks sort their units by one key, or cut those with the most of it."""
  def changed(seed):
    network = DEEP, trained(DEEP, seed)
    blocks = network[1]['blocks']
    key_LF = blocks['up']['kernel'][:, 0] + 3 * blocks['gate']['kernel'][:, 5]
    order_LF = jnp.argsort(key_LF, axis=-1)
    if change == 'cut':
      order_LF = jnp.sort(order_LF[:, :32], axis=-1)
    return features.of_network(*preserving.order_units(*network, order_LF))

  networks = [changed(seed) for seed in range(7)]
  results = [order_tests(*pair) for pair in itertools.combinations(networks, 2)]
  assert not any(map(found, results)) and max(each[UNITS].z for each in results) < 3
  own = order_tests(networks[0], features.of_network(*base(DEEP)))
  assert not {UNITS, UNITS + FITTED} & found(own)


def test_the_places_of_dead_units_are_no_evidence():
  def dead(seed):
    own = random_features(DEEP, seed)
    return Features(DEEP, {name: x * (np.arange(64) % 2)[:, None] if name in layouts.UNITS else x
                           for name, x in own.arrays.items()})

  results = [order_tests(dead(seed), dead(100 + seed)) for seed in range(12)]
  assert max(each[UNITS].z for each in results) < 3
  nothing = Features(DEEP, {name: 0 * x for name, x in random_features(DEEP, 1).arrays.items()})
  assert not found(order_tests(nothing, nothing))


def test_what_cannot_be_compared_says_why():
  results = order_tests(random_features(DEEP, 1), random_features(DEEP_GPT2, 1))
  assert 'gated' in results[UNITS].reason and results[VALUES].counts
  no_units = dataclasses.replace(DEEP, sublayers='attention_only')
  results = order_tests(random_features(DEEP, 1), random_features(no_units, 1))
  assert 'no such features' in results[UNITS].reason
  single = dataclasses.replace(DEEP, num_heads=16, num_kv_heads=16, head_size=1,
                               positions='learned')
  results = order_tests(random_features(single, 1), random_features(single, 2))
  assert 'too few' in results[VALUES].reason and results[UNITS].counts


@pytest.mark.parametrize('shape', [(40, 40), (40, 24), (24, 40)])
def test_the_orthonormal_factor_is_that_of_scipy(shape):
  matrix = np.random.default_rng(0).normal(size=shape)
  # Sizes over some four orders of magnitude, none so small that it is left out.
  matrix = (matrix * np.geomspace(1e-2, 1, shape[1])).astype(np.float32)
  expected, _ = scipy.linalg.polar(matrix.astype(np.float64))
  np.testing.assert_allclose(orthonormal(matrix), expected, atol=2e-6)


def test_directions_in_which_a_matrix_is_0_are_left_out():
  normal = np.random.default_rng(0).normal
  left, right = np.linalg.qr(normal(size=(40, 7)))[0], np.linalg.qr(normal(size=(30, 7)))[0]
  matrix = (left * np.geomspace(1e-3, 1, 7) @ right.T).astype(np.float32)
  np.testing.assert_allclose(orthonormal(matrix), left @ right.T, atol=1e-5)
  assert not orthonormal(np.zeros((3, 4), np.float32)).any()


def test_where_layers_were_chosen_both_p_values_are_doubled():
  """That of all layers, and that of the rest, on which a verdict rests too."""
  a, other = (layers_of(random_features(DEEP, seed), layouts.UNITS) for seed in (1, 2))
  b = [{name: unit(x + 0.3 * y[name]) for name, x in layer.items()}
       for layer, y in zip(a, other, strict=True)]
  public, pairs = Public(0.0, 1.0, {}), list(zip(a, b, strict=True))
  sure, chosen = (plain_test(a, b, pairs, public, is_sure) for is_sure in (True, False))
  for field in ('log10_p', 'log10_p_of_rest'):
    assert getattr(chosen, field) == pytest.approx(getattr(sure, field) + np.log10(2))
