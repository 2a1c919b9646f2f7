"""Groups of rows, their means with intervals, and tables that fit a screen."""

import json
import math

import pytest

from experiments import pages
from experiments.shared import tables
import programs

MEASURED = sorted(pages.MEASURED.glob('*/results.json'))


def test_an_interval_needs_three_values():
  rows = [{'x': value} for value in (1.0, 2.0, 3.0)]
  # Student's t at 97.5 % with two degrees of freedom is 4.3027.
  assert tables.mean_ci95(rows, 'x') == {
      'x': 2.0, 'x_ci95': pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)}
  assert tables.plus_minus(tables.mean_ci95(rows, 'x'), 'x', '+.1f') == '+2.0 ± 2.5'
  assert tables.plus_minus(tables.mean_ci95(rows[:1], 'x'), 'x', '.1f') == '1.0 ± –'


def test_of_two_networks_both_values_stand_and_no_interval():
  pair = tables.mean_ci95([{'x': 3.0}, {'x': 1.0}], 'x')
  assert pair == {'x': 2.0, 'x_ci95': pytest.approx(math.nan, nan_ok=True), 'x_both': [3.0, 1.0]}
  assert tables.plus_minus(pair, 'x', '+.1f') == '+3.0, +1.0'
  assert tables.with_error(tables.mean_and_theory([3.0, 1.0], 0.5), '.2f') == '3.00, 1.00'
  known = {'found': 0.5, 'found_ci95': [0.01, 0.99]}
  assert tables.share_of(known | {'networks': 2}, 'found') == '1 of 2'
  assert tables.share_of(known | {'networks': 20}, 'found') == '50% (1%–99%)'


def test_a_mean_beside_theory():
  compared = tables.mean_and_theory([1.0, 2.0, 3.0], theory=None)
  error = pytest.approx(1 / math.sqrt(3))
  assert compared == {'measured': 2.0, 'standard_error': error, 'theory': None}
  assert tables.with_error(compared, '.2f') == '2.00 ± 0.58 (s.e.)'
  assert tables.with_error(tables.mean_and_theory([1.0], 0.5), '.1f') == '1.0 ± – (s.e.)'
  assert tables.with_error(compared | {'standard_error': 2e-5}, '.2f') == '2.00 ± 2e-05 (s.e.)'


def test_groups_and_table():
  rows = [{'T': 8, 'seed': 0}, {'T': 4, 'seed': 0}, {'T': 8, 'seed': 1}]
  assert tables.grouped(rows, 'T') == [({'T': 8}, [rows[0], rows[2]]), ({'T': 4}, [rows[1]])]
  assert tables.table([{'model': 'tiny', 'T': '4'}, {'model': 'nano_gpt2', 'T': '1024'}]) == (
      '    model     T\n     tiny     4\nnano_gpt2  1024')


def test_a_wide_table_wraps_its_headers_and_then_its_columns():
  values = {f'what was measured {i}': f'{i:02}.000 ± 0.001' for i in range(12)}
  rows = [{'model': model, 'T': T, **values, 'nothing': '–'}
          for model in ('tiny_gpt2', 'nano_gpt2') for T in ('4', '16')]
  wide = tables.table(rows, width=10**6)
  assert len(wide.splitlines()) == 5 and 'nothing' not in wide
  narrow = tables.table(rows)
  assert max(map(len, narrow.splitlines())) <= tables.TABLE_WIDTH
  blocks = narrow.split('\n\n')
  assert len(blocks) > 1 and all('model   T' in block for block in blocks)
  for value in values.values():
    assert narrow.count(value) == len(rows)


def test_long_names_wrap_after_commas_and_spaces_if_the_table_is_too_wide():
  name = 'tiny_gpt2,num_layers=6,width=128,activation=squared_relu,init_scheme=wang'
  assert tables.table([{'model': name, 'T': '4'}]).splitlines()[1].split() == [name, '4']
  lines = tables.table([{'model': name, 'T': '4', 'n': '9' * 40}] * 2).splitlines()
  assert [line.split() for line in lines] == [
      ['model', 'T', 'n'],
      *2 * [['tiny_gpt2,num_layers=6,width=128,', '4', '9' * 40],
            ['activation=squared_relu,init_scheme=wang']]]
  assert len(set(map(len, lines))) == 1 and len(lines[0]) <= tables.TABLE_WIDTH


@pytest.mark.parametrize('path', MEASURED, ids=lambda path: path.parent.name)
def test_tables_of_what_was_measured_fit_a_screen(path):
  measured = json.loads(path.read_text(), object_hook=pages.readable)
  display = programs.load(measured['experiment']).display
  lines = tables.table([display(row) for row in measured['summary']]).splitlines()
  assert max(map(len, lines)) <= tables.TABLE_WIDTH
