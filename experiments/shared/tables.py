"""Rows of results: groups of them, their means with intervals, and the table that shows them."""

from collections.abc import Iterable
import math
from pathlib import Path
import textwrap

import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import hosts
from bornbiased_jax.files import write_atomically

TABLE_WIDTH = 100


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


def with_theory(groups: list) -> Iterable:
  """The groups with a progress bar, for programs that compute theory of each of them."""
  return tqdm(groups, desc='theory', unit='group', leave=False, disable=not hosts.is_first())


def mean_ci95(rows: list[dict], name: str) -> dict[str, float]:
  """Mean of a field over rows, and the half-width of its 95 % interval (see `ci95`)."""
  values = [row[name] for row in rows]
  return {name: float(np.mean(values)), f'{name}_ci95': ci95(values)}


def ci95(values: list[float]) -> float:
  """Half-width of the 95 % interval of a mean by Student's t; NaN for one value."""
  if len(values) < 2:
    return math.nan
  with np.errstate(invalid='ignore'):
    return float(scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values))


def mean_and_theory(values: list[float], theory: float | None) -> dict[str, float]:
  """Mean over networks that read sequences of their own, with its standard error, beside theory.

  Args:
    values: one per network.
    theory: the closed form, or None where there is none.
  """
  several = len(values) > 1
  return {'measured': float(np.mean(values)),
          'standard_error': float(scipy.stats.sem(values)) if several else math.nan,
          'theory': theory}


def with_error(row: dict, spec: str) -> str:
  """The text 'mean ± standard error (s.e.)' (see `mean_and_theory`).

  An error that would be rounded to 0 is written with one digit, as 2e-05.
  """
  error = row['standard_error']
  text = '–' if math.isnan(error) else format(error, spec)
  if error > 0 and float(text) == 0:
    text = f'{error:.0e}'
  return f'{row["measured"]:{spec}} ± {text} (s.e.)'


def plus_minus(row: dict, name: str, spec: str) -> str:
  """The text 'mean ± half-width of the 95 % interval' (see `mean_ci95`).

  A half-width that is NaN, as of one network, is written as '–'.
  """
  half = row[f'{name}_ci95']
  return f'{row[name]:{spec}} ± {"–" if math.isnan(half) else format(half, spec.lstrip("+"))}'


def show_table(rows: list[dict[str, str]], directory: Path) -> None:
  """Prints a table, and writes it to table.txt."""
  text = table(rows)
  write_atomically(directory / 'table.txt', f'{text}\n'.encode())
  print(text)


def table(rows: list[dict[str, str]], width: int = TABLE_WIDTH) -> str:
  """A table of texts by column name, right-aligned under a header.

  Columns of dashes alone are left out. If a table is too wide, headers wrap. Columns that
  still do not fit follow in blocks below, each of which begins with the columns that tell
  the rows apart.

  >>> print(table([{'model': 'tiny', 'T': '4'}, {'model': 'nano', 'T': '16'}]))
  model   T
   tiny   4
   nano  16
  """
  names = [name for name in rows[0] if any(row[name] != '–' for row in rows)] or list(rows[0])
  cells = [[row[name] for row in rows] for name in names]
  headers = [[name] for name in names]
  if sum(max(map(len, column)) + 2 for column in map(list.__add__, headers, cells)) - 2 > width:
    headers = [textwrap.wrap(name, max(10, *map(len, [*name.split(), *own])))
               for name, own in zip(names, cells, strict=True)]
  height = max(map(len, headers))
  columns = [_aligned([''] * (height - len(header)) + header + own)
             for header, own in zip(headers, cells, strict=True)]
  num_keys = next((k for k in range(1, len(cells))
                   if len(set(zip(*cells[:k], strict=True))) == len(rows)), 1)
  blocks = _blocks(columns[:num_keys], columns[num_keys:], width)
  return '\n\n'.join('\n'.join(map('  '.join, zip(*block, strict=True))) for block in blocks)


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
