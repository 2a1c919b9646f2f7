"""Every test says what it is, and has a result or a reason not to count."""

import dataclasses
import math

import numpy as np
import pytest

from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison.every_test import DECIDING, TESTS, run_tests, seedprint_test
from bornbiased_jax.lineage.comparison.result import TestResult, does_not_apply
from bornbiased_jax.lineage.evidence import signature
from small_networks import DEEP, DEEP_GPT2, born
from small_signatures import PROBE, noise, of_seed, random_states


@pytest.mark.parametrize('config', [DEEP, DEEP_GPT2], ids=['llama', 'gpt2'])
def test_every_test_finds_a_copy_and_no_unrelated_network(config):
  for seed, related in ((1, True), (2, False)):
    results = run_tests(of_seed(config, 1), of_seed(config, seed))
    assert results.keys() == TESTS.keys() and all(each.counts for each in results.values())
    alike = [each.is_alike(len(TESTS)) for each in results.values()]
    assert alike == [related] * len(TESTS), results


def test_what_does_not_apply_says_why():
  results = run_tests(of_seed(DEEP, 1), of_seed(DEEP_GPT2, 2))
  assert 'gated' in results['unit order'].reason and results['value order'].counts
  results = run_tests(of_seed(DEEP, 1), of_seed(DEEP, 2, dataclasses.replace(PROBE, seed=3)))
  assert {name for name, each in results.items() if each.counts} == set(DECIDING)
  reason = results['SeedPrint'].reason
  assert 'other sequences' in reason and 'seed 0' in reason and 'seed 3' in reason


def test_a_shared_embedding_is_projected_out():
  shared = {name: born(DEEP, 9)[name] for name in ('embedding', 'head')}
  both = [signature.of_network(DEEP, born(DEEP, seed) | shared, PROBE) for seed in (1, 2)]
  results = run_tests(*both)
  assert abs(results['SeedPrint'].z) < 4 and results['SeedPrint'].bound > 0
  assert not any(results[name].is_alike(len(TESTS)) for name in DECIDING)
  few = [dataclasses.replace(each.states, hidden_ND=each.states.hidden_ND[:60],
                             input_ND=each.states.input_ND[:60]) for each in both]
  assert 'too few to project out' in seedprint_test(*few).reason


def test_hidden_states_that_cannot_be_compared():
  a, wider = random_states(DEEP, 1), random_states(dataclasses.replace(DEEP, width=40), 2)
  assert seedprint_test(a, wider).reason == 'they have 32 and 40 residual channels'
  for count, counts in ((3, True), (4, False)):
    hidden_ND = noise(3, *a.hidden_ND.shape)
    hidden_ND[:, :count] = 1
    result = seedprint_test(a, dataclasses.replace(a, hidden_ND=hidden_ND, input_ND=-hidden_ND))
    assert result.counts == counts and result.applies and np.isfinite(result.z)
  assert '4 of 32 channels are constant' in result.reason


FOUND = TestResult(0.5, 0.1, 0.1, 4.0, -6.0)


def test_what_counts_and_what_is_alike():
  assert FOUND.counts and FOUND.is_alike(7)
  limit = math.log10(thresholds.UNRELATED_ABOVE / 7)
  alike = [TestResult(0.5, 0.1, 0.1, 4.0, limit + change).is_alike(7) for change in (-0.01, 0.01)]
  assert alike == [True, False]
  assert not TestResult(0.5, 0.1, 0.1, 4.0, -6.0, reason='a pattern').is_alike(7)
  nothing = does_not_apply('other widths')
  assert not (nothing.counts or nothing.applies or nothing.is_alike(7))
  assert [TestResult(x, level=0.5).is_alike(7) for x in (0.4, 0.6)] == [False, True]


def test_other_units_keep_z():
  found = FOUND.scaled(3)
  assert (found.statistic - found.bound) / found.std == pytest.approx(found.z)
  assert found.detectable(4) == pytest.approx(3 * FOUND.detectable(4))
  assert does_not_apply('other widths').scaled(3) == does_not_apply('other widths')
