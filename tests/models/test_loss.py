"""The loss in chunks equals the loss of all logits, but never has all of them in memory."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
import pytest

from bornbiased_jax import configs
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.models.loss import next_token_loss
from bornbiased_jax.models.transformer import Transformer
from small_networks import trained
from tiny_steps import CONFIGS, assert_close, tokens
from traced_programs import matmuls


@pytest.mark.slow
@pytest.mark.parametrize('name, length', [
    ('gpt2', 130), ('llama2', 257)])
def test_chunked_loss_equals_optax_on_all_logits(name, length):
  # Attention is no part of the loss.
  config = dataclasses.replace(CONFIGS[name], sublayers='mlp_only')
  ids = tokens(length=length)
  params = trained(config)
  plain = lambda params: optax.softmax_cross_entropy_with_integer_labels(
      Transformer(config).apply({'params': params}, ids[:, :-1]), ids[:, 1:]).mean()
  chunked = functools.partial(next_token_loss, config, tokens_BT=ids)
  evaluated = lambda loss: jax.jit(jax.value_and_grad(loss))(params)
  assert_close(evaluated(chunked), evaluated(plain), rtol=1e-4, atol=1e-6)


def test_logits_of_the_whole_batch_never_exist():
  ids = tokens(length=512)
  params = param_shapes(CONFIGS['gpt2'])
  loss = functools.partial(next_token_loss, CONFIGS['gpt2'], tokens_BT=ids)
  program = jax.jit(jax.grad(loss)).lower(params)
  assert '8x512x50x' not in program.as_text() and '8x128x50x' in program.as_text()


@pytest.mark.parametrize('dtype, wanted', [('float32', jax.lax.Precision.HIGHEST),
                                           ('bfloat16', None)])
def test_float32_networks_multiply_and_differentiate_in_float32(dtype, wanted):
  config = configs.get('tiny_llama2', num_layers=2, dtype=dtype)
  params = param_shapes(config)
  loss = functools.partial(next_token_loss, config)
  # Under jit and checkpoint parts of a gradient are traced after the loss has returned.
  for each in (loss, jax.jit(loss), jax.checkpoint(loss)):
    trace = jax.make_jaxpr(jax.grad(each))
    found = {equation.params['precision']
             for equation, _ in matmuls(trace(params, jnp.zeros((1, 9), jnp.int32)))}
    assert found == {(wanted, wanted) if wanted else None}
