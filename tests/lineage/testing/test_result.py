"""A result counts unless it has a reason not to."""

import math

import pytest

from bornbiased_jax.lineage import levels
from bornbiased_jax.lineage.testing.result import TestResult, does_not_apply

FOUND = TestResult(0.5, 0.1, 0.1, 4.0, -6.0)


def test_what_counts_and_what_is_alike():
  assert FOUND.counts and FOUND.is_alike(7)
  limit = math.log10(levels.UNRELATED_ABOVE / 7)
  alike = [TestResult(0.5, 0.1, 0.1, 4.0, limit + change).is_alike(7) for change in (-0.01, 0.01)]
  assert alike == [True, False]
  assert not TestResult(0.5, 0.1, 0.1, 4.0, -6.0, reason='a pattern').is_alike(7)
  nothing = does_not_apply('other widths')
  assert not (nothing.counts or nothing.applies or nothing.is_alike(7))
  assert [TestResult(x, level=0.5).is_alike(7) for x in (0.4, 0.6)] == [False, True]


def test_other_units_keep_z():
  found = FOUND.scaled(3)
  assert (found.statistic - found.bound) / found.std == pytest.approx(found.z)
  assert found.detectable(4) == pytest.approx(levels.detectable(0.3, 0.3, 4))
  assert does_not_apply('other widths').scaled(3) == does_not_apply('other widths')
