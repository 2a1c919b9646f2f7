"""What one test says of two models."""

import dataclasses
import math

from bornbiased_jax.lineage import thresholds


@dataclasses.dataclass(frozen=True)
class TestResult:
  """The result of one test, or why there is none.

  Attributes:
    statistic: the effect size, 0 for unrelated models and 1 for copies.
    bound: likeness that unrelated models can have; it is subtracted.
    std: its std under the null hypothesis.
    z: (statistic - bound) / std, less the mean of SeedPrint's statistic.
    log10_p: log10 of its one-sided p-value, or of an upper bound of it.
    log10_p_of_rest: the same, without the two layers that are most alike unless it needs several.
    copy: the statistic of copies of these models; less than 1 if features of one are alike.
    level: of a test without p-value, the statistic above which models are alike; else None.
    applies: False if these models have nothing that the test could compare.
    reason: why the test does not apply, or why its result is excluded; None if it counts.
  """

  __test__ = False  # Pytest takes it for a test otherwise.

  statistic: float | None = None
  bound: float = 0.0
  std: float | None = None
  z: float | None = None
  log10_p: float | None = None
  log10_p_of_rest: float | None = None
  copy: float = 1.0
  level: float | None = None
  applies: bool = True
  reason: str | None = None

  def scaled(self, factor: float) -> 'TestResult':
    """The same result with its statistic in other units."""
    return dataclasses.replace(
        self, bound=factor * self.bound, std=None if self.std is None else factor * self.std,
        statistic=None if self.statistic is None else factor * self.statistic)

  @property
  def counts(self) -> bool:
    """Whether the test has a result that is evidence."""
    return self.reason is None

  def is_alike(self, num_tests: int) -> bool:
    """Whether the test finds something, at `thresholds.UNRELATED_ABOVE` over so many tests."""
    if not self.counts or self.statistic is None:
      return False
    if self.level is not None:
      return self.statistic > self.level
    return self.log10_p is not None and self.log10_p <= math.log10(
        thresholds.UNRELATED_ABOVE / num_tests)

  def detectable(self, num_tests: int) -> float:
    """The mean likeness that keeps two models from 'unrelated', with a probability over POWER."""
    # Features that are all alike, as zeros are, have a std of 0 and tell nothing.
    reach = thresholds.detectable(self.bound, self.std or math.inf,
                                  thresholds.level_z(thresholds.ALPHA / num_tests))
    return reach / self.copy if self.copy > 0 else math.inf


def does_not_apply(reason: str) -> TestResult:
  """The result of a test that has nothing to compare."""
  return TestResult(applies=False, reason=reason)
