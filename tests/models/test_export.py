"""Every hot path lowers for TPU and for GPU, also on a machine that has neither."""

import functools

import jax
from jax import export
import jax.numpy as jnp
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis import chunks, ensemble, preference, similarity
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.statistics import combine
from bornbiased_jax.models import transformer
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.models.transformer import Transformer

PLATFORMS = 'tpu', 'cuda'


def lower(program, *args):
  exported = export.export(program, platforms=PLATFORMS)(*args)
  assert exported.platforms == PLATFORMS
  assert len(exported.mlir_module_serialized) > 0
  return exported


def shapes(tree):
  return [leaf.shape for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize('name, dtype, names', [
    ('tiny_gpt2', 'float32', ('logits', 'value_aggregate', 'attention_weights')),
    ('tiny_llama2', 'bfloat16', ('logits', 'residual')),
    ('tiny_llama2', 'float32', ('logits_last', 'hidden_last', 'residual_last')),
], ids=['attention', 'all of bfloat16', 'last'])
def test_forward(name, dtype, names):
  config = configs.get(name, dtype=dtype)
  read = lambda params, tokens: transformer.read(config, params, tokens, names)
  tokens = jax.ShapeDtypeStruct((3, 16), jnp.int32)
  exported = lower(jax.jit(read), param_shapes(config), tokens)
  assert shapes(exported.out_avals) == shapes(jax.eval_shape(read, param_shapes(config), tokens))


def test_gradient():
  config = configs.get('tiny_llama2', remat='full', dtype='bfloat16')
  loss = lambda params, tokens: jnp.mean(Transformer(config).apply({'params': params}, tokens) ** 2)
  params, tokens = param_shapes(config), jax.ShapeDtypeStruct((2, 8), jnp.int32)
  exported = lower(jax.jit(jax.grad(loss)), params, tokens)
  assert shapes(exported.out_avals) == shapes(params)


@pytest.mark.slow
def test_ensemble():
  config = configs.get('tiny_gpt2')
  statistic = combine({
      'preference': preference.predictions(config.vocab_size),
      'direction': similarity.inter_sequence('hidden_last', pair_std=True),
      'layers': similarity.inter_sequence('residual_last'),
  })
  readout = lambda params, sums: {
      'top': jnp.argmax(params['embedding'] @ sums['direction']['unit_sum'])}
  probe = Probe('tokens', num_sequences=20, length=16)
  draw, shapes_of, step, read = chunks.programs(
      ensemble.transformer(config), statistic, probe, readout)
  num_devices = jax.device_count()
  seeds = jax.ShapeDtypeStruct((2 * num_devices,), jnp.uint32)
  with jax.default_matmul_precision('highest'):
    params = jax.eval_shape(draw, seeds)
    sums = shapes_of(params, 5)
    programs = [lower(draw, seeds),
                lower(jax.jit(functools.partial(step, size=5)), params, sums, 0),
                lower(read, params, sums)]
  assert {program.nr_devices for program in programs} == {num_devices}
  assert shapes(programs[1].out_avals) == shapes(sums)
  assert shapes(programs[2].out_avals) == [(2 * num_devices,)]
