"""The theory of whole networks: its parts are the closed forms, and ensembles agree with it."""

import numpy as np
import pytest

from bornbiased_jax import analysis, configs, data
from bornbiased_jax.analysis import theory
from bornbiased_jax.analysis.theory import blocks
from bornbiased_jax.analysis.theory.closed_forms import covariance_powers
from bornbiased_jax.errors import InputError
from small_networks import last_cosines, random_networks

SMALL = dict(num_layers=3, num_heads=4, width=256, mlp_width=1024, vocab_size=64, length=64)


def small(**fields):
  return configs.ModelConfig(**(SMALL | fields))


def average(kernel_TT, weights_TT=None):
  of_rows_TT = blocks.weighted_mean(weights_TT, kernel_TT, axis=-2)
  return blocks.weighted_mean(weights_TT, of_rows_TT, axis=-1)


def test_averaging_is_proposition_4_at_finite_length():
  r, T = 0.3, 150
  alike, own = np.full((T, T), r, np.float32), np.full((T, T), r, np.float32)
  np.fill_diagonal(own, 1.0)
  cosine = average(alike)[-1, -1] / average(own)[-1, -1]
  np.testing.assert_allclose(cosine, theory.amplified_similarity(r, T), rtol=1e-5)


@pytest.mark.parametrize('T', [1, 150])
def test_averaging_is_uniform_causal_attention(T):
  weight = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
  kernel = np.random.default_rng(0).normal(size=(T, T)).astype(np.float32)
  expected = weight @ kernel @ weight.T
  np.testing.assert_allclose(average(kernel), expected, atol=1e-5)
  np.testing.assert_allclose(average(kernel, np.float32(weight)), expected, atol=1e-5)


YARN = configs.RopeScaling('yarn', 4.0, 16, 1.0, 32.0, attention_factor=1.4)


@pytest.mark.parametrize('fields, factor', [
    (dict(), 1), (dict(score_divisor=16), 2),
    (dict(positions='rope', rope_scaling=YARN), 1.4**2)])
def test_uneven_weights_keep_the_first_order_of_their_spread(fields, factor):
  """Σ a² - 1/i of lognormal weights on unlike values, as `positional_std` has it."""
  T, s = 40, 0.1
  config = small(sublayers='attention_only', linear_std=(s / 256) ** 0.5, **fields)
  found = theory.infinite_width(config, T, 'gaussian').value_std_LT[0]
  # Scores are divided by the root of the divisor in place of that of 64 channels. YaRN multiplies
  # queries and keys.
  expected = theory.positional_std(np.arange(1, T + 1), score_std=factor * s)
  np.testing.assert_allclose(found / found[0], expected, rtol=1e-3)


def test_slopes_of_alibi_are_averaged_over_heads():
  """In the first layer the variance at a position is that of one value by the mean of Σ a²."""
  config = small(positions='alibi', num_heads=6, head_size=4, linear_std=1e-4)
  found = theory.infinite_width(config, 64, 'gaussian').value_std_LT[0]
  behind_T = np.arange(64)
  for i in (0, 1, 5, 63):
    weights = [np.exp(-slope * behind_T[:i + 1]) for slope in (
        1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8)]
    squares = [(weight**2).sum() / weight.sum() ** 2 for weight in weights]
    np.testing.assert_allclose(found[i] / found[0], np.mean(squares) ** 0.5, rtol=1e-5)


def test_windows_of_a_text_are_averaged_each_by_itself():
  """One layer of uniform attention: what two windows share, by counting their ids."""
  config = small(num_layers=1, sublayers='attention_only', score_divisor=1e9, norm_epsilon=1e-12)
  text = data.from_ids(np.random.default_rng(0).geometric(0.3, 500) % 64, 'geometric')
  probe = analysis.Probe('text', 2, 20, text=text)
  found = theory.infinite_width(config, 20, probe)
  windows_NT = np.asarray(probe.inputs(config, np.arange(2)))
  share_NV = np.stack([np.bincount(ids_T, minlength=64) for ids_T in windows_NT]) / 20
  writes = config.linear_std**2 * config.width * config.residual_std**2 * config.width
  is_last_NV = np.eye(64)[windows_NT[:, -1]]
  product_NN = config.embedding_std**2 * is_last_NV @ is_last_NV.T + writes * share_NV @ share_NV.T
  size_N = np.sqrt(np.diagonal(product_NN))
  assert size_N[0] != pytest.approx(size_N[1], rel=0.005)
  np.testing.assert_allclose(found.inter_cosine_L[0], product_NN[0, 1] / size_N.prod(), rtol=1e-4)
  np.testing.assert_allclose(found.variance_LT[0, -1], np.mean(size_N**2), rtol=1e-5)


def test_what_stands_side_by_side_adds_what_each_adds_alone():
  """In the first block, to the variance and to the product of two sequences."""
  found = [theory.infinite_width(small(**fields), 9) for fields in (
      {'parallel_residual': True}, {'sublayers': 'attention_only'}, {'sublayers': 'mlp_only'})]
  (both, one, other), start = ([limit.variance_LT[0, -1] for limit in found],
                               small().embedding_std**2)
  np.testing.assert_allclose(both, one + other - start, rtol=1e-5)
  both, one, other = (limit.variance_LT[0, -1] * limit.inter_cosine_L[0] for limit in found)
  np.testing.assert_allclose(both, one + other - start / 64, rtol=1e-5)


