"""Parameters of other programs, by their names there."""

from flax import linen as nn
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import from_tree
from small_networks import logits, tokens

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=16, mlp_width=24, vocab_size=70,
                     positions='learned', length=200)
NAMES = {
    'embedding': 'wte/embedding', 'position_embedding': 'wpe/embedding',
    'final_norm/scale': 'norm/scale', 'final_norm/bias': 'norm/bias'} | {
    f'blocks/{ours}/{leaf}': f'block_{{}}/{theirs}/{leaf}'
    for ours, theirs in dict(query='attention/query', key='attention/key', value='attention/value',
                             output='attention/out', up='up', down='down').items()
    for leaf in ('kernel', 'bias')} | {
    f'blocks/{ours}/{leaf}': f'block_{{}}/{theirs}/{leaf}'
    for ours, theirs in dict(attention_norm='norm_1', mlp_norm='norm_2').items()
    for leaf in ('scale', 'bias')}


class Block(nn.Module):

  @nn.compact
  def __call__(self, x):
    mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
    x += nn.MultiHeadDotProductAttention(2, name='attention')(
        nn.LayerNorm(1e-5, name='norm_1')(x), mask=mask)
    hidden = nn.gelu(nn.Dense(24, name='up')(nn.LayerNorm(1e-5, name='norm_2')(x)))
    return x + nn.Dense(16, name='down')(hidden)


class Elsewhere(nn.Module):
  """GPT-2 as somebody writes it with Flax's own attention, whose kernels have an axis of heads."""

  @nn.compact
  def __call__(self, ids):
    embed = nn.Embed(70, 16, name='wte')
    x = embed(ids) + nn.Embed(200, 16, name='wpe')(jnp.arange(ids.shape[1]))[None]
    for i in range(2):
      x = Block(name=f'block_{i}')(x)
    return embed.attend(nn.LayerNorm(1e-5, name='norm')(x))


@pytest.fixture(scope='module')
def theirs():
  shapes = jax.eval_shape(Elsewhere().init, jax.random.key(0), tokens())['params']
  noise = lambda x: 0.3 * np.random.default_rng(x.size).standard_normal(x.shape, np.float32)
  return jax.tree.map(noise, shapes)


def test_a_network_of_another_program_computes_the_same(theirs):
  ids = tokens()
  expected = jax.jit(Elsewhere().apply)({'params': theirs}, ids)
  found = logits(CONFIG, from_tree(CONFIG, theirs, NAMES), ids)
  np.testing.assert_allclose(found, expected, atol=2e-5)


def without(names, *dropped):
  return {name: place for name, place in names.items() if name not in dropped}


@pytest.mark.parametrize('change, message', [
    (lambda tree: (tree, without(NAMES, 'embedding')), 'names lack embedding'),
    (lambda tree: (tree, NAMES | {'head': 'x'}), 'this architecture has no head'),
    (lambda tree: (tree, NAMES | {'embedding': 'wte/table'}), 'the tree has no wte/table'),
    (lambda tree: (tree, NAMES | {'embedding': 'wpe/embedding'}), 'has 3200 entries'),
    (lambda tree: (tree | {'more': {'x': np.ones(3)}}, NAMES), 'no parameter here .* more/x'),
])
def test_what_does_not_fit_is_named(theirs, change, message):
  with pytest.raises(InputError, match=message):
    from_tree(CONFIG, *change(theirs))


def test_arrays_may_have_all_layers(theirs):
  params = from_tree(CONFIG, theirs, NAMES)
  same = {name: name for name in flatten_dict(params, sep='/')}
  jax.tree.map(np.testing.assert_array_equal, from_tree(CONFIG, params, same), params)
