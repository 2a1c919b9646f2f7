"""What no query sees is not computed, and no large matrix is kept or transposed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.models import attention
from bornbiased_jax.models.attention_tiles import tiled
from traced_programs import equations, matmuls, multiplications

B, H, K = 2, 4, 8


def heads(length):
  draw = np.random.default_rng(length).standard_normal
  return [draw((B, length, H, K), np.float32) for _ in range(3)]


def gradient(attend):
  return jax.grad(lambda *heads: attend(*heads).sum(), argnums=(0, 1, 2))


def test_tiles_multiply_only_what_is_visible():
  length, tiles = 512, 4
  forward, whole = (multiplications(jax.make_jaxpr(f)(*heads(length))) for f in (
      tiled, attention.plain))
  assert forward == whole * (tiles + 1) / (2 * tiles)


@pytest.mark.parametrize('length', [512, 2048, 4096])
def test_memory_grows_as_the_length(length):
  program = jax.make_jaxpr(gradient(tiled))(*heads(length))
  largest = max(out.aval.size for equation, _ in equations(program) for out in equation.outvars)
  assert largest <= max(B * length * H * K, 2**18, length * length // 16)


def test_no_product_transposes_its_scores():
  # XLA copies a left factor whose rows are summed over. The right one may lie either way.
  program = jax.make_jaxpr(gradient(tiled))(*heads(512))
  products = [equation for equation, _ in matmuls(program)]
  assert products
  for product in products:
    (summed, _), _ = product.params['dimension_numbers']
    assert summed == (product.invars[0].aval.ndim - 1,)


def test_tiles_of_one_sequence_do_not_read_another():
  query, key, value = heads(200)
  other = [np.concatenate((x[:1], 100 * x[1:])) for x in (query, key, value)]
  run = jax.jit(gradient(tiled))
  for mine, theirs in zip(run(query, key, value), run(*other), strict=True):
    np.testing.assert_array_equal(mine[0], theirs[0])
    assert jnp.abs(mine[1] - theirs[1]).max() > 0


@pytest.mark.parametrize('size', [1.0, 1e6, 1e10])
def test_equal_scores_have_exact_gradients_however_large_they_are(size):
  _, _, value = heads(300)
  query = key = np.full(value.shape, size**0.5, np.float32)
  mine, exact = (jax.jit(gradient(attend))(query, key, value) for attend in (
      tiled, attention.plain))
  for ours, theirs in zip(mine[1:], exact[1:], strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())
