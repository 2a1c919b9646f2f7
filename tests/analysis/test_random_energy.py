"""The random-energy law: its limits, scipy's integral, and networks of the size it speaks of."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import integrate, special, stats

from bornbiased_jax import analysis, configs
from bornbiased_jax.analysis import theory
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import init_params, param_shapes
from bornbiased_jax.models.transformer import read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('optimized')]
TINY = configs.get('tiny_gpt2', num_layers=3)


def shared_sizes(similarity, spectrum_D=np.ones(30), **options):  # noqa: B008
  """A law of sizes that several tests share, so that it is compiled once."""
  return theory.preference(similarity, 200, 400, spectrum_D, num_networks=60, **options)


def test_one_direction_has_one_token():
  law = shared_sizes(1.0)
  assert np.all(law.top1_frequency_N == 1) and np.all(law.again_frequency_N == 1)
  assert np.all(law.direction_agrees_N) and np.all(law.same_token_N)


def test_without_a_direction_tokens_are_drawn_almost_uniformly():
  """Rows of 1,500 dimensions are of nearly one length, so that no token has an advantage."""
  n, V = 2000, 100
  law = theory.preference(0.0, V, n, np.ones(1500), num_networks=8)
  uniform = analysis.uniform_baseline(n, V)[0] / n
  np.testing.assert_allclose(law.top1_frequency_N.mean(), uniform, rtol=0.15)
  assert abs(law.again_frequency_N.mean() - 1 / V) < 0.25 / V


def test_many_dimensions_are_independent_tokens():
  """The share of the best token is an integral over its own logit, of which scipy knows all."""
  rho, V = 0.4, 20
  mean_NV = np.sqrt(rho) * np.sort(np.random.default_rng(0).standard_normal((1500, V)))
  logit_G = np.linspace(-6, 8, 200)
  z_NVG = (logit_G - mean_NV[..., None]) / np.sqrt(1 - rho)
  others_win_not_NG = np.prod(special.ndtr(z_NVG[:, :-1]), axis=1)
  density_NG = stats.norm.pdf(z_NVG[:, -1]) / np.sqrt(1 - rho)
  expected = integrate.simpson(density_NG * others_win_not_NG, logit_G)
  law = theory.preference(rho, V, 2000, np.ones(400), num_networks=60)
  error = np.hypot(expected.std() / 1500**0.5, law.again_frequency_N.std() / 60**0.5)
  assert abs(law.again_frequency_N.mean() - expected.mean()) < 4 * error
  np.testing.assert_allclose(law.again_frequency_N.std(), expected.std(), rtol=0.4)


def test_few_dimensions_raise_the_favourite_and_free_it_from_the_direction():
  """Dimensions without variance do not exist, and leave one program for both."""
  few, many = (theory.preference(0.23, 1024, 500, np.arange(200) < D, num_networks=40)
               for D in (20, 200))
  assert few.top1_frequency_N.mean() > 1.1 * many.top1_frequency_N.mean()
  assert few.direction_agrees_N.mean() < many.direction_agrees_N.mean() - 0.2


def test_equal_eigenvalues_are_what_their_number_says():
  """Dimensions without variance do not exist."""
  padded = np.concatenate([np.ones(30), np.zeros(60)])
  two = [shared_sizes(0.2, spectrum_D).top1_frequency_N for spectrum_D in (np.ones(30), padded)]
  assert stats.ks_2samp(*two).pvalue > 1e-3


def test_the_own_token_competes():
  law = theory.preference(0.3, 100, 5000, np.ones(20), own_logit=40.0, num_networks=6)
  assert np.all(law.top1_frequency_N < 0.02) and not np.any(law.direction_agrees_N[1:].all())
  alone = theory.preference(0.3, 1, 50, np.ones(50), own_logit=1.0, num_networks=2)
  assert np.all(alone.top1_frequency_N == 1)
  weak, none = (shared_sizes(0.3, own_logit=own) for own in (-9.0, None))
  np.testing.assert_array_equal(weak.top1_frequency_N, none.top1_frequency_N)


def test_another_direction_has_another_token():
  law = shared_sizes(0.5, direction_cosine=0.0)
  assert law.same_token_N.mean() < 0.1
  assert law.again_frequency_N.mean() < 0.3 * law.top1_frequency_N.mean()


@functools.cache
def networks():
  return [init_params(TINY, seed) for seed in range(24)]


@pytest.mark.parametrize('fields', [{}, {'sublayers': 'attention_only'}], ids=str)
def test_tiny_networks_prefer_as_the_law_says(fields):
  """Means over networks within a quarter: shape of the spectrum and states are not Gaussian."""
  config, n, length = dataclasses.replace(TINY, **fields), 300, 8
  ids_NT = np.random.default_rng(0).integers(config.vocab_size, size=(n, length))
  answers = jax.jit(lambda params: read(config, params, ids_NT, ('logits_last',))['logits_last'])
  # Sublayers do not change what is drawn for others.
  present = param_shapes(config)['blocks']
  measured = np.array([
      np.bincount(np.argmax(answers(params | {
          'blocks': {name: params['blocks'][name] for name in present}}), axis=1)).max() / n
      for params in networks()])
  law = theory.preference_at_birth(config, length, n, num_networks=60).top1_frequency_N
  error = np.hypot(measured.std() / 24**0.5, law.std() / 60**0.5)
  assert abs(measured.mean() - law.mean()) < 3 * error + 0.25 * law.mean()


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
