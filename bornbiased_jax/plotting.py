"""The look that all figures share, and how they reach the disk."""

import contextlib
import io
import os

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
import numpy as np

from bornbiased_jax.files import write_atomically

# Okabe and Ito's colours, told apart by readers with any colour vision.
COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')

_STYLE = {
    'axes.prop_cycle': matplotlib.cycler(color=COLORS),
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
}


def style() -> contextlib.AbstractContextManager:
  """`with plotting.style():` draws in the shared look."""
  return matplotlib.rc_context(_STYLE)


def figure(width: float, height: float) -> Figure:
  """An empty figure of that many inches, which needs no screen and no clean-up."""
  return Figure(figsize=(width, height))


def band(ax: Axes, x: np.ndarray, values: np.ndarray, **line) -> None:
  """Mean of `values` [networks, x] as a line, and the 10–90 % range over networks as a band."""
  drawn, = ax.plot(x, np.mean(values, axis=0), **line)
  ax.fill_between(x, *np.percentile(values, (10, 90), axis=0), color=drawn.get_color(), alpha=0.15, linewidth=0)


def theory(ax: Axes, x: np.ndarray, y: np.ndarray, label: str | None = None) -> None:
  """A closed form: a black dashed line."""
  ax.plot(x, y, 'k--', linewidth=1, label=label, zorder=3)


def loss_curve(ax: Axes, lines: list[dict], **line) -> None:
  """Training loss of a run's metrics (`monitor.read`), averaged over each hundredth of it; validation as dots."""
  trained = np.array([(each['step'], each['loss']) for each in lines if each.get('loss') is not None])
  step, loss = (np.array([part.mean() for part in np.array_split(column, min(100, len(trained)))])
                for column in trained.T)
  drawn, = ax.plot(step, loss, **line)
  evaluated = [(each['step'], each['validation_loss']) for each in lines if each.get('validation_loss') is not None]
  ax.plot(*zip(*evaluated, strict=True), 'o', color=drawn.get_color(), markersize=4) if evaluated else None


def plain_log_ticks(axis: Axis) -> None:
  """Labels a logarithmic axis 0.5, 1, 2, 5, 10, … instead of powers of ten."""
  axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
  axis.set_major_formatter(StrMethodFormatter('{x:g}'))
  axis.set_minor_formatter(NullFormatter())


def save(drawn: Figure, path: str | os.PathLike) -> None:
  """Writes a figure as PNG, whole or not at all."""
  content = io.BytesIO()
  drawn.savefig(content, format='png')
  write_atomically(path, content.getvalue())
