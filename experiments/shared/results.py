"""The results of an experiment, as results.json holds them.

results.json holds the settings, the environment, how the run came about, one row per measurement
and the summary of the rows.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import json
import math
from pathlib import Path
import textwrap
import time
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from bornbiased_jax import files, hosts, plotting
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

from . import figures, provenance
from .settings import defaults_of
from .tables import markdown, table

WRITE_INTERVAL_S = 1.0


class Results:
  """The results.json of one run, in a folder of its own.

  While rows are added, the whole file is replaced at most once per second, so that a run that was
  killed at any moment can continue from it; one that is interrupted loses no row. A folder that
  holds a run with other settings or from another environment is refused.
  """

  def __init__(self, directory: Path, experiment: str, settings: Any):
    self.path = files.path_of(directory) / 'results.json'
    self.content = header(experiment, settings, provenance.begin()()) | {
        'complete': False, 'rows': [], 'summary': []}
    self._written, self._is_pending = -math.inf, False
    self._defaults = defaults_of(settings)
    self._may_write, self.content = hosts.from_first(self._opened_content)
    self._is_measured = self.content['complete']
    self._run = provenance.begin(self.content['run'])
    if self._may_write:
      self.write()

  def _opened_content(self):
    """Whether there was no file before, and the content to begin from."""
    if self.path.exists():
      return False, self._earlier()
    make_directory(self.path.parent)
    return True, self.content

  @property
  def rows(self) -> list[dict]:
    return self.content['rows']

  @property
  def summary(self) -> list[dict]:
    """That of a complete run, by the commit that made it; empty if the run is not complete.

    Numbers that JSON has as null are NaN.
    """
    return _with_nan(self.content['summary'])

  def read_from(self, inputs: Iterable[str]) -> None:
    """Notes what is read that settings only name: digests of texts, or what a folder holds.

    Raises:
      InputError: rows are here that were measured of others.
    """
    inputs = sorted(inputs)
    earlier = self.content.get('inputs', inputs)  # Files of earlier versions do not say.
    has_rows = bool(self.rows) or self.content['complete']
    if has_rows and (different := sorted(set(earlier) ^ set(inputs))):
      only_one = textwrap.shorten(', '.join(different), 60)
      raise InputError(f'--output_dir: {self.path} was measured of other texts or networks of '
                       f'these names (only one run has {only_one}); choose another folder, or '
                       'remove this one')
    if inputs and not has_rows:
      self.content['inputs'] = inputs

  def missing(self, rows: Iterable[dict], unit: str) -> Iterator[dict]:
    """Of rows that are to be, by the fields that name them, those to measure, beside a bar."""
    rows = list(rows)
    name = lambda row: json.dumps(_plain([row.get(field) for field in rows[0]]))
    done = set(map(name, self.rows if rows else ()))
    with self.keeping():
      for row in tqdm(rows, unit=unit, smoothing=0, delay=1, disable=not hosts.is_first()):
        if name(row) not in done:
          yield row

  @contextlib.contextmanager
  def keeping(self) -> Iterator[None]:
    """However the block ends, all rows that were added are in the file."""
    try:
      yield
    finally:
      if self._is_pending:
        self.write()

  def add(self, row: dict) -> None:
    """Adds a row, and writes the file if the last writing was more than a second ago.

    Otherwise the row is written with a later one, or at the end of `keeping`.
    """
    if self._is_measured:
      raise InputError(f'--output_dir: {self.path} is complete, but lacks what would be measured '
                       'now; choose another folder, or remove this one')
    self.rows.append(_plain(row))
    self._is_pending = True
    if time.monotonic() - self._written > WRITE_INTERVAL_S:
      self.write()

  def add_all(self, rows: Iterable[dict]) -> None:
    """Adds rows as they come."""
    with self.keeping():
      for row in rows:
        self.add(row)

  def finish(self, summary: list[dict], display: Callable[[dict], dict[str, str]],
             draw: Callable[[], 'plotting.Figure'], **more) -> None:
    """Prints and writes the summary as a table of what `display` says, then draws the figure.

    `more` are other parts of the file.
    """
    shown = [display(row) for row in summary]
    print(table(shown))
    self.content.update(more, summary=summary, complete=True)
    self.write()
    write_atomically(self.path.parent / 'table.md', markdown(shown).encode())
    with plotting.style():
      drawn = draw()
    figure_path = figures.write(drawn, self.path.parent)
    print(f'wrote {self.path} and {figure_path}')

  def write(self) -> None:
    """Writes the file, with the time until now."""
    self._written, self._is_pending = time.monotonic(), False
    if not self._is_measured:  # To draw and summarize it again is no part of the measurement.
      self.content['run'] = self._run()
    write_json(self.path, self.content)

  @contextlib.contextmanager
  def noting_time(self) -> Iterator[None]:
    """Writes the file again and again during the block, for who trains before there is a row."""
    with provenance.repeatedly(self.write):
      yield

  def _earlier(self):
    """The content to continue from: that of the file, or this run's own.

    It is its own in place of another run's that has no rows.
    """
    try:
      # Files of earlier versions do not say how the run came about.
      earlier = {'run': None} | json.loads(self.path.read_text())
      content = {name: earlier[name] for name in self.content}
      if 'inputs' in earlier:
        content['inputs'] = earlier['inputs']
      content['settings'] = self.with_defaults(content['settings'])
      difference = _difference(content, self.content)
      empty = not (content['rows'] or content['complete'])
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
      raise InputError(f'--output_dir: {self.path} is not a results file of this program; '
                       'choose another folder') from None
    made, now = ((each['run'] or {}).get('commit') for each in (content, self.content))
    if empty and (difference or made != now):
      return self.content
    if difference:
      raise InputError(f'--output_dir: {self.path} holds a run with {difference}; '
                       'choose another folder, or remove this one')
    if not content['complete'] and (content['run'] is None or made != now):
      raise InputError(f'--output_dir: {self.path} was begun by commit {made or "unknown"}, not '
                       f'{now or "unknown"}, and rows of both must not be mixed; go back to that '
                       'commit, choose another folder, or remove this one')
    return content

  def with_defaults(self, earlier: dict) -> dict:
    """Settings of an earlier version, which had the defaults of those that it lacks."""
    return earlier | {name: _plain(value) for name, value in self._defaults.items()
                      if name not in earlier}


def header(experiment: str, settings: Any, run: dict | None) -> dict:
  """What all files of results begin with."""
  settings = settings if isinstance(settings, dict) else vars(settings)
  return {'experiment': experiment, 'settings': settings, 'environment': environment(), 'run': run}


def _difference(earlier, now):
  """The first difference between two runs, in words; None if they agree."""
  parts = [('', {'experiment': earlier['experiment']}, {'experiment': now['experiment']}),
           ('', earlier['settings'], now['settings']),
           ('environment ', earlier['environment'], now['environment'])]
  for part, before, wanted in parts:
    for name in differing(before, wanted):
      texts = [textwrap.shorten(str(own.get(name)), 60) for own in (before, wanted)]
      return f'{part}{name}={texts[0]}, not {texts[1]}'
  return None


def differing(before, wanted):
  """The names that have other values; what one lacks is None."""
  return [name for name in {**before, **wanted} if before.get(name) != _plain(wanted.get(name))]


def make_directory(directory: Path) -> None:
  """Makes a folder where it is missing; of several hosts the first does."""
  if not hosts.is_first():
    return
  try:
    files.path_of(directory).mkdir(parents=True, exist_ok=True)
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
