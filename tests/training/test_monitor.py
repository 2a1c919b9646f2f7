"""Metrics are written as they were measured, and rates are medians over steps."""

import json
import math
import sys

import jax
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.training import loop, monitor
import tiny_runs
from tiny_runs import final


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
  with pytest.raises(InputError, match=r'is (nan|inf) at step [3-6] of .*seed_3'):
    loop.train(tiny_runs.run(tmp_path, recipe=dict(peak_lr=1e30)))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(final(tmp_path)))


def metrics(*losses):
  return {'loss': np.array(losses), 'gradient_norm': np.ones(len(losses))}


def test_rates_are_medians_over_steps(tmp_path, monkeypatch):
  """A step ends when the next one is added. The first step, which compiles, is not timed."""
  now = [0.0]
  monkeypatch.setattr(monitor.time, 'monotonic', lambda: now[0])
  with monitor.Monitor([tmp_path], 0, 4, 650, lambda tokens_per_s: tokens_per_s / 400) as watched:
    assert set(watched.rate().values()) == {None}
    for step, now[0] in enumerate((10.0, 12.0, 15.0, 25.0), start=1):
      watched.add(step, metrics(2.0))
    assert watched.rate() == {'seconds_a_step': 6.5, 'tokens_per_s': 100, 'utilization': 0.25}
    now[0] = 32.0
    watched.flush()
  seconds = [line['seconds'] for line in monitor.read(tmp_path)]
  assert seconds == [None, 3.0, 10.0, 7.0]


def test_each_network_has_its_own_lines(tmp_path):
  directories = [tmp_path / 'a', tmp_path / 'b']
  for directory in directories:
    directory.mkdir()
  with monitor.Monitor(directories, 0, 1, 1, float) as watched:
    watched.add(1, metrics(2.0, 3.0))
    watched.flush()
    watched.validation(1, np.array([math.log(2), math.nan]))
  a, b = (monitor.read(directory) for directory in directories)
  assert (a[0]['loss'], b[0]['loss']) == (2.0, 3.0)
  assert a[1] == {'step': 1, 'validation_loss': math.log(2), 'perplexity': pytest.approx(2)}
  assert b[1] == {'step': 1, 'validation_loss': None, 'perplexity': None}


def test_lines_after_the_start_and_a_line_cut_off_are_dropped(tmp_path):
  whole = [json.dumps({'step': step, 'loss': 1.0}) for step in (1, 2, 3)]
  (tmp_path / 'metrics.jsonl').write_text('\n'.join([*whole, '{"step": 4, "lo']))
  assert [line['step'] for line in monitor.read(tmp_path)] == [1, 2, 3]
  with monitor.Monitor([tmp_path], 2, 4, 1, float):
    pass
  assert (tmp_path / 'metrics.jsonl').read_text().splitlines() == whole[:2]
  (tmp_path / 'metrics.jsonl').write_text('\n'.join(['garbage', *whole]))
  with pytest.raises(InputError, match='metrics.jsonl, line 1'):
    monitor.read(tmp_path)


def test_tensorboard_reads_each_number_once(tmp_path):
  """The second session repeats the last step of the first, and the number that is not one is left
  out."""
  pytest.importorskip('tensorboardX')
  pytest.importorskip('tensorboard')
  from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
  for start, losses in ((0, (5.0, 4.0)), (1, (4.5, 3.5))):
    with monitor.Monitor([tmp_path], start, 3, 1, float) as watched:
      for step, loss in enumerate(losses, start=start + 1):
        watched.add(step, metrics(loss))
      watched.flush()
      watched.validation(step, np.array([math.log(2) if start else math.nan]))
  reader = EventAccumulator(str(tmp_path))
  reader.Reload()
  of = lambda name: [(event.step, event.value) for event in reader.Scalars(name)]
  assert of('loss') == [(1, 5.0), (2, 4.5), (3, 3.5)]
  assert of('validation_loss') == [(3, pytest.approx(math.log(2)))]
  for name in reader.Tags()['scalars']:
    lines = {line['step']: line[name] for line in monitor.read(tmp_path)
             if line.get(name) is not None}
    assert dict(of(name)) == pytest.approx(lines, rel=1e-6)


def test_without_tensorboardx_there_are_no_event_files(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorboardX', None)
  with monitor.Monitor([tmp_path], 0, 1, 1, float) as watched:
    watched.add(1, metrics(2.0))
  assert [path.name for path in tmp_path.iterdir()] == ['metrics.jsonl']
