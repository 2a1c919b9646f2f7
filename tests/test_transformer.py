"""The forward pass against its textbook definition, and at what cost its reads come."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.initialization import draw_params
from bornbiased_jax.transformer import READS, Transformer

# Epsilon and theta are far from their defaults, so that a test sees them.
BASE = dict(num_layers=3, num_heads=4, width=16, mlp_width=24, vocab_size=31, length=8,
            norm_epsilon=0.1, rope_theta=30.0)
GPT2 = ModelConfig(**BASE, positions='learned')
ROPE = ModelConfig(**BASE)
LLAMA = ModelConfig(**BASE, norm='rmsnorm', activation='silu', gated_mlp=True, num_kv_heads=2, qkv_bias=False,
                    output_bias=False, mlp_bias=False, tied_head=False)
with_fields = dataclasses.replace
CASES = {
    'gpt2': GPT2,
    'gpt2_rope': ROPE,
    'one_layer_silu': with_fields(ROPE, num_layers=1, activation='silu'),
    'llama': LLAMA,
    'qwen2_gelu': with_fields(LLAMA, num_kv_heads=1, qkv_bias=True, activation='gelu'),
    'qwen3': with_fields(LLAMA, qk_norm=True, head_size=6),
    'attention_only': with_fields(GPT2, sublayers='attention_only'),
    'mlp_only_relu': with_fields(ROPE, sublayers='mlp_only', activation='relu'),
    'mlp_only_tanh': with_fields(LLAMA, sublayers='mlp_only', positions='learned', mlp_bias=True,
                                  activation='tanh'),
}
LAST = ('logits_last', 'hidden_last', 'residual_last')
B, T = 2, 7

every_case = pytest.mark.parametrize('config', CASES.values(), ids=CASES.keys())


def cases(*names):
  return pytest.mark.parametrize('config', [CASES[name] for name in names], ids=names)


# Whatever changes which operations a block makes, or where.
structures = cases('gpt2', 'one_layer_silu', 'llama', 'qwen3', 'attention_only', 'mlp_only_relu', 'mlp_only_tanh')


@functools.cache
def random_params(config):
  """Every leaf random, biases and gains too, at a scale that keeps activations near 1."""
  generator = np.random.default_rng(7)

  def draw(path, leaf):
    name, noise = path[-1].key, generator.standard_normal(leaf.shape)
    if name == 'kernel':
      noise /= math.sqrt(leaf.shape[-2])
    elif name == 'head':
      noise /= math.sqrt(config.width)
    elif name != 'embedding':
      noise *= 0.3
    return (noise + (name == 'scale')).astype(np.float32)

  return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(functools.partial(draw_params, config), 0))


def random_tokens(config):
  return np.random.default_rng(8).integers(config.vocab_size, size=(B, T)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=(0, 3))
def read(config, params, inputs, names):
  return Transformer(config).apply({'params': params}, inputs, names, method='read')


def every_read(config):
  missing = {'mlp_only': ('value_aggregate', 'attention_weights', 'attention_received'),
             'attention_only': ('mlp_hidden',)}.get(config.sublayers, ())
  return tuple(name for name in READS if name not in missing)


# The textbook, in float64: one sequence, one head, one query at a time.


def textbook(config, params, inputs):
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  sequences = [textbook_sequence(config, params, x) for x in inputs]
  reads = {name: np.stack([out[name] for out in sequences], axis=READS[name].startswith('[L'))
           for name in sequences[0]}
  return reads | {f'{name}_last': reads[name][..., -1, :] for name in ('logits', 'hidden', 'residual')}


def textbook_sequence(config, params, inputs_T):
  x_TD = params['embedding'][inputs_T] if inputs_T.ndim == 1 else np.asarray(inputs_T, np.float64)
  if config.positions == 'learned':
    x_TD = x_TD + params['position_embedding'][:len(x_TD)]
  input_D, layers = x_TD[-1], []
  for layer in range(config.num_layers):
    block, out = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params['blocks']), {}
    if config.sublayers in ('full', 'attention_only'):
      attend(config, block, norm(config, block['attention_norm'], x_TD), out)
      x_TD = x_TD + linear(block['output'], out['value_aggregate'])
    if config.sublayers in ('full', 'mlp_only'):
      x_TD = x_TD + mlp(config, block, norm(config, block['mlp_norm'], x_TD), out)
    layers.append(out | {'residual': x_TD})
  hidden_TD = norm(config, params['final_norm'], x_TD)
  head_VD = params['embedding'] if config.tied_head else params['head']
  stacked = {name: np.stack([out[name] for out in layers]) for name in layers[0]}
  return stacked | {'hidden': hidden_TD, 'logits': hidden_TD @ head_VD.T, 'input_last': input_D}


def linear(weights, x):
  return x @ weights['kernel'] + weights.get('bias', 0.0)


def norm(config, weights, x):
  if config.norm == 'layernorm':
    return rms_norm(config, weights, x - x.mean(-1, keepdims=True)) + weights['bias']
  return rms_norm(config, weights, x)


def rms_norm(config, weights, x):
  return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + config.norm_epsilon) * weights['scale']


def attend(config, block, x_TD, out):
  K, weights, values = config.head_size, [], []
  for head in range(config.num_heads):
    own = slice(head * K, (head + 1) * K)
    group = head // (config.num_heads // config.num_kv_heads)
    shared = slice(group * K, (group + 1) * K)
    query, key = linear(block['query'], x_TD)[:, own], linear(block['key'], x_TD)[:, shared]
    if config.qk_norm:
      query, key = rms_norm(config, block['query_norm'], query), rms_norm(config, block['key_norm'], key)
    if config.positions == 'rope':
      query, key = rope(query, config.rope_theta), rope(key, config.rope_theta)
    weights.append(np.zeros((len(x_TD), len(x_TD))))
    for t in range(len(x_TD)):
      weights[-1][t, :t + 1] = special.softmax([query[t] @ key[s] / math.sqrt(K) for s in range(t + 1)])
    values.append(weights[-1] @ linear(block['value'], x_TD)[:, shared])
  received = [[weight_TS[j:, j].mean() for j in range(len(x_TD))] for weight_TS in weights]
  out.update(attention_weights=np.stack(weights), value_aggregate=np.concatenate(values, axis=-1),
             attention_received=np.array(received))


def rope(x_TK, theta):
  """Channel j and channel j + K/2 are a complex number, turned by position / theta^(2j/K)."""
  K = x_TK.shape[-1]
  turns = np.array([[np.exp(1j * t / theta ** (2 * j / K)) for j in range(K // 2)] for t in range(len(x_TK))])
  z = (x_TK[:, :K // 2] + 1j * x_TK[:, K // 2:]) * turns
  return np.concatenate((z.real, z.imag), axis=-1)


ACTIVATIONS = {
    'gelu_tanh': lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
    'gelu': lambda x: 0.5 * x * (1 + special.erf(x / math.sqrt(2))),
    'silu': lambda x: x / (1 + np.exp(-x)),
    'relu': lambda x: np.maximum(x, 0),
    'tanh': np.tanh,
}


def mlp(config, block, x_TD, out):
  activation, up = ACTIVATIONS[config.activation], linear(block['up'], x_TD)
  hidden = activation(linear(block['gate'], x_TD)) * up if config.gated_mlp else activation(up)
  out['mlp_hidden'] = hidden
  return linear(block['down'], hidden)


def assert_close(actual, expected, name):
  """To float32 rounding, of which these networks gather some ten units (1e-6)."""
  assert actual.shape == expected.shape, name
  scale = np.sqrt(np.mean(np.square(expected)))
  np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-6 * scale, err_msg=name)


# What it computes.


@every_case
def test_equals_the_textbook(config):
  params, tokens = random_params(config), random_tokens(config)
  actual, expected = read(config, params, tokens, every_read(config)), textbook(config, params, tokens)
  assert set(actual) == set(expected)
  for name in expected:
    assert_close(actual[name], expected[name], name)


def check_last_reads(config, length):
  params, tokens = random_params(config), random_tokens(config)[:, :length]
  actual, expected = read(config, params, tokens, LAST), textbook(config, params, tokens)
  for name in LAST:
    assert_close(actual[name], expected[name], name)


@structures
def test_last_reads_equal_the_textbook(config):
  check_last_reads(config, T)


def test_last_reads_of_one_position():
  check_last_reads(LLAMA, 1)


@cases('gpt2', 'qwen3', 'mlp_only_relu')
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_shapes_and_types(config, dtype):
  config = with_fields(config, dtype=dtype)
  L, D, H, V = config.num_layers, config.width, config.num_heads, config.vocab_size
  shapes = {
      'logits': (B, T, V), 'logits_last': (B, V), 'hidden': (B, T, D), 'hidden_last': (B, D),
      'input_last': (B, D), 'residual': (L, B, T, D), 'residual_last': (L, B, D),
      'value_aggregate': (L, B, T, H * config.head_size), 'attention_weights': (L, B, H, T, T),
      'attention_received': (L, B, H, T), 'mlp_hidden': (L, B, T, config.mlp_width),
  }
  assert set(shapes) == set(READS)
  params = jax.eval_shape(functools.partial(draw_params, config), 0)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
  for names in (every_read(config), LAST, LAST[2:]):
    out = jax.eval_shape(functools.partial(read, config, names=names), params, random_tokens(config))
    assert {name: leaf.shape for name, leaf in out.items()} == {name: shapes[name] for name in names}
    for name, leaf in out.items():
      always_float32 = name.startswith(('logits', 'attention_'))
      assert leaf.dtype == ('float32' if always_float32 else dtype), name


def test_call_is_the_logits():
  params, tokens = random_params(ROPE), random_tokens(ROPE)
  logits = jax.jit(Transformer(ROPE).apply)({'params': params}, tokens)
  assert_close(logits, textbook(ROPE, params, tokens)['logits'], 'logits')


def test_unembed():
  for config, leaf in ((ROPE, 'embedding'), (LLAMA, 'head')):
    params = random_params(config)
    hidden = np.random.default_rng(0).standard_normal((2, 3, config.width)).astype(np.float32)
    logits = Transformer(config).apply({'params': params}, hidden, method='unembed')
    expected = hidden.astype(np.float64) @ params[leaf].T.astype(np.float64)
    assert_close(logits, expected, leaf)


@cases('gpt2', 'llama', 'qwen3')
def test_causal(config):
  changed = 4
  params, tokens = random_params(config), random_tokens(config)
  others = tokens.copy()
  others[:, changed] = (tokens[:, changed] + 1) % config.vocab_size
  before, after = (read(config, params, x, every_read(config)) for x in (tokens, others))
  for name in ('logits', 'residual', 'value_aggregate'):
    np.testing.assert_array_equal(before[name][..., :changed, :], after[name][..., :changed, :])
    assert np.all(np.any(before[name][..., changed:, :] != after[name][..., changed:, :], axis=-1))


def test_sequences_do_not_mix():
  params, tokens = random_params(LLAMA), random_tokens(LLAMA)
  both, swapped = (read(LLAMA, params, x, every_read(LLAMA))['logits'] for x in (tokens, tokens[::-1].copy()))
  np.testing.assert_array_equal(both, swapped[::-1])


@cases('gpt2', 'qwen2_gelu', 'attention_only')
def test_attention_weights_are_causal_distributions(config):
  weights = read(config, random_params(config), random_tokens(config), every_read(config))['attention_weights']
  np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
  lower = np.tri(T, dtype=bool)
  assert np.all(weights[..., ~lower] == 0)
  assert np.all(weights[..., lower] > 0)


@pytest.mark.parametrize('config, names', [(GPT2, ('logits',)), (LLAMA, LAST)], ids=['gpt2', 'llama_last'])
def test_continuous_inputs_take_the_place_of_embeddings(config, names):
  params, tokens = random_params(config), random_tokens(config)
  by_token, by_vector = (read(config, params, x, names) for x in (tokens, params['embedding'][tokens]))
  for name in names:
    np.testing.assert_array_equal(by_token[name], by_vector[name])


def test_continuous_inputs_equal_the_textbook():
  params = random_params(GPT2)
  vectors = np.random.default_rng(3).standard_normal((B, T, GPT2.width)).astype(np.float32)
  assert_close(read(GPT2, params, vectors, ('logits',))['logits'], textbook(GPT2, params, vectors)['logits'], 'logits')


def test_layernorm_of_a_large_mean():
  params = random_params(GPT2)
  vectors = 1000 + np.random.default_rng(3).standard_normal((B, T, GPT2.width)).astype(np.float32)
  actual, expected = read(GPT2, params, vectors, ('logits',))['logits'], textbook(GPT2, params, vectors)['logits']
  # Float32 near 1000 resolves 6e-5; mean(x²) - mean(x)² would err by 0.1.
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3 * np.std(expected))


@pytest.mark.parametrize('dtype', ['uint8', 'uint16'])
def test_tokens_of_any_integer_type(dtype):
  params, tokens = random_params(ROPE), random_tokens(ROPE)
  expected = read(ROPE, params, tokens, ('logits',))['logits']
  np.testing.assert_array_equal(read(ROPE, params, tokens.astype(dtype), ('logits',))['logits'], expected)


def test_a_negative_token_of_a_type_too_small_for_the_vocabulary_gives_nan():
  config = with_fields(ROPE, vocab_size=300)
  logits = read(config, random_params(config), np.int8([[0, 7, -1], [0, 7, 9]]), ('logits',))['logits']
  assert np.all(np.isnan(logits[0, -1])) and np.all(np.isfinite(logits[1]))


@pytest.mark.parametrize('token', [
    ROPE.vocab_size, ROPE.vocab_size + 5, 2**31 - 1, -2**31, -1,
])
@pytest.mark.parametrize('names', [('logits',), ('logits_last',)], ids=['all', 'last'])
def test_token_outside_the_vocabulary_gives_nan(token, names):
  params, tokens = random_params(ROPE), random_tokens(ROPE)
  wrong = tokens.copy()
  wrong[0, -1] = token
  expected, logits = (read(ROPE, params, x, names)[names[0]].reshape(B, -1, ROPE.vocab_size) for x in (tokens, wrong))
  assert np.all(np.isnan(logits[0, -1]))
  np.testing.assert_array_equal(logits[1], expected[1])


@pytest.mark.parametrize('inputs', [
    np.zeros(3, np.int32), np.zeros((1, 3, 16), np.int32), np.zeros((1, 3), np.float32),
    np.zeros((1, 3, 15), np.float32), np.zeros((3, 16), np.float32), np.zeros((1, 1, 3, 16), np.float32),
], ids=lambda x: f'{x.dtype}{x.ndim}')
def test_wrong_rank(inputs):
  with pytest.raises(InputError, match=r'neither token ids \[batch, length\] nor vectors \[batch, length, 16\]'):
    jax.eval_shape(functools.partial(read, ROPE, names=('logits',)), random_params(ROPE), inputs)


@pytest.mark.parametrize('config', [GPT2, ROPE], ids=['learned', 'rope'])
@pytest.mark.parametrize('names', [('logits',), ('logits_last',)], ids=['all', 'last'])
def test_too_many_positions(config, names):
  run = functools.partial(jax.eval_shape, functools.partial(read, config, names=names), random_params(config))
  run(np.zeros((1, config.length), np.int32))
  for inputs in (np.zeros((1, config.length + 1), np.int32), np.zeros((1, config.length + 1, 16), np.float32)):
    with pytest.raises(InputError, match='9 positions exceed.*length=8'):
      run(inputs)


def test_unknown_read():
  with pytest.raises(InputError, match="'logit'.*logits_last"):
    read(ROPE, random_params(ROPE), random_tokens(ROPE), ('logits', 'logit'))


@pytest.mark.parametrize('name', ['value_aggregate', 'attention_weights'])
def test_read_that_the_sublayers_lack(name):
  config = CASES['mlp_only_relu']
  with pytest.raises(InputError, match=name):
    read(config, random_params(config), random_tokens(config), (name,))


def test_qk_norm_is_rms_norm_beside_layernorm():
  config = with_fields(ROPE, qk_norm=True)
  blocks = jax.eval_shape(functools.partial(draw_params, config), 0)['blocks']
  assert set(blocks['query_norm']) == {'scale'}


# Precision.


@pytest.mark.parametrize('config, names', [(GPT2, ('logits',)), (LLAMA, LAST)], ids=['gpt2', 'llama_last'])
def test_bfloat16(config, names):
  params, tokens = random_params(config), random_tokens(config)
  half = with_fields(config, dtype='bfloat16')
  exact, rounded = (read(c, params, tokens, names)[names[0]] for c in (config, half))
  assert rounded.dtype == jnp.float32
  error = np.sqrt(np.mean(np.square(exact - rounded)) / np.mean(np.square(exact)))
  # A rounding errs by at most 2^-8, in the root mean square by half of it; these networks make some 30 in a row.
  assert 2 ** -10 < error < 2 ** -6
  jaxpr = jax.make_jaxpr(functools.partial(read, half, names=names))(params, tokens)
  for equation, _ in matmuls(jaxpr):
    assert {operand.aval.dtype for operand in equation.invars} == {jnp.dtype('bfloat16')}


# What it costs.


def equations(jaxpr, repeats=1):
  """Every primitive operation, and how often it runs."""
  for equation in getattr(jaxpr, 'jaxpr', jaxpr).eqns:
    yield equation, repeats
    inner = repeats * (equation.params['length'] if equation.primitive.name == 'scan' else 1)
    for value in equation.params.values():
      if hasattr(getattr(value, 'jaxpr', value), 'eqns'):
        yield from equations(value, inner)


def matmuls(jaxpr):
  return [pair for pair in equations(jaxpr) if pair[0].primitive.name == 'dot_general']


def multiplications(jaxpr):
  total = 0
  for equation, repeats in matmuls(jaxpr):
    contracted = equation.params['dimension_numbers'][0][0]
    shape = equation.invars[0].aval.shape
    total += repeats * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
  return total


def traced(config, names):
  return jax.make_jaxpr(functools.partial(read, config, names=names))(random_params(config), random_tokens(config))


def block_multiplications(config, queries, positions):
  """Of one sequence whose block is computed at `queries` of its positions."""
  D, HK, GK = config.width, config.num_heads * config.head_size, config.num_kv_heads * config.head_size
  attention = 2 * queries * D * HK + 2 * positions * D * GK + 2 * queries * positions * HK
  mlp = queries * D * config.mlp_width * (3 if config.gated_mlp else 2)
  return attention * (config.sublayers != 'mlp_only') + mlp * (config.sublayers != 'attention_only')


@structures
def test_multiplications(config):
  L, head = config.num_layers, config.width * config.vocab_size
  block = functools.partial(block_multiplications, config)
  assert multiplications(traced(config, ('logits',))) == B * (L * block(T, T) + T * head)
  assert multiplications(traced(config, ('residual', 'hidden'))) == B * L * block(T, T)
  assert multiplications(traced(config, ('residual', 'logits_last'))) == B * (L * block(T, T) + head)
  earlier = block(1, 1) if config.sublayers == 'mlp_only' else block(T, T)
  last = B * ((L - 1) * earlier + block(1, T))
  assert multiplications(traced(config, LAST)) == last + B * head
  assert multiplications(traced(config, ('residual_last', 'hidden_last'))) == last


@pytest.mark.parametrize('names', [('logits',), ('hidden',), LAST, ('residual', 'value_aggregate')])
def test_only_what_is_read_leaves_the_layers(names):
  scans = [equation for equation, _ in equations(traced(LLAMA, names)) if equation.primitive.name == 'scan']
  stacked = [whole.aval.shape for scan in scans
             for whole, part in zip(scan.outvars, scan.params['jaxpr'].jaxpr.outvars, strict=True)
             if whole.aval.shape != part.aval.shape]
  full, last = (LLAMA.num_layers, B, T, LLAMA.width), (LLAMA.num_layers - 1, B, LLAMA.width)
  assert stacked == {('logits',): [], ('hidden',): [], LAST: [last]}.get(names, [full, full])


@pytest.mark.parametrize('config, names', [(GPT2, ('logits',)), (LLAMA, LAST)], ids=['gpt2', 'llama_last'])
def test_program_does_not_grow_with_depth(config, names):
  def lines(num_layers):
    deep = with_fields(config, num_layers=num_layers)
    params = jax.eval_shape(functools.partial(draw_params, deep), 0)
    return len(read.lower(deep, params, random_tokens(deep), names).as_text().splitlines())

  assert lines(2) == lines(8)


def test_remat():
  params, tokens = random_params(LLAMA), random_tokens(LLAMA)

  def loss(params, remat):
    return jnp.mean(jnp.square(Transformer(with_fields(LLAMA, remat=remat)).apply({'params': params}, tokens)))

  step = jax.jit(jax.value_and_grad(loss), static_argnums=1)
  for remat in ('dots', 'full'):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5),
                 step(params, 'none'), step(params, remat))

  def kept(remat):
    backward = jax.eval_shape(lambda params: jax.vjp(lambda p: loss(p, remat), params)[1], params)
    return sum(leaf.size for leaf in jax.tree.leaves(backward))

  # Of a gated MLP, 'dots' keeps both products and not what is made of them; 'full' keeps neither, nor any other.
  hidden = LLAMA.num_layers * B * T * LLAMA.mlp_width
  assert kept('none') - kept('dots') > hidden and kept('dots') - kept('full') > 2 * hidden
