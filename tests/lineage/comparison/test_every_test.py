"""Every test says what it is, and has a result or a reason not to count."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from bornbiased_jax.lineage import thresholds, verdict
from bornbiased_jax.lineage.comparison import any_basis
from bornbiased_jax.lineage.comparison.every_test import DECIDING, TESTS, run_tests, seedprint_test
from bornbiased_jax.lineage.comparison.likeness import layers_of
from bornbiased_jax.lineage.comparison.result import TestResult, does_not_apply
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.lineage.layouts import UNITS
from experiments.transforms import preserving
from small_networks import DEEP, DEEP_GPT2, altered, born, trained
from small_signatures import PROBE, noise, of_seed, random_features, random_states
from textbook import gram_hsic


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
  assert {name for name, each in results.items() if each.counts} == {
      *DECIDING, 'layers, any disguise'}
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


# In any basis: what no change of parts can hide


NAMES = 'hidden states, any basis', 'units, any order'


@pytest.mark.slow
def test_a_copy_of_which_all_was_changed_is_alike_and_unrelated_networks_are_not():
  network = DEEP, trained(DEEP, 1)
  for change in (preserving.permute_units, preserving.mix_values, preserving.permute_heads,
                 preserving.rotate_channels):
    network = altered(change, *network, jax.random.key(3))
  base = of_seed(DEEP, 1)
  suspect = signature.of_network(*network, PROBE)
  report = verdict.compare(base, suspect)
  assert report['verdict'] == 'inconclusive' and 'They may be copies' in ' '.join(report['reasons'])
  results = run_tests(base, suspect)
  assert results[NAMES[0]].statistic == pytest.approx(1, abs=1e-3)
  assert results[NAMES[1]].statistic > 2 * thresholds.ALIKE_IN_ANY_ORDER
  assert all(results[name].log10_p > -3 for name in DECIDING)
  # With other token ids, hidden states have nothing in common.
  report = verdict.compare(*(dataclasses.replace(each, states=random_states(DEEP, seed))
                             for seed, each in enumerate((base, suspect))))
  assert (report['verdict'], report['agree']) == ('inconclusive', ['layers, any disguise'])
  results = run_tests(base, of_seed(DEEP, 2))
  assert not any(results[name].is_alike(7) for name in NAMES)
  assert results[NAMES[0]].statistic < 0.2 and abs(results[NAMES[1]].statistic) < 0.05


def test_hidden_states_are_compared_by_an_unbiased_cka():
  a = noise(0, 100, 20) * np.arange(1, 21)
  b = a[:, :12]**2 + 50 * noise(1, 100, 12) + 3
  statistic = lambda a, b: any_basis.states_test(a, b).statistic
  x, y = (np.float64(each[::2] - each[1::2]) for each in (a, b))
  norms = np.sqrt(gram_hsic(x, x, True) * gram_hsic(y, y, True))
  assert statistic(a, b) == pytest.approx(gram_hsic(x, y, True) / norms, abs=1e-5)
  turn = np.linalg.qr(noise(2, 20, 20))[0]
  # What all contexts of a token have in common does not count.
  assert statistic(a, 7 * a @ turn + np.repeat(noise(3, 50, 20), 2, axis=0) * 100) == pytest.approx(
      1, abs=1e-3)
  independent = [statistic(*noise(seed, 2, 200, 40)) for seed in range(20)]
  assert abs(np.mean(independent)) < 0.03
  assert not any_basis.states_test(a[:6], b[:6]).applies
  assert statistic(0 * a, b) == 0


def test_units_that_cannot_be_compared_say_why():
  a, plain = (layers_of(random_features(config, 1), UNITS) for config in (DEEP, DEEP_GPT2))
  x = noise(0, 50, 32)
  for b, reason in ((plain, 'gated'), ([], 'no MLP'), (a[:1], 'one layer')):
    result = any_basis.units_test(a, b, x, x)
    assert not result.applies and reason in result.reason


@pytest.mark.parametrize('kept', [(0, 1, 2, 3), (0, 2, 3), (1, 3)])
def test_units_are_found_in_a_copy_that_was_cut_whichever_network_comes_first(kept):
  """Most units and some layers were left out, and channels turned."""
  whole = layers_of(random_features(DEEP, 1), UNITS)
  x, turn = noise(0, 50, DEEP.width), np.linalg.qr(noise(1, DEEP.width, DEEP.width))[0]
  cut = [{name: each[1::8] @ turn for name, each in whole[i].items()} for i in kept]
  other = [{name: each[:4] for name, each in layer.items()}
           for layer in layers_of(random_features(DEEP, 2), UNITS)[:len(kept)]]
  for small, is_alike in ((cut, True), (other, False)):
    found = [any_basis.units_test(whole, small, x, x @ turn),
             any_basis.units_test(small, whole, x @ turn, x)]
    assert [result.is_alike(1) for result in found] == [is_alike] * 2
    assert found[0].statistic == pytest.approx(found[1].statistic, abs=1e-3)
    if small is cut:  # As of the layers that were kept, each of which has its own.
      own = any_basis.units_test([whole[i] for i in kept], cut, x, x @ turn).statistic
      assert found[0].statistic == pytest.approx(own, abs=0.03)


@pytest.mark.parametrize('widths', [(12, 12), (12, 16), (16, 12)])
def test_the_basis_of_embeddings_is_found_though_some_do_not_fit(widths):
  """A quarter of the ids never occurred in one network: their vectors are large and unrelated."""
  a = noise(0, 300, widths[0])
  left, _, right = np.linalg.svd(noise(1, *widths), full_matrices=False)
  b = a @ left @ right
  b[::4] = 30 * noise(2, *b[::4].shape)
  change = any_basis.embedding_change(a + 5, b - 3)
  assert np.linalg.norm(change - left @ right) < 0.2 * np.linalg.norm(change)
  small = change @ change.T if widths[0] <= widths[1] else change.T @ change
  np.testing.assert_allclose(small, np.eye(min(widths)), atol=1e-5)


def test_the_basis_of_embeddings_turns_with_them():
  """Also where channels are skewed, so that their medians do not."""
  a, b = (np.exp(noise(seed, 300, 12)) for seed in (3, 4))
  turn = np.linalg.qr(noise(5, 12, 12))[0]
  change = any_basis.embedding_change(a, b)
  np.testing.assert_allclose(any_basis.embedding_change(a @ turn, b), turn.T @ change, atol=2e-3)


def test_sequences_must_be_pairs():
  """Of others the differences also have what another last token makes."""
  base = of_seed(DEEP, 1)
  assert base.states.probe['kind'] == 'pairs'
  other = dataclasses.replace(base, states=dataclasses.replace(
      base.states, probe=base.states.probe | {'hash': 'x', 'kind': 'tokens'}))
  results = run_tests(base, other)
  assert all('other sequences' in results[name].reason for name in NAMES)
