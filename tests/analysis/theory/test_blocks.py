"""The numbers that theory reads of a configuration, against networks that are drawn."""

import numpy as np
import pytest

from bornbiased_jax import analysis, configs, data
from bornbiased_jax.analysis.theory.blocks import architecture_of
from small_networks import born


def drawn(name, **fields):
  """A configuration, and the parameters of a network."""
  config = configs.get(name, **fields)
  return config, born(config, 0)


def variance_of(kernel_LDF, size):
  """The variance of what a kernel of each layer makes of Gaussian inputs of variance 1."""
  inputs_ND = np.random.default_rng(2).standard_normal((2000, size), np.float32)
  return float((inputs_ND @ np.asarray(kernel_LDF)).var())


@pytest.mark.parametrize('name, fields', [
    ('tiny_gpt2', dict(positions='learned')), ('tiny_qwen2', dict(num_kv_heads=2))])
def test_variances_are_those_of_networks_drawn(name, fields):
  config, params = drawn(name, **fields)
  network, blocks = architecture_of(config, 'tokens'), params['blocks']
  measured = {
      'token_variance': float(params['embedding'].var()),
      'value_variance': variance_of(blocks['value']['kernel'], config.width),
      'preactivation_std': variance_of(blocks['up']['kernel'], config.width) ** 0.5,
      'attention_writes': variance_of(blocks['output']['kernel'],
                                      config.num_heads * config.head_size),
      'mlp_writes': variance_of(blocks['down']['kernel'], config.mlp_width)}
  if 'position_embedding' in params:
    measured['position_variance'] = float(params['position_embedding'].var())
  for field, value in measured.items():
    np.testing.assert_allclose(getattr(network, field), value, rtol=0.03, err_msg=field)
  assert (network.position_variance > 0) == ('position_embedding' in params)


@pytest.mark.parametrize('fields', [{}, dict(score_divisor=64.0)], ids=str)
def test_scores_have_the_variance_of_networks_drawn(fields):
  config, params = drawn('tiny_gpt2', **fields)
  state_ND = np.random.default_rng(1).standard_normal((1000, config.width), np.float32)
  heads = (len(state_ND), config.num_heads, config.head_size)
  query_NHK, key_NHK = (
      (state_ND @ np.asarray(params['blocks'][name]['kernel'])[0]).reshape(heads)
      for name in ('query', 'key'))
  divisor = config.score_divisor or config.head_size
  score_HNN = np.einsum('nhk,mhk->hnm', query_NHK[:500], key_NHK[500:]) / divisor**0.5
  np.testing.assert_allclose(architecture_of(config, 'tokens').score_variance,
                             float(score_HNN.var()), rtol=0.1)


def test_normed_queries_and_keys_have_scores_of_variance_1():
  assert architecture_of(configs.get('tiny_llama2', qk_norm=True), 'tokens').score_variance == 1


def test_the_factor_is_that_of_ids_and_vectors_have_none():
  config = configs.get('tiny_gpt2', scaled_embedding=True)
  tokens, vectors = (architecture_of(config, probe) for probe in ('tokens', 'gaussian'))
  assert tokens.token_variance == pytest.approx(config.width * vectors.token_variance)
  text = data.from_ids(np.arange(500) % 7, 'a text')
  for kind in ('text', 'shuffled'):
    of_text = architecture_of(config, analysis.Probe(kind, 2, 8, text=text))
    assert of_text.token_variance == tokens.token_variance
