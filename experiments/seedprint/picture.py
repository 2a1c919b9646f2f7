"""The picture of a verdict on two models: z of each test, and what chance gives."""

import textwrap

from bornbiased_jax import plotting
from bornbiased_jax.lineage import thresholds


def draw(report):
  """z of each test, and what chance gives; of the others their likeness, or why there is none.

  At the right z and the likeness.
  """
  rows = report['tests']
  z = [row['z'] for row in rows if row['z'] is not None]
  deciding = sum(row['decides'] and row['z'] is not None for row in rows)
  figure = plotting.figure(9, 1.8 + 0.32 * len(rows))
  ax = figure.subplots()
  ax.set_title(title(report), parse_math=False)
  lowest, highest = min([-6, *(1.2 * each for each in z)]), max([1000, *(2 * each for each in z)])
  ax.axvspan(lowest, 2, color='#cccccc', linewidth=0,
             label='chance: 97 % of unrelated pairs at least')
  plotting.z_axis(ax.xaxis, (-5, 0, 5, 50, 500))
  for i, row in enumerate(rows):
    draw_test(ax, i, row)
  for color, name in ((1, 'decides'), (0, 'explains')):
    ax.plot([], [], 'o', color=plotting.COLORS[color], label=name)
  if deciding:
    ax.axvline(thresholds.related_z(deciding, report['alpha']), color='black', linestyle='--',
               linewidth=1, label='related beyond, about')
  write_right(ax, -0.8, 'z', 'likeness\n(copy: ≈ 1)')
  ax.set_yticks(range(len(rows)), [row['test'] for row in rows])
  ax.set(xlim=(lowest, highest), ylim=(len(rows) - 0.5, -0.5))
  figure.legend(loc='outside lower center', ncols=4, fontsize='small')
  return figure


def title(report) -> str:
  """Verdict, probe and names, each on a line of its own."""
  base, suspect = (str(report[side].get('name'))[-90:] for side in ('base', 'suspect'))
  return (f'{report["verdict"].capitalize()} (n = {report["sequences"]:,}, T = '
          f'{report["probe"]["length"]})\nbase: {base}\nsuspect: {suspect}')


def draw_test(ax, i, row):
  """A dot at z, or a line of text."""
  text, z = row['reason'], ''
  if text is None and row['level'] is not None:
    text = f'no z: alike above {row["level"]:g}'
  elif text is None:
    z = f'{row["z"]:z.1f}'
    ax.plot(row['z'], i, 'o', color=plotting.COLORS[1 if row['decides'] else 0])
  if text:
    ax.text(0.51, i, textwrap.fill(text, 64), transform=ax.get_yaxis_transform(), va='center',
            fontsize='x-small', bbox=dict(facecolor='white', edgecolor='none', pad=1))
  write_right(ax, i, z, '' if row['statistic'] is None else f'{row["statistic"]:z.3f}')


def write_right(ax, y, z, likeness):
  """A line of the two columns at the right of a picture."""
  for points, text in ((40, z), (95, likeness)):
    ax.annotate(text, (1, y), (points, 0), ax.get_yaxis_transform(), 'offset points', ha='right',
                va='center', annotation_clip=False)
