"""The vectors of features do not see what has no effect."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.lineage import alterations, features
from small_networks import GEMMA2, GPT2, GROUPED, LLAMA, OLMO3, trained

CONFIGS = {'llama': LLAMA, 'grouped': GROUPED, 'gpt2': GPT2, 'olmo3': OLMO3, 'gemma2': GEMMA2}


@pytest.mark.parametrize('name', CONFIGS)
def test_the_vectors_of_a_feature_have_length_one_and_what_they_read(name):
  config = CONFIGS[name]
  params = trained(config)
  found = features.vectors(config, params)
  for x in found.values():
    np.testing.assert_allclose(jnp.linalg.norm(x, axis=-1), 1, rtol=1e-5)
  blocks = params['blocks']
  up_D = np.asarray(blocks['up']['kernel'][1, :, 5])
  if config.norm_place != 'after':
    up_D = up_D * blocks['mlp_norm']['scale'][1]
  up_D = up_D - up_D.mean() * (config.norm == 'layernorm')
  np.testing.assert_allclose(found['up'][1, 5], up_D / np.linalg.norm(up_D), rtol=1e-4, atol=1e-6)
  K, group = config.head_size, config.num_heads // config.num_kv_heads
  output_FD = np.asarray(blocks['output']['kernel'][0])
  if config.norm_place != 'before':
    output_FD = output_FD * np.asarray(blocks['attention_output_norm']['scale'][0])[None]
  # Value channel 3 of the last key head, as all query heads of its group write it.
  first = (config.num_heads - group) * K + 3
  rows = [output_FD[first + i * K] for i in range(group)]
  rows = np.concatenate([row - row.mean() * (config.norm == 'layernorm') for row in rows])
  np.testing.assert_allclose(found['output'][0, -1, 3], rows / np.linalg.norm(rows), rtol=1e-4,
                             atol=1e-6)


@pytest.mark.parametrize('name', CONFIGS)
@pytest.mark.parametrize('change', ['scale channels', 'turn queries'])
def test_scales_that_do_not_matter_do_not_count(name, change):
  if (name, change) == ('olmo3', 'turn queries'):
    return  # This has no effect on what features are compared by, and is impossible there.
  config, params = CONFIGS[name], trained(CONFIGS[name])
  other = alterations.PRESERVING[change](config, params, jax.random.key(0))
  a, b = features.vectors(config, params), features.vectors(*other)
  for x, y in zip(a.values(), b.values(), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)
