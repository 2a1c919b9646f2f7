"""A program at work: its hosts, its folder, one line for what a user can put right, its record.

The record of results says which command made them, with which code, when, and in what time.
"""

from collections.abc import Callable, Container, Iterator
import contextlib
from datetime import UTC, datetime
import errno
import functools
import hashlib
import io
import os
from pathlib import Path
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import NoReturn

from absl import logging
from filelock import FileLock, Timeout
import jax

from bornbiased_jax import files, hosts
from bornbiased_jax.environment import processor, unusable_platform
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import Kind, natural, switch, whole
from bornbiased_jax.models.initialization import pin_settings

from .settings import name_flag

# What tells a process of its place among several hosts. A result does not depend on it, so that
# these are flags, but no settings of a run.
HOSTS = {
    'distributed': Kind(switch, 'this is one of several hosts that run the same command, with one '
                        '--output_dir that all of them see'),
    'coordinator': Kind(str, 'HOST:PORT of the first process, if JAX cannot find it out'),
    'num_processes': Kind(whole, 'number of processes, if JAX cannot find it out'),
    'process_id': Kind(natural, 'number of this process, from 0, if JAX cannot find it out'),
}
_NO_ROOM = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS
TICK = 10  # Seconds after which the time of a run is noted again.
_PROGRAMS = Path(__file__).parents[1]
_ROOT = _PROGRAMS.parent


def run(main: Callable, *arguments, flags: Container[str] = ()) -> None:
  """Runs `main(*arguments)`; for what a user can put right, one line on stderr and exit code 2.

  The line names the flag, of `flags`, of the field that is wrong. Settings of JAX with
  which seeds would be other networks, such as JAX_ENABLE_X64, have no effect.
  """
  if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # Of experiments.prepare.
    signal.signal(signal.SIGINT, signal.default_int_handler)
  logging.set_verbosity(logging.WARNING)
  pin_settings()
  outlive_reader()
  try:
    main(*arguments)
  except InputError as error:
    fail(f'--{error.field}: {error}' if error.field in flags else str(error))
  except OSError as error:
    if error.errno not in _NO_ROOM:
      raise
    fail(f'{error.filename} cannot be written: {error.strerror}')
  except (RuntimeError, AssertionError) as error:
    if advice := unusable_platform():
      fail(advice)
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    fail('out of memory; choose a smaller model, shorter sequences, or a smaller --batch_size or '
         '--chunk_size')
  except KeyboardInterrupt:
    print('\ninterrupted; the same command continues from here', file=sys.stderr)
    for stream in filter(None, (sys.stdout, sys.stderr)):
      stream.flush()
    # A device may still compute, and XLA crashes if Python takes it down meanwhile.
    os._exit(130)


def fail(message: str) -> NoReturn:
  """One line on stderr, exit code 2."""
  print(f'error: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(2)


class _Output(io.FileIO):
  """Standard output; what is written after its reader has gone, such as `head`, is dropped."""

  def write(self, data):
    try:
      return super().write(data)
    except BrokenPipeError:
      return len(data)


def outlive_reader() -> None:
  """Has a program whose output is no longer read go on, so that it loses no work."""
  if sys.stdout and sys.stdout is sys.__stdout__:
    sys.stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(sys.stdout.fileno(), 'w', closefd=False)),
        sys.stdout.encoding, sys.stdout.errors, line_buffering=sys.stdout.line_buffering)


def hold(directory: Path) -> contextlib.AbstractContextManager:
  """Keeps other programs of this machine and user out of a folder during a `with` block.

  Two that write the same checkpoints and metrics would mix them. The lock is a file of the
  temporary folder, so that the folder itself need not exist. Folders in buckets are not held.
  """
  if files.in_bucket(directory) or not hosts.is_first():
    return contextlib.nullcontext()
  name = hashlib.sha256(str(Path(directory).resolve()).encode()).hexdigest()[:24]
  path = Path(tempfile.gettempdir()) / f'bornbiased_{os.getuid()}_{name}.lock'
  try:
    return FileLock(path, timeout=0, mode=0o600).acquire()
  except Timeout:
    raise InputError(f'--output_dir: another program works in {directory}; wait for it, or choose '
                     'another folder') from None


def connect(distributed: bool | None = None, **given: str | None) -> None:
  """Joins the other hosts, before anything asks for a device. Only the first host prints.

  `given` are the texts of the other flags of HOSTS, None for those that are not given.
  """
  values = {name: name_flag(name, HOSTS[name].parse, text)
            for name, text in given.items() if text is not None}
  if not distributed:
    for name in values:
      raise InputError(f'--{name}: only with --distributed')
    return
  try:
    jax.distributed.initialize(values.get('coordinator'), values.get('num_processes'),
                               values.get('process_id'))
  except (ValueError, RuntimeError) as error:
    raise InputError(f'--distributed: {error}; give --coordinator, --num_processes and '
                     '--process_id') from None
  if not hosts.is_first():
    sys.stdout = open(os.devnull, 'w')  # noqa: SIM115


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
