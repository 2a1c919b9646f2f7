"""A result counts unless it has a reason not to."""

import pytest

from bornbiased_jax.lineage import levels
from bornbiased_jax.lineage.testing import result
from bornbiased_jax.lineage.testing.result import does_not_apply


def test_what_counts_and_what_is_alike():
  found = result.TestResult(0.5, 0.0, 0.1, 5.0, -6.0)
  assert found.counts and found.is_alike(7)
  assert not result.TestResult(0.5, 0.0, 0.1, 5.0, -6.0, reason='a pattern').is_alike(7)
  assert not does_not_apply('other widths').counts and not does_not_apply('other widths').applies
  alike = [result.TestResult(value, level=0.5).is_alike(7) for value in (0.4, 0.6)]
  assert alike == [False, True]


def test_scaling_keeps_z():
  found = result.TestResult(0.1, 0.02, 0.01, 8.0, -10.0).scaled(3)
  assert (found.statistic - found.bound) / found.std == pytest.approx(found.z)
  assert found.detectable(4) == pytest.approx(levels.detectable(0.06, 0.03, 4))
