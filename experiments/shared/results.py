"""results.json: settings, environment, how the run came about, a row per measurement, a summary."""

from collections.abc import Callable, Collection, Iterable, Iterator
import contextlib
import functools
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

from . import figures, session
from .settings import defaults_of
from .tables import markdown, table

WRITE_INTERVAL_S = 1.0


class Results:
  """The results.json of one run, in a folder of its own.

  A run goes on by measuring the rows that it lacks. While rows are added, the whole file is
  replaced at most once per second, so that a run that was killed at any moment can go on; one that
  is interrupted loses no row. Nothing is written before it begins to measure. If the file was
  complete when the run began (`is_measured`), its rows are only summarized and drawn again.

  `go_on`, from the content of a new run and that of the file or None, gives the content to begin
  with, and whether it may replace the file before the end. If it is missing, a file that holds rows
  of another run is refused (`go_on_with_rows`).
  """

  def __init__(self, directory: Path, experiment: str, settings: Any,
               go_on: Callable[[dict, dict | None], tuple[dict, bool]] | None = None):
    self.directory = files.path_of(directory)
    self.path = self.directory / 'results.json'
    choose = go_on or functools.partial(go_on_with_rows, self.path)
    new = header(experiment, settings, session.begin()()) | {
        'complete': False, 'rows': [], 'summary': []}

    named = getattr(settings, 'config', None) or []
    sources = {getattr(name, 'source', '') for name in (
        named if isinstance(named, list) else [named])} - {''}
    self._notes = [f'the shape of {source}; random weights' for source in sorted(sources)]
    self.content, may_write = hosts.from_first(
        lambda: choose(new, _stored(self.path, _plain(defaults_of(settings)))))
    self.is_measured = self.content['complete']
    self._is_noted = may_write and not self.is_measured
    self._run = session.begin(self.content['run'])
    self._written, self._is_pending = -math.inf, False

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
    if self.rows and (different := sorted(set(earlier) ^ set(inputs))):
      only_one = textwrap.shorten(', '.join(different), 60)
      raise _refusal(self.path, 'was measured of other texts or models of these names (only one '
                                f'run has {only_one})')
    if inputs and not self.rows:
      self.content['inputs'] = inputs

  def lacking(self, keys: Iterable[dict]) -> list[dict]:
    """Of rows that are to be, by the fields that name them, those that are not there.

    A complete file lacks none: what only a later version measures is said, and left out.
    """
    keys = list(keys)
    done = {_key(row, keys[0]) for row in self.rows} if keys else set()
    lacking = [key for key in keys if _key(key, keys[0]) not in done]
    if lacking and self.is_measured:
      tqdm.write(f'{self.path} is complete, and has no row of {_shown(lacking[0])}'
                 f'{" or others" * (len(lacking) > 1)}; to measure that choose another folder')
      return []
    return lacking

  def missing(self, keys: Iterable[dict], unit: str) -> Iterator[dict]:
    """Those that `lacking` finds, one after another, with a bar of all."""
    keys = list(keys)
    lacking = self.lacking(keys)
    with self.keeping():
      yield from tqdm(lacking, unit=unit, total=len(keys), initial=len(keys) - len(lacking),
                      smoothing=0, delay=1, disable=not hosts.is_first())

  @contextlib.contextmanager
  def keeping(self) -> Iterator[None]:
    """Notes when the run began; however the block ends, the file has all rows that were added."""
    if self._is_noted and self._written == -math.inf:
      self.write()
    try:
      yield
    finally:
      if self._is_pending:
        self.write()

  def add(self, row: dict) -> None:
    """Adds a row, and writes the file if the last writing was more than a second ago.

    Otherwise the row is written with a later one, or at the end of `keeping`.
    """
    if self.is_measured:
      raise _refusal(self.path, 'is complete, but lacks what would be measured now')
    self.rows.append(_plain(row))
    self._is_pending = True
    if time.monotonic() - self._written > WRITE_INTERVAL_S:
      self.write()

  def add_lacking(self, rows: Iterable[dict], names: Collection[str]) -> None:
    """Adds rows as they come, but for those that are there already by the fields `names`."""
    done = {_key(row, names) for row in self.rows}
    with self.keeping():
      for row in rows:
        if _key(row, names) not in done:
          self.add(row)

  def finish(self, summary: list[dict], display: Callable[[dict], dict[str, str]],
             draw: 'Callable[[], plotting.Figure] | None', **more) -> None:
    """Prints and writes the summary as a table of `display`'s texts, then draws a figure, if any.

    `more` are other parts of the file.
    """
    shown = [display(row) for row in summary]
    print(table(shown), *self._notes, sep='\n')
    self.content.update(more, summary=summary, complete=True)
    self.write()
    notes = ''.join(f'\n{note}\n' for note in self._notes)
    write_atomically(self.directory / 'table.md', (markdown(shown) + notes).encode())
    wrote = [self.path]
    if draw:
      with plotting.style():
        wrote += [figures.write(draw(), self.directory)]
    print('wrote', ' and '.join(map(str, wrote)))

  def write(self) -> None:
    """Writes the file, with the time until now."""
    make_directory(self.directory)
    self._written, self._is_pending = time.monotonic(), False
    if not self.is_measured:  # To draw and summarize it again is no part of the measurement.
      self.content['run'] = self._run()
    write_json(self.path, self.content)

  def noting_time(self) -> contextlib.AbstractContextManager:
    """Writes the file again and again during a block, for who trains before there is a row."""
    return session.repeatedly(self.write) if self._is_noted else contextlib.nullcontext()


