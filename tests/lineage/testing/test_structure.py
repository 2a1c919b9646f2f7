"""A pattern that strangers have in common makes z spread, and accuses nobody."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.lineage import damage, features, orders, patterns, verdict
from bornbiased_jax.models.initialization import init_params
from small_networks import ALIGNED


def test_the_z_that_accuses_is_that_of_verdicts():
  accusing = stats.norm.isf(verdict.ALPHA / len(verdict.ACCUSERS))
  assert patterns.ACCUSING_Z == pytest.approx(accusing, abs=0.005)
  assert patterns.LEAST_ACCUSING_Z == pytest.approx(stats.norm.isf(verdict.ALPHA), abs=0.005)


def with_public_pattern(seed, kind):
  """A random network with something at places of its units or value channels that all have."""
  blocks = jax.tree.map(np.array, init_params(ALIGNED, seed)['blocks'])
  own, public = np.random.default_rng(seed), np.random.default_rng(0)
  gate_LDF, value_LDF, output_LFD = (blocks[name]['kernel'] for name in ('gate', 'value', 'output'))
  if kind == 'factor of low rank':
    L, D, F = gate_LDF.shape
    gate_LDF[...] = own.normal(size=(L, D, 3)) @ public.choice([-1.0, 1.0], (L, 3, F))
  if kind == 'units with signs of their own':
    L, D, F = gate_LDF.shape
    signs_L1F = own.choice([-1, 1], (L, 1, F))
    gate_LDF += 2 * gate_LDF.std() * signs_L1F * public.normal(size=(L, D, F))
  if kind == 'repeated value channels':
    L, G, K = ALIGNED.num_layers, ALIGNED.num_kv_heads, ALIGNED.head_size
    value, output = value_LDF.reshape(L, -1, G, K), output_LFD.reshape(L, G, -1, K, ALIGNED.width)
    value[...] = np.tile(value[..., :K // 4], 4)
    output[...] = np.tile(output[..., :K // 4, :], (4, 1))
  return features.sketch(ALIGNED, {'blocks': blocks})


@pytest.mark.parametrize('kind, group', [
    ('nothing', features.UNITS), ('nothing', features.VALUES),
    ('factor of low rank', features.UNITS), ('units with signs of their own', features.UNITS),
    ('repeated value channels', features.VALUES)])
def test_z_of_strangers_has_the_spread_that_is_said(kind, group):
  sketches = [with_public_pattern(seed, kind) for seed in range(24)]
  test = orders.unit_order if group is features.UNITS else orders.value_order
  pairs = list(itertools.combinations(sketches, 2))
  z = np.array([test(*pair, num_permutations=0).z for pair in pairs])
  factor = np.array([patterns.spread(*pair, group) for pair in pairs])
  # 24 networks make as many independent numbers, and a std over them is right within 15 %.
  assert 0.7 < np.std(z / factor) < 1.3
  assert (np.std(z) > 1.5) == (kind != 'nothing')
  silenced = [patterns.pattern(*pair, group) is not None for pair in pairs]
  if kind == 'nothing':
    assert np.mean(silenced) < 0.03
  else:
    assert np.all(np.array(silenced) | (z < patterns.ACCUSING_Z))
    assert np.mean(silenced) > 0.9


@pytest.mark.parametrize('depths, units', [((2, 3), (48, 48)), ((2, 2), (48, 44))])
def test_one_mask_accuses_nobody_whatever_the_sizes(depths, units):
  def masked(seed, depth, units):
    random, found = np.random.default_rng(seed), {}
    for i, name in enumerate(('up', 'down')):
      mask = np.random.default_rng(1000 + i).random((3, 48, 128)) < 0.05
      x = (random.normal(size=mask.shape) * mask)[:depth, :units]
      found[name] = np.float32(x / np.linalg.norm(x, axis=-1, keepdims=True))
    return found

  z, accused = [], 0
  for i, j in itertools.product(range(14), repeat=2):
    pair = masked(i, depths[0], units[0]), masked(100 + j, depths[1], units[1])
    z.append(orders.unit_order(*pair, num_permutations=0).z)
    accused += z[-1] >= patterns.ACCUSING_Z and patterns.pattern(*pair, features.UNITS) is None
  assert max(z) > patterns.ACCUSING_Z and accused == 0


def test_a_pattern_does_not_silence_a_descendant():
  params = init_params(ALIGNED, 1)
  noisy = damage.add_noise(ALIGNED, params, jax.random.key(0), 1.0)
  for group in (features.UNITS, features.VALUES):
    sketches = features.sketch(ALIGNED, params), features.sketch(*noisy)
    assert patterns.pattern(*sketches, group) is None


def near_identity(seed, depth, strength, reverses=False):
  """A random LLaMA whose MLP units have a public direction, in every other layer another one."""
  config = dataclasses.replace(ALIGNED, num_layers=depth)
  blocks = dict(init_params(config, seed)['blocks'])
  D, F = config.width, config.mlp_width
  eye_DF = np.tile(np.eye(D), (1, -(-F // D)))[:, :F]
  eye_LDF = np.stack([eye_DF[:, ::-1] if reverses and i % 2 else eye_DF for i in range(depth)])
  for name, std in (('up', config.linear_std), ('gate', config.linear_std)):
    blocks[name] = {'kernel': blocks[name]['kernel'] + strength * std * eye_LDF}
  down = blocks['down']['kernel'] + strength * config.residual_std * eye_LDF.swapaxes(1, 2)
  return features.sketch(config, {'blocks': blocks | {'down': {'kernel': down}}})


@pytest.mark.parametrize('depths, strength, reverses', [
    ((4, 5), 1.8, False), ((6, 7), 1.5, False), ((4, 4), 3.0, True)])
def test_a_weak_pattern_of_all_layers_accuses_nobody(depths, strength, reverses):
  z, accused = [], 0
  for i in range(12):
    pair = [near_identity(100 * i + depth + j, depth, strength, reverses)
            for j, depth in enumerate(depths)]
    z.append(orders.unit_order(*pair, num_permutations=0).z)
    accused += z[-1] >= patterns.LEAST_ACCUSING_Z and patterns.pattern(*pair,
                                                                       features.UNITS) is None
  assert np.mean(z) > patterns.ACCUSING_Z and accused == 0


@pytest.mark.parametrize('group', [features.UNITS, features.VALUES])
@pytest.mark.parametrize('depths', [(3, 3), (3, 4)])
def test_different_layers_of_strangers_agree_by_chance(group, depths):
  sketch = lambda seed, depth: features.sketch(
      dataclasses.replace(ALIGNED, num_layers=depth),
      init_params(dataclasses.replace(ALIGNED, num_layers=depth), seed))
  z = [each.z for i in range(12)
       for same in patterns.elsewhere(sketch(2 * i, depths[0]), sketch(2 * i + 1, depths[1]), group)
       for each in same]
  assert abs(np.mean(z)) < 0.5 and 0.7 < np.std(z) < 1.3
