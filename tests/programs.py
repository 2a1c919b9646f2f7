"""The programs of experiments/, each a module or a package with __main__."""

import importlib

from experiments import NAMES, source

FILES = {name: source(name) for name in NAMES}
# Those that have settings, scales and a folder of results.
EXPERIMENTS = sorted(name for name, path in FILES.items()
                     if 'has_folder=False' not in path.read_text())


def load(name):
  """The module of a program."""
  return importlib.import_module(
      f'experiments.{name}' + ('.__main__' if source(name).name == '__main__.py' else ''))
