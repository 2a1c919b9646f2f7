"""The vectors of features are what they read and write, and do not see what has no effect."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax.lineage import layouts
from bornbiased_jax.lineage.evidence import features
from experiments.transforms.preserving import PRESERVING
from small_networks import GEMMA2, GPT2, GROUPED, LLAMA, OLMO3, trained

CONFIGS = {'llama': LLAMA, 'grouped': GROUPED, 'gpt2': GPT2, 'olmo3': OLMO3, 'gemma2': GEMMA2}
HALF = dict(rtol=1e-3, atol=1e-4)  # They are rounded to float16.


@pytest.mark.parametrize('name', CONFIGS)
def test_the_vectors_of_a_feature_have_length_one_and_what_they_read(name):
  config = CONFIGS[name]
  params = trained(config)
  found = features.of_network(config, params).arrays
  for kind, x in found.items():
    axes = (-2, -1) if kind == 'output' else -1
    np.testing.assert_allclose(np.sum(np.float32(x)**2, axis=axes), 1, rtol=2e-3)
  blocks, centred = params['blocks'], config.norm == 'layernorm'
  up_D = np.asarray(blocks['up']['kernel'][1, :, 5])
  if config.norm_place != 'after':
    up_D = up_D * blocks['mlp_norm']['scale'][1]
  up_D = up_D - up_D.mean() * float(centred)
  np.testing.assert_allclose(found['up'][1, 5], up_D / np.linalg.norm(up_D), **HALF)
  output_FD = np.asarray(blocks['output']['kernel'][0])
  if config.norm_place != 'before':
    output_FD = output_FD * np.asarray(blocks['attention_output_norm']['scale'][0])[None]
  # Value channel 3 of the last key head, as all query heads of its group write it.
  K, group = config.head_size, config.num_heads // config.num_kv_heads
  first = (config.num_heads - group) * K + 3
  rows = [output_FD[first + i * K] for i in range(group)]
  rows = np.stack([row - row.mean() * centred for row in rows])
  np.testing.assert_allclose(found['output'][0, -1, 3], rows / np.linalg.norm(rows), **HALF)


@pytest.mark.parametrize('name, change', [
    (name, change) for name in CONFIGS for change in ('scale channels', 'turn queries')
    if (name, change) != ('olmo3', 'turn queries')])
def test_scales_that_do_not_matter_do_not_count(name, change):
  config, params = CONFIGS[name], trained(CONFIGS[name])
  other = PRESERVING[change](config, params, jax.random.key(0))
  a, b = features.of_network(config, params).arrays, features.of_network(*other).arrays
  for kind, x in a.items():
    np.testing.assert_allclose(x, b[kind], atol=1e-3)


@pytest.mark.parametrize('config', [
    *CONFIGS.values(), dataclasses.replace(LLAMA, sublayers='attention_only')])
def test_shapes_are_known_before(config):
  params = trained(config)
  found = features.of_network(config, params)
  assert features.shapes(config) == {name: x.shape for name, x in found.arrays.items()}
  assert all(x.dtype == np.float16 for x in found.arrays.values())


def test_of_a_large_network_the_first_features_are_stored(monkeypatch):
  whole = features.of_network(GROUPED, trained(GROUPED)).arrays
  monkeypatch.setattr(features, 'MOST_NUMBERS', 3 * 32 * 40)
  # Of another length, and so of another layout, which knows the new number.
  part = features.of_network(dataclasses.replace(GROUPED, length=299), trained(GROUPED)).arrays
  _, units, heads, channels = features.stored_sizes(GROUPED)
  assert (units, heads, channels) == (16, 2, 8) and units % 4 == channels % 4 == 0
  for name in layouts.UNITS:
    np.testing.assert_array_equal(part[name], whole[name][:, :units])
  for name in layouts.VALUES:
    np.testing.assert_array_equal(part[name], whole[name][:, :heads, :channels])


def test_a_unit_may_be_as_small_as_float32_can_be():
  """The squares of its weights would be 0; a unit of zeros stays 0."""
  params = trained(LLAMA)
  small = jax.tree.map(np.array, params)
  for name, of_unit in (('gate', np.s_[0, :, 5]), ('up', np.s_[0, :, 5]), ('down', np.s_[0, 5])):
    small['blocks'][name]['kernel'][of_unit] *= 1e-25
    small['blocks'][name]['kernel'][..., 6] = 0
  plain, found = (features.of_network(LLAMA, each).arrays for each in (params, small))
  np.testing.assert_allclose(np.float32(found['up'][0, 5]), np.float32(plain['up'][0, 5]), **HALF)
  assert not found['up'][0, 6].any()
  assert all(np.isfinite(x).all() for x in found.values())
