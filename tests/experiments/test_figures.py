"""The flag --format: a figure's file, and not what was measured."""

import contextvars

from bornbiased_jax import plotting
from experiments.shared import figures


def test_figures_are_png_files_unless_the_flag_says_otherwise(tmp_path):
  figure = plotting.figure(1, 1)
  assert figures.write(figure, tmp_path) == tmp_path / 'figure.png'
  given = contextvars.copy_context()
  given.run(figures.FORMAT.set, 'svg')
  assert given.run(figures.write, figure, tmp_path, 'chart') == tmp_path / 'chart.svg'
  assert (tmp_path / 'chart.svg').read_bytes().startswith(b'<?xml')
