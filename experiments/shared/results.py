"""The results of an experiment: results.json, and the table and statistics of its rows.

results.json holds the settings, the environment, how the run came about, one row per measurement
and the summary of the rows.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
import json
import math
from pathlib import Path
import textwrap
import time
from types import SimpleNamespace

import jax
import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import plotting
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

from . import figures, provenance

WRITE_INTERVAL_S = 1.0
TABLE_WIDTH = 100


class Results:
  """The results.json of one run, in a folder of its own.

  While rows are added, the whole file is replaced at most once per second, so
  that a run that was killed at any moment can continue from it.

  Args:
    directory: the folder, which is made if it does not exist.
    experiment: name of the experiment.
    settings: all its settings, as JSON can hold them.

  Raises:
    InputError: the folder holds a run with other settings or from another
      environment, or cannot be written.
  """

  def __init__(self, directory: Path, experiment: str, settings: SimpleNamespace):
    self.path = Path(directory) / 'results.json'
    now = datetime.now(UTC).isoformat(timespec='seconds')
    run = provenance.origin(experiment) | {'started': now, 'seconds': 0.0}
    self.content = {'experiment': experiment, 'settings': vars(settings),
                    'environment': environment(), 'run': run, 'complete': False, 'rows': [],
                    'summary': []}
    self._written = -math.inf
    is_new = not self.path.exists()
    if is_new:
      make_directory(directory)
    else:
      self.content = self._earlier()
    self._is_measured = self.content['complete']
    self._seconds_before = 0.0 if self._is_measured else self.content['run']['seconds']
    self._opened = time.monotonic()
    if is_new:
      self._write()

  @property
  def rows(self) -> list[dict]:
    return self.content['rows']

  @property
  def summary(self) -> list[dict]:
    """That of a complete run, by the commit that made it; empty if the run is not complete.

    Numbers that JSON has as null are NaN.
    """
    return _with_nan(self.content['summary'])

  def add(self, row: dict) -> None:
    """Adds a row, and writes the file if the last writing was more than a second ago.

    Raises:
      InputError: the run was complete when it was opened.
    """
    if self._is_measured:
      raise InputError(f'--output_dir: {self.path} is complete, but lacks what would be measured '
                       'now; choose another folder, or remove this one')
    self.rows.append(_plain(row))
    if time.monotonic() - self._written > WRITE_INTERVAL_S:
      self._write()

  def finish(self, summary: list[dict], display: Callable[[dict], dict[str, str]],
             figure: 'plotting.Figure') -> None:
    """Writes the summary and the figure, and prints the summary as a table.

    Args:
      summary: rows of their own, which results.json keeps beside the others.
      display: function from a row of the summary to its texts by column.
      figure: what the file figure.png, or of the --format that is asked for, shows.
    """
    self.content.update(summary=summary, complete=True)
    self._write()
    if jax.process_index() == 0:
      figure_path = figures.write(figure, self.path.parent)
      show_table([display(row) for row in summary], self.path.parent)
      print(f'wrote {self.path} and {figure_path}')

  def _write(self):
    self._written = time.monotonic()
    if not self._is_measured:  # To draw and summarize it again is no part of the measurement.
      self.content['run']['seconds'] = round(self._seconds_before + self._written - self._opened, 1)
    if jax.process_index() == 0:
      write_json(self.path, self.content)

  def _earlier(self):
    """The content to continue from: that of the file, or this run's own if the file has no rows."""
    try:
      # Files of earlier versions do not say how the run came about.
      earlier = {'run': None} | json.loads(self.path.read_text())
      content = {name: earlier[name] for name in self.content}
      difference = _difference(content, self.content)
      empty = not (content['rows'] or content['complete'])
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
      raise InputError(f'--output_dir: {self.path} is not a results file of this package; '
                       'choose another folder') from None
    if empty:
      return self.content
    if difference:
      raise InputError(f'--output_dir: {self.path} holds a run with {difference}; '
                       'choose another folder, or remove this one')
    if not content['complete']:
      made, now = ((each['run'] or {}).get('commit') for each in (content, self.content))
      if content['run'] is None or made != now:
        raise InputError(f'--output_dir: {self.path} was begun by commit {made or "unknown"}, not '
                         f'{now or "unknown"}, and rows of both must not be mixed; go back to that '
                         'commit, choose another folder, or remove this one')
    return content


def _difference(earlier, now):
  """The first difference between two runs, in words; None if they agree."""
  parts = [('', {'experiment': earlier['experiment']}, {'experiment': now['experiment']}),
           ('', earlier['settings'], now['settings']),
           ('environment ', earlier['environment'], now['environment'])]
  for part, before, wanted in parts:
    for name in {**before, **wanted}:
      if before.get(name) != _plain(wanted.get(name)):
        texts = [textwrap.shorten(str(own.get(name)), 60) for own in (before, wanted)]
        return f'{part}{name}={texts[0]}, not {texts[1]}'
  return None


def make_directory(directory: Path) -> None:
  try:
    Path(directory).mkdir(parents=True, exist_ok=True)
  except FileExistsError:
    raise InputError(f'--output_dir: {directory} is a file; give a folder') from None
  except OSError as error:
    raise InputError(f'--output_dir: cannot make {directory}: {error.strerror}') from None


def write_json(path: Path, content: dict) -> None:
  """Writes a JSON file, whole or not at all, with one line per item of a list.

  NaN and infinities become null.
  """
  encode = lambda value: json.dumps(_plain(value), allow_nan=False)

  def encode_lines(value):
    if not isinstance(value, list) or not value:
      return encode(value)
    return '[' + ','.join(f'\n  {encode(item)}' for item in value) + '\n ]'

  parts = [f' {encode(name)}: {encode_lines(value)}' for name, value in content.items()]
  try:
    write_atomically(path, ('{\n' + ',\n'.join(parts) + '\n}\n').encode())
  except OSError as error:
    raise InputError(f'--output_dir: cannot write {path}: {error.strerror}') from None


def _plain(value):
  """The value in JSON's own types: arrays become lists, and NaN and infinities become None."""
  if isinstance(value, dict):
    return {name: _plain(item) for name, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(item) for item in value]
  if isinstance(value, (jax.Array, np.ndarray, np.generic)):
    return _plain(value.tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def _with_nan(value):
  if isinstance(value, dict):
    return {name: _with_nan(item) for name, item in value.items()}
  if isinstance(value, list):
    return [_with_nan(item) for item in value]
  return math.nan if value is None else value


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
  return tqdm(groups, desc='theory', unit='group', leave=False)


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