def go_on_with_rows(path: Path, new: dict, stored: dict | None) -> tuple[dict, bool]:
  """What the file holds, or a new run if it holds no rows.

  Raises:
    InputError: it holds rows of other settings, or if it is not complete, of another environment or
      commit.
  """
  if stored is None:
    return new, True
  before, wanted = (_about(each, stored['complete']) for each in (stored, new))
  if not (different := differing(before, wanted)):
    return {name: stored[name] for name in (*new, 'inputs') if name in stored}, True
  if not (stored['rows'] or stored['complete']):
    return new, True
  raise of_other(path, different[0], before, wanted)


def _about(content, is_complete):
  """What runs have in common whose rows may be mixed, by its name."""
  about = {'experiment': content['experiment']} | content['settings']
  if is_complete:  # Nothing is measured that would be mixed with it.
    return about
  environment = {f'environment {name}': value for name, value in content['environment'].items()}
  return about | environment | {'commit': (content['run'] or {}).get('commit')}


def of_other(path: Path, name: str, before: dict, wanted: dict) -> InputError:
  """The error for a file of a run in which something else has this name."""
  texts = [textwrap.shorten(str(own.get(name)), 60) for own in (before, wanted)]
  return _refusal(path, f'holds a run with {name}={texts[0]}, not {texts[1]}')


def _refusal(path, why):
  return InputError(f'--output_dir: {path} {why}; choose another folder, or remove this one')


def _stored(path, defaults):
  """What the file holds; None if there is none. Settings that it lacks had their defaults."""
  if not path.exists():
    return None
  # Files of earlier versions lack some parts, such as how the run came about.
  parts = {'environment': {}, 'run': None, 'complete': True, 'rows': [], 'summary': []}
  try:
    stored = parts | json.loads(path.read_text())
    return stored | {'experiment': stored['experiment'], 'settings': stored['settings'] | {
        name: value for name, value in defaults.items() if name not in stored['settings']}}
  except (ValueError, KeyError, TypeError, OSError):
    kept = ', or remove it: the trained models beside it are kept' if any(
        path.parent.rglob('seed_*')) else ''
    raise InputError(f'--output_dir: {path} is not a results file of this program; choose another '
                     f'folder{kept}') from None


def differing(before: dict, wanted: dict) -> list[str]:
  """The names that have other values; what one lacks is None."""
  return [name for name in {**before, **wanted} if before.get(name) != wanted.get(name)]


def _shown(key):
  return ', '.join(f'{name}={value}' for name, value in key.items() if value is not None)


def _key(row, names):
  return json.dumps(_plain([row.get(name) for name in names]))


def header(experiment: str, settings: Any, run: dict | None) -> dict:
  """What all files of results begin with, in JSON's own types."""
  settings = settings if isinstance(settings, dict) else vars(settings)
  return _plain({'experiment': experiment, 'settings': settings, 'environment': environment(),
                 'run': run})


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
