"""Rotary frequencies are those of `transformers`; how they turn is compared in test_transformer."""

import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.configs import RopeScaling
from bornbiased_jax.models import rotary

SIZES = dict(num_layers=1, num_heads=1, mlp_width=8, vocab_size=8)


def config(head_size=16, **fields):
  return configs.ModelConfig(width=head_size, **SIZES, **fields)


def random_case(seed):
  """A configuration, and the same in the words of `transformers`."""
  random = np.random.default_rng(seed)
  kind = ('linear', 'llama3', 'yarn')[seed % 3]
  head_size = int(random.choice([2, 6, 64, 128]))
  theta, factor = float(10**random.uniform(0.5, 6)), float(random.uniform(1, 40))
  slow = float(random.uniform(0.1, 4))
  fast, length = slow + float(random.uniform(0.1, 40)), int(random.integers(8, 40_000))
  attention_factor = float(random.uniform(0.5, 2)) if kind == 'yarn' else 1.0
  ramp = {} if kind == 'linear' else dict(original_length=length, slow=slow, fast=fast)
  scaling = RopeScaling(kind, factor, **ramp, attention_factor=attention_factor)
  theirs = dict(rope_type=kind, rope_theta=theta, factor=factor)
  if kind != 'linear':
    names = ('low_freq_factor', 'high_freq_factor') if kind == 'llama3' else (
        'beta_slow', 'beta_fast')
    theirs |= dict(zip(names, (slow, fast), strict=True)) | dict(
        original_max_position_embeddings=length)
  if kind == 'yarn':
    theirs['attention_factor'] = attention_factor
  return config(head_size, rope_theta=theta, rope_scaling=scaling), theirs


@pytest.mark.parametrize('seed', range(30))
def test_frequencies_are_those_of_transformers(seed):
  transformers = pytest.importorskip('transformers')
  from transformers import modeling_rope_utils
  ours, theirs = random_case(seed)
  peer = transformers.LlamaConfig(hidden_size=ours.head_size, num_attention_heads=1,
                                  max_position_embeddings=131072, rope_parameters=theirs)
  expected_R, factor = modeling_rope_utils.ROPE_INIT_FUNCTIONS[theirs['rope_type']](peer, 'cpu')
  np.testing.assert_allclose(rotary.frequencies(ours), expected_R, rtol=3e-5)
  assert factor == ours.rope_scaling.attention_factor
