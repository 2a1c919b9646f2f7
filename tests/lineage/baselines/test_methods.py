"""All methods but two tell a network from another, and their scores are judged as stated."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.baselines import methods, published
from small_networks import DEEP, LLAMA, born, read


@pytest.mark.parametrize('method', [
    'SeedPrint', 'SeedPrint logits', 'SeedPrint published', 'SeedPrint published U', 'REEF',
    'REEF unbiased',
])
def test_methods_refuse_networks_that_read_different_tokens(method):
  larger = dataclasses.replace(LLAMA, vocab_size=90)
  subjects = [methods.Subject(config, born(config, 1), Probe('tokens', 20, 4))
              for config in (LLAMA, larger)]
  with pytest.raises(InputError, match='did not read the same: give both the same num_ids'):
    methods.METHODS[method].score(*subjects)


@pytest.fixture(scope='module')
def subjects():
  """Two unrelated networks."""
  return [methods.Subject(DEEP, born(DEEP, seed), Probe('tokens', 200, 4))
          for seed in (1, 2)]


# These call all random networks of one architecture the same.
BLIND = ('norm gains', 'architecture')


@pytest.mark.parametrize('method', [name for name in methods.METHODS if name not in BLIND])
def test_every_other_method_tells_a_network_from_another(method, subjects):
  base, other = subjects
  itself, unrelated = (methods.METHODS[method].score(base, suspect) for suspect in (base, other))
  assert itself.score > unrelated.score
  assert methods.published_verdict(method, itself)


@pytest.mark.parametrize('method', BLIND)
def test_the_blind_have_one_score_for_a_copy_and_for_unrelated_networks(method, subjects):
  base, other = subjects
  scores = [methods.METHODS[method].score(base, suspect) for suspect in (base, other)]
  assert scores == [methods.Score(1.0)] * 2
  assert methods.published_verdict(method, scores[1])
  assert methods.rank_p_value(scores[1].score, [scores[0].score] * 99) == 1


def test_architecture_is_what_a_configuration_says_of_it(subjects):
  base = subjects[0]
  for change, expected in ((dict(mlp_width=80), 0), (dict(activation='gelu'), 0),
                           (dict(num_kv_heads=2), 0), (dict(init_scheme='plain'), 1)):
    suspect = dataclasses.replace(base, config=dataclasses.replace(DEEP, **change))
    assert methods.METHODS['architecture'].score(base, suspect).score == expected


def test_published_tests_are_those_of_the_hidden_states(subjects):
  base, other = subjects
  expected = published.published_test(base.hidden.hidden_ND, other.hidden.hidden_ND)
  for name, p_value in (('', expected.p_value), (' U', expected.p_value_u)):
    score = methods.METHODS[f'SeedPrint published{name}'].score(base, other)
    assert 10**score.log10_p == pytest.approx(p_value) and score.score == -score.log10_p


def test_constant_states_are_no_evidence_in_the_published_test(subjects):
  base, constant = subjects[0], dataclasses.replace(subjects[0])
  hidden_ND = np.ones_like(base.hidden.hidden_ND)
  vars(constant)['hidden'] = dataclasses.replace(base.hidden, hidden_ND=hidden_ND)
  assert methods.METHODS['SeedPrint published'].score(base, constant).log10_p == 0


def test_reef_reads_statements():
  """States are those of the last token of each statement, in the layer that REEF reads."""
  config, params = LLAMA, born(LLAMA, 1)
  statements = np.random.default_rng(0).integers(0, config.vocab_size, (7, 5)).astype(np.int32)
  subject = methods.Subject(config, params, Probe('tokens', 200, 4), statements)
  out = read(config, params, statements, 'residual')['residual']
  layer = max(0, round(18 / 32 * config.num_layers) - 1)
  np.testing.assert_allclose(subject.states, out[layer, :, -1], rtol=1e-4, atol=1e-6)
  of_probe = dataclasses.replace(subject, statements=None)
  assert of_probe.states.shape == (200, config.width)


def test_p_values_and_z_scores_are_judged_at_one_percent():
  for p_value, expected in ((0.0099, True), (0.0101, False)):
    by_p = methods.Score(0.0, np.log10(p_value))
    assert methods.published_verdict('SeedPrint', by_p) == expected
    by_z = methods.Score(stats.norm.isf(p_value))
    assert methods.published_verdict('SeedPrint logits', by_z) == expected


def test_ranks_of_exchangeable_scores_are_uniform():
  scores = np.random.default_rng(0).standard_normal(20).tolist()
  p_values = [methods.rank_p_value(score, scores[:i] + scores[i + 1:])
              for i, score in enumerate(scores)]
  np.testing.assert_allclose(sorted(p_values), np.arange(1, 21) / 20)
  # What cannot be compared is no evidence.
  assert [methods.rank_p_value(*each) for each in ((np.nan, [1.0] * 9), (2.0, [np.nan] * 9))
          ] == [1, 1]
