"""The random-energy model: its limits, and scipy's integral. Networks are in test_finite_width."""

import numpy as np
import pytest
from scipy import integrate, special, stats
from two_tokens import preferred_of_two

from bornbiased_jax import analysis
from bornbiased_jax.analysis import theory
from bornbiased_jax.analysis.theory import random_energy
from bornbiased_jax.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('optimized')]


def shared_sizes(similarity, num_dimensions=100, **options):
  return theory.preference(similarity, 200, 400, num_dimensions, num_networks=60, **options)


def test_one_direction_has_one_token():
  found = shared_sizes(1.0)
  assert np.all(found.top1_frequency_N == 1) and np.all(found.again_frequency_N == 1)
  assert np.all(found.direction_agrees_N) and np.all(found.same_token_N)


def test_without_a_direction_tokens_are_drawn_almost_uniformly():
  """Rows of 1,500 dimensions are of nearly one length, so that no token has an advantage."""
  n, V = 1000, 100
  found = theory.preference(0.0, V, n, 1500, num_networks=8)
  uniform = analysis.uniform_baseline(n, V)[0] / n
  np.testing.assert_allclose(found.top1_frequency_N.mean(), uniform, rtol=0.15)
  assert abs(found.again_frequency_N.mean() - 1 / V) < 0.25 / V


def test_many_dimensions_are_independent_tokens():
  """The share of the best token is an integral over its own logit, of which scipy knows all."""
  rho = 0.4
  mean_NV = np.sqrt(rho) * np.sort(np.random.default_rng(0).standard_normal((400, 200)))
  logit_G = np.linspace(-2, 8, 50)
  z_NVG = (logit_G - mean_NV[..., None]) / np.sqrt(1 - rho)
  others_win_not_NG = np.prod(special.ndtr(z_NVG[:, :-1]), axis=1)
  density_NG = stats.norm.pdf(z_NVG[:, -1]) / np.sqrt(1 - rho)
  expected = integrate.simpson(density_NG * others_win_not_NG, logit_G)
  found = shared_sizes(rho)
  error = np.hypot(expected.std() / 400**0.5, found.again_frequency_N.std() / 60**0.5)
  assert abs(found.again_frequency_N.mean() - expected.mean()) < 4 * error
  np.testing.assert_allclose(found.again_frequency_N.std(), expected.std(), rtol=0.4)


def test_the_preferred_one_of_two_tokens_has_the_share_that_students_distribution_says():
  rho, D = 0.5, 50
  expected = preferred_of_two(np.sqrt(rho), D).mean()
  share_N = theory.preference(rho, 2, 256, D, num_networks=4000).again_frequency_N
  assert abs(share_N.mean() - expected) < 3 * share_N.std() / 4000**0.5


def drawn_shares(rho, direction_std, mean_V, head_DV, generator, n=3000):
  """Of n sequences whose states are drawn, the share that predicts each token."""
  along_N1 = np.sqrt(rho) + direction_std * generator.standard_normal((n, 1))
  along_N1 = np.clip(along_N1, -1, 1).astype(np.float32)
  rest_ND = generator.standard_normal((n, len(head_DV)), np.float32)
  rest_ND *= np.sqrt(1 - along_N1**2) / np.linalg.norm(rest_ND, axis=1)[:, None]
  predicted_N = np.argmax(along_N1 * mean_V + rest_ND @ head_DV, axis=1)
  return np.bincount(predicted_N, minlength=len(mean_V)) / n


@pytest.mark.parametrize('V, D', [(2048, 36), (512, 520)])
def test_integrals_agree_with_drawn_states(V, D):
  """Of the same networks, whose preferred token some states choose and others count."""
  generator, num_networks = np.random.default_rng(0), 40

  def network():
    mean_V, head_DV = (generator.standard_normal(shape, np.float32) for shape in (V, (D, V)))
    one_V, other_V = (drawn_shares(0.25, 0.1, mean_V, head_DV, generator) for _ in range(2))
    length_V = np.linalg.norm(head_DV, axis=0) / D**0.5
    return (other_V[one_V.argmax()] + one_V[other_V.argmax()]) / 2, random_energy._shares(
        0.25, 0.1, mean_V, length_V, D, -np.inf).max()

  drawn_N, integral_N = np.array([network() for _ in range(num_networks)]).T
  error = (integral_N - drawn_N).std() / num_networks**0.5
  assert abs((integral_N - drawn_N).mean()) < 3 * error + 0.01 * drawn_N.mean()
  for share in (10, 50, 90):
    np.testing.assert_allclose(*(np.percentile(each, share) for each in (integral_N, drawn_N)),
                               rtol=0.1)


def test_few_dimensions_raise_its_share_and_free_it_from_the_direction():
  few, many = (shared_sizes(0.23, num_dimensions) for num_dimensions in (10, 100))
  assert few.top1_frequency_N.mean() > 1.1 * many.top1_frequency_N.mean()
  assert few.direction_agrees_N.mean() < many.direction_agrees_N.mean() - 0.2


def test_the_own_token_competes():
  """One that always wins is any token."""
  found = shared_sizes(0.3, own_logit=40.0)
  uniform = analysis.uniform_baseline(400, 200)[0] / 400
  np.testing.assert_allclose(found.top1_frequency_N.mean(), uniform, rtol=0.05)
  assert found.direction_agrees_N.mean() < 0.1
  weak, none = (shared_sizes(0.3, own_logit=own) for own in (-9.0, None))
  np.testing.assert_array_equal(weak.top1_frequency_N, none.top1_frequency_N)


def test_another_direction_has_another_token():
  found = shared_sizes(0.5, direction_cosine=0.0)
  assert found.same_token_N.mean() < 0.1
  assert found.again_frequency_N.mean() < 0.3 * found.top1_frequency_N.mean()


def test_of_two_tokens_the_same_one_is_preferred_in_two_directions_by_sheppards_formula():
  """Two normal numbers that correlate by c have one sign with probability 1 - arccos(c) / π."""
  cosine = 0.8
  found = theory.preference(1.0, 2, 1, 1, num_networks=4000, direction_cosine=cosine)
  expected = 1 - np.arccos(cosine) / np.pi
  assert abs(found.same_token_N.mean() - expected) < 3 * found.same_token_N.std() / 4000**0.5


@pytest.mark.parametrize('arguments, named', [
    (dict(similarity=1.5), 'similarity=1.5'), (dict(similarity=np.nan), 'similarity=nan'),
    (dict(direction_cosine=-0.1), 'direction_cosine=-0.1'),
    (dict(num_sequences=0), 'num_sequences'), (dict(dimensions=0), 'dimensions'),
    (dict(dimensions=2.5), 'dimensions'), (dict(direction_std=-0.1), 'direction_std=-0.1'),
    (dict(similarity_std=-0.1), 'similarity_std=-0.1'), (dict(own_logit=np.nan), 'own_logit=nan'),
    (dict(seed=-1), 'seed -1'),
    (dict(vocab_size=2.5), 'vocab_size'), (dict(num_networks=0), 'num_networks')])
def test_impossible(arguments, named):
  given = dict(similarity=0.2, vocab_size=10, num_sequences=10, dimensions=3) | arguments
  with pytest.raises(InputError, match=named):
    theory.preference(**given)
