"""The FLOPs of a forward pass are those that its program multiplies and adds."""

import jax
import pytest

from bornbiased_jax.models import flops
from textbook import B, T, structures
from traced_programs import multiplications, traced


@structures
@pytest.mark.parametrize('names, num_logits', [
    (('logits',), T), (('residual', 'logits_last'), 1), (('residual',), 0),
], ids=['all logits', 'last logits', 'no logits'])
def test_flops_are_twice_the_multiplications_of_the_program(config, names, num_logits):
  expected = 2 * multiplications(traced(config, names))
  assert B * flops.forward_flops(config, T, num_logits) == expected


def test_the_rate_is_the_flops_of_the_product_over_the_median_time(monkeypatch):
  product, num_flops = flops.matmul('float32')
  assert num_flops == 2 * multiplications(jax.make_jaxpr(product)())
  # Three rounds take 1, 4 and 2 seconds.
  clock = iter([0.0, 1.0, 10.0, 14.0, 20.0, 22.0])
  monkeypatch.setattr(flops, 'matmul', lambda dtype: (lambda: 0.0, num_flops))
  monkeypatch.setattr(flops.time, 'perf_counter', lambda: next(clock))
  assert flops.matmul_rate.__wrapped__('float32', rounds=3) == num_flops / 2
