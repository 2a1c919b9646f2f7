"""The forward pass and HSIC as textbooks define them, and small networks to compare with ours."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from scipy import special

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models import transformer
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.models.transformer import READS

# Epsilon and theta are far from their defaults, so that the tests notice wrong ones.
BASE = dict(num_layers=3, num_heads=4, width=16, mlp_width=24, vocab_size=31, length=8,
            norm_epsilon=0.1, rope_theta=30.0)
GPT2 = ModelConfig(**BASE, positions='learned')
ROPE = ModelConfig(**BASE)
LLAMA = ModelConfig(**BASE, norm='rmsnorm', activation='silu', gated_mlp=True, num_kv_heads=2,
                    qkv_bias=False, output_bias=False, mlp_bias=False, tied_head=False)
with_fields = dataclasses.replace
# Bounds, windows and scales so small that the tests notice each of them.
GEMMA2 = with_fields(LLAMA, norm_place='both', head_size=6, tied_head=True, scaled_embedding=True,
                     windows=(3, None, 2), score_divisor=2.5, score_cap=1.5, logit_cap=2.0)
CASES = {
    'gpt2': GPT2,
    'gpt2_rope': ROPE,
    'one_layer_silu': with_fields(ROPE, num_layers=1, activation='silu'),
    'llama': LLAMA,
    'qwen2_gelu': with_fields(LLAMA, num_kv_heads=1, qkv_bias=True, activation='gelu'),
    'qwen3': with_fields(LLAMA, qk_norm=True, head_size=6),
    'pythia': with_fields(ROPE, parallel_residual=True, rotary_factor=0.5),
    'gemma2': GEMMA2,
    'gemma3': with_fields(GEMMA2, window_rope_theta=5.0, qk_norm=True, score_cap=None),
    'olmo3': with_fields(LLAMA, norm_place='after', qk_norm=True, joint_qk_norm=True,
                         windows=(4, 4, None)),
    'windows_beside': with_fields(ROPE, windows=(None, 1, 3), parallel_residual=True,
                                  norm_place='both'),
    'alibi': with_fields(LLAMA, positions='alibi', num_heads=6, head_size=3, windows=(None, 4, 7),
                         activation='squared_relu'),
    'no_positions': with_fields(ROPE, positions='none', activation='squared_relu'),
    'attention_only': with_fields(GPT2, sublayers='attention_only'),
    'mlp_only_relu': with_fields(ROPE, sublayers='mlp_only', activation='relu'),
    'mlp_only_tanh': with_fields(LLAMA, sublayers='mlp_only', positions='learned', mlp_bias=True,
                                  activation='tanh'),
}
LAST = ('logits_last', 'hidden_last', 'residual_last')
B, T = 2, 7


def cases(*names):
  return pytest.mark.parametrize('config', [CASES[name] for name in names], ids=names)


@functools.cache
def random_params(config):
  """Parameters at a scale that keeps activations near 1. Biases and gains are random too."""
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

  return jax.tree_util.tree_map_with_path(draw, param_shapes(config))


def random_tokens(config):
  return np.random.default_rng(8).integers(config.vocab_size, size=(B, T)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=(0, 3))
def read(config, params, inputs, names):
  return transformer.read(config, params, inputs, names)


# The textbook computes in float64, with one sequence, one head and one query at a time.


def textbook(config, params, inputs):
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  sequences = [textbook_sequence(config, params, x) for x in inputs]
  reads = {name: np.stack([out[name] for out in sequences], axis=READS[name].startswith('[L'))
           for name in sequences[0]}
  return reads | {f'{name}_last': reads[name][..., -1, :]
                  for name in ('logits', 'hidden', 'residual')}


def textbook_sequence(config, params, inputs_T):
  scale = math.sqrt(config.width) if config.scaled_embedding else 1
  x_TD = (scale * params['embedding'][inputs_T] if inputs_T.ndim == 1
          else np.asarray(inputs_T, np.float64))
  if config.positions == 'learned':
    x_TD = x_TD + params['position_embedding'][:len(x_TD)]
  input_D, layers = x_TD[-1], []
  for layer in range(config.num_layers):
    block, out = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params['blocks']), {}
    before_TD = x_TD
    if config.sublayers in ('full', 'attention_only'):
      window = config.windows[layer] if config.windows else None
      attend(config, block, norm(config, block.get('attention_norm'), x_TD), out, window)
      added_TD = linear(block['output'], out['value_aggregate'])
      x_TD = x_TD + norm(config, block.get('attention_output_norm'), added_TD)
    if config.sublayers in ('full', 'mlp_only'):
      input_TD = before_TD if config.parallel_residual else x_TD
      added_TD = mlp(config, block, norm(config, block.get('mlp_norm'), input_TD), out)
      x_TD = x_TD + norm(config, block.get('mlp_output_norm'), added_TD)
    layers.append(out | {'residual': x_TD})
  hidden_TD = norm(config, params['final_norm'], x_TD)
  head_VD = params['embedding'] if config.tied_head else params['head']
  stacked = {name: np.stack([out[name] for out in layers]) for name in layers[0]}
  logits_TV = bounded(hidden_TD @ head_VD.T, config.logit_cap)
  return stacked | {'hidden': hidden_TD, 'logits': logits_TV, 'input_last': input_D}


def bounded(x, cap):
  return x if cap is None else cap * np.tanh(x / cap)


def linear(weights, x):
  return x @ weights['kernel'] + weights.get('bias', 0.0)


def norm(config, weights, x):
  if weights is None:
    return x
  if config.norm == 'layernorm':
    return rms_norm(config, weights, x - x.mean(-1, keepdims=True)) + weights['bias']
  return rms_norm(config, weights, x)


def rms_norm(config, weights, x):
  return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + config.norm_epsilon) * weights['scale']


def attend(config, block, x_TD, out, window):
  K, weights, values = config.head_size, [], []
  divisor = config.score_divisor or K
  slopes = ALIBI_SLOPES[config.num_heads] if config.positions == 'alibi' else [0] * config.num_heads
  theta = config.window_rope_theta if window and config.window_rope_theta else config.rope_theta
  query_TF, key_TF, value_TF = (linear(block[name], x_TD) for name in ('query', 'key', 'value'))
  if config.joint_qk_norm:
    query_TF = rms_norm(config, block['query_norm'], query_TF)
    key_TF = rms_norm(config, block['key_norm'], key_TF)
  for head in range(config.num_heads):
    own = slice(head * K, (head + 1) * K)
    group = head // (config.num_heads // config.num_kv_heads)
    shared = slice(group * K, (group + 1) * K)
    query, key = query_TF[:, own], key_TF[:, shared]
    if config.qk_norm and not config.joint_qk_norm:
      query = rms_norm(config, block['query_norm'], query)
      key = rms_norm(config, block['key_norm'], key)
    if config.positions == 'rope':
      turning = int(config.rotary_factor * K)
      query, key = (np.hstack([rope(x_TK[:, :turning], theta), x_TK[:, turning:]])
                    for x_TK in (query, key))
    weights.append(np.zeros((len(x_TD), len(x_TD))))
    for t in range(len(x_TD)):
      first = max(0, t + 1 - window) if window else 0
      scores = [bounded(query[t] @ key[s] / math.sqrt(divisor), config.score_cap)
                - slopes[head] * (t - s)
                for s in range(first, t + 1)]
      weights[-1][t, first:t + 1] = special.softmax(scores)
    values.append(weights[-1] @ value_TF[:, shared])
  viewers = lambda j: slice(j, j + window if window else None)
  received = [[weight_TS[viewers(j), j].mean() for j in range(len(x_TD))] for weight_TS in weights]
  out.update(attention_weights=np.stack(weights), attention_received=np.array(received),
             value=value_TF, value_aggregate=np.concatenate(values, axis=-1))


def rope(x_TK, theta):
  """Channels j and j + K/2 are a complex number, turned by the angle position / theta^(2j/K)."""
  K = x_TK.shape[-1]
  turns = np.array([[np.exp(1j * t / theta ** (2 * j / K)) for j in range(K // 2)]
                    for t in range(len(x_TK))])
  z = (x_TK[:, :K // 2] + 1j * x_TK[:, K // 2:]) * turns
  return np.concatenate((z.real, z.imag), axis=-1)


# Press et al. 2022: for a power of 2, and between two of them.
ALIBI_SLOPES = {4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
                6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]}
ACTIVATIONS = {
    'gelu_tanh': lambda x: 0.5 * x * (
        1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
    'gelu': lambda x: 0.5 * x * (1 + special.erf(x / math.sqrt(2))),
    'silu': lambda x: x / (1 + np.exp(-x)),
    'relu': lambda x: np.maximum(x, 0),
    'squared_relu': lambda x: np.maximum(x, 0) ** 2,
    'tanh': np.tanh,
}


def mlp(config, block, x_TD, out):
  activation, up = ACTIVATIONS[config.activation], linear(block['up'], x_TD)
  hidden = activation(linear(block['gate'], x_TD)) * up if config.gated_mlp else activation(up)
  out |= {'mlp_input': x_TD, 'mlp_hidden': hidden}
  return linear(block['down'], hidden)


def gram_hsic(a, b, unbiased):
  """HSIC from Gram matrices, as Song et al. (2012) define it."""
  k, m, n = a @ a.T, b @ b.T, len(a)
  if not unbiased:
    centre = np.eye(n) - 1 / n
    return np.trace(k @ centre @ m @ centre)
  k, m, one = k - np.diag(np.diag(k)), m - np.diag(np.diag(m)), np.ones(n)
  return (np.trace(k @ m) + one @ k @ one * (one @ m @ one) / ((n - 1) * (n - 2))
          - 2 / (n - 2) * one @ k @ m @ one) / (n * (n - 3))
