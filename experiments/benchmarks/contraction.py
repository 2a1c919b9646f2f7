"""What the statistics of contraction, similarities with their spread and directions, cost beside the forward pass."""

from experiments import contraction
from experiments.benchmarks import sweep


def run() -> list[dict]:
  return [*sweep.forward_rows(contraction), sweep.memory_row('contraction')]
