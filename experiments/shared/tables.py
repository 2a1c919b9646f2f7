"""Rows of results: groups of them, their means with intervals, and the table that shows them."""

import math
import re
import textwrap

import numpy as np
import scipy

TABLE_WIDTH, LONGEST_CELL = 100, 50


def grouped(rows: list[dict], *names: str) -> list[tuple[dict, list[dict]]]:
  """Groups of rows that have the same values in the fields `names`.

  Returns:
    The shared values by name and the rows of each group, in the order in which
    the groups' first rows come.

  >>> rows = [{'T': 4, 'seed': 0}, {'T': 8, 'seed': 0}, {'T': 4, 'seed': 1}]
  >>> [(fields, [row['seed'] for row in group]) for fields, group in grouped(rows, 'T')]
  [({'T': 4}, [0, 1]), ({'T': 8}, [0])]
  """
  groups = {}
  for row in rows:
    groups.setdefault(tuple(row[name] for name in names), []).append(row)
  return [(dict(zip(names, key, strict=True)), group) for key, group in groups.items()]


def mean_ci95(rows: list[dict], name: str) -> dict:
  """Mean of a field over rows, with the half-width of its 95 % interval (see `described`)."""
  return described([row[name] for row in rows], name)


def described(values: list[float], name: str) -> dict:
  """`name`, a mean over networks; `name_ci95`, half of its interval; `name_both`, if two."""
  return {name: float(np.mean(values)), f'{name}_ci95': ci95(values)} | _both(values, name)


def quantiles(values: list[float], name: str) -> dict:
  """`name_p10`, `name_p50` and `name_p90`: values that 10, 50 and 90 % of networks lie below."""
  return {f'{name}_p{share}': float(np.percentile(values, share)) for share in (10, 50, 90)}


def median(row: dict, name: str, spec: str) -> str | None:
  """The text 'p50 (p10–p90)' of `quantiles`; None if the row has none, or few measured networks."""
  if f'{name}_p50' not in row or (row['networks'] < 10 and not name.startswith('theory')):
    return None
  low, middle, high = (format(row[f'{name}_p{share}'], spec) for share in (10, 50, 90))
  return f'{middle} ({low}–{high})'


def top1_summary(rows: list[dict]) -> dict:
  """Shares of the preferred tokens of networks, and τ, which older runs have not measured."""
  of = {name: [row.get(name) for row in rows] for name in ('top1_frequency', 'direction_std')}
  return described(of['top1_frequency'], 'top1_frequency') | quantiles(
      of['top1_frequency'], 'top1_frequency') | (
          {} if None in of['direction_std'] else described(of['direction_std'], 'direction_std'))


def top1_columns(row: dict) -> dict[str, str | None]:
  """The columns that compare both with theory; None for what an older run does not have."""
  name, tau = 'theory_top1_frequency', 'direction_std'
  return {
      'median (10–90 %)': median(row, 'top1_frequency', '.1%'),
      'theory (± std)': f'{row[name]:.1%} ± {row[f"{name}_std"]:.1%}' if name in row else None,
      'its median (10–90 %)': median(row, name, '.1%'),
      'τ (theory)': f'{row[tau]:.3f} ({row[f"theory_{tau}"]:.3f})' if tau in row else None}


def direction_agreement(rows: list[dict]) -> dict:
  """How often the direction predicts the preferred token, with an exact binomial interval."""
  agree = sum(row['direction_top1_id'] == row['top1_id'] for row in rows)
  return {'direction_agreement': agree / len(rows),
          'direction_agreement_ci95': list(scipy.stats.binomtest(agree, len(rows)).proportion_ci())}


def _both(values, name):
  return {f'{name}_both': [float(value) for value in values]} if len(values) == 2 else {}


def ci95(values: list[float]) -> float:
  """Half-width of the 95 % interval of a mean by Student's t; NaN for one or two values."""
  if len(values) < 3:
    return math.nan
  with np.errstate(invalid='ignore'):
    return float(scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values))


def mean_and_theory(values: list[float], theory: float | None) -> dict:
  """Mean over networks with its standard error, and a closed form or None."""
  several = len(values) > 1
  return {'measured': float(np.mean(values)),
          'standard_error': float(scipy.stats.sem(values)) if several else math.nan,
          'theory': theory} | _both(values, 'measured')


def with_error(row: dict, spec: str) -> str:
  """The text 'mean ± standard error (s.e.)' of `mean_and_theory`, or two values."""
  if 'measured_both' in row:
    return _listed(row['measured_both'], spec)
  error = row['standard_error']
  text = '–' if math.isnan(error) else format(error, spec)
  if error > 0 and float(text) == 0:
    text = f'{error:.0e}'
  return f'{row["measured"]:{spec}} ± {text} (s.e.)'


