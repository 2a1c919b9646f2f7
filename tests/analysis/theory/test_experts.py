"""Expert load, and what a mixture does to similarity, is what theory says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from two_tokens import normal_quantiles, preferred_of_two

from bornbiased_jax import configs
from bornbiased_jax.analysis import theory
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.theory import experts
from bornbiased_jax.analysis.theory.closed_forms import choice_overlap, overlap
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import layers
from small_networks import mean_cosines, random_networks, read

# Few sequences would share what each has in common.
PROBE = Probe('tokens', 120, 16)
NUM_NETWORKS = 40
SMALL = dict(num_layers=2, mlp_width=128)
MIXTURE = configs.get('tiny_gpt2', **SMALL, num_experts=4)
DENSE = configs.get('tiny_gpt2', **SMALL)


@pytest.fixture(scope='module')
def measured():
  """What 40 mixtures compute of the probe, read once for all tests."""
  tokens = np.asarray(PROBE.inputs(MIXTURE, np.arange(PROBE.num_sequences)))
  names = 'residual_last', 'expert_weights', 'mlp_input'
  networks = [read(MIXTURE, params, tokens, *names)
              for params in random_networks(MIXTURE, NUM_NETWORKS)]
  return {name: np.stack([network[name] for network in networks]) for name in names}


def mean_and_error(x_N):
  return x_N.mean(axis=0), x_N.std(axis=0) / len(x_N)**0.5


def test_two_inputs_choose_alike_as_often_as_drawn_ones():
  a, b, common = jax.random.normal(jax.random.key(1), (3, 40_000, 5))
  for r in (0.0, 0.3, 0.9, 1.0):
    pair = [0.8 * (r**0.5 * common + (1 - r)**0.5 * own) for own in (a, b)]
    expected = np.prod([layers.route(each, 3, True) for each in pair], axis=0).sum(axis=1)
    found = overlap(jnp.float32(r), jnp.asarray(choice_overlap(5, 3, True, 0.8)))
    mean, error = mean_and_error(expected)
    assert abs(float(found) - mean) < 4 * error + 0.004, r


def test_unlike_inputs_choose_one_of_all_and_equal_ones_the_same():
  for count in (2, 16):
    table_R = choice_overlap(count, 1, True, 0.5)
    assert table_R[-1] == pytest.approx(1 / count) and table_R[0] == pytest.approx(1)
    assert (np.diff(table_R) < 0).all()
  # All are chosen alike, with weights that are softmax's.
  assert choice_overlap(4, 4, False, 1e-4) == pytest.approx(np.full(33, 0.25), rel=1e-3)


@pytest.mark.slow
def test_a_mixture_contracts_as_theory_says(measured):
  mean_L, error_L = mean_and_error(mean_cosines(measured['residual_last']))
  found = theory.finite_width(MIXTURE, PROBE.length)
  assert (mean_L < 0.06).all()  # Without experts it would be .09 and .13.
  assert 0 < float(found.inter_cosine_std) < 0.02
  np.testing.assert_array_less(np.abs(found.inter_cosine_L - mean_L), 3 * error_L + 0.05 * mean_L)


@pytest.mark.slow
def test_other_routers_than_those_of_the_network(measured):
  states_NLMD = measured['mlp_input'].reshape(NUM_NETWORKS, 2, -1, 128)
  router_NLDE = np.random.default_rng(7).standard_normal((NUM_NETWORKS, 2, 128, 16), np.float32)
  chosen_NLM1 = np.argmax(states_NLMD @ router_NLDE, axis=-1)[..., None]
  assert_shares((chosen_NLM1 == np.arange(16)).mean(axis=2), theory.expert_shares(
      MIXTURE, PROBE.length, num_experts=16, num_networks=60).share_LNE)


@pytest.mark.slow
def test_routers_read_states_behind_attention(measured):
  mean_L, error_L = mean_and_error(mean_cosines(measured['mlp_input'][:, :, :, -1]))
  cosine_LT, _, _ = experts.at_routers(MIXTURE, PROBE.length)
  # At infinite width it is lower by some 15 %. Before attention it would be lower by 40 %.
  np.testing.assert_array_less(np.abs(cosine_LT[:, -1] - mean_L), 3 * error_L + 0.2 * mean_L)


@pytest.mark.slow
def test_routers_of_a_mixture(measured):
  assert_shares((measured['expert_weights'] > 0).mean(axis=(2, 3)),
                theory.expert_shares(MIXTURE, PROBE.length, num_networks=24).share_LNE)


@pytest.mark.slow
def test_the_busier_of_two_experts_has_the_share_that_students_distribution_says():
  """As of two tokens (test_random_energy), on average over positions."""
  length, num_networks = PROBE.length, 300
  share_LN = theory.expert_shares(MIXTURE, length, num_experts=2,
                                  num_networks=num_networks).share_LNE.max(axis=-1)
  limit_L = theory.infinite_width(MIXTURE, length).inter_cosine_L
  change_L = theory.finite_width(MIXTURE, length).inter_cosine_L - limit_L
  cosine_LT, dimensions_L, std_L = experts.at_routers(MIXTURE, length)
  rho_LT1 = np.clip(cosine_LT + change_L[:, None], 0, 1)[..., None]
  along_LTQ = np.sqrt(rho_LT1) + std_L[:, None, None] * normal_quantiles(20)
  expected_L = [preferred_of_two(np.clip(along_TQ, -1, 1), dimensions).mean()
                for along_TQ, dimensions in zip(along_LTQ, np.round(dimensions_L), strict=True)]
  error_L = share_LN.std(axis=1) / num_networks**0.5
  np.testing.assert_array_less(np.abs(share_LN.mean(axis=1) - expected_L), 3 * error_L)


def assert_shares(share_NLE, theory_LNE):
  """The busiest expert's share is within 10 % of theory, or its 95 % interval."""
  mean_L, error_L = mean_and_error(share_NLE.max(axis=-1))
  theory_L = theory_LNE.max(axis=-1).mean(axis=-1)
  np.testing.assert_array_less(np.abs(theory_L - mean_L), np.maximum(2 * error_L, 0.1 * mean_L))
  # And it is more than luck: uniform routers would give 1 / E.
  assert (mean_L[1:] > 1.2 / share_NLE.shape[-1]).all()
  spread_L = share_NLE.max(axis=-1).std(axis=0)
  np.testing.assert_allclose(theory_LNE.max(axis=-1).std(axis=-1), spread_L, rtol=0.6)


