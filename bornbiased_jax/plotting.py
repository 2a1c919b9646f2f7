"""The look that all figures share, and how they are written to disk."""

import contextlib
import io
import os
from pathlib import Path
import re
import textwrap
from typing import Any

from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
import matplotlib.style
from matplotlib.text import Text
from matplotlib.ticker import (
    LogLocator,
    NullFormatter,
    NullLocator,
    StrMethodFormatter,
)
import numpy as np
import scipy

from bornbiased_jax.files import write_atomically

# The colours of Okabe and Ito, which readers with any colour vision can tell apart.
COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
_LONG_NAME = re.compile(r'[^\s,]+(,[^\s,]+=[^\s,]+){2,}')
# Of fewer networks than the first each is drawn; the 10–90 % range needs the second.
FEW, MANY = 5, 10
# The look of a curve with a point per layer, and of one that lies on it.
DOTS: Any = dict(marker='o', markersize=3)
OPEN: Any = dict(marker='s', markersize=6, markerfacecolor='none', linestyle=':')

_STYLE: Any = {
    'axes.prop_cycle': cycler(color=COLORS),
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'axes.titlesize': 'medium',
    'axes.titlelocation': 'left',
    'figure.dpi': 150,
    'figure.constrained_layout.use': True,
    'font.size': 9,
    'grid.alpha': 0.25,
    'legend.frameon': False,
    'lines.linewidth': 1.5,
    # Publishers refuse the fonts of Type 3, which matplotlib would write.
    'pdf.fonttype': 42,
}


def style() -> contextlib.AbstractContextManager:
  """The shared look, for everything that is drawn within `with plotting.style():`.

  It begins with the defaults: a matplotlibrc may ask for what a machine lacks, such as TeX.
  """
  return matplotlib.style.context(['default', _STYLE])


def figure(width: float, height: float) -> Figure:
  """An empty figure.

  It needs no screen, and it does not have to be closed.

  Args:
    width, height: inches.
  """
  return Figure(figsize=(width, height))


def band(ax: Axes, x: np.ndarray, values: np.ndarray, **line) -> None:
  """Draws the mean over networks as a line, and their 10–90 % range as a band.

  Fewer than ten networks, which have no such range, have a band from the lowest to the highest, and
  fewer than five are thin lines around their mean.
  """
  drawn, = ax.plot(x, np.mean(values, axis=0), **line)
  if len(values) < FEW:
    ax.plot(x, np.transpose(values), color=drawn.get_color(), linewidth=0.6)
    return
  low, high = np.percentile(values, (10, 90) if len(values) >= MANY else (0, 100), axis=0)
  ax.fill_between(x, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)


def of_networks(count: int) -> str:
  """What `band` shows of so many networks, for a title."""
  if count == 1:
    return '1 network'
  if count < FEW:
    return f'{count} networks (thin)'
  return f'{count} networks, band {"10–90" if count >= MANY else "0–100"} %'


def theory(ax: Axes, x: np.ndarray, y: np.ndarray, label: str | None = None) -> None:
  """Draws a closed form as a black dashed line."""
  ax.plot(x, y, 'k--', linewidth=1, label=label, zorder=3)


def label_lines(ax: Axes) -> None:
  """Writes the labels of lines at their right ends, in their colours, instead of a legend.

  It is called last, when the limits of the axes are final. Labels keep a line's height apart, and
  are as near to their lines as that allows.
  """
  lines = [line for line in ax.get_lines() if not str(line.get_label()).startswith('_')]
  to_axes: Any = ax.transData + ax.transAxes.inverted()
  ends = [to_axes.transform(np.asarray(line.get_xydata())[-1])[1] for line in lines]
  gap = 11 / 72 * ax.figure.dpi / ax.get_window_extent().height
  order = np.argsort(ends)
  least = gap * np.arange(len(order))
  nearest = scipy.optimize.isotonic_regression(np.array(ends)[order] - least).x
  place = least + np.clip(nearest, 0, max(0, 1 - least[-1]))
  for y, line in zip(place, np.array(lines, object)[order], strict=True):
    ax.annotate(line.get_label(), (1.02, y), xycoords='axes fraction', va='center',
                fontsize='small', color=line.get_color(), annotation_clip=False)


