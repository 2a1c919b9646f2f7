"""Lists the experiments and runs one: `bornbiased NAME …` is `python -m experiments.NAME …`."""

import runpy
import signal
import sys

import bornbiased_jax

from .shared import launcher

_USAGE = """Usage: bornbiased EXPERIMENT [--help | flags]
       python -m experiments.EXPERIMENT [--help | flags], in a checkout
"""


def main() -> None:
  words = sys.argv[1:]
  if not words or words[0] in ('help', '--help', '-h'):
    # A reader that has seen enough, such as `head`, ends the list without a traceback. An
    # experiment is not ended so: it would lose work.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    width = max(map(len, launcher.FILES))
    print(_USAGE, *(f'{name.ljust(width)}  {launcher.docstring(path).splitlines()[0]}'
                    for name, path in sorted(launcher.FILES.items())), sep='\n')
  elif words[0] == '--version':
    print(f'bornbiased_jax {bornbiased_jax.__version__}')
  else:
    del sys.argv[1]
    launcher.prepare(words[0])
    runpy.run_module(f'{__package__}.{words[0]}', run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  main()