@pytest.mark.parametrize('arguments, words', [
    (dict(num_experts=2, num_chosen=3), 'num_chosen=3 exceeds num_experts=2'),
    (dict(num_experts=0), 'num_experts'), (dict(num_networks=0), 'num_networks')])
def test_impossible_routers(arguments, words):
  with pytest.raises(InputError, match=words):
    theory.expert_shares(DENSE, 16, **arguments)


def test_short_sequences_that_begin_alike():
  probe = Probe('tokens', num_sequences=10, length=4, start_id=1)
  cosine_LT, dimensions_L, std_L = experts.at_routers(DENSE, 4, probe)
  np.testing.assert_allclose(cosine_LT[:, 0], 1, rtol=1e-5)
  assert (cosine_LT[:, 1:] < 1).all() and (dimensions_L > 1).all()
  with pytest.raises(InputError, match='length=0'):
    theory.expert_shares(MIXTURE, 0)


def test_what_theory_does_not_know():
  shared = configs.get('tiny_moe', shared_mlp_width=32)
  with pytest.raises(InputError, match='shared_mlp_width=32'):
    theory.infinite_width(shared, 16)
  attention = configs.get('tiny_gpt2', sublayers='attention_only')
  with pytest.raises(InputError, match='attention_only'):
    theory.expert_shares(attention, 16, num_experts=4)
