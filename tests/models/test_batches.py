"""Batches keep a device busy and fit into its memory."""

import functools
import itertools
import math

import jax
import pytest

from bornbiased_jax.models import batches


@pytest.mark.parametrize('backend, tokens', [('cpu', 2048), ('gpu', 65536), ('tpu', 65536)])
def test_default_batch_size(monkeypatch, backend, tokens):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  numbers, lengths = (1, 7, 100, 10_000), (1, 16, 1000, 2048, 5000, 70_000)
  for num_sequences, length in itertools.product(numbers, lengths):
    size = batches.default_batch_size(num_sequences, length)
    assert 1 <= size <= num_sequences
    assert size == 1 or size * length <= tokens
    # There are as few batches as that allows, and the last is no smaller than it must be.
    fewest = math.ceil(num_sequences / max(1, tokens // length))
    assert math.ceil(num_sequences / size) == fewest
    assert size - (num_sequences - (fewest - 1) * size) < fewest


@pytest.mark.parametrize('backend', ['cpu', 'gpu', 'tpu'])
def test_attention_weights_limit_a_batch_on_accelerators(backend):
  size = functools.partial(batches.default_batch_size, 10_000, backend=backend)
  heads = 32
  for length in (64, 512, 1024, 4096):
    weights = 4 * heads * length**2
    if backend == 'cpu':
      assert size(length, num_heads=heads) == size(length)
    else:
      assert size(length, num_heads=heads) == 1 or size(length, num_heads=heads) * weights <= 2**31
  # So few that their weights are small, where memory allows no less than one sequence.
  assert size(64, num_heads=heads) == size(64)
  assert size(32_768, num_heads=heads) == 1
