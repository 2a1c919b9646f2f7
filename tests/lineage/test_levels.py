"""Levels are those of the normal law, and sizes of ingredients are those that are drawn."""

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.lineage import levels


@pytest.mark.parametrize('size', [0.2, 0.5, 1.0])
def test_the_size_of_an_ingredient_is_that_which_gives_the_likeness(size):
  a, b, common = np.random.default_rng(0).standard_normal((3, 200_000))
  cosine = np.corrcoef(a + size * common, b + size * common)[0, 1]
  assert levels.ingredient_size(cosine) == pytest.approx(size, rel=0.05)


def test_what_is_detectable_is_found_with_that_probability():
  reach = levels.detectable(0.1, 0.02, 4)
  needed = 0.1 + 0.02 * stats.norm.isf(levels.ALPHA / 4)
  found = np.random.default_rng(0).normal(reach, 0.02, 100_000) > needed
  assert found.mean() == pytest.approx(levels.POWER, abs=0.005)
