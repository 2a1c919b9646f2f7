"""The programs of experiments/, each a module or a package with __main__."""

import importlib
from pathlib import Path

import experiments

_FOLDER = Path(experiments.__file__).parent
FILES = {path.stem: path for path in _FOLDER.glob('[!_]*.py')} | {
    path.parent.name: path for path in _FOLDER.glob('*/__main__.py')}
# Those that have settings, scales and a folder of results.
EXPERIMENTS = sorted(name for name, path in FILES.items()
                     if 'command_line.run(' in path.read_text())


def load(name):
  """The module of a program."""
  return importlib.import_module(
      f'experiments.{name}' + ('.__main__' if FILES[name].name == '__main__.py' else ''))
