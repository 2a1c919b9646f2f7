"""Which ids coincide, by counting, and what theory makes of it, by random networks."""

import numpy as np
import pytest

from bornbiased_jax import configs, data
from bornbiased_jax.analysis import theory
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.theory.infinite_width import coincidences, pairs_of_windows
from bornbiased_jax.errors import InputError
from small_networks import last_cosines, random_networks

CONFIG = configs.get('tiny_llama2', vocab_size=40)
IDS = np.random.default_rng(0).choice(8, 1200, p=[0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05])
IDS[1::6] = IDS[::6]  # Neighbours are more often alike than others.
TEXT = data.from_ids(IDS, 'pairs')


def windows(probe, number=None):
  return np.asarray(probe.inputs(CONFIG, np.arange(number or probe.num_sequences)))


@pytest.mark.parametrize('kind, start_id', [('text', None), ('shuffled', None), ('text', 39)])
def test_ids_of_windows_coincide_or_not(kind, start_id):
  """Within either window and between the two, for all pairs that are met once."""
  probe = Probe(kind, 5, 4, text=TEXT, start_id=start_id)
  first, second, third, fourth, fifth = windows(probe)
  found = coincidences(CONFIG, 4, probe)
  for number, (one, other) in enumerate((
      (first, second), (second, third), (third, fourth), (fourth, fifth), (fifth, first),
      (first, third), (second, fourth), (third, fifth), (fourth, first), (fifth, second))):
    for kernel, (rows, columns) in zip(found[number], ((one, one), (other, other), (one, other)),
                                       strict=True):
      expected = [[row == column for column in columns] for row in rows]
      np.testing.assert_array_equal(kernel, expected)
  assert len(found) == 20  # The other ten are the same pairs, turned.


@pytest.mark.parametrize('num_sequences, length, of_each', [
    (5, 4, False), (100, 64, False), (5000, 200, False), (5, 4, True), (1, 4, False)])
def test_each_window_is_in_as_many_pairs_as_any_other(num_sequences, length, of_each):
  """Windows that each network draws for itself are as many as can be, whatever their number."""
  probe = Probe('text', num_sequences, length, text=TEXT, of_each=of_each)
  windows_NT, first_P, second_P = pairs_of_windows(CONFIG, probe)
  met_N = np.bincount(first_P) + np.bincount(second_P)
  assert len(met_N) == len(windows_NT) and len(set(met_N)) == 1
  assert np.all(first_P != second_P)
  assert len(set(zip(first_P, second_P, strict=True))) == len(first_P)
  affordable = min(512, 2**23 // length**2)
  assert len(windows_NT) == (affordable if of_each else min(max(2, num_sequences), affordable))


def test_windows_of_a_text_coincide_as_often_as_its_ids():
  """Neighbours more often than any two ids, which do so as often between windows."""
  within_TT, _, between_TT = coincidences(
      CONFIG, 4, Probe('text', 400, 4, text=TEXT)).mean(axis=0)
  any_two = np.mean(np.equal.outer(IDS, IDS))
  for lag in (1, 2, 3):
    expected = np.mean(IDS[lag:] == IDS[:-lag])
    assert np.diagonal(within_TT, lag) == pytest.approx([expected] * (4 - lag), abs=0.06)
  assert np.diagonal(within_TT, 1).mean() > 1.3 * any_two
  assert between_TT.mean() == pytest.approx(any_two, abs=0.02)


def test_random_sequences_begin_with_one_start_token():
  found = coincidences(CONFIG, 3, Probe('tokens', 5, 3, start_id=7))
  within, between = np.full((3, 3), 1 / 40), np.full((3, 3), 1 / 40)
  np.fill_diagonal(within, 1)
  between[0, 0] = 1
  np.testing.assert_allclose(found, [[within, within, between]], rtol=1e-6)


def test_random_ids_are_a_text_of_as_many_ids():
  """Ids below a number, a smaller vocabulary and a collision probability are one thing."""
  wide = configs.get('tiny_gpt2', vocab_size=64)
  small = theory.infinite_width(configs.get('tiny_gpt2', vocab_size=16), 8)
  for found in (theory.infinite_width(wide, 8, collision=1 / 16),
                theory.infinite_width(wide, 8, Probe('tokens', 9, 8, num_ids=16))):
    np.testing.assert_allclose(found.inter_cosine_L, small.inter_cosine_L, rtol=1e-6)
  assert small.inter_cosine_L[-1] > 1.1 * theory.infinite_width(wide, 8).inter_cosine_L[-1]


def test_a_text_of_one_token_leaves_nothing_to_differ():
  text = data.from_ids(np.zeros(100, int), 'one token')
  expected = theory.infinite_width(CONFIG, 5, Probe('text', 10, 5, text=text))
  np.testing.assert_allclose(expected.inter_cosine_L, 1, rtol=1e-4)


@pytest.mark.slow
def test_random_networks_agree():
  """The mean of 24 networks that read six windows, which are not like others of the text."""
  config = configs.get('tiny_llama2', num_layers=2, width=64, mlp_width=128, vocab_size=40)
  probe = Probe('text', 6, 6, text=TEXT, start_id=39)
  ids_NT = np.asarray(probe.inputs(config, np.arange(6)))
  cosine_SL = last_cosines(config, random_networks(config, 24), ids_NT)
  mean_L, error_L = cosine_SL.mean(axis=0), cosine_SL.std(axis=0, ddof=1) / 24**0.5
  expected_L = theory.finite_width(config, 6, probe).inter_cosine_L
  assert np.all(np.abs(expected_L - mean_L) < 3 * error_L + 0.01)
  assert np.all(np.abs(theory.infinite_width(config, 6).inter_cosine_L - mean_L) > 0.1)


@pytest.mark.parametrize('call, named', [
    (lambda: theory.infinite_width(CONFIG, 8, 'text'), "'text'.*give a Probe"),
    (lambda: theory.infinite_width(CONFIG, 8, Probe('text', 5, 4, text=TEXT)), 'length=8.*4'),
    (lambda: theory.infinite_width(CONFIG, 8, collision=1.5), 'collision=1.5'),
    (lambda: theory.infinite_width(CONFIG, 8, 'gaussian', collision=0.5), 'collision=0.5'),
    (lambda: theory.infinite_width(CONFIG, 8, Probe('pairs', 5, 8)), "'pairs'"),
])
def test_what_theory_does_not_know_is_refused(call, named):
  with pytest.raises(InputError, match=named):
    call()
