"""How a result came about: which command, which code, when, and for how long."""

from datetime import UTC, datetime
from pathlib import Path
import shlex
import subprocess
import sys

_ROOT = Path(__file__).parents[2]


def started(experiment: str) -> dict:
  """What is known when a run of an experiment begins, as a dict that JSON can hold.

  Returns:
    `command`, as one would type it, or None if no command line began the run; `commit` of the
    checkout that the code is from, with '-dirty' if files differ from it, or None outside of one;
    `started`, the time in UTC; and `seconds`, 0.0, which grows with the run.
  """
  is_program = Path(sys.argv[0]).stem == experiment
  words = ['python', '-m', f'experiments.{experiment}', *sys.argv[1:]]
  return {'command': shlex.join(words) if is_program else None, 'commit': commit(),
          'started': datetime.now(UTC).isoformat(timespec='seconds'), 'seconds': 0.0}


def commit() -> str | None:
  """The commit of the checkout that this code is from; None outside of one, or without git."""
  if not (_ROOT / '.git').exists():  # An installed copy may lie in somebody else's repository.
    return None
  command = ['git', '-C', str(_ROOT), 'describe', '--always', '--dirty', '--abbrev=12',
             '--exclude=*']
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()