def plus_minus(row: dict, name: str, spec: str, half: str | None = None) -> str:
  """The text 'mean ± half-width of the 95 % interval' (see `described`).

  Of two networks both values are written, and of one the half-width, which is NaN, as '–'.

  Args:
    half: another field, which has the half-width.

  >>> plus_minus(described([0.308, 0.346], 'cosine'), 'cosine', '.3f')
  '0.308, 0.346'
  """
  if f'{name}_both' in row:
    return _listed(row[f'{name}_both'], spec)
  width = row[half or f'{name}_ci95']
  return f'{row[name]:{spec}} ± {"–" if math.isnan(width) else format(width, spec.lstrip("+"))}'


def _listed(values, spec):
  return ', '.join(format(value, spec) for value in values)


def share_of(row: dict, name: str) -> str:
  """The share of networks for which something holds, with the ends of its 95 % interval.

  Of one or two networks the text says of how many.

  >>> share_of({'found': 0.5, 'networks': 2, 'found_ci95': [0.01, 0.99]}, 'found')
  '1 of 2'
  >>> share_of({'found': 0.5, 'networks': 4, 'found_ci95': [0.07, 0.93]}, 'found')
  '50% (7%–93%)'
  """
  if row['networks'] < 3:
    return f'{round(row[name] * row["networks"])} of {row["networks"]}'
  low, high = row[f'{name}_ci95']
  return f'{row[name]:.0%} ({low:.0%}–{high:.0%})'


def markdown(rows: list[dict]) -> str:
  """A table for GitHub, from the texts of each row by column name; None is a dash.

  >>> print(markdown([{'model': 'tiny', 'T': '4'}, {'model': 'nano', 'T': '16'}]), end='')
  | model |  T |
  |------:|---:|
  |  tiny |  4 |
  |  nano | 16 |
  """
  columns = [_aligned([name, *texts]) for name, texts in _shown(rows).items()]
  lines = [f'| {" | ".join(texts)} |' for texts in zip(*columns, strict=True)]
  rule = '|'.join('-' * (len(column[0]) + 1) + ':' for column in columns)
  return '\n'.join([lines[0], f'|{rule}|', *lines[1:]]) + '\n'


def table(rows: list[dict], width: int = TABLE_WIDTH) -> str:
  """The same table for a screen.

  If it is too wide, headers and long cells wrap. Columns that still do not fit follow in blocks
  below; each begins with the columns that tell the rows apart.

  >>> print(table([{'model': 'tiny', 'T': '4'}, {'model': 'nano', 'T': '16'}]))
  model   T
   tiny   4
   nano  16
  """
  columns = [[[name], *([text] for text in texts)] for name, texts in _shown(rows).items()]
  if sum(max(len(cell[0]) for cell in column) + 2 for column in columns) - 2 > width:
    columns = [_wrapped(column) for column in columns]
  heights = [max(map(len, cells)) for cells in zip(*columns, strict=True)]
  texts = [_stacked(column, heights) for column in columns]
  num_keys = next((k for k in range(1, len(columns))
                   if len({str(keys) for keys in zip(*columns[:k], strict=True)}) > len(rows)), 1)
  blocks = _blocks(texts[:num_keys], texts[num_keys:], width)
  return '\n\n'.join('\n'.join(map('  '.join, zip(*block, strict=True))) for block in blocks)


def _shown(rows):
  """The texts of each column, but for columns of only dashes."""
  texts = {name: ['–' if row[name] is None else str(row[name]) for row in rows]
           for name in rows[0]}
  return {name: own for name, own in texts.items() if set(own) != {'–'}} or texts


def _wrapped(column):
  """The lines of each cell of a column, which break after spaces and commas."""
  cells = [[line.rstrip() for line in re.findall(rf'.{{1,{LONGEST_CELL}}}(?:(?<=[, ])|$)|.+', text)]
           for [text] in column[1:]]
  longest = max(map(len, [*column[0][0].split(), *sum(cells, [])]))
  return [textwrap.wrap(column[0][0], max(10, longest)), *cells]


def _stacked(column, heights):
  """The lines of a column: its header ends next to the cells, and a row begins where cells do."""
  header, *cells = column
  lines = [''] * (heights[0] - len(header)) + header
  for cell, height in zip(cells, heights[1:], strict=True):
    lines += cell + [''] * (height - len(cell))
  return _aligned(lines)


def _aligned(texts):
  return [text.rjust(max(map(len, texts))) for text in texts]


def _blocks(keys, columns, width):
  """Columns side by side as far as they fit, after those that every block has."""
  blocks = [list(keys)]
  for column in columns:
    wide = sum(len(each[0]) + 2 for each in [*blocks[-1], column]) - 2 > width
    if wide and len(blocks[-1]) > len(keys):
      blocks.append(list(keys))
    blocks[-1].append(column)
  return blocks
