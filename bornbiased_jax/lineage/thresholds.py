"""Every level at which a test or a verdict turns, with the reason for its size."""

import math

import scipy

# 'related' needs a p-value of at most ALPHA over all deciding tests together (Bonferroni).
ALPHA = 1e-4
# 'unrelated' needs every test, corrected for their number, to stay above this.
UNRELATED_ABOVE = 0.01
# 'unrelated' needs a unit test and a value test that find a likeness of DETECTABLE with this power.
# 1 is a copy. The weakest descendants of the adversary's list have 0.3, an average in which the
# base weighs 0.3.
POWER, DETECTABLE = 0.95, 0.15
# 'unrelated' needs so many sequences, of so many token ids. SeedPrint is excluded if more than this
# share of channels is constant.
LEAST_SEQUENCES, LEAST_IDS, MOST_CONSTANT = 1000, 32, 0.1
# Features whose places are exchanged with each other: so few neighbours that a sorted order differs
# little between them, and few enough that all BLOCK! orders can be counted.
BLOCK = 4
# Two layers of one network whose features are as alike as this are copies of each other. Layers
# of unrelated networks that were matched to one reference on purpose reach 0.3.
COPY = 0.35
# Layers that are no less alike were repeated, and not made alike by a pattern and noise.
EXACT_COPY = 0.95
# Networks that took in one ingredient as large as their own weights are as alike as this.
HALF = 0.5
# Hidden states in any basis, and MLP units in any order, that are more alike than this are a sign
# of a copy in disguise, which has 1 and some 0.7; networks that learned one text have up to 0.4
# and 0.12.
ALIKE_IN_ANY_BASIS, ALIKE_IN_ANY_ORDER = 0.5, 0.2
# What no disguise changes of layers agrees as much in copies: these have 1, some 0.5 with noise of
# 5 %, and 0.3 after 5 % more training. Unrelated models have 0 on average, and very small ones up
# to 0.3; of other depths, where layers are chosen, 0.2 and up to 0.3: then twice as much is needed.
ALIKE_LAYERS = 0.25
# No smaller p-value is reported: no null distribution is known so far in its tail.
LEAST_LOG10_P = -12.0


def shown_p_value(log10_p: float | None) -> float | None:
  """A p-value for reports, from its logarithm, and not below 10^LEAST_LOG10_P."""
  return None if log10_p is None else 10**max(log10_p, LEAST_LOG10_P)


def related_z(num_tests: int, alpha: float = ALPHA) -> float:
  """About where a z becomes evidence for 'related': where Chernoff's bound reaches the level.

  Example:
    >>> round(related_z(4), 1)
    4.6
  """
  return math.sqrt(2 * math.log(num_tests / alpha))


def level_z(p_value: float) -> float:
  """The z of a one-sided p-value under the normal distribution.

  Example:
    >>> round(level_z(0.01), 2)
    2.33
  """
  return -float(scipy.special.ndtri(p_value))


def detectable(bound: float, std: float, needed_z: float) -> float:
  """The mean likeness at which a test reaches a z with probability POWER."""
  return bound + (needed_z + level_z(1 - POWER)) * std


def ingredient_size(likeness: float) -> float:
  """The size of a common ingredient, relative to the own weights, that gives a likeness.

  Two independent vectors of length 1 to which one vector of length s was added have a cosine of
  s² / (1 + s²).

  Example:
    >>> round(ingredient_size(0.5), 2)
    1.0
  """
  return math.sqrt(likeness / (1 - likeness)) if 0 < likeness < 1 else math.inf
