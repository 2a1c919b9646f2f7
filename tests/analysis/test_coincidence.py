"""Which ids coincide, by counting, and what theory makes of it, by random networks."""

import numpy as np
import pytest

from bornbiased_jax import analysis, configs, data
from bornbiased_jax.analysis import coincidence, theory
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError

CONFIG = configs.get('tiny_llama2', vocab_size=40)
IDS = np.random.default_rng(0).choice(8, 1200, p=[0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05])
IDS[1::6] = IDS[::6]  # Neighbours are more often alike than others.
TEXT = data.from_ids(IDS, 'pairs')


def share_of_pairs():
  """The probability that two ids of the text are the same, by all pairs."""
  return np.mean(np.equal.outer(IDS, IDS))


def test_within_a_window_by_distance_and_between_windows_as_often_as_any_two():
  within_TT, *pairs = coincidence.kernels(CONFIG, 4, Probe('text', 50, 4, text=TEXT))
  for i in range(4):
    for j in range(4):
      lag = abs(i - j)
      expected = np.mean([IDS[n] == IDS[n + lag] for n in range(len(IDS) - lag)])
      assert within_TT[i, j] == pytest.approx(expected)
  np.testing.assert_allclose(np.mean(pairs, axis=0), share_of_pairs(), atol=1e-6)
  # Two ids coincide or not; their mean is put right.
  assert np.var(pairs) == pytest.approx(share_of_pairs() * (1 - share_of_pairs()), rel=0.2)


def test_shuffled_ids_coincide_alike_at_all_distances():
  within_TT, *_ = coincidence.kernels(CONFIG, 4, Probe('shuffled', 50, 4, text=TEXT))
  np.testing.assert_allclose(within_TT[~np.eye(4, dtype=bool)], share_of_pairs(), rtol=1e-6)


@pytest.mark.parametrize('start_id, share', [(20, 0.0), (0, np.mean(IDS == 0))])
def test_a_start_token_coincides_with_itself(start_id, share):
  probe = Probe('text', 50, 4, text=TEXT, start_id=start_id)
  kernels_KTT = coincidence.kernels(CONFIG, 4, probe)
  np.testing.assert_array_equal(kernels_KTT[:, 0, 0], 1)
  np.testing.assert_allclose(kernels_KTT[:, 0, 1:], share, rtol=1e-6)
  np.testing.assert_allclose(kernels_KTT[:, 1:, 0], share, rtol=1e-6)


def test_random_ids_are_a_text_of_as_many_ids():
  """Ids below a number, a smaller vocabulary and a collision probability are one thing."""
  wide = configs.get('tiny_gpt2', vocab_size=64)
  small = theory.at_birth(configs.get('tiny_gpt2', vocab_size=16), 8)
  for found in (theory.at_birth(wide, 8, collision=1 / 16),
                theory.at_birth(wide, 8, Probe('tokens', 9, 8, num_ids=16))):
    np.testing.assert_allclose(found.inter_cosine_L, small.inter_cosine_L, rtol=1e-6)
  assert small.inter_cosine_L[-1] > 1.1 * theory.at_birth(wide, 8).inter_cosine_L[-1]


def test_a_text_of_one_token_leaves_nothing_to_differ():
  text = data.from_ids(np.zeros(100, int), 'one token')
  law = theory.at_birth(CONFIG, 5, Probe('text', 10, 5, text=text))
  np.testing.assert_allclose(law.inter_cosine_L, 1, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('kind, start_id', [('text', None), ('shuffled', None), ('text', 39)])
@pytest.mark.parametrize('name', ['tiny_gpt2', 'tiny_llama2'])
def test_random_networks_agree(name, kind, start_id):
  """The mean of six networks, up to four standard errors and what finite width adds."""
  config = configs.get(name, num_layers=2, width=256, mlp_width=512, vocab_size=40)
  probe = Probe(kind, 60, 6, text=TEXT, start_id=start_id)
  rows = analysis.measure(analysis.transformer(config), analysis.inter_sequence('residual_last'),
                          probe, range(6))
  cosine_SL = np.array([row['cosine'] for row in rows])
  law_L = theory.at_birth(config, 6, probe).inter_cosine_L
  error_L = cosine_SL.std(axis=0, ddof=1) / 6**0.5
  assert np.all(np.abs(law_L - cosine_SL.mean(axis=0)) < 4 * error_L + 0.01)
  uniform_L = theory.at_birth(config, 6).inter_cosine_L
  assert np.all(np.abs(uniform_L - cosine_SL.mean(axis=0)) > 0.1)


@pytest.mark.parametrize('call, named', [
    (lambda: theory.at_birth(CONFIG, 8, 'text'), "'text'.*give a Probe"),
    (lambda: theory.at_birth(CONFIG, 8, Probe('text', 5, 4, text=TEXT)), 'length=8.*4'),
    (lambda: theory.at_birth(CONFIG, 8, collision=1.5), 'collision=1.5'),
    (lambda: theory.at_birth(CONFIG, 8, 'gaussian', collision=0.5), 'collision=0.5'),
    (lambda: theory.finite_width(CONFIG, 4, Probe('text', 5, 4, text=TEXT)), "'text'"),
    (lambda: theory.at_birth(CONFIG, 8, Probe('pairs', 5, 8)), "'pairs'"),
])
def test_what_theory_does_not_know_is_refused(call, named):
  with pytest.raises(InputError, match=named):
    call()
