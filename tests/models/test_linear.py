"""Products on a CPU equal numpy's in float64, and so do their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from oldest import JAX_IS_OLD
import pytest

from bornbiased_jax.models.layers import multiply_on_cpu

LAST_WITH_FIRST = (((2,), (0,)), ((), ()))


@pytest.mark.parametrize('dtype, tolerance', [
    ('float32', 1e-5), pytest.param('bfloat16', 1e-2, marks=pytest.mark.xfail(
        JAX_IS_OLD, strict=True, reason='CPUs then had no product of two bfloat16 in float32'))])
def test_products_and_gradients_are_those_of_float64(dtype, tolerance):
  draw = np.random.default_rng(0).standard_normal
  shapes = (2, 3, 5), (5, 7), (2, 3, 7)
  x, weights, gradient = (jnp.asarray(draw(shape), dtype) for shape in shapes)
  out, pull = jax.vjp(lambda x, weights: multiply_on_cpu(x, weights, LAST_WITH_FIRST), x, weights)
  x64, weights64, gradient64 = (np.asarray(each, np.float64) for each in (x, weights, gradient))
  expected = (x64 @ weights64, gradient64 @ weights64.T,
              np.einsum('btd,btf->df', x64, gradient64))
  for found, wanted in zip((out, *pull(gradient)), expected, strict=True):
    assert found.dtype == dtype
    atol = tolerance * np.abs(wanted).max()
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=0, atol=atol)


def test_products_of_bfloat16_are_asked_for_in_float32():
  x, weights = jnp.ones((2, 3, 5), 'bfloat16'), jnp.ones((5, 7), 'bfloat16')
  product = lambda x, weights: multiply_on_cpu(x, weights, LAST_WITH_FIRST).sum()
  program = jax.jit(jax.grad(product, (0, 1))).lower(x, weights).as_text()
  results = [line.split('->')[-1] for line in program.splitlines() if 'dot_general' in line]
  assert len(results) == 2 and all('f32>' in result for result in results)
