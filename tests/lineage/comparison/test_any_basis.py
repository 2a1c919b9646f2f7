"""What no change of parts can hide is alike in a copy, and not in unrelated networks."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax.lineage import thresholds, verdict
from bornbiased_jax.lineage.comparison import any_basis, every_test
from bornbiased_jax.lineage.comparison.likeness import layers_of
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.lineage.layouts import UNITS
from experiments.transforms import preserving
from small_networks import DEEP, DEEP_GPT2, altered, trained
from small_signatures import PROBE, noise, of_seed, random_features

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
  results = every_test.run_tests(base, suspect)
  assert results[NAMES[0]].statistic == pytest.approx(1, abs=1e-3)
  assert results[NAMES[1]].statistic > 2 * thresholds.ALIKE_IN_ANY_ORDER
  assert all(results[name].log10_p > -3 for name in every_test.DECIDING)
  results = every_test.run_tests(base, of_seed(DEEP, 2))
  assert not any(results[name].is_alike(7) for name in NAMES)
  assert results[NAMES[0]].statistic < 0.2 and abs(results[NAMES[1]].statistic) < 0.05


def transcribed_cka(a, b):
  """Linear CKA of differences of pairs, from Gram matrices, as Song et al. (2012) estimate HSIC."""
  k, m = (x @ x.T for x in (a[::2] - a[1::2], b[::2] - b[1::2]))
  n = len(k)
  k, m, one = k - np.diag(np.diag(k)), m - np.diag(np.diag(m)), np.ones(n)
  hsic = lambda k, m: (np.trace(k @ m) + one @ k @ one * (one @ m @ one) / ((n - 1) * (n - 2))
                       - 2 / (n - 2) * one @ k @ m @ one)
  return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


def test_hidden_states_are_compared_by_an_unbiased_cka():
  a = noise(0, 100, 20) * np.arange(1, 21)
  b = a[:, :12]**2 + 50 * noise(1, 100, 12) + 3
  statistic = lambda a, b: any_basis.states_test(a, b).statistic
  assert statistic(a, b) == pytest.approx(transcribed_cka(a, b), abs=1e-5)
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
  results = every_test.run_tests(base, other)
  assert all('other sequences' in results[name].reason for name in NAMES)
