"""How a program starts: what can be answered before JAX is imported is answered first."""

import difflib
import os
from pathlib import Path
import sys

from . import source

_FOLDER = Path(__file__).parents[1]
FILES = {path.stem: path for path in sorted(_FOLDER.glob('[!_]*.py'))} | {
    path.parent.name: path for path in sorted(_FOLDER.glob('*/__main__.py'))}


def prepare(name: str) -> None:
  """Prepares this process for an experiment, whose module runs next.

  For --help or a mistake it ends the process, by the module's last statement and what that needs.
  """
  path = find(name)
  use_huge_pages()
  # tqdm reads these when it is imported: bars never wrap, and fill no log file.
  os.environ.setdefault('TQDM_DYNAMIC_NCOLS', '1')
  if not (sys.stderr and sys.stderr.isatty()):
    os.environ.setdefault('TQDM_MININTERVAL', '10')
  if sys.stdout:  # A letter that the encoding of the output lacks is shown as its number.
    sys.stdout.reconfigure(errors='backslashreplace')
  package = '.'.join((__package__.partition('.')[0], *path.relative_to(_FOLDER).parts[:-1]))
  given = {'__name__': '__main__', '__package__': package, '__file__': str(path),
           '__doc__': source.docstring(path), 'main': None}
  exec(compile(source.last_statement(path, given), path, 'exec'), given)


def find(name: str) -> Path:
  """The file of an experiment; ends the process with one line if none has this name."""
  # A package may have a second program, such as audit.injections.
  path = FILES.get(name, _FOLDER / f'{name.replace(".", "/")}.py')
  if name.partition('.')[0] not in FILES or not path.is_file():
    known = sorted(FILES)
    meant = difflib.get_close_matches(name, known, n=1)
    hint = f' (did you mean {meant[0]}?)' if meant else ''
    print(f'error: {name!r} is no experiment{hint}; there are {", ".join(known)}', file=sys.stderr)
    sys.exit(2)
  return path


def use_huge_pages() -> None:
  """Has the C library ask for huge pages, which spare most page faults, a tenth of a training step.

  It reads its settings at start, so the program starts itself again, unless the variable is set.
  """
  if sys.platform == 'linux' and 'GLIBC_TUNABLES' not in os.environ:
    os.environ['GLIBC_TUNABLES'] = 'glibc.malloc.hugetlb=1'
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
