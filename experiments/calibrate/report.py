"""The table and the figure of experiments.calibrate."""

import functools
import textwrap

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.lineage.comparison.every_test import DECIDING

from .judged_pairs import pooled, z_of
from .unrelated_pairs import LEVELS

KINDS = ('random', 'trained')
PUBLISHED = {'unprojected': 'without projection', 'published_t': 'published t',
             'published_u': 'published U', 'published_z': 'published z'}
# What is drawn. A test has one colour in all panels.
TESTS = {'calibrated test': 'calibrated', 'published t-test': 'published_t',
         'published U test': 'published_u'}
JUDGED = {'tests that decide': (plotting.COLORS[3], DECIDING),
          'SeedPrint (calibrated test)': (plotting.COLORS[0], ['SeedPrint']),
          'verdict': (plotting.COLORS[4], ['verdict'])}
CAPTION = ('Each line is one test on one set of networks. Where it is dotted, networks read the '
           'same inputs; elsewhere each reads its own tokens.')


def summarize(rows) -> list[dict]:
  """A row per cell, and one for all cells of verdicts on random, or on trained networks."""
  summary = [{name: value for name, value in row.items()
              if 'level' not in name and name not in ('z', 'p_values', 'plain_z')}
             | ({'z_of': z_of([row])} if 'verdicts' in row else {}) for row in rows]
  for kind in KINDS:
    cells = judged(rows, kind)
    if len(cells) > 1:
      ending = cells[0]['cell'].rpartition(', ')[2]
      summary.append({'cell': f'all {kind} networks, {ending}'} | pooled(cells))
  return summary


def kind_of(row) -> str:
  return 'trained' if row['cell'].startswith('trained') else 'random'


def judged(rows, kind: str) -> list[dict]:
  """The cells of verdicts on random, or on trained networks."""
  return [row for row in rows if 'verdicts' in row and kind_of(row) == kind]


def display(row):
  test = 'verdict' if 'verdicts' in row else 'calibrated'
  rate = lambda test, alpha: f'{row[name]:.1%}' if (name := f'{test}_{alpha}') in row else '–'
  ends = row.get(f'{test}_0.01_ci95')
  verdicts = ', '.join(f'{count} {name}' for name, count in row.get('verdicts', {}).items())
  cell = row['cell'].removesuffix(', verdict').removesuffix(', order')
  for words, shorter in ((' and trained ', ' and '), (' of width ', ' '), (' with ', ', ')):
    cell = cell.replace(words, shorter)
  return {'unrelated networks': cell, 'pairs': row['pairs'],
          'verdicts': verdicts or '–',
          'sd z': f'{row["sd_z"]:.2f}' if 'sd_z' in row else '–',
          'false positives at 0.05': rate(test, 0.05),
          'at 0.01 (95 % interval)': rate(test, 0.01)
              + (f' ({ends[0]:.1%}–{ends[1]:.1%})' if ends else ''),
          **{f'{words} at 0.01': rate(test, 0.01) for test, words in PUBLISHED.items()}}


def draw(rows):
  """Of random and of trained networks, a panel of SeedPrint and one of the verdict."""
  panels = []
  for kind in KINDS:
    if curves := curves_of([row for row in rows if kind_of(row) == kind]):
      panels.append(functools.partial(draw_curves, curves, f'SeedPrint on {kind} networks'))
    if cells := judged(rows, kind):
      panels.append(functools.partial(draw_judged, cells, f'the verdict on {kind} networks'))
  columns = min(2, len(panels))
  figure = plotting.figure(3.5 * columns + 0.7, 3.1 * -(-len(panels) // columns) + 0.3)
  grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False)
  for ax, draw_panel in zip(grid.flat, panels, strict=False):
    draw_panel(ax)
    ax.set(xlabel='level of the test', ylabel='share of unrelated pairs with p ≤ level')
    ax.legend(fontsize='small')
    for axis in (ax.xaxis, ax.yaxis):
      axis.set_major_formatter(lambda share, _: f'{100 * share:g} %')
  if any(reads_own(row['cell']) is not None for row in rows):
    figure.suptitle(textwrap.fill(CAPTION, 48 * columns), fontsize='medium')
  return figure


def reads_own(cell: str) -> bool | None:
  """Whether networks read tokens of their own in this cell; None where they are judged."""
  return None if cell.endswith((', verdict', ', order')) else cell.endswith(', tokens')


def curves_of(rows) -> list[tuple[str, bool, list[float]]]:
  """Of each test in each cell: its name, whether inputs are shared, and the shares by level."""
  return [(name, reads_own(row['cell']) is False, row[f'{test}_share_below_level'])
          for name, test in TESTS.items() for row in rows
          if f'{test}_0.01' in row and 'verdicts' not in row]


def draw_curves(curves, title, ax):
  """A line per cell. A test that keeps its level follows the diagonal."""
  level = np.array([1e-3, 1])
  plotting.theory(ax, level, level, 'as many as allowed')
  colors = dict(zip(TESTS, plotting.COLORS, strict=False))
  for name, is_shared, shares in reversed(curves):  # The first are on top.
    ax.plot(LEVELS, shares, color=colors[name], linewidth=1, linestyle=':' if is_shared else '-')
  for name in dict.fromkeys(name for name, *_ in curves):
    ax.plot([], [], color=colors[name], label=name)
  ax.set(xscale='log', yscale='log', xlim=(1e-3, 1), ylim=(1e-3, 1), title=title)


def draw_judged(cells, title, ax):
  """A line per test, over the pairs of all cells."""
  plotting.theory(ax, np.array([0, 1]), np.array([0, 1]), 'as many as allowed')
  made = {test for row in cells for test in row['p_values']}  # Not all, if 'order' ran.
  for name, (color, tests) in JUDGED.items():
    for test in [test for test in tests if test in made]:
      p_P = np.sort([p for row in cells for p in row['p_values'].get(test, []) if p is not None])
      ax.step([0, *p_P, 1], [0, *np.arange(1, len(p_P) + 1) / len(p_P), 1], where='post',
              color=color, label=name if test == tests[0] else None)
  ax.set(xlim=(0, 1), ylim=(-0.02, 1), title=title)
