"""Figures show the numbers that they are given, in the shared look."""

import struct

import matplotlib
import numpy as np
import pytest

from bornbiased_jax import plotting


@pytest.fixture
def ax():
  with plotting.style():
    yield plotting.figure(4, 3).subplots()


def test_a_figure_is_saved_as_a_png_of_its_size(ax, tmp_path):
  plotting.save(ax.figure, tmp_path / 'figure.png')
  content = (tmp_path / 'figure.png').read_bytes()
  assert content.startswith(b'\x89PNG')
  # 4 by 3 inches have 150 dots per inch.
  assert struct.unpack('>II', content[16:24]) == (600, 450)


@pytest.mark.parametrize('suffix, beginning', [('svg', b'<?xml'), ('pdf', b'%PDF')])
def test_the_path_says_the_format(ax, tmp_path, suffix, beginning):
  plotting.save(ax.figure, tmp_path / f'figure.{suffix}')
  content = (tmp_path / f'figure.{suffix}').read_bytes()
  assert content.startswith(beginning) and b'/Type3' not in content


def test_the_look_is_the_same_whatever_a_user_has_set(tmp_path):
  def content():
    with plotting.style():
      figure = plotting.figure(2, 1)
      figure.text(0.1, 0.5, 'loss_total')
    return plotting.encode(figure, 'png')

  with matplotlib.rc_context(matplotlib.rcParamsDefault):
    wanted = content()
  with matplotlib.rc_context({'text.usetex': True, 'font.size': 20, 'savefig.facecolor': 'red'}):
    assert content() == wanted


@pytest.mark.parametrize('networks, ends', [(50, (10, 90)), (8, (0, 100))])
def test_a_band_is_the_mean_and_the_middle_four_fifths_of_networks_or_all(ax, networks, ends):
  x, values = np.arange(5), np.random.default_rng(0).standard_normal((networks, 5))
  plotting.band(ax, x, values, label='networks')
  line, = ax.lines
  np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0))
  corners = ax.collections[0].get_paths()[0].vertices
  for i in x:
    drawn = corners[corners[:, 0] == i, 1]
    assert (drawn.min(), drawn.max()) == pytest.approx(tuple(np.percentile(values[:, i], ends)))


def test_of_two_networks_there_is_no_band_but_both(ax):
  x, values = np.arange(3), np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 5.0]])
  plotting.band(ax, x, values, label='networks', color='red')
  mean, *both = ax.lines
  np.testing.assert_allclose(mean.get_ydata(), [2, 2, 4])
  np.testing.assert_allclose([line.get_ydata() for line in both], values)
  assert not ax.collections
  assert all(line.get_color() == 'red' and line.get_linewidth() < mean.get_linewidth()
             for line in both)


def test_a_loss_curve_averages_hundredths_and_shows_validation_as_dots(ax):
  """Here the loss is the number of the step, so that its averages are averages of steps."""
  lines = [{'step': step, 'loss': float(step)} for step in range(1, 301)]
  lines.insert(100, {'step': 100, 'validation_loss': 7.0})
  plotting.loss_curve(ax, lines)
  curve, dots = ax.lines
  np.testing.assert_allclose(curve.get_xdata(), np.arange(2, 301, 3))
  np.testing.assert_allclose(curve.get_ydata(), np.arange(2, 301, 3))
  assert (list(dots.get_xdata()), list(dots.get_ydata())) == ([100], [7.0])
  assert dots.get_linestyle() == 'None' and dots.get_color() == curve.get_color()


def test_labels_at_the_ends_of_lines_keep_apart_and_near(ax):
  heights = [0.50, 0.51, 0.9, 0.1]
  for i, y in enumerate(heights):
    ax.plot([0, 1], [0, y], label=f'line {i}')
  ax.set_ylim(0, 1)
  plotting.label_lines(ax)
  place = {text.get_text(): text.xy[1] for text in ax.texts}
  ends = np.array([place[f'line {i}'] for i in range(4)])
  gap = 11 / 72 * ax.figure.dpi / ax.get_window_extent().height
  np.testing.assert_allclose(ends[2:], heights[2:], atol=1e-6)  # Nobody is near these two.
  np.testing.assert_allclose(ends[1] - ends[0], gap)
  np.testing.assert_allclose(ends[:2].mean(), 0.505)
