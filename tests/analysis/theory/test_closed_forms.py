"""Closed forms agree with quadrature, with samples up to their error, and with each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from bornbiased_jax.analysis import attention_sink, ensemble, probes, similarity, statistics, theory
from bornbiased_jax.analysis.simplified import StackConfig, stack
from bornbiased_jax.analysis.theory.closed_forms import covariance_powers
from bornbiased_jax.configs import ACTIVATIONS
from bornbiased_jax.models.initialization import EMBEDDING_LEAVES
from small_networks import GPT2, LLAMA, random_networks


@pytest.mark.parametrize('name, scale, gated', [
    ('gelu_tanh', 0.5, False), ('tanh', 1.5, False), ('silu', 1.5, True), ('tanh', 0.5, True)])
def test_the_covariance_of_an_activation_equals_quadrature(name, scale, gated):
  activation = ACTIVATIONS[name]
  node, weight = np.polynomial.hermite_e.hermegauss(80)
  weight = np.outer(weight, weight) / weight.sum() ** 2
  u, other = np.meshgrid(node, node, indexing='ij')

  def covariance(r):
    v = r * u + np.sqrt(1 - r * r) * other
    product = np.sum(weight * np.asarray(activation(scale * u) * activation(scale * v)))
    return product * (scale**2 * r if gated else 1.0)

  powers = covariance_powers(activation, scale, gated)
  r_R = np.array([-0.8, 0.0, 0.3, 0.9, 1.0])
  expected_R = np.array(list(map(covariance, r_R)))
  np.testing.assert_allclose(jnp.polyval(powers, r_R), expected_R, rtol=1e-4, atol=1e-6)
  cosine_R = theory.activation_similarity(activation, r_R, scale, gated)
  np.testing.assert_allclose(cosine_R, expected_R / expected_R[-1], rtol=1e-4, atol=1e-6)


def test_the_series_of_relu_is_the_arc_cosine_kernel():
  start = jnp.array([-1.0, -0.5, 0.0, 0.3, 0.7, 0.95, 1.0])
  difference = theory.activation_similarity(jax.nn.relu, start) - theory.relu_similarity(start)
  assert jnp.max(jnp.abs(difference)) < 5e-4
  assert jnp.max(jnp.abs(difference[1:5])) < 1e-5


@pytest.mark.parametrize('activation', ['gelu_tanh', 'silu', 'relu'])
def test_odd_and_gated_layers_keep_orthogonal_inputs_orthogonal(activation):
  function = ACTIVATIONS[activation]
  assert theory.activation_similarity(function, 0.0, gated=True) == 0
  assert abs(theory.activation_similarity(jnp.tanh, 0.0)) < 1e-6
  assert theory.activation_similarity(function, 0.0) > 0.1


def test_relu_map_known_values():
  known = theory.relu_similarity(jnp.array([-1.0, 0.0, 1.0]))
  np.testing.assert_allclose(known, [0, 1 / np.pi, 1], atol=1e-6)
  iterates = theory.iterate(theory.relu_similarity, 0.0, 200)
  np.testing.assert_allclose(iterates[:2], [0.3183099, 0.4937311], atol=1e-6)
  assert jnp.all(jnp.diff(iterates) > 0) and iterates[-1] > 0.99


@pytest.mark.parametrize('depth', [1, 2, 3, 5])
def test_proposition_5_equals_the_integral_over_log_time(depth):
  """At depth l the past at log-distance s has weight s^(l-1).

  Positions at log-distance t therefore have the cosine e^(-t/2) C(t) / C(0), where
  C(t) = int e^-s (s (s + t))^(l-1) ds. Over pairs of positions, t has the density e^-t.
  """
  integral = lambda function: integrate.quad(function, 0, np.inf)[0]
  overlap = lambda t: integral(lambda s: np.exp(-s) * (s * (s + t)) ** (depth - 1))
  mean = integral(lambda t: np.exp(-1.5 * t) * overlap(t)) / overlap(0)
  np.testing.assert_allclose(theory.position_similarity(depth), mean, rtol=1e-5)


def test_positions_of_deep_stacks_stay_below_one():
  found = [float(theory.position_similarity(depth)) for depth in (10, 100, 1000, 5000)]
  assert found == sorted(found) and 0.9999 < found[-1] < 1


LAST_SIMILARITY = similarity.inter_sequence('residual_last')


def measured(config, statistic, num_sequences, length, seeds):
  probe = probes.Probe('gaussian', num_sequences, length)
  return list(ensemble.measure(stack(config), statistic, probe, seeds))


def test_relu_contracts_and_attention_amplifies_as_propositions_2_and_4_say():
  width, n, T = 256, 32, 50
  config = StackConfig(('mlp', 'mlp', 'attention'), width, width)
  results = measured(config, LAST_SIMILARITY, n, T, range(12))
  cosine_NL = np.array([result['cosine'] for result in results])
  error_L = np.hypot(cosine_NL.std(axis=0, ddof=1) / np.sqrt(len(cosine_NL)),
                     similarity.isotropic_std(n, width))
  first, second = theory.iterate(theory.relu_similarity, 0.0, 2)
  expected_L = np.array([first, second, theory.amplified_similarity(second, T)])
  assert np.all(np.abs(cosine_NL.mean(axis=0) - expected_L) < 4 * error_L)


@pytest.mark.slow
def test_uniform_attention_follows_proposition_5_and_equation_2():
  T, n, width = 256, 16, 512
  found, = measured(StackConfig(('attention',) * 2, width, width), statistics.combine({
      'similarity': similarity.intra_sequence('residual'),
      'spread': attention_sink.positional_std('residual')}), n, T, [0])
  expected = [theory.position_similarity(1), theory.position_similarity(2)]
  np.testing.assert_allclose(found['similarity']['cosine'], expected, rtol=0.01)
  std_T = found['spread']['std'][0]
  ratio = std_T / std_T[0] / theory.positional_std(np.arange(1, T + 1))
  # The std of N normal values has a relative error of 1/sqrt(2 N). It enters twice, at the
  # position and at the first one.
  assert np.all(np.abs(ratio - 1) < 5 / np.sqrt(n * width))


@pytest.mark.parametrize('score_std, width', [(0.5, 16), (2.0, 64)])
def test_the_first_position_has_one_value_whatever_the_scores(score_std, width):
  assert theory.positional_std(1, score_std, width) == pytest.approx(1)


@pytest.mark.parametrize('config', [LLAMA, GPT2], ids=['llama', 'gpt2'])
def test_the_cosine_of_independent_parameters_is_that_of_random_networks(config):
  a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(
      {name: leaf for name, leaf in params.items() if name not in EMBEDDING_LEAVES})])
          for params in random_networks(config, 2))
  cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
  assert theory.independent_pcs(config) == pytest.approx(cosine, rel=0.01)


def test_rotary_coherence_equals_its_sum():
  position, theta, head_size = 37, 100.0, 8
  frequency = theta ** (-np.arange(0, head_size, 2) / head_size)
  direct = np.mean(np.abs(np.exp(1j * frequency[:, None] * np.arange(position)).mean(1)) ** 2)
  np.testing.assert_allclose(theory.rotary_coherence(position, theta, head_size), direct, rtol=1e-5)


@pytest.mark.parametrize('closed_form', [
    lambda: theory.relu_similarity(jnp.float32(0.3)), lambda: theory.amplified_similarity(0.3, 10),
    lambda: theory.position_similarity(3),
    lambda: theory.positional_std(4, 0.3, 768, theory.rotary_coherence(4, 1e4, 64)),
    lambda: theory.activation_similarity(jnp.tanh, jnp.float32(0.2)),
])
def test_closed_forms_are_jittable(closed_form):
  np.testing.assert_allclose(jax.jit(closed_form)(), closed_form(), rtol=1e-5, atol=1e-7)
