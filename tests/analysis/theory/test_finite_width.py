"""The theory of finite width: a closed form, and ensembles of narrow networks."""

import functools
import sys

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import analysis, configs, data
from bornbiased_jax.analysis import theory
from bornbiased_jax.errors import InputError
from small_networks import last_cosines, random_networks, read

NUM_NETWORKS = 48
GATED = dict(gated_mlp=True, activation='silu', norm='rmsnorm', mlp_width=256)
NARROW = dict(num_layers=2, num_heads=4, width=96, mlp_width=384, vocab_size=512, length=12)


def num_dimensions(config, length, probe='tokens'):
  return theory.finite_width(config, length, probe, num_samples=0).dimensions


def narrow(**fields):
  return configs.ModelConfig(**(NARROW | fields))


@functools.cache
def cosines(config, probe=None):
  """Cosine of last positions after each layer, [networks, L]."""
  probe = probe or analysis.Probe('tokens', num_sequences=40, length=config.length)
  ids_NT = np.asarray(probe.inputs(config, np.arange(probe.num_sequences)))
  return last_cosines(config, random_networks(config, NUM_NETWORKS), ids_NT)


def test_two_random_matrices_leave_a_third_of_the_dimensions():
  """The moments of a product of two square Gaussian matrices are Fuss-Catalan numbers, 1 and 3."""
  config = narrow(num_layers=1, sublayers='attention_only', embedding_std=1e-6, norm_epsilon=1e-18)
  np.testing.assert_allclose(num_dimensions(config, 1, 'gaussian'), 96 / 3, rtol=1e-3)


