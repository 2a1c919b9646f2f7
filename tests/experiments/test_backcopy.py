"""Sequences of the task follow its rule, and no network can do better than its entropy."""

import itertools

import jax
import numpy as np
import pytest

from experiments.attention_sink import backcopy

TEXT = 'to be or not to be, that is the question: whether tis nobler in the mind to suffer'


def next_distribution(task, before, now):
  """The rule in words: copy after a trigger, unless nothing is before it; else as in the text."""
  if task.is_trigger_V[now] and before != backcopy.START:
    return np.eye(task.vocab_size)[before]
  return task.transition_VV[now]


def sequences_of(task, length):
  """(ids, probability) of all sequences, by enumeration."""
  for ids in itertools.product(range(1, task.vocab_size), repeat=length):
    ids, probability = (backcopy.START, backcopy.START, *ids), 1.0
    for before, now, following in zip(ids, ids[1:], ids[2:], strict=False):
      probability *= next_distribution(task, before, now)[following]
    if probability:
      yield ids[1:], probability


@pytest.mark.parametrize('start', [True, False])
def test_the_entropy_is_that_of_all_sequences(start):
  task, length = backcopy.from_text('abracadabra', 'ra'), 4
  # The entropy of whole sequences is the sum of those of their predictions (chain rule).
  def entropy_of(length):
    p = np.array([probability for _, probability in sequences_of(task, length)])
    assert p.sum() == pytest.approx(1)
    return -np.sum(p * np.log(p))
  expected = entropy_of(length) if start else entropy_of(length + 1) - entropy_of(1)
  assert backcopy.entropy(task, length, start) == pytest.approx(expected / length)


def test_sampling_gives_the_entropy():
  task, length = backcopy.from_text(TEXT), 16
  ids_NT = np.asarray(backcopy.draw(task, jax.random.key(0), 4000, length))
  assert ids_NT.shape == (4000, length + 1) and (ids_NT[:, 0] == backcopy.START).all()
  assert ids_NT[:, 1:].min() >= 1 and ids_NT.max() < task.vocab_size
  loss_N = -np.asarray(backcopy.log_likelihood(task, ids_NT)).mean(axis=1)
  error = loss_N.std() / np.sqrt(len(loss_N))
  assert abs(loss_N.mean() - backcopy.entropy(task, length)) < 4 * error < 0.05


@pytest.mark.slow
def test_the_likelihood_follows_the_rule():
  task = backcopy.from_text(TEXT)
  for start in (True, False):
    ids_NT = np.asarray(backcopy.draw(task, jax.random.key(0), 5, 8, start))
    before_NT = np.column_stack([np.full(len(ids_NT), backcopy.START), ids_NT[:, :-2]])
    triples_NT3 = np.stack([before_NT, ids_NT[:, :-1], ids_NT[:, 1:]], axis=-1)
    p_NT = [[next_distribution(task, before, now)[following] for before, now, following in row_T3]
            for row_T3 in triples_NT3]
    made = backcopy.log_likelihood(task, ids_NT)
    np.testing.assert_allclose(np.exp(made), p_NT, rtol=1e-5)
  against = np.array([[backcopy.START, 1, 1, 1]])
  assert backcopy.from_text('ab', 'b').transition_VV[1, 1] == 0
  assert np.isneginf(backcopy.log_likelihood(backcopy.from_text('ab', 'b'), against)[0, 1])


def test_without_a_start_token_the_same_follows():
  task, key = backcopy.from_text(TEXT), jax.random.key(1)
  without = backcopy.draw(task, key, 8, 15, start=False)
  np.testing.assert_array_equal(without, backcopy.draw(task, key, 8, 16)[:, 1:])


def test_nothing_impossible_is_drawn():
  """Also where the sum of float32 probabilities ends below 1, and a random number above it."""
  p_VV = np.zeros((5, 5))
  p_VV[:, 1:4] = [0.1, 0.2, 0.7 - 2**-17]  # Their sum is below 1.
  task = backcopy.Backcopy(p_VV, np.zeros(5, bool))
  ids_NT = backcopy.draw(task, jax.random.key(0), 2**17, 8)
  assert ids_NT[:, 1:].max() == 3


def test_any_character_can_be_a_trigger():
  assert backcopy.from_text('a\0b\0a', '\0').is_trigger_V.tolist() == [False, True, False, False]
  assert not backcopy.from_text('ab', '').is_trigger_V.any()
