"""Pairs of columns for Kendall's tau, with ties, infinities and zeros of both signs."""

import numpy as np


def random_column(generator, n):
  """Numbers that are all different, or tie in one of several ways, in a random or sorted order."""
  column = generator.choice([
      lambda: generator.standard_normal(n),
      lambda: generator.standard_normal(n) * 10.0 ** generator.integers(-30, 30, n),
      lambda: generator.choice([-np.inf, -1, -0.0, 0.0, 1e-40, 3, np.inf], n),
      lambda: generator.integers(generator.choice([1, 2, 3, 10, n]), size=n) - 1,
      lambda: np.arange(n) // generator.choice([1, 2, 100]),
  ])()
  return generator.choice([lambda x: x, np.sort, lambda x: -np.sort(x)])(column)


def random_pair(n, k, seed=0):
  """Columns [n, k] and partners: other columns, the same, their opposites, or partly shuffled."""
  generator = np.random.default_rng(seed)
  a = np.stack([random_column(generator, n) for _ in range(k)], axis=1)
  partner = lambda column: generator.choice([
      lambda: random_column(generator, n), lambda: column, lambda: -column,
      lambda: np.where(generator.random(n) < 0.5, column, generator.permutation(column)),
  ])()
  return np.float32(a), np.float32(np.stack([partner(column) for column in a.T], axis=1))
