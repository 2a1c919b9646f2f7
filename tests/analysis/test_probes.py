"""Probes are drawn from the stated law, and any slice of one is a slice of the whole."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.analysis.probes import KINDS, Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError

CONFIG = ModelConfig(num_layers=1, num_heads=2, width=8, mlp_width=8, vocab_size=37,
                     embedding_std=0.3)
every_kind = pytest.mark.parametrize('kind', ['tokens', 'gaussian'])


@functools.partial(jax.jit, static_argnums=0)
def draw(probe, index_B):
  return probe.inputs(CONFIG, index_B)


def whole(kind, num_sequences=40, length=5, seed=3):
  return np.asarray(draw(Probe(kind, num_sequences, length, seed), np.arange(num_sequences)))


@every_kind
@pytest.mark.parametrize('index', [range(4), range(36, 40), [39, 0, 17, 17]], ids=str)
def test_a_slice_is_a_slice_of_the_whole(kind, index):
  index = np.asarray(index)
  np.testing.assert_array_equal(draw(Probe(kind, 40, 5, 3), index), whole(kind)[index])


@every_kind
def test_in_a_loop_with_a_traced_start(kind):
  """This is how the ensemble draws its batches."""
  probe = Probe(kind, 40, 5, 3)
  batch = lambda first: probe.inputs(CONFIG, first + jnp.arange(8))
  batches = jax.jit(lambda: jax.lax.map(batch, 8 * jnp.arange(5)))()
  np.testing.assert_array_equal(batches.reshape(whole(kind).shape), whole(kind))


@every_kind
def test_more_sequences_leave_the_first_as_they_are(kind):
  np.testing.assert_array_equal(whole(kind, 60)[:40], whole(kind, 40))


@every_kind
def test_seeds_and_sequences_differ(kind):
  sequences = np.concatenate([whole(kind, seed=seed) for seed in (3, 2**32 - 1)]).reshape(80, -1)
  assert len(np.unique(sequences, axis=0)) == 80


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
    (('token', 2, 3), "'token'.*tokens, pairs, gaussian"),
    (('tokens', 0, 3), 'num_sequences=0'),
    (('gaussian', -1, 3), 'num_sequences=-1'),
    (('tokens', 2, 0), 'length=0'),
])
def test_impossible(arguments, named):
  with pytest.raises(InputError, match=named):
    Probe(*arguments)


@pytest.mark.parametrize('kind', KINDS)
def test_sequences_of_each_network(kind):
  probe = Probe(kind, 8, 3, of_each=True)
  read = lambda seed: np.asarray(probe.inputs(CONFIG, jnp.arange(8), seed))
  np.testing.assert_array_equal(read(5), read(np.uint32(5)))
  assert np.mean(read(5) == read(6)) < 0.1
  shared = Probe(kind, 8, 3)
  np.testing.assert_array_equal(shared.inputs(CONFIG, jnp.arange(8), 5),
                                shared.inputs(CONFIG, jnp.arange(8)))
