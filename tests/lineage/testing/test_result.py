"""A result counts unless it has a reason not to."""

import pytest

from bornbiased_jax.lineage import levels
from bornbiased_jax.lineage.testing.result import TestResult, does_not_apply


def test_what_counts_and_what_is_alike():
  found = TestResult(0.5, 0.0, 0.1, 5.0, -6.0)
  assert found.counts and found.is_alike(7)
  assert not TestResult(0.5, 0.0, 0.1, 5.0, -6.0, reason='a pattern').is_alike(7)
  assert not does_not_apply('other widths').counts and not does_not_apply('other widths').applies
  assert TestResult(0.6, level=0.5).is_alike(7) and not TestResult(0.4, level=0.5).is_alike(7)


def test_scaling_keeps_z():
  result = TestResult(0.1, 0.02, 0.01, 8.0, -10.0).scaled(3)
  assert (result.statistic - result.bound) / result.std == pytest.approx(result.z)
  assert result.detectable(4) == pytest.approx(levels.detectable(0.06, 0.03, 4))