def test_mlps_alone_iterate_one_cosine():
  config = small(sublayers='mlp_only', norm_epsilon=1e-12)
  found = theory.infinite_width(config, 2, 'gaussian')
  scale = config.linear_std * config.width**0.5
  powers = covariance_powers(configs.ACTIVATIONS['gelu_tanh'], scale)
  writes = config.residual_std**2 * config.mlp_width
  own, between = config.embedding_std**2, 0.0
  for layer in range(config.num_layers):
    cosine = between / own
    own, between = own + writes * powers.sum(), between + writes * np.polyval(powers, cosine)
    np.testing.assert_allclose(found.variance_LT[layer], own, rtol=1e-5)
    np.testing.assert_allclose(found.inter_cosine_L[layer], between / own, rtol=1e-4)
  # Without attention, distinct positions are as unlike as distinct sequences.
  np.testing.assert_allclose(found.intra_cosine_L, found.inter_cosine_L, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('fields', [
    {'intervention': 'amplify'},
    {'intervention': 'mask', 'intervention_position': 15},
    {'positions': 'alibi', 'intervention': 'rmsnorm'},
    {'init_scheme': 'plain', 'linear_std': 0.06},
    {'init_scheme': 'orthogonal', 'width': 128, 'mlp_width': 256, 'linear_std': 0.0283},
], ids=str)
def test_ensembles_agree_within_seven_percent(fields):
  """Relative to the last layer, with three standard errors of the ensemble's mean."""
  config = small(**dict(num_layers=2) | fields)
  ids_NT = np.random.default_rng(0).integers(config.vocab_size, size=(30, 16))
  measured_SL = last_cosines(config, random_networks(config, 12), ids_NT)
  predicted_L = theory.infinite_width(config, 16).inter_cosine_L
  mean_L, error_L = measured_SL.mean(axis=0), measured_SL.std(axis=0, ddof=1) / 12**0.5
  assert np.all(np.abs(mean_L - predicted_L) < 3 * error_L + 0.07 * mean_L[-1])


def test_gated_networks_do_not_contract_to_leading_order():
  config = configs.get('tiny_llama2')
  vectors = theory.infinite_width(config, 64, 'gaussian')
  assert vectors.inter_cosine_L[-1] == 0
  # What has no direction has no cosine of it.
  assert np.isnan(vectors.direction_cosine(8))
  # Ids that coincide by chance are all that sequences of tokens share.
  assert 0 < theory.infinite_width(config, 64).inter_cosine_L[-1] < 0.01


def test_known_predictions():
  """What two independent prototypes give for the paper's models, to two digits."""
  nano = theory.infinite_width(configs.get('nano_gpt2'), 512)
  assert float(nano.inter_cosine_LTT[-1, 63, 63]) == pytest.approx(0.333, abs=0.005)
  assert float(nano.inter_cosine_L[-1]) == pytest.approx(0.425, abs=0.005)
  assert nano.direction_cosine(64) == pytest.approx(0.996, abs=0.001)


def test_what_does_not_change_networks_does_not_change_the_theory():
  config = small()
  same = [small(score_divisor=64), small(windows=(8, None, 9)), small(logit_cap=3.0),
          small(scaled_embedding=True, embedding_std=config.embedding_std / 16)]
  expected = theory.infinite_width(config, 8)
  for each in same:
    for given, wanted in zip(theory.infinite_width(each, 8), expected, strict=True):
      np.testing.assert_allclose(given, wanted, rtol=1e-5)
  # Continuous inputs are not multiplied.
  expected = theory.infinite_width(config, 8, 'gaussian').variance_LT
  given = theory.infinite_width(small(scaled_embedding=True), 8, 'gaussian').variance_LT
  np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize('fields, word', [
    (dict(norm_place='after'), "norm_place='after'"), (dict(norm_place='both'), "'both'"),
    (dict(score_cap=5.0), 'score_cap=5.0'), (dict(intervention='sink_logit'), 'sink_logit'),
    (dict(windows=(None, 7, 9)), 'windows of 7 for 8 tokens'),
], ids=str)
def test_what_the_theory_does_not_know(fields, word):
  for predict in (theory.infinite_width, theory.finite_width):
    with pytest.raises(InputError, match='theory of random networks does not know') as error:
      predict(small(**fields), 8)
    assert word in str(error.value)


def test_what_cannot_be_is_refused():
  config = small()
  for arguments, word in (((0,), 'length'), ((65,), 'positions'), ((8, 'words'), 'probe')):
    with pytest.raises(InputError, match=word):
      theory.infinite_width(config, *arguments)
  limit = theory.infinite_width(config, 8)
  for length in (0, 9, 2.0):
    with pytest.raises(InputError, match='length'):
      limit.direction_cosine(length)
