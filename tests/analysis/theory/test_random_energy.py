"""The random-energy model: its limits, and scipy's integral. Networks are in test_finite_width."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from bornbiased_jax import analysis
from bornbiased_jax.analysis import theory
from bornbiased_jax.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('optimized')]


def shared_sizes(similarity, num_dimensions=100, **options):
  """Theory of sizes that several tests share, so that it is compiled once.

  Dimensions without variance do not exist.
  """
  return theory.preference(similarity, 200, 400, np.arange(100) < num_dimensions, num_networks=60,
                           **options)


def test_one_direction_has_one_token():
  found = shared_sizes(1.0)
  assert np.all(found.top1_frequency_N == 1) and np.all(found.again_frequency_N == 1)
  assert np.all(found.direction_agrees_N) and np.all(found.same_token_N)


def test_without_a_direction_tokens_are_drawn_almost_uniformly():
  """Rows of 1,500 dimensions are of nearly one length, so that no token has an advantage."""
  n, V = 1000, 100
  found = theory.preference(0.0, V, n, np.ones(1500), num_networks=8)
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


def test_the_preferred_one_of_two_tokens_is_an_arctangent():
  """Its logit leads by √ρ |m_0 - m_1|, and the rest is normal with the length of two rows."""
  rho, D = 0.5, 50
  length_Q = np.sqrt(stats.chi2.ppf((np.arange(500) + 0.5) / 500, D) / D)
  expected = 0.5 + np.arctan(np.sqrt(rho / (1 - rho)) / length_Q).mean() / np.pi
  share_N = theory.preference(rho, 2, 256, np.ones(D), num_networks=4000).again_frequency_N
  assert abs(share_N.mean() - expected) < 3 * share_N.std() / 4000**0.5


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
  found = theory.preference(1.0, 2, 1, np.ones(1), num_networks=4000, direction_cosine=cosine)
  expected = 1 - np.arccos(cosine) / np.pi
  assert abs(found.same_token_N.mean() - expected) < 3 * found.same_token_N.std() / 4000**0.5


@pytest.mark.parametrize('arguments, named', [
    (dict(similarity=1.5), 'similarity=1.5'), (dict(similarity=np.nan), 'similarity=nan'),
    (dict(direction_cosine=-0.1), 'direction_cosine=-0.1'),
    (dict(num_sequences=0), 'num_sequences'), (dict(spectrum_D=np.zeros(3)), 'spectrum_D'),
    (dict(spectrum_D=[1, np.nan]), 'spectrum_D'), (dict(spectrum_D=[2, -1]), 'spectrum_D'),
    (dict(spectrum_D=[]), 'spectrum_D'), (dict(spectrum_D=np.ones((2, 2))), 'spectrum_D'),
    (dict(similarity_std=-0.1), 'similarity_std=-0.1'), (dict(own_logit=np.nan), 'own_logit=nan'),
    (dict(seed=-1), 'seed -1'),
    (dict(vocab_size=2.5), 'vocab_size'), (dict(num_networks=0), 'num_networks')])
def test_impossible(arguments, named):
  given = dict(similarity=0.2, vocab_size=10, num_sequences=10, spectrum_D=np.ones(3)) | arguments
  with pytest.raises(InputError, match=named):
    theory.preference(**given)
