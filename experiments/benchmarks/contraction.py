"""What the statistics of contraction, similarities with their spread and directions, cost beside the forward pass."""

from experiments import contraction
from experiments.benchmarks import sweep


def run() -> list[dict]:
  rows = [sweep.forward(name, length, rounds, contraction.statistic)
          for name, (length, rounds) in sweep.MODELS.items()]
  return [*rows, sweep.memory_row('contraction')]
