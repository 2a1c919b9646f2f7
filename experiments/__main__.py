"""Lists the experiments and runs one: `bornbiased NAME …` is `python -m experiments.NAME …`."""

import ast
import runpy
import signal
import sys

import bornbiased_jax

from . import PROGRAMS, prepare, source

_USAGE = """Usage: bornbiased EXPERIMENT [--help | flags]
       python -m experiments.EXPERIMENT [--help | flags], in a checkout"""


def main() -> None:
  words = sys.argv[1:]
  if not words or words[0] in ('help', '--help', '-h'):
    # A reader that has seen enough, such as `head`, ends the list without a traceback. An
    # experiment is not ended so: it would lose work.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print(_USAGE)
    for title, names in PROGRAMS.items():
      print(f'\n{title}', *(f'  {name:18}{_first_line(name)}' for name in names), sep='\n')
  elif words[0] == '--version':
    print(f'bornbiased_jax {bornbiased_jax.__version__}')
  else:
    prepare(words[0])
    del sys.argv[1]
    runpy.run_module(f'{__package__}.{words[0]}', run_name='__main__', alter_sys=True)


def _first_line(name):
  return ast.get_docstring(ast.parse(source(name).read_text(encoding='utf-8'))).splitlines()[0]


if __name__ == '__main__':
  main()
