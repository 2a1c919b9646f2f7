"""How busy experts are at birth, and what a mixture does to similarity, is what theory says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis import theory
from bornbiased_jax.analysis.hermite import choice_overlap, overlap
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import draw_params, mlp, read
from small_networks import mean_cosines

pytestmark = pytest.mark.usefixtures('optimized')
# Few sequences would share what each has in common.
PROBE = Probe('tokens', 200, 16)
NETWORKS = jnp.arange(40)
NUM_LAWS = 60
SMALL = dict(num_layers=2)
MIXTURE = configs.get('tiny_gpt2', **SMALL, num_experts=4)
DENSE = configs.get('tiny_gpt2', **SMALL)
OF_MIXTURE = 'residual_last', 'expert_weights'


@functools.cache
def measured(config, names):
  """What 40 networks compute of the probe, read once by all tests."""
  tokens = PROBE.inputs(config, jnp.arange(PROBE.num_sequences))
  draw = jax.jit(lambda seed: read(config, draw_params(config, seed), tokens, names))
  networks = [draw(seed) for seed in NETWORKS]
  return {name: np.stack([network[name] for network in networks]) for name in names}


def mean_and_error(x_N):
  return x_N.mean(axis=0), x_N.std(axis=0) / len(x_N)**0.5


def test_two_inputs_choose_alike_as_often_as_drawn_ones():
  a, b, common = jax.random.normal(jax.random.key(1), (3, 40_000, 5))
  for r in (0.0, 0.3, 0.9, 1.0):
    pair = [0.8 * (r**0.5 * common + (1 - r)**0.5 * own) for own in (a, b)]
    expected = np.prod([mlp.route(each, 3, True) for each in pair], axis=0).sum(axis=1)
    found = overlap(jnp.float32(r), jnp.asarray(choice_overlap(5, 3, True, 0.8)))
    mean, error = mean_and_error(expected)
    assert abs(float(found) - mean) < 4 * error + 0.004, r


def test_unlike_inputs_choose_one_of_all_and_equal_ones_the_same():
  for count in (2, 8, 64):
    table_R = choice_overlap(count, 1, True, 0.5)
    assert table_R[-1] == pytest.approx(1 / count) and table_R[0] == pytest.approx(1)
    assert (np.diff(table_R) < 0).all()
  # All are chosen alike, with weights that are softmax's.
  assert choice_overlap(4, 4, False, 1e-4) == pytest.approx(np.full(33, 0.25), rel=1e-3)


@pytest.mark.slow
def test_a_mixture_contracts_as_theory_says():
  states_NLBD = measured(MIXTURE, OF_MIXTURE)['residual_last']
  mean_L, error_L = mean_and_error(mean_cosines(states_NLBD))
  found = theory.finite_width(MIXTURE, PROBE.length)
  assert (mean_L < 0.1).all()  # Without experts it would be .11 and .16.
  assert 0 < float(found.inter_cosine_std) < 0.02
  np.testing.assert_array_less(np.abs(found.inter_cosine_L - mean_L), 3 * error_L + 0.05 * mean_L)


@pytest.mark.slow
@pytest.mark.parametrize('num_experts', [4, 32])
def test_routers_of_dense_networks(num_experts):
  states_NLBTD = measured(DENSE, ('mlp_input',))['mlp_input']
  router_NLDE = jax.random.normal(jax.random.key(7), (len(NETWORKS), 2, 128, num_experts))
  chosen = jnp.argmax(jnp.einsum('nlbtd,nlde->nlbte', states_NLBTD, router_NLDE), axis=-1)
  share_NLE = jax.nn.one_hot(chosen, num_experts).mean(axis=(2, 3))
  assert_shares(np.asarray(share_NLE), theory.expert_shares(
      DENSE, PROBE.length, num_experts=num_experts, num_networks=NUM_LAWS))


@pytest.mark.slow
def test_routers_of_a_mixture():
  weight_NLBTE = measured(MIXTURE, OF_MIXTURE)['expert_weights']
  assert_shares(np.asarray((weight_NLBTE > 0).mean(axis=(2, 3))),
                theory.expert_shares(MIXTURE, PROBE.length, num_networks=NUM_LAWS))


def assert_shares(share_NLE, law_LNE):
  """The busiest expert's share is within 10 % of the law, or its 95 % interval."""
  mean_L, error_L = mean_and_error(share_NLE.max(axis=-1))
  law_L = law_LNE.max(axis=-1).mean(axis=-1)
  np.testing.assert_array_less(np.abs(law_L - mean_L), np.maximum(2 * error_L, 0.1 * mean_L))
  # And it is more than luck: uniform routers would give 1 / E.
  assert (mean_L[1:] > 1.2 / share_NLE.shape[-1]).all()
  spread_L = share_NLE.max(axis=-1).std(axis=0)
  np.testing.assert_allclose(law_LNE.max(axis=-1).std(axis=-1), spread_L, rtol=0.6)


@pytest.mark.parametrize('arguments, words', [
    (dict(num_experts=2, num_chosen=3), 'num_chosen=3 exceeds num_experts=2'),
    (dict(num_experts=0), 'num_experts'), (dict(num_networks=0), 'num_networks')])
def test_impossible_routers(arguments, words):
  with pytest.raises(InputError, match=words):
    theory.expert_shares(DENSE, 16, **arguments)


def test_short_sequences_that_begin_alike():
  probe = Probe('tokens', num_sequences=10, length=4, start_id=1)
  assert theory.expert_shares(MIXTURE, 4, probe, num_networks=10).max() < 1
  with pytest.raises(InputError, match='length=0'):
    theory.expert_shares(MIXTURE, 0)


def test_what_theory_does_not_know():
  shared = configs.get('tiny_moe', shared_mlp_width=32)
  with pytest.raises(InputError, match='shared_mlp_width=32'):
    theory.at_birth(shared, 16)
  attention = configs.get('tiny_gpt2', sublayers='attention_only')
  with pytest.raises(InputError, match='attention_only'):
    theory.expert_shares(attention, 16, num_experts=4)
