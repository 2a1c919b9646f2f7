"""The test of matched units finds relatives, and nothing in unrelated networks."""

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.baselines.matched_units import matched_units_test
from experiments.transforms import preserving
from small_networks import GPT2, LLAMA, SMALL, random_networks


def test_matched_units():
  params, other, third = random_networks(LLAMA, 3)
  noisy = jax.tree.map(lambda x, y: x + np.float32(0.5) * y, params, third)
  permuted = preserving.permute_units(LLAMA, noisy, jax.random.key(1))[1]
  test = matched_units_test
  assert test(params, noisy).log10_p < -20 and test(params, noisy).statistic > 0.9
  assert test(params, permuted).log10_p > -3
  assert test(params, permuted, against_gate=True).log10_p < -20
  for kind in (False, True):
    assert test(params, other, against_gate=kind).log10_p > -3
  with pytest.raises(InputError, match='without equally large gate'):
    test(*random_networks(GPT2, 2), against_gate=True)


@pytest.mark.parametrize('against_gate', [False, True])
def test_matched_units_of_independent_networks_have_uniform_p_values(against_gate):
  config = configs.get('tiny_llama2', **SMALL | dict(num_layers=1))
  networks = random_networks(config, 200)
  pairs = zip(networks[::2], networks[1::2], strict=True)
  log10_p = [matched_units_test(*pair, against_gate=against_gate).log10_p
             for pair in pairs]
  assert stats.kstest(10 ** np.array(log10_p), 'uniform').pvalue > 0.001


def test_dead_units_can_be_matched():
  params, = random_networks(LLAMA, 1)
  up_LDF = params['blocks']['up']['kernel'].copy()
  up_LDF[:, :, :5] = 0
  cut_off = {'up': {'kernel': up_LDF}}
  dead = params | {'blocks': params['blocks'] | cut_off}
  assert matched_units_test(params, dead).log10_p < -10
