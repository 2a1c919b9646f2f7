"""How a result came about: which command, which code, when, and how long it took."""

from collections.abc import Callable, Iterator
import contextlib
from datetime import UTC, datetime
from pathlib import Path
import shlex
import subprocess
import sys
import threading
import time

TICK = 10  # Seconds after which the time of a run is noted again.
_PROGRAMS = Path(__file__).parents[1]
_ROOT = _PROGRAMS.parent


def begin(earlier: dict | None = None) -> Callable[[], dict]:
  """Begins to record a run.

  Args:
    earlier: what an earlier session of the same run has recorded, from which this one goes on.

  Returns:
    A function that says, whenever it is called, what results hold of the run: its `command`; the
    `commit` of its code, of several sessions each that there was; when it `started`; and how many
    `seconds` it has taken, those of earlier sessions included.
  """
  began, present = time.monotonic(), commit()
  run = earlier or {'command': command(), 'commit': present, 'seconds': 0.0,
                    'started': datetime.now(UTC).isoformat(timespec='seconds')}
  commits = dict.fromkeys([*(run['commit'] or 'unknown').split(', '), present or 'unknown'])
  if len(commits) > 1:
    run = run | {'commit': ', '.join(commits)}
  return lambda: run | {'seconds': round(run['seconds'] + time.monotonic() - began, 1)}


@contextlib.contextmanager
def repeatedly(note: Callable[[], None]) -> Iterator[None]:
  """Calls `note` now, every few seconds, and at the end, so that a kill loses little."""
  ended = threading.Event()

  def repeat():
    while not ended.wait(TICK):
      note()

  note()
  thread = threading.Thread(target=repeat, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
    note()


def command() -> str | None:
  """The command line of the program that runs, as one would type it; None if it is none of ours."""
  program = Path(sys.argv[0])
  if program.parent != _PROGRAMS:
    return None
  return shlex.join(['python', '-m', f'experiments.{program.stem}', *sys.argv[1:]])


def commit() -> str | None:
  """The commit of the checkout that this code is from, with '-dirty' if files differ from it.

  None outside of one, or without git.
  """
  if not (_ROOT / '.git').exists():  # An installed copy may lie in somebody else's repository.
    return None
  command = ['git', '-C', str(_ROOT), 'describe', '--always', '--dirty', '--abbrev=12',
             '--exclude=*']
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()
