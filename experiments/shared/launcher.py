"""How a program starts: what can be answered before JAX is imported is answered first."""

import ast
import copy
import difflib
import os
from pathlib import Path
import signal
import sys
from typing import Any

import bornbiased_jax

LIBRARY = Path(bornbiased_jax.__file__).parent
_FOLDER = Path(__file__).parents[1]
FILES = {path.stem: path for path in sorted(_FOLDER.glob('[!_]*.py'))} | {
    path.parent.name: path for path in sorted(_FOLDER.glob('*/__main__.py'))}


def prepare(name: str) -> None:
  """Prepares this process for an experiment, whose module runs next.

  For --help or a mistake it ends the process, by the module's last statement and what that needs.
  """
  path = find(name)
  # While modules are imported nothing is lost: Ctrl-C ends the process at once, without a
  # traceback, and no import can swallow it. session.run says more from then on.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  use_huge_pages()
  # tqdm reads these when it is imported: bars never wrap, and fill no log file.
  os.environ.setdefault('TQDM_DYNAMIC_NCOLS', '1')
  if not (sys.stderr and sys.stderr.isatty()):
    os.environ.setdefault('TQDM_MININTERVAL', '10')
  if sys.stdout:  # A letter that the encoding of the output lacks is shown as its number.
    sys.stdout.reconfigure(errors='backslashreplace')
  package = '.'.join((__package__.partition('.')[0], *path.relative_to(_FOLDER).parts[:-1]))
  given = {'__name__': '__main__', '__package__': package, '__file__': str(path),
           '__doc__': docstring(path), 'main': None}
  exec(compile(last_statement(path, given), path, 'exec'), given)


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


# What can be known of a module from its source, without importing all that it imports.


def keys(path: Path, *names: str) -> tuple[str, ...]:
  """The keys of dicts that a module writes out, annotated, at its top level."""
  tables = {ast.unparse(statement.target): statement.value for statement in _parse(path).body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict)}
  return tuple(ast.literal_eval(key) for name in names for key in tables[name].keys if key)


def last_statement(path: Path, given: dict[str, Any]) -> ast.Module:
  """The last statement of a module, and before it only what that needs, but for `given` names."""
  *statements, last = _parse(path).body
  needed, kept = set(), [last]
  while more := set().union(*(_names(each, ast.Load) for each in kept)) - given.keys() - needed:
    needed |= more
    kept = [part for statement in statements if (part := _part(statement, needed))] + [last]
  return ast.Module(kept, [])


def docstring(path: Path) -> str:
  return ast.get_docstring(_parse(path)) or ''


def _parse(path):
  return ast.parse(path.read_text(encoding='utf-8'), str(path))


def _names(statement, context):
  return {node.id for node in ast.walk(statement)
          if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _part(statement, needed):
  """Of an import the names that are needed; another statement if it binds such a name; or None."""
  if isinstance(statement, ast.Import | ast.ImportFrom):
    part = copy.copy(statement)
    part.names = [alias for alias in statement.names
                  if (alias.asname or alias.name.partition('.')[0]) in needed]
    return part if part.names else None
  own = getattr(statement, 'name', None)
  return statement if needed & ({own} if own else _names(statement, ast.Store)) else None
