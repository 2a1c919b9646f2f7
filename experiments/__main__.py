"""Lists the experiments and runs one: `bornbiased NAME …` is `python -m experiments.NAME …`."""

import ast
import difflib
from pathlib import Path
import runpy
import signal
import sys

_USAGE = """Usage: bornbiased EXPERIMENT [--help | flags]
       python -m experiments.EXPERIMENT [--help | flags], in a checkout
"""


def main() -> None:
  words = sys.argv[1:]
  if not words or words[0] in ('help', '--help', '-h'):
    # A reader that has seen enough, such as `head`, ends the list without a traceback. An
    # experiment is not ended so: it would lose work.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    known = programs()
    width = max(map(len, known))
    print(_USAGE, *(f'{name.ljust(width)}  {title}' for name, title in known.items()), sep='\n')
  else:
    check_name(words[0])
    del sys.argv[1]
    runpy.run_module(f'{__package__}.{words[0]}', run_name='__main__', alter_sys=True)


def check_name(name: str) -> None:
  """Ends the process with one line if no experiment has this name."""
  known = sorted(_files())
  if name not in known:
    meant = difflib.get_close_matches(name, known, n=1)
    hint = f' (did you mean {meant[0]}?)' if meant else ''
    print(f'error: {name!r} is no experiment{hint}; there are {", ".join(known)}', file=sys.stderr)
    sys.exit(2)


def programs() -> dict[str, str]:
  """What each experiment is, by name: the first line of its docstring."""
  docstring = lambda path: ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))
  return {name: docstring(path).splitlines()[0] for name, path in sorted(_files().items())}


def _files():
  folder = Path(__file__).parent
  files = {path.stem: path for path in folder.glob('*.py') if not path.stem.startswith('_')}
  return files | {path.parent.name: path for path in folder.glob('*/__main__.py')}


if __name__ == '__main__':
  main()
