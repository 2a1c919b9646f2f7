"""The library has the layout that its docstring draws, and its messages are written in one line."""

import ast
import configparser
import functools
from pathlib import Path

import pytest

import bornbiased_jax
import programs

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / 'bornbiased_jax'
# The rooms from which each room may import, beside itself.
SHARED = {'errors', 'fields', 'files', 'hosts'}
BELOW = {
    'errors': set(),
    'fields': {'errors'},
    'hosts': {'errors'},
    'files': {'errors', 'hosts'},
    'environment': set(),
    'configs': SHARED,
    'plotting': SHARED,
    'models': SHARED | {'configs'},
    'data': SHARED | {'configs'},
    'analysis': SHARED | {'configs', 'models'},
    'storage': SHARED | {'configs', 'models', 'data', 'environment'},
    'training': SHARED | {'configs', 'models', 'data', 'storage'},
    'lineage': SHARED | {'configs', 'models', 'analysis', 'storage', 'environment'},
}


@functools.cache
def nodes(path):
  """All nodes of the syntax tree of a file, which several tests read."""
  return list(ast.walk(ast.parse(path.read_text())))


def imported(path):
  """Dotted names of the modules and names that a file imports."""
  for node in nodes(path):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      package = path.relative_to(ROOT).with_suffix('').parts[:-node.level] if node.level else ()
      module = '.'.join((*package, *([node.module] if node.module else [])))
      yield from (f'{module}.{alias.name}' for alias in node.names)


def room_of(path):
  return path.relative_to(LIBRARY).parts[0].removesuffix('.py')


@pytest.mark.parametrize('path', sorted(LIBRARY.rglob('*.py')),
                         ids=lambda path: str(path.relative_to(LIBRARY)))
def test_rooms_import_downward_only(path):
  names = [name.split('.') for name in imported(path)]
  rooms = {name[1] for name in names if name[0] == 'bornbiased_jax'}
  assert rooms <= BELOW.get(room_of(path), set()) | {room_of(path)}
  assert not [name for name in names if name[0] == 'experiments']


def test_a_dozen_names_at_the_top():
  names = {path.stem for path in LIBRARY.iterdir() if not path.name.startswith('__')}
  assert names <= set(BELOW) | {'py'}


@pytest.mark.parametrize('path', sorted((ROOT / 'experiments').rglob('*.py')),
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_no_experiment_imports_another(path):
  names = [name for name in imported(path) if name.startswith('experiments.')]
  found = {name.split('.')[1] for name in names} & programs.FILES.keys()
  assert found <= {path.stem, path.parent.name}


def test_every_package_is_installed():
  """A wheel has the experiments too, by a name that no folder of a user's own will have."""
  options = configparser.ConfigParser()
  options.read(ROOT / 'setup.cfg')
  folders = {'.'.join(path.parent.relative_to(ROOT).parts)
             for name in ('bornbiased_jax', 'experiments') for path in (ROOT / name).rglob('*.py')}
  assert set(options['options']['packages'].split()) == {
      name.replace('experiments', 'bornbiased_experiments') for name in folders}


def messages(path):
  """The string literals in every `raise InputError(…)` of a file."""
  for node in nodes(path):
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
      if getattr(node.exc.func, 'id', None) == 'InputError':
        yield from (part.value for part in ast.walk(node.exc)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str))


@pytest.mark.parametrize('path', sorted(LIBRARY.rglob('[!_]*.py')),
                         ids=lambda path: str(path.relative_to(LIBRARY)))
def test_messages_are_written_in_one_line(path):
  assert not [message for message in messages(path) if '\n' in message]


def test_the_start_page_links_every_package():
  """The page of a package has all its public names."""
  packages = sorted(path.parent.name for path in LIBRARY.glob('*/__init__.py'))
  assert [name for name in packages if f'`.{name}`' not in bornbiased_jax.__doc__] == []
