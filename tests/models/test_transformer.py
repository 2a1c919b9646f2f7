"""The forward pass equals its textbook definition, and refuses what it cannot read."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import models
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.models.transformer import READS
from textbook import (
  CASES,
  GPT2,
  LAST,
  LLAMA,
  ROPE,
  B,
  T,
  cases,
  random_params,
  random_tokens,
  read,
  textbook,
  with_fields,
)

every_case = pytest.mark.parametrize('config', CASES.values(), ids=CASES.keys())


def every_read(config):
  missing = {'mlp_only': ('value', 'value_aggregate', 'attention_weights', 'attention_received'),
             'attention_only': ('mlp_input', 'mlp_hidden')}.get(config.sublayers, ())
  of_experts = 'router_logits', 'expert_weights'  # See test_mlp.
  return tuple(name for name in READS if name not in (*missing, *of_experts))


def assert_close(actual, expected, name):
  """Compares up to float32 rounding, of which these networks gather some ten units (1e-6).

  They are units of most entries, or of one entry that is larger than these.
  """
  assert actual.shape == expected.shape, name
  scale = np.sqrt(np.mean(np.square(expected)))
  np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=5e-6 * scale, err_msg=name)


@every_case
def test_equals_the_textbook(config):
  params, tokens = random_params(config), random_tokens(config)
  actual = read(config, params, tokens, every_read(config))
  expected = textbook(config, params, tokens)
  assert set(actual) == set(expected)
  for name in expected:
    assert actual[name].dtype == 'float32'
    assert_close(actual[name], expected[name], name)


@cases('gpt2', 'one_layer_silu', 'llama', 'pythia', 'gemma3', 'alibi', 'attention_only',
       'mlp_only_relu')
def test_last_reads_equal_the_textbook(config):
  for length in (T, 1) if config is LLAMA else (T,):
    params, tokens = random_params(config), random_tokens(config)[:, :length]
    actual, expected = read(config, params, tokens, LAST), textbook(config, params, tokens)
    for name in LAST:
      assert_close(actual[name], expected[name], name)


@cases('gpt2', 'qwen3', 'mlp_only_relu')
def test_types_in_bfloat16(config):
  tokens = random_tokens(config)
  shapes = {name: x.shape for name, x in textbook(config, random_params(config), tokens).items()}
  half = with_fields(config, dtype='bfloat16')
  params = param_shapes(half)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
  for names in (every_read(config), LAST, LAST[2:]):
    out = jax.eval_shape(functools.partial(read, half, names=names), params, tokens)
    assert {name: x.shape for name, x in out.items()} == {name: shapes[name] for name in names}
    for name, leaf in out.items():
      always_float32 = name.startswith(('logits', 'attention_'))
      assert leaf.dtype == ('float32' if always_float32 else 'bfloat16'), name


@cases('gemma3')
def test_networks_of_one_layer_compute_what_one_of_all_layers_does(config):
  params, tokens = random_params(config), random_tokens(config)
  x_BTD = params['embedding'][tokens] * np.float32(config.embedding_factor)
  residual_LBTD = read(config, params, tokens, ('residual',))['residual']
  for i in range(config.num_layers):
    own = params | {'blocks': jax.tree.map(lambda leaf, i=i: leaf[i:i + 1], params['blocks'])}
    x_BTD = read(config.layer(i), own, x_BTD, ('residual',))['residual'][0]
    assert_close(x_BTD, residual_LBTD[i], f'layer {i}')


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_the_scale_of_embeddings_is_rounded_as_in_training(dtype):
  config = with_fields(CASES['gemma2'], width=24, head_size=6, dtype=dtype)
  params, tokens = random_params(config), random_tokens(config)
  given = read(config, params, tokens, ('input_last',))['input_last']
  # sqrt(24) is 4.898979 in float32 and 4.90625 in bfloat16, which has 8 binary digits.
  factor = {'float32': np.float32(4.898979485566356), 'bfloat16': 4.90625}[dtype]
  embedding_BD = params['embedding'][tokens[:, -1]].astype(dtype)
  expected = jnp.asarray(np.asarray(embedding_BD, np.float32) * np.float32(factor), dtype)
  np.testing.assert_array_equal(np.asarray(given, np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize('config, names', [(GPT2, ('logits',)), (LLAMA, LAST)],
                         ids=['gpt2', 'llama_last'])
def test_continuous_inputs_equal_the_textbook(config, names):
  params = random_params(config)
  vectors = np.random.default_rng(3).standard_normal((B, T, config.width)).astype(np.float32)
  actual, expected = read(config, params, vectors, names), textbook(config, params, vectors)
  for name in names:
    assert_close(actual[name], expected[name], name)


def test_layernorm_of_a_large_mean():
  params = random_params(GPT2)
  vectors = 1000 + np.random.default_rng(3).standard_normal((B, T, GPT2.width)).astype(np.float32)
  actual = read(GPT2, params, vectors, ('logits',))['logits']
  expected = textbook(GPT2, params, vectors)['logits']
  # Near 1000 float32 resolves 6e-5. A variance computed as mean(x²) - mean(x)² would err by 0.1.
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3 * np.std(expected))


def test_tokens_of_any_integer_type():
  params, tokens = random_params(ROPE), random_tokens(ROPE)
  expected = read(ROPE, params, tokens, ('logits',))['logits']
  actual = read(ROPE, params, tokens.astype('uint8'), ('logits',))['logits']
  np.testing.assert_array_equal(actual, expected)


def test_a_negative_token_of_a_type_too_small_for_the_vocabulary_gives_nan():
  config = with_fields(ROPE, vocab_size=300)
  tokens = np.int8([[0, 7, -1], [0, 7, 9]])
  logits = read(config, random_params(config), tokens, ('logits',))['logits']
  assert np.all(np.isnan(logits[0, -1])) and np.all(np.isfinite(logits[1]))


def test_tokens_outside_the_vocabulary_are_named_where_they_are_known():
  for wrong in (ROPE.vocab_size, -1):
    with pytest.raises(InputError, match=f'id {wrong} is not of this model'):
      models.read(ROPE, random_params(ROPE), np.array([[0, wrong]]), ('logits',))


@pytest.mark.parametrize('names', [('logits',), ('logits_last',)], ids=['all', 'last'])
def test_tokens_outside_the_vocabulary_give_nan(names):
  wrong_ids = [ROPE.vocab_size, ROPE.vocab_size + 5, 2**31 - 1, -2**31, -1]
  params, tokens = random_params(ROPE), np.tile(random_tokens(ROPE)[:1], (6, 1))
  wrong = tokens.copy()
  wrong[:5, -1] = wrong_ids
  expected, logits = (read(ROPE, params, x, names)[names[0]].reshape(6, -1, ROPE.vocab_size)
                      for x in (tokens, wrong))
  assert np.all(np.isnan(logits[:5, -1]))
  np.testing.assert_array_equal(logits[5], expected[5])


@pytest.mark.parametrize('inputs', [
    np.zeros(3, np.int32), np.zeros((1, 3, 16), np.int32), np.zeros((1, 3), np.float32),
    np.zeros((1, 3, 15), np.float32), np.zeros((3, 16), np.float32),
    np.zeros((1, 1, 3, 16), np.float32),
], ids=lambda x: f'{x.dtype}{x.ndim}')
def test_wrong_rank(inputs):
  message = r': give token ids, whole numbers \[batch, length\], or vectors \[batch, length, 16\]'
  with pytest.raises(InputError, match=message):
    jax.eval_shape(functools.partial(read, ROPE, names=('logits',)), random_params(ROPE), inputs)


def test_sequences_of_unequal_length():
  with pytest.raises(InputError, match='sequences of unequal length'):
    models.read(ROPE, random_params(ROPE), [[1, 2], [3]], ('logits',))


@pytest.mark.parametrize('config', [GPT2, ROPE], ids=['learned', 'rope'])
@pytest.mark.parametrize('names', [('logits',), ('logits_last',)], ids=['all', 'last'])
def test_too_many_positions(config, names):
  run = functools.partial(jax.eval_shape, functools.partial(read, config, names=names),
                          random_params(config))
  run(np.zeros((1, config.length), np.int32))
  too_long = 1, config.length + 1
  for inputs in (np.zeros(too_long, np.int32), np.zeros((*too_long, 16), np.float32)):
    with pytest.raises(InputError, match='9 positions exceed.*length=8'):
      run(inputs)


@pytest.mark.parametrize('config, names, message', [
    (ROPE, ('logits', 'logit'), "'logit'.*logits_last"),
    (ROPE, 'logits', r"give a tuple, \('logits',\)"),
    ((ROPE, {}), ('logits',), r'tuple is not a ModelConfig; of \(config, params\) give the one'),
    (CASES['mlp_only_relu'], ('value_aggregate',), 'value_aggregate'),
    (CASES['mlp_only_relu'], ('attention_weights',), 'attention_weights'),
], ids=str)
def test_what_cannot_be_read_is_named(config, names, message):
  own = ROPE if isinstance(config, tuple) else config
  with pytest.raises(InputError, match=message):
    models.read(config, random_params(own), random_tokens(own), names)


def test_qk_norm_is_rms_norm_beside_layernorm():
  config = with_fields(ROPE, qk_norm=True)
  assert set(param_shapes(config)['blocks']['query_norm']) == {'scale'}
