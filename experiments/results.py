"""results.json: settings, environment, rows as they come, summary; and the table of the rows."""

from collections.abc import Callable
import json
import math
from pathlib import Path
import textwrap
import time
from types import SimpleNamespace

import jax
from matplotlib.figure import Figure
import numpy as np
from scipy import stats

from bornbiased_jax import plotting
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

WRITE_INTERVAL_S = 1.0


class Results:
  """The results.json of one run in a folder of its own.

  The file is replaced whole, a second apart at least, as rows are added, so
  that a run killed at any moment goes on from there. A folder that holds a run
  with other settings, or from another environment, is refused.
  """

  def __init__(self, directory: Path, experiment: str, settings: SimpleNamespace):
    self.path = Path(directory) / 'results.json'
    self.content = {'experiment': experiment, 'settings': vars(settings), 'environment': environment(),
                    'complete': False, 'rows': [], 'summary': []}
    self._written = -math.inf
    if self.path.exists():
      self.content = self._earlier()
    else:
      make_directory(directory)
      self._write()

  @property
  def rows(self) -> list[dict]:
    return self.content['rows']

  def add(self, row: dict) -> None:
    self.rows.append(_plain(row))
    if time.monotonic() - self._written > WRITE_INTERVAL_S:
      self._write()

  def finish(self, summary: list[dict], display: Callable[[dict], dict[str, str]], figure: Figure) -> None:
    """Writes the summary and figure.png, and prints the summary as a table of `display(row)`."""
    self.content.update(summary=summary, complete=True)
    self._write()
    if jax.process_index() == 0:
      figure_path = self.path.with_name('figure.png')
      plotting.save(figure, figure_path)
      print(table([display(row) for row in summary]))
      print(f'wrote {self.path} and {figure_path}')

  def _write(self):
    self._written = time.monotonic()
    if jax.process_index() == 0:
      write_json(self.path, self.content)

  def _earlier(self):
    try:
      earlier = json.loads(self.path.read_text())
      differences = [_difference('', {'experiment': earlier['experiment']}, {'experiment': self.content['experiment']}),
                     _difference('', earlier['settings'], self.content['settings']),
                     _difference('environment ', earlier['environment'], self.content['environment'])]
      complete = {name: earlier[name] for name in self.content}
      empty = not (complete['rows'] or complete['complete'])
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
      raise InputError(f'--output_dir: {self.path} is not a results file of this package; '
                       'choose another folder') from None
    if empty:
      return self.content
    for difference in filter(None, differences):
      raise InputError(f'--output_dir: {self.path} holds a run with {difference}; choose another folder, '
                       'or remove this one')
    return complete


def _difference(part, earlier, now):
  for name in {**earlier, **now}:
    if earlier.get(name) != _plain(now.get(name)):
      was, wanted = (textwrap.shorten(str(values.get(name)), 60) for values in (earlier, now))
      return f'{part}{name}={was}, not {wanted}'
  return None


def make_directory(directory: Path) -> None:
  try:
    Path(directory).mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise InputError(f'--output_dir: cannot make {directory}: {error.strerror}') from None


def write_json(path: Path, content: dict) -> None:
  """Writes JSON, whole or not at all, a line for each row; NaN and infinities become null."""
  encode = lambda value: json.dumps(_plain(value), allow_nan=False)
  lines = lambda rows: '[' + ','.join(f'\n  {encode(row)}' for row in rows) + '\n ]' if rows else '[]'
  parts = [f' {encode(name)}: {lines(value) if isinstance(value, list) else encode(value)}'
           for name, value in content.items()]
  try:
    write_atomically(path, ('{\n' + ',\n'.join(parts) + '\n}\n').encode())
  except OSError as error:
    raise InputError(f'--output_dir: cannot write {path}: {error.strerror}') from None


def _plain(value):
  """JSON's own types: arrays become lists, and NaN and infinities null."""
  if isinstance(value, dict):
    return {name: _plain(item) for name, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(item) for item in value]
  if isinstance(value, (jax.Array, np.ndarray, np.generic)):
    return _plain(value.tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def grouped(rows: list[dict], *names: str) -> list[tuple[dict, list[dict]]]:
  """Rows that share their values of the fields `names`, in the order of their first rows."""
  groups = {}
  for row in rows:
    groups.setdefault(tuple(row[name] for name in names), []).append(row)
  return [(dict(zip(names, key, strict=True)), group) for key, group in groups.items()]


def mean_ci95(rows: list[dict], name: str) -> dict[str, float]:
  """Mean of a field over rows, and the half-width of its 95 % interval (Student's t; NaN for one row)."""
  return {name: float(np.mean([row[name] for row in rows])), f'{name}_ci95': ci95([row[name] for row in rows])}


def ci95(values: list[float]) -> float:
  """Half-width of the 95 % interval of a mean (Student's t; NaN for one value)."""
  with np.errstate(invalid='ignore'):
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) > 1 else math.nan


def mean_and_theory(values: list[float], probe_error: float, theory: float | None) -> dict[str, float]:
  """Mean over networks with its standard error, beside the closed form.

  Networks share their inputs, whose own sampling error is added in quadrature.
  """
  networks = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
  return {'measured': float(np.mean(values)), 'standard_error': math.hypot(networks, probe_error), 'theory': theory}


def plus_minus(row: dict, name: str, spec: str) -> str:
  """A mean and its 95 % half-width (see `mean_ci95`) for eyes; no half-width for one network."""
  half = row[f'{name}_ci95']
  return f'{row[name]:{spec}} ± {"–" if math.isnan(half) else format(half, spec.lstrip("+"))}'


def table(rows: list[dict[str, str]]) -> str:
  """Rows of text by column name, right-aligned under a header."""
  lines = [list(rows[0])] + [list(row.values()) for row in rows]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
