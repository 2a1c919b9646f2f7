"""The test of matched units finds relatives, and nothing in unrelated networks."""

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.baselines.matched_units import matched_units_test
from bornbiased_jax.lineage.transforms import lossy, preserving
from bornbiased_jax.models.initialization import init_params
from small_networks import GPT2, LLAMA, SMALL, random_networks


def test_matched_units():
  params, other = init_params(LLAMA, 1), init_params(LLAMA, 2)
  noisy = lossy.add_noise(LLAMA, params, jax.random.key(0), 0.5)
  permuted = preserving.permute_units(*noisy, jax.random.key(1))[1]
  test = matched_units_test
  assert test(params, noisy[1]).log10_p < -20 and test(params, noisy[1]).statistic > 0.9
  assert test(params, permuted).log10_p > -3
  assert test(params, permuted, against_gate=True).log10_p < -20
  for kind in (False, True):
    assert test(params, other, against_gate=kind).log10_p > -3
  with pytest.raises(InputError, match='without equally large gate'):
    test(*[init_params(GPT2, seed) for seed in (1, 2)], against_gate=True)


@pytest.mark.parametrize('against_gate', [False, True])
def test_matched_units_of_independent_networks_have_uniform_p_values(against_gate):
  config = configs.get('tiny_llama2', **SMALL | dict(num_layers=1))
  networks = random_networks(config, 200)
  pairs = zip(networks[::2], networks[1::2], strict=True)
  log10_p = [matched_units_test(*pair, against_gate=against_gate).log10_p
             for pair in pairs]
  assert stats.kstest(10 ** np.array(log10_p), 'uniform').pvalue > 0.001


def test_dead_units_can_be_matched():
  params = init_params(LLAMA, 1)
  up = params['blocks']['up']
  cut_off = {'up': {'kernel': up['kernel'].at[:, :, :5].set(0)}}
  dead = params | {'blocks': params['blocks'] | cut_off}
  assert matched_units_test(params, dead).log10_p < -10
