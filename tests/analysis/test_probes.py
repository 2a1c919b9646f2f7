"""Probes are drawn from the stated law, and any slice of one is a slice of the whole."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.analysis.probes import KINDS, OF_TEXT, Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data import corpus
from bornbiased_jax.errors import InputError

CONFIG = ModelConfig(num_layers=1, num_heads=2, width=8, mlp_width=8, vocab_size=37,
                     embedding_std=0.3)
# Windows of it say where they begin, but for the ids after a multiple of 37.
TEXT = corpus.from_ids(np.arange(1000) % 37, 'counting')
every_kind = pytest.mark.parametrize('kind', ['tokens', 'gaussian', *OF_TEXT])


def make(kind, *arguments, **others):
  return Probe(kind, *arguments, text=TEXT if kind in OF_TEXT else None, **others)


@functools.partial(jax.jit, static_argnums=0)
def draw(probe, index_B):
  return probe.inputs(CONFIG, index_B)


def whole(kind, num_sequences=40, length=5, seed=3):
  return np.asarray(draw(make(kind, num_sequences, length, seed), np.arange(num_sequences)))


@every_kind
def test_a_slice_is_a_slice_of_the_whole(kind):
  index = np.array([39, 0, 17, 17])
  np.testing.assert_array_equal(draw(make(kind, 40, 5, 3), index), whole(kind)[index])


@every_kind
def test_in_a_loop_with_a_traced_start(kind):
  """This is how the ensemble draws its batches."""
  probe = make(kind, 40, 5, 3)
  batch = lambda first: probe.inputs(CONFIG, first + jnp.arange(8))
  batches = jax.jit(lambda: jax.lax.map(batch, 8 * jnp.arange(5)))()
  np.testing.assert_array_equal(batches.reshape(whole(kind).shape), whole(kind))


@every_kind
def test_more_sequences_leave_the_first_as_they_are(kind):
  np.testing.assert_array_equal(whole(kind, 60)[:40], whole(kind, 40))


@every_kind
def test_seeds_and_sequences_differ(kind):
  sequences = np.concatenate([whole(kind, seed=seed) for seed in (3, 2**32 - 1)]).reshape(80, -1)
  # There are 37 windows of a text that repeats itself.
  assert len(np.unique(sequences, axis=0)) > (80 if kind != 'text' else 30) - 1


def test_shape_and_type():
  assert whole('tokens').shape == (40, 5)
  assert whole('tokens').dtype == np.int32
  assert whole('gaussian').shape == (40, 5, CONFIG.width)
  assert whole('gaussian').dtype == np.float32


def test_tokens_are_uniform():
  tokens = whole('tokens', 4000, 10)
  assert tokens.min() == 0
  assert tokens.max() == CONFIG.vocab_size - 1
  by_position = np.stack([np.bincount(ids, minlength=CONFIG.vocab_size) for ids in tokens.T])
  assert stats.chisquare(by_position.sum(0)).pvalue > 1e-3
  assert stats.chisquare(by_position, axis=None).pvalue > 1e-3


def test_tokens_are_independent():
  pairs = whole('tokens', 4000, 10).reshape(-1, 2)
  table = np.bincount(pairs @ [CONFIG.vocab_size, 1], minlength=CONFIG.vocab_size ** 2)
  assert stats.chisquare(table).pvalue > 1e-3
  by_sequence = whole('tokens', 8000, 1).reshape(-1, 2)
  table = np.bincount(by_sequence @ [CONFIG.vocab_size, 1], minlength=CONFIG.vocab_size ** 2)
  assert stats.chisquare(table).pvalue > 1e-3


def test_gaussian():
  z = whole('gaussian', 2000, 5).astype(np.float64) / CONFIG.embedding_std
  assert stats.kstest(z.ravel(), 'norm').pvalue > 1e-3
  assert abs(z.std() - 1) < 4 / math.sqrt(2 * z.size)
  # Positions, channels and sequences correlate no more than independent numbers do.
  for a, b in ((z[:, 0], z[:, 1]), (z[..., 0], z[..., 1]), (z[::2], z[1::2])):
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / math.sqrt(a.size)


@pytest.mark.parametrize('arguments, named', [
    (('token', 2, 3), "'token'.*tokens, pairs, text, shuffled, gaussian"),
    (('tokens', 0, 3), 'num_sequences=0'),
    (('gaussian', -1, 3), 'num_sequences=-1'),
    (('tokens', 2, 0), 'length=0'),
    (('text', 2, 3), "'text' reads a text="),
    (('tokens', 2, 3, 0, None, False, TEXT), "'tokens' reads no text"),
    (('text', 2, 1000, 0, None, False, TEXT), 'counting has 1000 tokens'),
    (('gaussian', 2, 3, 0, None, False, None, 1), 'start_id=1'),
])
def test_impossible(arguments, named):
  with pytest.raises(InputError, match=named):
    Probe(*arguments)


@pytest.mark.parametrize('kind', KINDS)
def test_sequences_of_each_network(kind):
  probe = make(kind, 8, 3, of_each=True)
  read = lambda seed: np.asarray(probe.inputs(CONFIG, jnp.arange(8), seed))
  np.testing.assert_array_equal(read(5), read(np.uint32(5)))
  assert np.mean(read(5) == read(6)) < 0.2
  shared = make(kind, 8, 3)
  np.testing.assert_array_equal(shared.inputs(CONFIG, jnp.arange(8), 5),
                                shared.inputs(CONFIG, jnp.arange(8)))


def test_pairs_end_in_one_id_and_share_nothing_else():
  ids = whole('pairs')
  np.testing.assert_array_equal(ids[::2, -1], ids[1::2, -1])
  # Other ids agree by chance, once in 37.
  assert np.mean(ids[::2, :-1] == ids[1::2, :-1]) < 0.2
  assert np.mean(ids[1:-1:2, -1] == ids[2::2, -1]) < 0.3


def test_windows_of_a_text():
  ids = whole('text', 2000, 6)
  np.testing.assert_array_equal((ids[:, 1:] - ids[:, :-1]) % 37, 1)
  # Of 995 windows, all begin equally often.
  first = np.bincount(ids[:, 0], minlength=37)
  expected = np.bincount(TEXT.tokens[:995], minlength=37)
  assert stats.chisquare(first, 2000 * expected / 995).pvalue > 1e-3


def test_the_last_window_is_one_of_them():
  text = corpus.from_ids(np.arange(4), 'four')
  found = np.asarray(draw(Probe('text', 60, 3, text=text), np.arange(60)))
  assert {tuple(ids) for ids in found.tolist()} == {(0, 1, 2), (1, 2, 3)}


def test_shuffled_ids_are_as_frequent_as_in_the_text_and_independent():
  text = corpus.from_ids(np.repeat(np.arange(3), [6, 3, 1]), 'any distribution')
  ids = np.asarray(draw(Probe('shuffled', 4000, 2, text=text), np.arange(4000)))
  table = np.bincount(ids @ [3, 1], minlength=9)
  expected = 4000 * np.outer([0.6, 0.3, 0.1], [0.6, 0.3, 0.1]).ravel()
  assert stats.chisquare(table, expected).pvalue > 1e-3


@pytest.mark.parametrize('kind', ['tokens', 'text'])
def test_sequences_begin_with_a_start_token(kind):
  begun, plain = (draw(make(kind, 9, 4, start_id=start), np.arange(9)) for start in (36, None))
  assert set(np.asarray(begun[:, 0])) == {36}
  np.testing.assert_array_equal(begun[:, 1:], plain[:, 1:])


def test_ids_outside_the_vocabulary_are_refused():
  for probe in (Probe('text', 2, 3, text=corpus.from_ids(np.arange(99), 'counting to 98')),
                Probe('tokens', 2, 3, start_id=37)):
    with pytest.raises(InputError, match='37'):
      probe.inputs(CONFIG, jnp.arange(2))


def test_a_probe_of_the_same_text_is_the_same_probe():
  again = corpus.from_ids(np.arange(1000) % 37, 'counting')
  other = corpus.from_ids(np.arange(1000) % 36, 'counting')
  probe = make('text', 8, 3)
  assert probe == Probe('text', 8, 3, text=again) != Probe('text', 8, 3, text=other)
  assert hash(probe) == hash(Probe('text', 8, 3, text=again))