def loss_curve(ax: Axes, lines: list[dict], **line) -> None:
  """Draws the training loss (`monitor.read`) as means of hundredths, and validation as dots."""
  points = lambda name: [(each['step'], each[name]) for each in lines
                         if each.get(name) is not None]
  trained, evaluated = np.array(points('loss')), points('validation_loss')
  num_parts = min(100, len(trained))
  step, loss = (np.array([part.mean() for part in np.array_split(column, num_parts)])
                for column in trained.T)
  drawn, = ax.plot(step, loss, **line)
  if evaluated:
    ax.plot(*zip(*evaluated, strict=True), 'o', color=drawn.get_color(), markersize=4)


def heat(ax: Axes, values: np.ndarray, color: str, largest: float | None = None,
         texts: np.ndarray | None = None) -> QuadMesh:
  """Draws a cell for each of `values`, from white to `color` at `largest`; NaN is grey."""
  edges = (np.arange(size + 1) - 0.5 for size in np.shape(values)[::-1])
  cells = ax.pcolormesh(*edges, values, vmin=0, vmax=largest, edgecolors='white', linewidth=0.8,
                        cmap=LinearSegmentedColormap.from_list('shades', ('white', color)))
  for (i, j), text in np.ndenumerate([] if texts is None else texts):
    *rgb, _ = cells.cmap(cells.norm(values[i][j]))
    ax.text(j, i, text, ha='center', va='center', fontsize='small',
            color='white' if np.mean(rgb) < 0.5 else 'black')
  ax.set(facecolor='#cccccc', ylim=(len(values) - 0.5, -0.5))
  ax.grid(visible=False)
  ax.tick_params(length=0)
  ax.spines[:].set_visible(False)
  return cells


def z_axis(axis: Axis, ticks: tuple[int, ...]) -> None:
  """Makes an axis one of z: linear up to 5, where chance reaches, then logarithmic."""
  ax, is_x = axis.axes, axis is axis.axes.xaxis
  (ax.set_xscale if is_x else ax.set_yscale)('symlog', linthresh=5)
  axis.set_label_text('z (linear to 5, then logarithmic)')
  axis.set_ticks(ticks, [f'{tick}'.replace('-', '−') for tick in ticks])
  axis.set_minor_locator(NullLocator())
  (ax.axvline if is_x else ax.axhline)(0, color='black', linewidth=0.8)


def plain_log_ticks(axis: Axis) -> None:
  """Labels a logarithmic axis with 0.5, 1, 2, 5, 10, … instead of powers of ten."""
  axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
  axis.set_major_formatter(StrMethodFormatter('{x:g}'))
  axis.set_minor_formatter(NullFormatter())


def _wrap_names(drawn: Figure) -> None:
  """Breaks long names of architectures at their commas; bytes that are no UTF-8 are numbers."""
  wrap = lambda text: _LONG_NAME.sub(lambda name: textwrap.fill(
      name[0].replace(',', ', '), 30, break_long_words=False),
      text.encode(errors='backslashreplace').decode())
  for text in drawn.findobj(Text):
    text.set_text(wrap(text.get_text()))
  for ax in drawn.axes:
    for axis in (ax.xaxis, ax.yaxis):
      labels = [label.get_text() for label in axis.get_ticklabels()]
      if any(map(_LONG_NAME.search, labels)):
        axis.set_ticklabels(list(map(wrap, labels)))


def save(drawn: Figure, path: str | os.PathLike) -> None:
  """Writes a figure, whole or not at all, as what the path ends in: .png, .svg or .pdf."""
  write_atomically(path, encode(drawn, Path(path).suffix[1:]))


def encode(drawn: Figure, file_format: str) -> bytes:
  """The content of a file that shows a figure."""
  _wrap_names(drawn)
  content = io.BytesIO()
  with style():
    drawn.savefig(content, format=file_format)
  return content.getvalue()
