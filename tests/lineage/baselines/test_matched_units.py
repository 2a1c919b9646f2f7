"""The aligned test and the test of matched units find relatives and accuse nobody else."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alignment, alterations, damage, seedprint
from bornbiased_jax.lineage.reading import fingerprint
from bornbiased_jax.models.initialization import init_params
from small_networks import ALIGNED, ALIGNED_GPT2, GPT2, LLAMA, SMALL, trained

PROBE = Probe('gaussian', 1000, 8)


@pytest.mark.parametrize('config, hidden_by', [
    (ALIGNED, alterations.rotate_channels), (ALIGNED, alterations.permute_channels),
    (ALIGNED_GPT2, alterations.permute_channels),
    (dataclasses.replace(ALIGNED, norm_place='both', scaled_embedding=True),
     alterations.permute_channels),
])
def test_the_aligned_test_sees_through_a_change_of_basis(config, hidden_by):
  params = trained(config)
  noisy = damage.add_noise(config, params, jax.random.key(2), 0.3)
  suspect = hidden_by(*noisy, jax.random.key(3))
  assert alignment.aligned_test((config, params), suspect, PROBE).z > 8
  own = lambda config, params: fingerprint(config, params, Probe('tokens', 1000, 8)).hidden_ND
  assert seedprint.calibrated_test(own(config, params), own(*noisy)).z > 8
  assert abs(seedprint.calibrated_test(own(config, params), own(*suspect)).z) < 4


def test_the_aligned_test_does_not_accuse():
  networks = [(ALIGNED, init_params(ALIGNED, seed)) for seed in range(6)]
  z = [alignment.aligned_test(a, b, PROBE).z for i, a in enumerate(networks) for b in networks[:i]]
  assert np.abs(z).max() < 4 and abs(np.mean(z)) < 1


@pytest.mark.parametrize('change, message', [
    (dict(probe=Probe('tokens', 1000, 8)), 'gaussian probe or'),
    (dict(width=64), 'no basis in common'), (dict(norm='layernorm'), 'no basis in common'),
    (dict(norm_place='after'), "norm_place='before' and 'after' have no basis in common"),
    (dict(vocab_size=63), 'tokens per channel'),
])
def test_what_cannot_be_aligned(change, message):
  change = dict(change)
  probe, config = change.pop('probe', PROBE), dataclasses.replace(ALIGNED, **change)
  base, suspect = (ALIGNED, init_params(ALIGNED, 1)), (config, init_params(config, 2))
  with pytest.raises(InputError, match=message):
    alignment.aligned_test(base, suspect, probe)


def test_matched_units():
  params, other = init_params(LLAMA, 1), init_params(LLAMA, 2)
  noisy = damage.add_noise(LLAMA, params, jax.random.key(0), 0.5)
  permuted = alterations.permute_units(*noisy, jax.random.key(1))[1]
  test = alignment.matched_units_test
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
  networks = [init_params(config, seed) for seed in range(200)]
  pairs = zip(networks[::2], networks[1::2], strict=True)
  log10_p = [alignment.matched_units_test(*pair, against_gate=against_gate).log10_p
             for pair in pairs]
  assert stats.kstest(10 ** np.array(log10_p), 'uniform').pvalue > 0.001


def test_dead_units_can_be_matched():
  params = init_params(LLAMA, 1)
  up = params['blocks']['up']
  silenced = {'up': {'kernel': up['kernel'].at[:, :, :5].set(0)}}
  dead = params | {'blocks': params['blocks'] | silenced}
  assert alignment.matched_units_test(params, dead).log10_p < -10


def test_a_permutation_with_changed_signs_is_found():
  embedding = np.random.default_rng(0).standard_normal((40, 6))
  sign_D, order_D = np.array([1, -1, -1, 1, 1, -1]), np.array([2, 0, 1, 5, 4, 3])
  change_DD = alignment.basis_change(embedding, (embedding * sign_D)[:, order_D], 'permutation')
  np.testing.assert_array_equal(embedding @ change_DD, (embedding * sign_D)[:, order_D])


def test_a_rotation_around_the_vector_of_ones_is_found():
  random = np.random.default_rng(0)
  embedding = random.standard_normal((60, 8))
  basis = np.linalg.qr(np.c_[np.ones(8), random.standard_normal((8, 7))])[0]
  inner = np.eye(8)
  inner[1:, 1:] = stats.ortho_group.rvs(7, random_state=1)
  rotation = basis @ inner @ basis.T
  change_DD = alignment.basis_change(embedding, embedding @ rotation, 'centred rotation')
  np.testing.assert_allclose(change_DD, rotation, atol=1e-6)
  np.testing.assert_allclose(change_DD.sum(axis=0), 1, atol=1e-6)
  gpt2, other = ((ALIGNED_GPT2, {'embedding': each}) for each in (embedding, embedding @ rotation))
  assert alignment.fitted_change(gpt2, other)[1] > 0.99


def test_tokens_that_do_not_fit_have_no_say():
  """Half of the rows were redrawn and made thirty times as large."""
  random = np.random.default_rng(0)
  embedding, other = random.standard_normal((2, 128, 16))
  rotation = stats.ortho_group.rvs(16, random_state=1)
  spoiled = np.where(np.arange(128)[:, None] % 2, embedding @ rotation, 30 * other)
  np.testing.assert_allclose(alignment.basis_change(embedding, spoiled, 'rotation'), rotation,
                             atol=0.2)
