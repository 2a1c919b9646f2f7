"""How a result came about: which command, and which code."""

from pathlib import Path
import shlex
import subprocess
import sys

_ROOT = Path(__file__).parents[2]


def origin(experiment: str) -> dict[str, str | None]:
  """What a result of an experiment is from.

  Returns:
    `command`, as one would type it, or None if no command line began the run; and `commit` of the
    checkout that the code is from, with '-dirty' if files differ from it, or None outside of one.
  """
  is_program = Path(sys.argv[0]).stem == experiment
  words = ['python', '-m', f'experiments.{experiment}', *sys.argv[1:]]
  return {'command': shlex.join(words) if is_program else None, 'commit': commit()}


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
