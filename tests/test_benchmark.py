"""The benchmarks' chart, and that a row is the ratio it says."""

import json
import time

import pytest

from experiments.benchmarks import chart, timing


def test_alternatives_run_in_turn_and_ratios_are_of_the_same_round():
  called = []
  seconds = timing.in_turn({name: lambda name=name: called.append(name) or time.sleep(0.001) for name in 'ab'}, 3)
  assert ''.join(called) == 'ab' * 4
  assert {name: len(values) for name, values in seconds.items()} == {'a': 3, 'b': 3}
  assert timing.spread([3.0, 1.0, 2.0]) == {'median': 2.0, 'quartiles': [1.5, 2.5]}


def test_the_chart_has_a_bar_for_each_row_with_a_peer(tmp_path):
  ratio = {'median': 2.0, 'quartiles': [1.5, 3.0]}
  rows = [{'benchmark': 'fast', 'n': 2000, 'peer': 'scipy', 'peer_over_ours': ratio},
          {'benchmark': 'slow', 'peer': 'torch', 'peer_over_ours': {'median': 0.5, 'quartiles': [0.4, 0.6]}},
          {'benchmark': 'alone'}, {'benchmark': 'peer not installed', 'peer': 'torch', 'peer_over_ours': None}]
  path = tmp_path / 'one.json'
  path.write_text(json.dumps({'environment': {'device': 'abacus', 'num_devices': 2}, 'rows': rows}))
  found, devices = chart.rows_of([path, tmp_path / 'not_run.json'])
  assert [row['benchmark'] for row in found] == ['fast', 'slow'] and devices == {'2 x abacus'}
  ax, = chart.draw(found, devices).axes
  assert [bar.get_x() + bar.get_width() for bar in ax.patches] == pytest.approx([2.0, 0.5])
  assert [label.get_text() for label in ax.get_yticklabels()] == ['fast (n 2,000)  over  scipy', 'slow  over  torch']
  assert ax.get_title(loc='left') == '2 x abacus'
