"""What the statistics of contraction cost beside the forward pass.

These are the similarities of sequences with their std over pairs, and the
contraction direction.
"""

from ..shared import measurements
from . import sweep


def run() -> list[dict]:
  return [*sweep.forward_rows('contraction', measurements.contraction),
          sweep.memory_row(measurements.contraction)]
