"""The simplified layers compute what plain numpy computes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from bornbiased_jax import configs
from bornbiased_jax.analysis import simplified
from bornbiased_jax.errors import InputError


def test_a_stack_equals_numpy():
  config = simplified.StackConfig(('norm', 'mlp', 'attention', 'mlp'), 8, 12, 'tanh')
  params = jax.jit(functools.partial(simplified.draw_stack, config))(3)
  x = np.random.default_rng(0).standard_normal((2, 5, 8), np.float32)
  names = 'residual', 'residual_last', 'preactivation'
  out = jax.jit(functools.partial(simplified.read_stack, config, names=names))(params, x)
  norm = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
  first = np.tanh(norm @ params[1]['up']) @ params[1]['down']
  mean = np.stack([first[:, :i].mean(1) for i in range(1, 6)], axis=1)
  last = np.tanh(mean @ params[3]['up']) @ params[3]['down']
  np.testing.assert_allclose(out['residual'], [norm, first, mean, last], rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(out['residual_last'], out['residual'][:, :, -1])
  preactivation = [norm @ params[1]['up'], mean @ params[3]['up']]
  np.testing.assert_allclose(out['preactivation'], preactivation, rtol=1e-4, atol=1e-6)


def test_activations_share_their_weights():
  draw = lambda activation: simplified.draw_stack(
      simplified.StackConfig(('mlp',), 4, 6, activation), 7)
  jax.tree.map(np.testing.assert_array_equal, draw('relu'), draw('tanh'))


def test_layers_are_drawn_independently():
  first, second = simplified.draw_stack(simplified.StackConfig(('mlp', 'mlp'), 40, 60, 'relu'), 7)
  for name, weights in first.items():
    assert abs(np.corrcoef(weights.ravel(), second[name].ravel())[0, 1]) < 0.1


@pytest.mark.parametrize('wrong', [dict(layers=('mlp', 'conv')), dict(activation='step')])
def test_unknown_layers_and_activations_are_refused(wrong):
  with pytest.raises(InputError, match='is not one of'):
    simplified.StackConfig(**(dict(layers=('mlp',), width=4, mlp_width=4) | wrong))


@pytest.mark.slow
def test_bare_attention_equals_numpy():
  """Softmax attention, layer after layer, with nothing around it."""
  config = configs.get('tiny_gpt2', positions='learned', sublayers='attention_only', num_layers=2)
  network = simplified.bare_attention(config)
  params = jax.jit(network.draw)(3)
  x = np.random.default_rng(0).standard_normal((2, 5, config.width))
  read = jax.jit(functools.partial(network.read, names=('residual',)))
  out = read(params, jnp.asarray(x, jnp.float32))['residual']
  split = lambda y: y.reshape(2, 5, config.num_heads, config.head_size).transpose(0, 2, 1, 3)
  for i in range(2):
    weight = lambda name, i=i: np.asarray(params['blocks'][name]['kernel'][i], np.float64)
    query, key, value = (split(x @ weight(name)) for name in ('query', 'key', 'value'))
    scores = query @ key.transpose(0, 1, 3, 2) / config.head_size**0.5
    scores = np.where(np.tri(5, dtype=bool), scores, -np.inf)
    mixed = special.softmax(scores, axis=-1) @ value
    x = mixed.transpose(0, 2, 1, 3).reshape(2, 5, config.width) @ weight('output')
    np.testing.assert_allclose(out[i], x, rtol=1e-3, atol=1e-5 * np.abs(x).max())


def test_bare_attention_has_no_windows():
  config = configs.get('tiny_gpt2', sublayers='attention_only', windows=(3, None, None, 4))
  with pytest.raises(InputError, match='bare attention has no windows'):
    simplified.bare_attention(config)
