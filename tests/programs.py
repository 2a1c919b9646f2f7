"""The programs of experiments/, each a module or a package with __main__."""

import importlib

from experiments.shared.launcher import FILES, find

# Those that have settings, scales and a folder of results.
EXPERIMENTS = sorted(name for name, path in FILES.items()
                     if 'command_line.run(' in path.read_text())


def load(name):
  """The module of a program."""
  return importlib.import_module(
      f'experiments.{name}' + ('.__main__' if find(name).name == '__main__.py' else ''))
