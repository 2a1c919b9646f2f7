"""Metrics as CSV and as event files say what metrics.jsonl says, however often they are made."""

import csv
import json
import math
import sys

import pytest

from bornbiased_jax.errors import InputError
from experiments import metrics

LINES = [
    {'step': 1, 'loss': 5.25, 'gradient_norm': 0.1, 'seconds': None},
    {'step': 2, 'loss': 1 / 3, 'gradient_norm': 1e-30, 'seconds': 0.5},
    {'step': 2, 'validation_loss': 4.5, 'perplexity': math.exp(4.5)},
    {'step': 3, 'loss': None, 'gradient_norm': 2.0, 'seconds': 0.25},
]


@pytest.fixture
def run(tmp_path):
  directory = tmp_path / 'pretrain' / 'seed_42'
  directory.mkdir(parents=True)
  (directory / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, LINES)))
  return directory


def known(name):
  return {line['step']: line[name] for line in LINES if line.get(name) is not None}


def test_csv_has_a_row_for_each_step(run, tmp_path):
  assert metrics.runs_in(tmp_path) == metrics.runs_in(run) == [run]
  for _ in range(2):
    metrics.convert(run, tensorboard=False)
  with open(run / 'metrics.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['step'] for row in rows] == ['1', '2', '3']
  for name in ('loss', 'gradient_norm', 'seconds', 'validation_loss', 'perplexity'):
    assert {int(row['step']): float(row[name]) for row in rows if row[name]} == known(name)


def test_tensorboard_reads_each_number_once(run):
  pytest.importorskip('tensorboardX')
  pytest.importorskip('tensorboard')
  from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
  for _ in range(2):
    metrics.convert(run, tensorboard=True)
  reader = EventAccumulator(str(run))
  reader.Reload()
  assert set(reader.Tags()['scalars']) == {name for line in LINES for name in line} - {'step'}
  for name in reader.Tags()['scalars']:
    values = {event.step: event.value for event in reader.Scalars(name)}
    assert len(reader.Scalars(name)) == len(values)
    assert values == pytest.approx(known(name), rel=1e-6)
  assert [event.wall_time for event in reader.Scalars('gradient_norm')] == [0.0, 0.5, 0.75]


def test_a_run_without_a_step_is_left_out(tmp_path, capsys):
  (tmp_path / 'metrics.jsonl').write_text('')
  metrics.convert(tmp_path, tensorboard=False)
  assert 'left out' in capsys.readouterr().err and not (tmp_path / 'metrics.csv').exists()


def test_what_is_missing_is_named(run, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorboardX', None)
  with pytest.raises(InputError, match=r'tensorboardX: pip install .*\[tensorboard\]'):
    metrics.convert(run, tensorboard=True)
  assert [path.name for path in run.iterdir()] == ['metrics.jsonl']
  (tmp_path / 'empty').mkdir()
  with pytest.raises(InputError, match='empty: no metrics.jsonl'):
    metrics.runs_in(tmp_path / 'empty')
