"""Order tests find descendants in any basis, width and depth, and nothing in unrelated networks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.testing.order import order_tests
from bornbiased_jax.lineage.transforms import lossy, preserving
from bornbiased_jax.models.initialization import init_params
from small_networks import DEEP, DEEP_GPT2

UNITS, VALUES = 'unit order', 'value order'
FITTED = ', fitted basis'


def taken(config, params):
  return features.of_network(config, params)


def judged(first, second):
  return order_tests(taken(*first), taken(*second))


def moved(config, params, order):
  index = np.array(order)
  blocks = jax.tree.map(lambda x: x[index], params['blocks'])
  return dataclasses.replace(config, num_layers=len(order)), params | {'blocks': blocks}


@pytest.mark.parametrize('config', [DEEP, DEEP_GPT2], ids=['llama', 'gpt2'])
def test_unrelated_networks_have_nothing_in_common(config):
  networks = [taken(config, init_params(config, seed)) for seed in range(8)]
  results = [order_tests(a, b) for i, a in enumerate(networks) for b in networks[:i]]
  assert all(result.log10_p > -2.5 for each in results for result in each.values())


@pytest.mark.parametrize('config', [DEEP, DEEP_GPT2], ids=['llama', 'gpt2'])
def test_a_rotated_descendant_is_found_in_the_fitted_basis_alone(config):
  base = config, init_params(config, 1)
  turned = preserving.rotate_channels(*base, jax.random.key(0))
  noisy = lossy.add_noise(*turned, jax.random.key(1), 0.5)
  results = judged(base, noisy)
  assert results[UNITS + FITTED].log10_p < -6 and results[VALUES + FITTED].log10_p < -6
  assert results[UNITS].log10_p > -3 and results[VALUES].log10_p > -3


def test_a_narrower_descendant_is_found():
  config, params = DEEP, init_params(DEEP, 1)
  kept = jnp.sort(jax.random.permutation(jax.random.key(0), config.width)[:24])
  narrow = preserving.order_channels(config, params, kept)[1]
  small = dataclasses.replace(config, width=24, head_size=config.head_size)
  results = judged((config, params), (small, narrow))
  assert not results[UNITS].applies and results[UNITS + FITTED].log10_p < -6


@pytest.mark.parametrize('order', [(0, 2, 1, 3), (1, 2, 3, 0), (0, 1, 1, 2, 3), (0, 1, 2)])
def test_layers_that_were_moved_repeated_or_dropped(order):
  base = DEEP, init_params(DEEP, 1)
  results = judged(base, moved(*base, order))
  assert results[UNITS].log10_p < -6 and results[VALUES].log10_p < -6
  assert results[UNITS].statistic > 0.4


def test_sorted_units_are_no_evidence():
  """Both networks sort their units by one key, in one basis; the key tells neighbours not apart."""
  def sorted_by_first_channel(seed):
    params = init_params(DEEP, seed)
    key_LF = params['blocks']['up']['kernel'][:, 0]
    return preserving.order_units(DEEP, params, jnp.argsort(key_LF, axis=-1))

  networks = [taken(*sorted_by_first_channel(seed)) for seed in range(8)]
  z = [order_tests(a, b)[UNITS].z for i, a in enumerate(networks) for b in networks[:i]]
  assert max(z) < 3


def test_one_distinct_layer_does_not_apply():
  base = DEEP, init_params(DEEP, 1)
  results = judged(moved(*base, (1, 1, 1, 1)), moved(*base, (1, 1)))
  assert not any(result.applies for result in results.values())


def test_heads_that_were_cut_are_compared_all_with_all():
  config, params = DEEP, init_params(DEEP, 1)
  fewer = dataclasses.replace(config, num_heads=3, num_kv_heads=3, head_size=config.head_size)
  size = 3 * config.head_size
  cut = {name: {'kernel': params['blocks'][name]['kernel'][..., :size]}
         for name in ('query', 'key', 'value')}
  cut['output'] = {'kernel': params['blocks']['output']['kernel'][:, :size]}
  results = judged((config, params), (fewer, params | {'blocks': params['blocks'] | cut}))
  assert results[VALUES].z > 3 and not results[VALUES + FITTED].applies


def test_gated_and_plain_units_are_not_compared():
  results = judged((DEEP, init_params(DEEP, 1)), (DEEP_GPT2, init_params(DEEP_GPT2, 2)))
  assert 'gated' in results[UNITS].reason and results[VALUES].applies
