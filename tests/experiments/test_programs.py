"""Each program at its smallest measures every row, goes on where it stopped, and draws again."""

import json
from pathlib import Path
import re
import shutil

import numpy as np
import pytest

import programs
from programs import SMALL, results_of

pytestmark = pytest.mark.slow

PAGE = (Path(programs.__file__).parents[1] / 'experiments' / 'README.md').read_text()
PARTS = re.search(r'\| in `results.json`.*?(?=\n\n)', PAGE, re.DOTALL)[0]
# Those that have no rows train networks, and say of these only the losses.
TRAININGS = [name for name, small in SMALL.items() if not small.num_rows]
MEASURING = [name for name in SMALL if name not in TRAININGS]
# Those that measure cells go on in the same code (test_measurements), and one stands for them.
OF_CELLS = [name for name in MEASURING if 'measure_cells' in programs.FILES[name].read_text()]
# Parts of results.json that one program has.
OWN = {'forgetting': {'cells', 'recipes'}, 'pretrain': {'rates'}}


def test_every_program_with_a_folder_of_results_is_here():
  """But for those that write reports or times, which have tests of their own."""
  assert set(programs.EXPERIMENTS) - SMALL.keys() == {'audit', 'benchmark', 'lineage', 'seedprint'}


@pytest.mark.parametrize('name', SMALL)
def test_a_program_measures_every_row_and_says_how(name, small):
  directory, results = small(name), results_of(small(name))
  rows = list(map(json.dumps, results['rows']))
  assert len(set(rows)) == len(rows) == SMALL[name].num_rows
  assert results['complete'] and results['summary'] and results['experiment'] == name
  assert results.keys() - {'inputs'} - OWN.get(name, set()) == {
      part for line in PARTS.splitlines()
      for part in re.findall(r'`(\w+)`', line.split('|')[1])} - {'inputs'}
  assert results['run'].keys() == {'command', 'commit', 'processor', 'started', 'seconds'}
  assert results['environment'].keys() >= {'jax', 'backend', 'device', 'num_devices', 'xla_flags'}
  for row in results['summary']:
    assert_intervals(row)
  lines = (directory / 'table.md').read_text().splitlines()
  assert len(lines) == len(results['summary']) + 2
  assert (directory / 'figure.png').read_bytes().startswith(b'\x89PNG')


def assert_intervals(row):
  """Beside a mean, or the means of layers, stand its interval, half of it, or both values."""
  for field, value in row.items():
    mean = row.get(field.removesuffix('_ci95').removesuffix('_both'))
    if mean is None or value is None:
      continue
    if field.endswith('_ci95') and np.ndim(value) > np.ndim(mean):
      assert None in value or value[0] <= mean <= value[1]
    elif field.endswith('_ci95'):
      assert np.all(np.asarray(value) >= 0)
    elif field.endswith('_both'):
      np.testing.assert_allclose(np.mean(value, axis=0), mean, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize('name', MEASURING)
def test_what_is_complete_is_drawn_again_from_its_results_alone(name, small, tmp_path, capsys):
  """As in a downloaded folder, in which there are no checkpoints."""
  directory = small(name)
  shutil.copy(directory / 'results.json', tmp_path)
  programs.run_small(name, tmp_path, small)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
      'figure.png', 'results.json', 'table.md']
  for path in tmp_path.iterdir():
    assert path.read_bytes() == (directory / path.name).read_bytes(), path.name
  assert 'wrote ' in capsys.readouterr().out


@pytest.mark.parametrize('name', [name for name in MEASURING if name not in OF_CELLS[1:]])
def test_a_stopped_program_goes_on_to_the_same_rows(name, small, tmp_path):
  """It keeps the rows that are there, of which each is marked, and trains nothing again."""
  whole = results_of(small(name))
  directory = shutil.copytree(small(name), tmp_path / name)
  programs.stop(directory, len(whole['rows']) // 2)
  before = checkpoints(directory)
  after = programs.run_small(name, directory, small)
  assert after['complete'] and after['run']['seconds'] >= whole['run']['seconds']
  is_kept = [row.pop('kept', False) for row in after['rows']]
  assert after['rows'] == whole['rows'] and sum(is_kept) == len(whole['rows']) // 2
  assert checkpoints(directory) == before


@pytest.mark.parametrize('name', TRAININGS)
def test_networks_that_are_there_are_not_trained_again(name, small, tmp_path):
  """Also in another place; what is complete keeps its record, and else its time goes on."""
  directory = shutil.copytree(small(name), tmp_path / name)
  before, records = checkpoints(directory), records_of(directory)
  again = programs.run_small(name, directory, small)
  assert before and records_of(directory) == records
  programs.stop(directory, 0)
  after = programs.run_small(name, directory, small)
  assert after['complete'] and after['summary'] == again['summary']
  assert after['run']['seconds'] >= again['run']['seconds']
  assert after['run']['started'] == again['run']['started']
  assert checkpoints(directory) == before


def records_of(directory):
  """What is kept of a training and its phases."""
  contents = [results_of(path.parent) for path in sorted(directory.rglob('results.json'))]
  for each in contents:
    assert each['complete'] and each['run']['seconds']
    assert all(all(rates.values()) for rates in each.get('rates', ()))
  return [[each.get(part) for part in ('run', 'summary', 'rates')] for each in contents]


def checkpoints(directory):
  """When each file of a checkpoint was written."""
  return {path: path.stat().st_mtime_ns for step in directory.rglob('seed_*/[0-9]*')
          for path in step.rglob('*')}
