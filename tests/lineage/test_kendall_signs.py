"""Two ways of summing signs of differences agree, and each platform runs the one meant for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.lineage import kendall, kendall_signs, ranks
from random_columns import random_pair


def test_products_of_signs_equal_counts_of_bits(monkeypatch):
  n = 300
  a, b = (ranks.key(jnp.asarray(x).at[:, 0].set(jnp.arange(n))) for x in random_pair(n, 7))
  score = lambda score_of_tile, height: kendall_signs._sum_of_tiles(
      score_of_tile, height, a, b[:, :5])
  products = score(kendall_signs._score_by_products, kendall_signs.BLOCK)
  for scores_at_once in (kendall_signs.SCORES_AT_ONCE, 20):
    monkeypatch.setattr(kendall_signs, 'SCORES_AT_ONCE', scores_at_once)
    np.testing.assert_array_equal(products, score(kendall_signs._score_by_bits, kendall_signs.WORD))
  assert products[0, 0] == n * (n - 1) // 2


@pytest.mark.parametrize('platform, operation', [
    ('cpu', 'popcnt'), ('cuda', 'dot_general'), ('tpu', 'dot_general'),
])
def test_what_each_platform_runs(platform, operation):
  x = jax.ShapeDtypeStruct((300, 40), jnp.float32)
  text = jax.jit(kendall.kendall_matrix).trace(x, x).lower(lowering_platforms=(platform,)).as_text()
  assert [name for name in ('popcnt', 'dot_general') if f'.{name}' in text] == [operation]
