"""The order of hidden features is found in descendants, and is chance's own in everyone else."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alterations, damage, features, orders, patterns
from bornbiased_jax.models.initialization import init_params
from small_networks import GEMMA2, GPT2, GROUPED, LLAMA, OLMO3, trained

TESTS = (orders.unit_order, orders.value_order)
CONFIGS = {'llama': LLAMA, 'grouped': GROUPED, 'gpt2': GPT2, 'olmo3': OLMO3, 'gemma2': GEMMA2}


@pytest.mark.parametrize('name', CONFIGS)
def test_descendants_keep_the_order(name):
  config, params = CONFIGS[name], trained(CONFIGS[name])
  sketch = features.sketch
  noisy = damage.add_noise(config, params, jax.random.key(1), 1.0)
  for test in TESTS:
    assert test(sketch(config, params), sketch(*noisy), 0).z > 4
  permuted = sketch(*alterations.permute_units(*noisy, jax.random.key(2)))
  assert orders.unit_order(sketch(config, params), permuted, 0).z < 4
  assert orders.value_order(sketch(config, params), permuted, 0).z > 4


def test_signs_that_move_between_matrices_do_not_count():
  params = trained(LLAMA)
  sign_F = jnp.where(jnp.arange(48) % 2, -1.0, 1.0)
  blocks = params['blocks']
  flipped = blocks | {'up': {'kernel': blocks['up']['kernel'] * sign_F[None, None]},
                      'down': {'kernel': blocks['down']['kernel'] * sign_F[None, :, None]}}
  a, b = (features.vectors(LLAMA, params | {'blocks': each}) for each in (blocks, flipped))
  assert orders.unit_order(a, b, 0).z == pytest.approx(orders.unit_order(a, a, 0).z, rel=1e-4)


@pytest.mark.parametrize('test', TESTS)
def test_independent_networks_have_uniform_p_values(test):
  """Whatever their units have in common: here, all read one direction, each to its degree."""
  config = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64,
                       vocab_size=8)
  common_D = jax.random.normal(jax.random.key(7), (config.width,))

  def sketch(seed):
    params = init_params(config, seed)
    degree = jax.random.normal(jax.random.key(seed), (2, 1, 64))
    up = params['blocks']['up'] | {
        'kernel': params['blocks']['up']['kernel'] + 0.02 * degree * common_D[None, :, None]}
    return features.sketch(config, params | {'blocks': params['blocks'] | {'up': up}})

  sketches = [sketch(seed) for seed in range(40)]
  z = [test(a, b, 0).z for a, b in itertools.combinations(sketches, 2)]
  assert abs(np.mean(z)) < 0.15 and abs(np.std(z) - 1) < 0.15
  drawn = [test(a, b, 999).permutation_p_value
           for a, b in zip(sketches[::2], sketches[1::2], strict=True)]
  assert stats.kstest(drawn, 'uniform').pvalue > 0.001


def test_other_numbers_of_layers_and_units():
  params = trained(LLAMA)
  a = features.sketch(LLAMA, params)
  for change, strength in ((damage.repeat_layers, 0.5), (damage.remove_units, 0.5)):
    b = features.sketch(*change(LLAMA, params, jax.random.key(0), strength))
    assert orders.unit_order(a, b, 0).z > 4.5
    other = features.sketch(*change(LLAMA, init_params(LLAMA, 9), jax.random.key(0), strength))
    assert abs(orders.unit_order(a, other, 0).z) < 4


def test_sorted_units_are_noticed():
  params = trained(GPT2)
  own = features.sketch(GPT2, params)
  assert abs(patterns.sortedness(own)) < 3
  along_L48 = params['blocks']['up']['kernel'].sum(axis=1)
  ordered = alterations.order_units(GPT2, params, jnp.argsort(along_L48, axis=-1))
  kernel = ordered[1]['blocks']['up']['kernel']
  assert patterns.sortedness(features.sketch(GPT2, ordered[1] | {'blocks': ordered[1]['blocks'] | {
      'up': ordered[1]['blocks']['up'] | {
          'kernel': kernel + jnp.sort(along_L48, axis=-1)[:, None] / 32 * jnp.sign(kernel[:, :, :1])
      }}})) > 2.5


def test_what_cannot_be_compared():
  gated, plain = (features.sketch(config, init_params(config, 1)) for config in (LLAMA, GPT2))
  with pytest.raises(InputError, match='gated'):
    orders.unit_order(gated, plain)
  wider = dataclasses.replace(GPT2, num_heads=8, num_kv_heads=8, head_size=4)
  other = features.sketch(wider, init_params(wider, 1))
  with pytest.raises(InputError, match='heads differ'):
    orders.value_order(plain, other)
  no_mlp = dataclasses.replace(GPT2, sublayers='attention_only')
  with pytest.raises(InputError, match='no MLP units'):
    orders.unit_order(plain, features.sketch(no_mlp, init_params(no_mlp, 1)))


@pytest.mark.parametrize('units', [64, 48])
@pytest.mark.parametrize('dead', ['a layer of one', 'half of the units of both'])
def test_the_places_of_dead_units_are_no_evidence(dead, units):
  """An assignment would pair those of equal number, and a mean over places would count them."""
  z = []
  for seed in range(40):
    a, b = random_sketch(seed, 64), random_sketch(100 + seed, units)
    for name in ('up', 'down'):
      if dead == 'a layer of one':
        a[name][0] = 0
      else:
        a[name][:, 32:] = b[name][:, 32:] = 0
    z += [orders.unit_order(a, b, 0).z, orders.unit_order(b, a, 0).z]
  assert abs(np.mean(z)) < 0.5 and 0.7 < np.std(z) < 1.3
  for name in ('up', 'down'):
    a[name][:] = 0
  with pytest.raises(InputError, match='too few living'):
    orders.unit_order(a, b)


def random_sketch(seed, units):
  random = np.random.default_rng(seed)
  found = {name: random.standard_normal((2, units, 24)).astype(np.float32)
           for name in ('up', 'down')}
  return {name: x / np.linalg.norm(x, axis=-1, keepdims=True) for name, x in found.items()}


def tiled(seed):
  found = random_sketch(seed, 64)
  return {name: np.concatenate([x[:, :16]] * 4, axis=1) for name, x in found.items()}


def near_identity(seed):
  noise = random_sketch(seed, 24)
  return {name: (x + 2 * np.eye(24, dtype=np.float32)) / 2.2 for name, x in noise.items()}


def hadamard(seed):
  signs = np.sign(random_sketch(seed, 32)['up'][:, :1])
  pattern = linalg.hadamard(32)[None, :, :24] / 24**0.5
  return {'up': np.float32(pattern * signs), 'down': random_sketch(seed + 1, 32)['down']}


@pytest.mark.parametrize('make', [tiled, near_identity, hadamard])
def test_places_with_a_meaning_are_noticed(make):
  """They make the order of independent networks agree more often than chance."""
  noticed = []
  for seed in range(20):
    a, b = make(2 * seed), make(1000 + 2 * seed)
    noticed.append(patterns.pattern(a, b, features.UNITS) is not None if make is tiled else
                   patterns.structure_log10_p(a, b, features.UNITS) < -3)
  assert np.mean(noticed) > 0.6


def test_layers_of_networks_have_no_order_in_common():
  """Nor have those of a network and its descendant."""
  params = [trained(LLAMA, seed) for seed in range(12)]
  a = [features.sketch(LLAMA, each) for each in params]
  noisy = [features.sketch(*damage.add_noise(LLAMA, each, jax.random.key(i), 0.5))
           for i, each in enumerate(params)]
  pairs = list(zip(a, noisy, strict=True)) + list(zip(a, a[1:], strict=False))
  for group in (features.UNITS, features.VALUES):
    p_values = [10**patterns.structure_log10_p(*pair, group) for pair in pairs]
    assert stats.kstest(p_values, 'uniform').pvalue > 0.001


@pytest.mark.parametrize('depths', [(3, 3), (3, 4), (1, 3), (1, 1)])
def test_structured_values_are_no_evidence_whatever_the_depths(depths):
  """Value · output ≈ c · 1, in networks that have nothing in common."""
  d, H = 64, 4

  def sketch(seed, L, diagonal):
    rng = np.random.default_rng(seed)
    draw = lambda: rng.normal(size=(L, d, d)) * 0.07 + diagonal * np.eye(d)
    unit = lambda x: (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)
    return {'value': unit(np.swapaxes(draw(), 1, 2).reshape(L, H, d // H, d)),
            'output': unit(draw().reshape(L, H, d // H, d))}

  structured, plain = ([sketch(seed, L, diagonal) for seed, L in enumerate(depths)]
                       for diagonal in (0.2, 0.0))
  assert patterns.structure_log10_p(*structured, features.VALUES) < -3
  if max(depths) > 1:
    assert patterns.structure_log10_p(*plain, features.VALUES) > -3
