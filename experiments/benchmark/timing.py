"""Timing that can be trusted on a noisy machine.

Alternatives run in turn in one process, so that slow moments of the machine strike all alike.
"""

from collections.abc import Callable
import time

import jax
import numpy as np
from tqdm import tqdm


def in_turn(alternatives: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
  """Seconds of each alternative in each round, A B C A B C …, after one round that warms up."""
  seconds = {name: np.zeros(rounds) for name in alternatives}
  for round_ in tqdm(range(-1, rounds), unit='round'):
    for name, run in alternatives.items():
      start = time.perf_counter()
      jax.block_until_ready(run())
      if round_ >= 0:
        seconds[name][round_] = time.perf_counter() - start
  return seconds


def spread(values: np.ndarray) -> dict[str, float]:
  """Median and quartiles of the values."""
  low, median, high = np.percentile(values, (25, 50, 75))
  return {'median': median, 'quartiles': [low, high]}
