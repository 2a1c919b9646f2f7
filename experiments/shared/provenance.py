"""How a result came about: which command, which code, when, and how long it took on what."""

from collections.abc import Callable, Iterator
import contextlib
from datetime import UTC, datetime
import functools
import hashlib
import os
from pathlib import Path
import shlex
import subprocess
import sys
import threading
import time

from bornbiased_jax.environment import processor

TICK = 10  # Seconds after which the time of a run is noted again.
_PROGRAMS = Path(__file__).parents[1]
_ROOT = _PROGRAMS.parent


def begin(earlier: dict | None = None, is_new: bool = True) -> Callable[[], dict]:
  """Begins to record a run, or goes on with what an `earlier` session has recorded.

  The function that is returned says its `command`, the `commit` and `processor` of each session,
  when it `started` and its `seconds` until now, of all sessions. Time is unknown if it is not new
  and has no record.
  """
  began = time.monotonic()
  now = datetime.now(UTC).isoformat(timespec='seconds')
  here = {'commit': commit(), 'processor': processor()}
  new = {'command': command(), **here, 'seconds': 0.0, 'started': now}
  unknown = {'command': command(), 'seconds': None, 'started': None}
  run = earlier or (new if is_new else unknown)
  for name, present in here.items():
    run = run | {name: ', '.join(dict.fromkeys(
        [*(run.get(name) or 'unknown').split(', '), present]))}
  if run.get('seconds') is None:
    return lambda: run
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


def device_of(content: dict) -> str | None:
  """What computed a stored result: the processor, if it is known, or the accelerators."""
  made, run = content['environment'], content.get('run') or {}
  if made.get('backend') in (None, 'cpu'):
    return run.get('processor')
  return f'{made["num_devices"]} x {made["device"]}'


def start() -> str:
  """How a command begins here, up to the name of the program."""
  # What is installed has another name, also where pip only points at the checkout.
  return 'python -m experiments.' if __package__.startswith('experiments.') else 'bornbiased '


def command() -> str | None:
  """The command line of the program that runs, as one would type it; None if it is none of ours."""
  program = Path(sys.argv[0])
  if program.name == '__main__.py':
    program = program.parent
  if not program.is_relative_to(_PROGRAMS):
    return None
  name = '.'.join(program.relative_to(_PROGRAMS).with_suffix('').parts)
  return ' '.join([f'{start()}{name}', *map(shlex.quote, sys.argv[1:])])


def commit() -> str:
  """The commit of the checkout that this code is from, with '-dirty' if files differ from it.

  Outside of one, or without git, 'files-' and a digest of the code, so that two versions differ.
  """
  if not (_ROOT / '.git').exists():  # An installed copy may lie in somebody else's repository.
    return _digest()
  describe = ['git', '-C', str(_ROOT), 'describe', '--always', '--dirty', '--abbrev=12',
              '--exclude=*']
  # Variables such as GIT_DIR, which hooks of git set, would name another repository.
  variables = {name: value for name, value in os.environ.items() if not name.startswith('GIT_')}
  try:
    # On a loaded machine git may take long, and two answers would look like two versions.
    done = subprocess.run(describe, capture_output=True, text=True, timeout=120, check=True,
                          env=variables)
  except (OSError, subprocess.SubprocessError):
    return _digest()
  return done.stdout.strip()


@functools.cache
def _digest():
  """What stands for a commit where there is none."""
  files = [file for package in (_PROGRAMS, _PROGRAMS.parent / 'bornbiased_jax')
           for file in sorted(package.rglob('*.py'))]
  return 'files-' + hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()[:12]
