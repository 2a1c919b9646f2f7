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
  words, known = sys.argv[1:], programs()
  if not words or words[0] in ('help', '--help', '-h'):
    # A reader that has seen enough, such as `head`, ends the list without a traceback. An
    # experiment is not ended so: it would lose work.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    width = max(map(len, known))
    print(_USAGE, *(f'{name.ljust(width)}  {title}' for name, title in known.items()), sep='\n')
  elif words[0] not in known:
    meant = difflib.get_close_matches(words[0], known, n=1)
    hint = f' (did you mean {meant[0]}?)' if meant else ''
    print(f'error: {words[0]!r} is no experiment{hint}; there are {", ".join(known)}',
          file=sys.stderr)
    sys.exit(2)
  else:
    del sys.argv[1]
    runpy.run_module(f'{__package__}.{words[0]}', run_name='__main__', alter_sys=True)


def programs() -> dict[str, str]:
  """What each experiment is, by name: the first line of its docstring."""
  docstring = lambda path: ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))
  folder = Path(__file__).parent
  files = {path.stem: path for path in folder.glob('*.py') if not path.stem.startswith('_')}
  files |= {path.parent.name: path for path in folder.glob('*/__main__.py')}
  return {name: docstring(files[name]).splitlines()[0] for name in sorted(files)}


if __name__ == '__main__':
  main()
