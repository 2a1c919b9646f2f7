"""What the forward pass costs: multiplications, their precision, memory and program size."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from oldest import JAX_IS_OLD
import pytest

from bornbiased_jax.models import flops
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.models.transformer import Transformer
from textbook import (
  CASES,
  GPT2,
  LAST,
  LLAMA,
  B,
  T,
  cases,
  random_params,
  random_tokens,
  read,
  with_fields,
)
from traced_programs import equations, matmuls, multiplications, traced


def block_multiplications(config, queries, positions):
  """Multiplications of a block that is computed at `queries` positions of one sequence."""
  D, K = config.width, config.head_size
  HK, GK = config.num_heads * K, config.num_kv_heads * K
  attention = 2 * queries * D * HK + 2 * positions * D * GK + 2 * queries * positions * HK
  mlp = queries * D * config.mlp_width * (3 if config.gated_mlp else 2)
  return attention * (config.sublayers != 'mlp_only') + mlp * (config.sublayers != 'attention_only')


gpt2_and_llama = pytest.mark.parametrize('config, names', [
    (GPT2, ('logits',)), (LLAMA, LAST),
], ids=['gpt2', 'llama_last'])


@gpt2_and_llama
def test_bfloat16(request, config, names):
  if JAX_IS_OLD and 'logits' in names:
    reason = 'CPUs then had no product of two bfloat16 that is kept in float32'
    request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
  params, tokens = random_params(config), random_tokens(config)
  half = with_fields(config, dtype='bfloat16')
  exact, rounded = (read(c, params, tokens, names)[names[0]] for c in (config, half))
  assert rounded.dtype == jnp.float32
  error = np.sqrt(np.mean(np.square(exact - rounded)) / np.mean(np.square(exact)))
  # One rounding errs by at most 2^-8, and by half of that in the root mean square. These
  # networks round some 30 times in a row.
  assert 2 ** -10 < error < 2 ** -6
  jaxpr = jax.make_jaxpr(functools.partial(read, half, names=names))(params, tokens)
  for equation, _ in matmuls(jaxpr):
    assert {operand.aval.dtype for operand in equation.invars} == {jnp.dtype('bfloat16')}


# Norms, caps and slopes make no products of matrices.
@cases('gpt2', 'one_layer_silu', 'llama', 'pythia', 'gemma3', 'attention_only', 'mlp_only_relu',
       'mlp_only_tanh')
def test_multiplications(config):
  """FLOPs are two for each; what only the last position needs is not computed elsewhere."""
  L, head = config.num_layers, config.width * config.vocab_size
  block = functools.partial(block_multiplications, config)
  made = lambda *names: multiplications(traced(config, names))
  for names, num_logits in ((('logits',), T), (('residual', 'hidden'), 0),
                            (('residual', 'logits_last'), 1)):
    assert made(*names) == B * (L * block(T, T) + num_logits * head)
    assert 2 * made(*names) == B * flops.forward_flops(config, T, num_logits)
  earlier = block(1, 1) if config.sublayers == 'mlp_only' else block(T, T)
  last = B * ((L - 1) * earlier + block(1, T))
  assert made(*LAST) == last + B * head
  assert made('residual_last', 'hidden_last') == last


@pytest.mark.parametrize('names', [('logits',), ('hidden',), LAST, ('residual', 'value_aggregate')])
def test_only_what_is_read_leaves_the_layers(names):
  scans = [equation for equation, _ in equations(traced(LLAMA, names))
           if equation.primitive.name == 'scan']
  stacked = [whole.aval.shape for scan in scans
             for whole, part in zip(scan.outvars, scan.params['jaxpr'].jaxpr.outvars, strict=True)
             if whole.aval.shape != part.aval.shape]
  full, last = (LLAMA.num_layers, B, T, LLAMA.width), (LLAMA.num_layers - 1, B, LLAMA.width)
  assert stacked == {('logits',): [], ('hidden',): [], LAST: [last]}.get(names, [full, full])


@pytest.mark.parametrize('names', [('logits',), LAST], ids=['all', 'last'])
def test_program_does_not_grow_with_depth(names):
  def lines(num_layers):
    deep = with_fields(CASES['gemma3'], num_layers=num_layers,
                       windows=(2, None) * (num_layers // 2))
    lowered = read.lower(deep, param_shapes(deep), random_tokens(deep), names)
    return len(lowered.as_text().splitlines())

  assert lines(2) == lines(8)


def test_remat():
  params, tokens = random_params(LLAMA), random_tokens(LLAMA)

  def loss(params, remat):
    model = Transformer(with_fields(LLAMA, remat=remat))
    return jnp.mean(jnp.square(model.apply({'params': params}, tokens)))

  step = jax.jit(jax.value_and_grad(loss), static_argnums=1)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5),
               step(params, 'none'), step(params, 'full'))

  def kept(remat):
    backward = jax.eval_shape(lambda params: jax.vjp(lambda p: loss(p, remat), params)[1], params)
    return sum(leaf.size for leaf in jax.tree.leaves(backward))

  # 'dots' keeps both products of a gated MLP, but not what is made of them. 'full' keeps no
  # product at all.
  hidden = LLAMA.num_layers * B * T * LLAMA.mlp_width
  assert kept('none') - kept('dots') > hidden and kept('dots') - kept('full') > 2 * hidden


def test_what_layers_leave_is_written_in_place():
  # A loop that copied the states of all layers in each of them would take time as their square.
  layers = 24
  config = with_fields(GPT2, num_layers=layers)
  params, tokens = random_params(config), random_tokens(config)
  states = jax.jit(functools.partial(read, config, names=('residual',)))
  program = states.lower(params, tokens).compile().as_text()
  stack = rf'= f32\[{layers},{B},{T},{config.width}\]\S* '
  assert ' while(' in program
  assert re.search(rf'{stack}(fusion|dynamic-update-slice)\(', program)
  assert not re.search(rf'{stack}copy\(', program)
