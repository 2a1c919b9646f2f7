"""The table and the figure of experiments.calibrate."""

import textwrap

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.lineage.comparison.every_test import DECIDING

from .judged_pairs import pooled, z_of
from .unrelated_pairs import LEVELS

KINDS = ('random', 'trained')
PUBLISHED = {'unprojected': 'without projection', 'published_t': 'published t',
             'published_u': 'published U', 'published_z': 'published z'}
# What is drawn: panels, their colours, and the tests that have each.
GROUPS = {
    'SeedPrint': {'calibrated test': ['calibrated'], 'published t-test': ['published_t'],
                  'published U test': ['published_u']},
    'The verdict': {'verdict': ['verdict'], 'tests that decide': DECIDING,
                    'SeedPrint': ['SeedPrint']},
}
CAPTION = 'Each line is one test on one set of networks.'
OWN_TOKENS = (' Where it is dotted, networks read the same inputs; elsewhere each reads its own '
              'tokens.')


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
  for words, shorter in ((' and trained ', ' and '), (' of width ', ' ')):
    cell = cell.replace(words, shorter)
  return {'unrelated networks': cell, 'pairs': row['pairs'],
          'verdicts': verdicts or '–',
          'sd z': f'{row["sd_z"]:.2f}' if 'sd_z' in row else '–',
          'false positives at 0.05': rate(test, 0.05),
          'at 0.01 (95 % interval)': rate(test, 0.01)
              + (f' ({ends[0]:.1%}–{ends[1]:.1%})' if ends else ''),
          **{f'{words} at 0.01': rate(test, 0.01) for test, words in PUBLISHED.items()}}


def draw(rows):
  """A panel per kind of networks and group of tests."""
  kinds = {kind: [row for row in rows if kind_of(row) == kind] for kind in KINDS}
  shown = [(f'{title} on {kind} networks', curves) for kind, own in kinds.items()
           for title, tests in GROUPS.items() if (curves := curves_of(tests, own))]
  columns = min(2, len(shown))
  lines = -(-len(shown) // columns)
  figure = plotting.figure(3.3 * columns + 0.7, 3.1 * lines + 0.3)
  panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
  for ax, (title, curves) in zip(panels.ravel(), shown, strict=False):
    draw_curves(ax, title, curves)
  for ax in panels[:, 0]:
    ax.set_ylabel('share of unrelated pairs with p ≤ level')
  for ax in panels[-1]:
    ax.set_xlabel('level of the test')
  has_probes = any(reads_own(row['cell']) is not None for row in rows)
  caption = CAPTION + (OWN_TOKENS if has_probes else '')
  figure.suptitle(textwrap.fill(caption, 48 * columns), fontsize='medium')
  return figure


def reads_own(cell: str) -> bool | None:
  """Whether networks read tokens of their own in this cell; None where they are judged."""
  return None if cell.endswith((', verdict', ', order')) else cell.endswith(', tokens')


def curves_of(tests, rows) -> list[tuple[str, bool, list[float]]]:
  """Of each test in each cell: its name, whether inputs are shared, and the shares by level."""
  return [(name, reads_own(row['cell']) is False, row[f'{test}_share_below_level'])
          for name, own in tests.items() for test in own for row in rows if f'{test}_0.01' in row]


def draw_curves(ax, title, curves):
  """A test that keeps its level follows the diagonal."""
  level = np.array([1e-3, 1])
  plotting.theory(ax, level, level, 'as many as allowed')
  colors = dict(zip(dict.fromkeys(name for name, *_ in curves), plotting.COLORS, strict=False))
  for name, is_shared, shares in reversed(curves):  # The first are on top.
    ax.plot(LEVELS, shares, color=colors[name], linewidth=1, linestyle=':' if is_shared else '-')
  for name, color in colors.items():
    ax.plot([], [], color=color, label=name)
  ax.set(xscale='log', yscale='log', xlim=(1e-3, 1), ylim=(1e-3, 1), title=title)
  for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_formatter(lambda share, _: f'{100 * share:g} %')
  ax.legend(fontsize='small')
