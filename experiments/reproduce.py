"""Runs the programs of all figures and tables, and writes one page of results.

    python -m experiments.reproduce --scale=smoke     # what it does, as small as it gets
    python -m experiments.reproduce --english=english_train.jsonl.xz \\
        --english_valid=english_valid.jsonl.xz --python=python_train.jsonl.xz \\
        --python_valid=python_valid.jsonl.xz --wikitext=wikitext2_test.txt.xz
    python -m experiments.reproduce --only=fig1,table4
    python -m experiments.reproduce --scale=paper --budget_minutes=30

--scale=laptop, the default, takes some 70 minutes on two CPU cores: programs that are slow at their
own scale laptop have fewer networks or steps. --scale=overnight does not shorten them, and adds
nano networks at the paper's n. --scale=paper has the paper's networks, lengths and training runs,
for accelerators. english_train.jsonl.xz and the others stand for texts of your own, in any form
that pretrain takes.

A run has a folder of its own in the output folder. What is complete is not run again, and what was
stopped goes on; to run something anew, remove its folder. What needs a text that is not given is
left out, unless at --scale=smoke, where the text of this package takes its place. With
--budget_minutes runs are taken in the order of the page, which is that of worth, as far as the time
left is said to suffice for them; one that takes longer is stopped when the time is up, and goes on
the next time.

Writes report.html, one page that stands for itself: for each figure and table the claim, the
published numbers, the measured ones beside theory, the picture, the command, versions and time.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import fcntl
import functools
import json
import math
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import ClassVar

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import local, write_atomically

from .shared import catalogue, command_line, report
from .shared.catalogue import ITEMS, TEXTS, Run
from .shared.parsing import number, optional, some_of
from .shared.provenance import TICK
from .shared.results import make_directory, write_json
from .shared.settings import ProgramSettings, name_flag, setting

SCALES = 'smoke', 'laptop', 'overnight', 'paper'
Texts = dataclasses.make_dataclass('Texts', [
    (name, str | None, setting(None, str, f'{what}, in a form that pretrain takes'))
    for name, what in TEXTS.items()], bases=(ProgramSettings,), frozen=True)


@dataclasses.dataclass(frozen=True)
class Settings(Texts):
  only: list[str] = setting(
      [], some_of(*(name for item in ITEMS for name in item.names)),
      'figures and tables, such as fig1,table4; if not given, all')
  budget_minutes: float | None = setting(None, optional(number),
                                         'time to spend; if not given, what it takes')
  output_dir: str | None = setting(
      None, str, 'folder of all results; if not given, results/reproduce_SCALE')

  SCALES: ClassVar = SCALES


def main(settings: Settings) -> None:
  scale, began, budget = settings.scale, time.monotonic(), settings.budget_minutes
  items = [item for item in ITEMS if not settings.only or set(settings.only) & set(item.names)]
  output_dir = name_flag('output_dir', local, settings.output_dir or f'results/reproduce_{scale}')
  texts = {name: given for name in TEXTS if (given := getattr(settings, name))}
  todo = catalogue.runs(items, scale)
  make_directory(output_dir)
  heed_signals()
  commands = {run.folder: command(run, scale, output_dir, texts) for run in todo}
  with locked(output_dir) as lock:
    state = State(output_dir / 'state.json')
    for number, run in enumerate(todo, 1):
      if not state.is_done(run, commands[run.folder]):
        left = budget and budget - (time.monotonic() - began) / 60
        problem = obstacle(run, scale, texts, state, left)
        print(f'[{number}/{len(todo)}] {run.folder}: {problem or "python "}'
              f'{"" if problem else " ".join(commands[run.folder])}', flush=True)
        if problem:
          state.leave_out(run, problem)
        else:
          state.run(run, commands[run.folder], left, lock)
      elif problem := state.late(run):
        print(f'[{number}/{len(todo)}] {run.folder}: {problem}', flush=True)
        state.leave_out(run, problem)
      write_atomically(output_dir / 'report.html', report.render(
          scale, items, commands, state.records, output_dir).encode())
  print(f'wrote {output_dir}/report.html')
  failed = [run.folder for run in todo if state.records[run.folder].get('failed')]
  if failed:
    raise InputError(f'{", ".join(failed)} failed; what they said is above')


def command(run: Run, scale: str, output_dir: Path, texts: dict[str, str]) -> list[str]:
  """What follows `python` to make a run."""
  of_program = 'laptop' if scale == 'overnight' else scale
  given = {'scale': of_program, 'output_dir': str(output_dir / run.folder), **run.settings(scale),
           **{flag: str(output_dir / path) for flag, path in run.reads.items()},
           **{flag: texts[text] for flag, text in run.texts.items() if text in texts}}
  return ['-m', f'experiments.{run.program}', *(f'--{flag}={text}' for flag, text in given.items())]


def obstacle(run: Run, scale: str, texts: dict[str, str], state: 'State',
             minutes_left: float | None) -> str | None:
  """Why a run cannot begin, in a sentence; None if it can."""
  missing = [name for name in run.needs if name not in texts]
  if missing and scale != 'smoke':
    return f'Not run: needs --{missing[0]}, {TEXTS[missing[0]]}.'
  begun = [folder for folder in run.after if 'command' in state.record(folder)]
  for folder in run.readable + begun:
    if not state.record(folder).get('complete'):
      return f'Not run: needs {folder}, which is not complete.'
  expected = max(1.0, run.minutes[scale] - state.record(run.folder).get('seconds', 0.0) / 60)
  if minutes_left is not None and expected > minutes_left:
    return (f'Not run: takes about {report.duration(60 * expected)}, more than was left of '
            '--budget_minutes.')
  return None


@contextlib.contextmanager
def locked(output_dir: Path):
  """An open file that keeps others out for as long as this program or one that it began lives.

  Raises:
    InputError: one of these is alive.
  """
  file = os.open(output_dir / 'lock', os.O_CREAT | os.O_RDWR)
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    os.close(file)
    raise InputError(f'--output_dir: a program of {output_dir} is still running') from None
  try:
    yield file
  finally:
    os.close(file)


class State:
  """What became of each run, in a file that is read again by the next `reproduce`."""

  def __init__(self, path: Path):
    self.path = path
    self.records = {}
    if path.exists():
      try:
        self.records = {folder: dict(record)
                        for folder, record in json.loads(path.read_text()).items()}
      except (ValueError, TypeError, AttributeError):
        raise InputError(f'--output_dir: {path} is not a file of this program') from None

  def record(self, folder: str) -> dict:
    return self.records.get(folder, {})

  def is_done(self, run: Run, command: list[str]) -> bool:
    """Whether this run is complete.

    Raises:
      InputError: it is, but by another command.
    """
    record, folder = self.record(run.folder), self.path.parent / run.folder
    if not (record.get('complete') and (folder / 'results.json').exists()):
      return False
    if record.get('command') != command:
      raise InputError(f'--output_dir: {folder} was made by other flags; choose another folder, or '
                       'remove this one')
    return True

  def late(self, run: Run) -> str | None:
    """What a complete run lacks because it was trained afterwards, in a sentence, or None."""
    known = self.record(run.folder).get('after')
    missing = [] if known is None else [each for each in self._trained(run) if each not in known]
    if not missing:
      return None
    return f'Made before {missing[0]}, which it reads; remove {run.folder}, and it is made again.'

  def leave_out(self, run: Run, problem: str) -> None:
    self._note(run, **{'seconds': 0.0} | self.record(run.folder) | {'problem': problem})

  def run(self, run: Run, command: list[str], minutes_left: float | None, lock: int) -> None:
    """Runs a program to its end, or to that of the time."""
    earlier, began = self.record(run.folder).get('seconds', 0.0), time.monotonic()

    def note(**outcome):
      seconds = round(earlier + time.monotonic() - began, 1)
      self._note(run, command=command, seconds=seconds, **outcome)

    unfinished = functools.partial(note, problem='Stopped before its end.')
    unfinished()
    limit = math.inf if minutes_left is None else 60 * minutes_left
    code = finished(command, limit, lock, self.path.parent / 'compiled', unfinished)
    if code is None:
      outcome = dict(problem='Stopped when the time was up; the same command goes on.')
    elif code == 0:
      outcome = dict(complete=True)
    else:
      outcome = dict(problem=f'Failed with exit code {code}.', failed=True)
    note(after=self._trained(run), **outcome)

  def _trained(self, run):
    """The runs that this one reads if they are there."""
    return [folder for folder in run.after if self.record(folder).get('complete')]

  def _note(self, run, **record):
    self.records[run.folder] = record
    write_json(self.path, self.records)


def heed_signals() -> None:
  """SIGTERM is as Ctrl-C, and Ctrl-C reaches the programs that this one starts.

  A shell that starts a command with & has it ignore Ctrl-C, and with it all that it starts.
  """
  for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, signal.default_int_handler)


def finished(command: list[str], limit: float, lock: int, cache: Path,
             meanwhile: Callable[[], None]) -> int | None:
  """The exit code of `python` with these arguments, or None if it did not end in `limit` seconds.

  It is interrupted as by Ctrl-C, which programs take as the order to keep what they have. It
  inherits the lock, so that it keeps others out if this program is killed. What it compiles is
  kept in `cache` for other programs, unless the environment names another place. `meanwhile` is
  called every few seconds, so that the time is known if all is killed.
  """
  environment = {'JAX_COMPILATION_CACHE_DIR': str(cache.resolve()), **os.environ}
  process = subprocess.Popen([sys.executable, *command], pass_fds=[lock], env=environment)
  end = time.monotonic() + limit
  try:
    while (left := end - time.monotonic()) > 0:
      with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(min(left, TICK))
      meanwhile()
  except KeyboardInterrupt:
    interrupt(process)
    raise
  interrupt(process)
  return None


def interrupt(process: subprocess.Popen) -> None:
  process.send_signal(signal.SIGINT)
  try:
    process.wait(60)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()


if __name__ == '__main__':
  command_line.start(main, Settings, __doc__)
