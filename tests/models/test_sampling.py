"""Sampling is `transformers`' at temperature 0, and otherwise has the softmax's frequencies."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import special, stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.models.sampling import sample
from bornbiased_jax.models.transformer import read
from bornbiased_jax.storage import huggingface
from directories import quiet_transformers
from small_networks import GPT2, GROUPED, LLAMA, random_networks, tokens, trained
from traced_programs import matmuls

KEY = jax.random.key(0)
LEARNED = dataclasses.replace(GPT2, tied_head=False, positions='learned')


def lively(config):
  """Parameters that say many different things; as drawn, they repeat one token."""
  noise = lambda leaf: 0.25 * np.random.default_rng(0).normal(size=leaf.shape).astype(np.float32)
  return jax.tree.map(lambda leaf: leaf + noise(leaf), random_networks(config, 1)[0])


@functools.partial(jax.jit, static_argnums=0)
def logits_of_all(config, params, tokens_BT):
  return read(config, params, tokens_BT, ('logits',))['logits']


@pytest.mark.slow
@pytest.mark.parametrize('config', [GROUPED, LEARNED], ids=['llama', 'gpt2'])
def test_live_greedy_is_what_transformers_generates(config, tmp_path):
  library = quiet_transformers()
  import torch
  params, prompt_BT = lively(config), tokens(3, 5)
  huggingface.save(tmp_path / 'model', config, params)
  model = library.AutoModelForCausalLM.from_pretrained(tmp_path / 'model')
  theirs = model.generate(torch.tensor(prompt_BT), do_sample=False, max_new_tokens=40,
                          output_logits=True, return_dict_in_generate=True)
  second_NB, first_NB = np.sort(torch.stack(theirs.logits).numpy(), axis=-1)[..., -2:].T
  assert np.min(first_NB - second_NB) > 1e-4, 'a near tie, which rounding may decide'
  drawn_BT = sample(config, params, prompt_BT, 40, KEY, temperature=0)
  np.testing.assert_array_equal(drawn_BT, theirs.sequences[:, 5:])
  assert len(np.unique(drawn_BT)) > 5


@pytest.mark.slow
@pytest.mark.parametrize('config, begun', [(LLAMA, 6), (LEARNED, 20)],
                         ids=['rope', 'learned and long'])
def test_a_window_slides_over_a_long_text(config, begun):
  """Each id is the likeliest one after the last `length` ids, read from position 0."""
  config = dataclasses.replace(config, length=8)
  params, text_BT = lively(config), tokens(8, begun)
  drawn_BT = sample(config, params, text_BT, 12, KEY, temperature=0)
  assert len(np.unique(drawn_BT)) > 5
  for drawn_B in np.asarray(drawn_BT).T:
    last_BT = text_BT[:, -8:]
    # What follows a position does not count, and one program reads texts of all lengths.
    padded_BT = np.pad(last_BT, ((0, 0), (0, 8 - last_BT.shape[1])))
    logits_BV = logits_of_all(config, params, padded_BT)[:, last_BT.shape[1] - 1]
    np.testing.assert_array_equal(drawn_B, np.argmax(logits_BV, axis=-1))
    text_BT = np.concatenate([text_BT, drawn_B[:, None]], axis=1)


@pytest.mark.slow
def test_frequencies_are_those_of_the_softmax():
  """Of two ids drawn in a row, against the product of the probabilities of each."""
  config = dataclasses.replace(LLAMA, vocab_size=5, num_layers=2)
  params, prompt_T, temperature = trained(config), [3, 1], 0.5
  logits_VTV = logits_of_all(config, params, np.array([[*prompt_T, first] for first in range(5)]))
  first_V, second_VV = (special.softmax(np.float64(logits) / temperature, axis=-1)
                        for logits in (logits_VTV[0, 1], logits_VTV[:, 2]))
  expected_VV = first_V[:, None] * second_VV
  assert expected_VV.max() > 2 * expected_VV.min()
  drawn_BT = np.asarray(sample(config, params, np.tile(prompt_T, (20_000, 1)), 2, KEY, temperature))
  counts_VV = np.zeros((5, 5))
  np.add.at(counts_VV, tuple(drawn_BT.T), 1)
  expected = 20_000 * expected_VV.ravel()
  assert expected.min() > 10
  assert stats.chisquare(counts_VV.ravel(), expected).pvalue > 0.01


def test_a_key_decides_what_is_drawn():
  params, prompt_BT = lively(LLAMA), tokens(1, 4).repeat(2, axis=0)
  draw = lambda seed: np.asarray(sample(LLAMA, params, prompt_BT, 20, jax.random.key(seed)))
  np.testing.assert_array_equal(draw(1), draw(1))
  assert (draw(1) != draw(2)).any() and (draw(1)[0] != draw(1)[1]).any()


def test_ids_without_a_meaning_are_never_drawn():
  drawn_BT = np.asarray(sample(LLAMA, lively(LLAMA), tokens(50, 2), 5, KEY, 5.0, num_ids=7))
  assert np.unique(drawn_BT).tolist() == list(range(7))
  assert np.max(sample(LLAMA, lively(LLAMA), tokens(50, 2), 5, KEY, 5.0, num_ids=1000)) == 69


def test_matrix_products_are_of_full_precision():
  prompt_BT = tokens(1, 4)
  trace = jax.make_jaxpr(lambda params: sample(LLAMA, params, prompt_BT, 3, KEY))
  params = param_shapes(LLAMA)
  found = [equation.params['precision'] for equation, _ in matmuls(trace(params))]
  assert len(found) > 5 and set(found) == {(jax.lax.Precision.HIGHEST,) * 2}


@pytest.mark.parametrize('change, message', [
    (dict(tokens=[[5, 70]]), '^id 70 is not of this model, whose ids are 0 to 69$'),
    (dict(tokens=[[-1]]), '^id -1 is not'),
    (dict(tokens=[[]]), r'\[1, 0\] are not token ids'),
    (dict(tokens=[5, 7]), r'\[2\] are not token ids'),
    (dict(tokens=[[0.5]]), 'tokens of float64'),
    (dict(num_tokens=0), '^num_tokens=0 must be a whole number'),
    (dict(num_ids=0), '^num_ids=0 must be a whole number'),
    (dict(temperature=-1), '^temperature=-1 is not a number of at least 0$'),
    (dict(temperature=float('nan')), '^temperature=nan'),
    (dict(temperature=float('inf')), '^temperature=inf'),
])
def test_wrong_input_is_one_line(change, message):
  given = dict(tokens=[[5]], num_tokens=3, key=KEY) | change
  with pytest.raises(InputError, match=message):
    sample(LLAMA, {}, **given)