def test_inputs_alone_fill_all_dimensions():
  config = narrow(sublayers='attention_only', linear_std=1e-6)
  np.testing.assert_allclose(num_dimensions(config, 12, 'gaussian'), 96, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize('fields', [
    {}, {'sublayers': 'attention_only', 'num_kv_heads': 2}], ids=str)
def test_states_fill_the_dimensions_that_theory_says(fields):
  """Within the first order's own error, which is about a fifth of so narrow a network."""
  config, found = narrow(length=6, **fields), []
  for seed, params in enumerate(random_networks(config, 2)):
    tokens = np.random.default_rng(seed).integers(config.vocab_size, size=(2000, config.length))
    hidden_ND = np.asarray(read(config, params, tokens, 'hidden_last')['hidden_last'])
    value_D = np.linalg.eigvalsh(np.cov(hidden_ND.T))
    found.append(value_D.sum() ** 2 / (value_D**2).sum())
  np.testing.assert_allclose(num_dimensions(config, config.length), np.mean(found), rtol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize('kind, fields', [
    ('tokens', {}), ('tokens', {'sublayers': 'mlp_only'}), ('text', {'activation': 'relu'})],
    ids=str)
def test_states_vary_along_their_direction_as_theory_says(kind, fields):
  """Windows of a text differ in it also because some have rarer tokens.

  Without attention the last token decides, and pairs of 300 windows have too few equal ones.
  """
  config, ids = narrow(length=6, **fields), np.random.default_rng(0).geometric(0.05, 3000) % 400
  text = data.from_ids(ids, 'geometric') if kind == 'text' else None
  probe = analysis.Probe(kind, 300, config.length, text=text)
  tokens, found = np.asarray(probe.inputs(config, np.arange(300))), []
  for params in random_networks(config, 12):
    hidden_ND = read(config, params, tokens, 'hidden_last')['hidden_last']
    unit_ND = analysis.similarity.normalize(hidden_ND)
    mean_D = unit_ND.mean(axis=0)
    found.append(np.std(unit_ND @ mean_D / np.linalg.norm(mean_D)))
  predicted = theory.finite_width(config, config.length, probe, num_samples=0).direction_std
  np.testing.assert_allclose(predicted, np.mean(found), rtol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize('fields', [{}, {'sublayers': 'mlp_only', 'activation': 'relu'}], ids=str)
def test_networks_differ_as_much_as_theory_says(fields):
  """The interval of the std of networks, by chi-squared, and 12 % for the second order."""
  config = narrow(**fields)
  std = cosines(config)[:, -1].std(ddof=1)
  low, high = std * np.sqrt((NUM_NETWORKS - 1) / stats.chi2.ppf((0.9995, 0.0005),
                                                                NUM_NETWORKS - 1))
  predicted = theory.finite_width(config, config.length, num_samples=0).inter_cosine_std
  assert 0.88 * low < predicted < 1.12 * high


@pytest.mark.slow
@pytest.mark.parametrize('fields', [
    GATED, {'init_scheme': 'centred'}, {}], ids=str)
def test_the_mean_moves_by_what_theory_says(fields):
  """Where nothing contracts in the limit, all that is measured is finite width."""
  config = narrow(**fields)
  measured_SL = cosines(config)
  error_L = measured_SL.std(axis=0, ddof=1) / NUM_NETWORKS**0.5
  predicted_L = theory.finite_width(config, config.length).inter_cosine_L
  mean_L = measured_SL.mean(axis=0)
  assert np.all(np.abs(mean_L - predicted_L) < 3 * error_L + 0.1 * mean_L[-1])


@pytest.mark.slow
def test_narrow_networks_prefer_as_the_random_energy_model_says():
  """Means over networks within a quarter: shape of the spectrum and states are not Gaussian."""
  config, n = narrow(), 150
  ids_NT = np.random.default_rng(0).integers(config.vocab_size, size=(n, config.length))
  measured = np.array([
      np.bincount(np.argmax(read(config, params, ids_NT, 'logits_last')['logits_last'], axis=1)
                  ).max() / n for params in random_networks(config, 24)])
  found = theory.preference_at_initialization(config, config.length, n, num_networks=60)
  expected = found.top1_frequency_N
  error = np.hypot(measured.std() / 24**0.5, expected.std() / 60**0.5)
  assert abs(measured.mean() - expected.mean()) < 3 * error + 0.25 * expected.mean()


def test_correlated_vectors_are_a_little_less_alike_in_few_dimensions():
  """Without sublayers: the mean of Pearson's r is ρ - ρ (1 - ρ²) / 2d (Hotelling 1953)."""
  config = narrow(positions='learned', num_layers=1, linear_std=1e-5, sublayers='attention_only')
  probe = analysis.Probe('text', 2, 1, text=data.from_ids(np.arange(500), 'no id twice'))
  found = theory.finite_width(config, 1, probe, num_samples=20000).inter_cosine_L
  # Tokens of two windows differ, and their position is the same: ρ = 1/2.
  np.testing.assert_allclose(found - 0.5, -0.5 * (1 - 0.5**2) / (2 * 96), rtol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize('num_ids', [4, 60])
def test_the_mean_on_text_moves_by_what_theory_says(num_ids):
  """Where ids are rare, a gated network's is not that of infinite width."""
  config = narrow(**GATED)
  ids = np.random.default_rng(0).geometric(1 / num_ids, 3000) % 400
  probe = analysis.Probe('text', 20, config.length, text=data.from_ids(ids, 'geometric'))
  measured_SL = cosines(config, probe)
  mean_L, error_L = measured_SL.mean(axis=0), measured_SL.std(axis=0, ddof=1) / NUM_NETWORKS**0.5
  found = theory.finite_width(config, config.length, probe)
  assert np.all(np.abs(mean_L - found.inter_cosine_L) < 3 * error_L + 0.02 * mean_L[-1])
  if num_ids == 4:
    assert np.isclose(found.inter_cosine_std, measured_SL[:, -1].std(ddof=1), rtol=0.35)
  else:
    limit_L = theory.infinite_width(config, config.length, probe).inter_cosine_L
    assert mean_L[-1] > limit_L[-1] + 6 * error_L[-1]


def test_positions_that_all_inputs_share_make_networks_differ():
  """Without sublayers, the cosine is that of the mean of the position embeddings' length."""
  config = narrow(positions='learned', num_layers=1, linear_std=1e-5)
  found = theory.finite_width(config, 1, 'gaussian', num_samples=0).inter_cosine_std
  # x = t + p, with cosine |p|² / (|p|² + |t|²) = 1/2 and a relative std of |p|² of sqrt(2 / d).
  np.testing.assert_allclose(found, (2 / 96) ** 0.5 / 4, rtol=0.01)


def test_parallel_residuals_are_refused():
  config = configs.get('tiny_gpt2', parallel_residual=True)
  with pytest.raises(InputError, match='does not know parallel_residual=True'):
    theory.finite_width(config, length=8)


@pytest.mark.parametrize('fields', [
    {'vocab_size': 1}, {'width': 2, 'mlp_width': 8, 'num_heads': 1}], ids=str)
def test_networks_that_are_too_small_are_refused(fields):
  with pytest.raises(InputError, match='too small for the theory'):
    theory.finite_width(narrow(**fields), 12)


@pytest.mark.parametrize('fields', [{'embedding_std': 1e4}, {'linear_std': 1e-6}], ids=str)
def test_blocks_that_hardly_add_anything_leave_inputs_as_they_are(fields):
  """What they add is lost in rounding; random ids coincide in one of 512."""
  found = theory.finite_width(narrow(**fields), 12)
  np.testing.assert_allclose(found.inter_cosine_L, 1 / 512, rtol=0.01)


def test_long_sequences_one_at_a_time_are_those_many_at_a_time(monkeypatch):
  config = narrow(**GATED)
  module = sys.modules[theory.finite_width.__module__]
  cosine = lambda: module._finite_width.__wrapped__(config, 12, 'tokens', 256).inter_cosine_L
  many = cosine()
  monkeypatch.setattr(module, '_LONG', 8)
  module._sample.clear_cache()
  np.testing.assert_allclose(cosine(), many, rtol=1e-4)
  module._sample.clear_cache()


@pytest.mark.parametrize('given, named', [
    ((narrow(), {}), r'tuple is not a ModelConfig; of \(config, params\) give'),
    (analysis.transformer(narrow()), 'Ensemble is not a ModelConfig'),
    ({'wte.weight': 3}, 'state dict')])
def test_what_is_no_configuration_is_named(given, named):
  with pytest.raises(InputError, match=named):
    theory.finite_width(given, 8)
