"""Whole runs: stopped anywhere and resumed, on one device and four, together and alone, killed, and on two hosts."""

import dataclasses
import json
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training import loop, monitor
import tiny_runs

HERE = Path(__file__).parents[1]


def final(directory, seed=3):
  return checkpoint.load_params(directory / f'seed_{seed}')[1]


def optimizer_checksum(directory, seed=3):
  directory = directory / f'seed_{seed}'
  story, _ = checkpoint.restore(directory, lambda story: {}, checkpoint.steps(directory))
  return story['step'], story['checksums']


def assert_close(a, b):
  # Adam divides by a root of squares: rounding of a small gradient grows a thousandfold.
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=2e-4), a, b)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """Uninterrupted runs by their mesh."""
  runs = {}

  def get(*shape):
    if shape not in runs:
      runs[shape] = tmp_path_factory.mktemp('whole')
      loop.train(tiny_runs.run(runs[shape], shape=shape))
    return runs[shape]

  return get


def stop_after(monkeypatch, step, run):
  """Trains until the checkpoint of `step` is there, as if killed then."""
  save = checkpoint.Writer.save

  def save_and_stop(writer, at, *rest):
    save(writer, at, *rest)
    if at == step and writer.directory.name == run.directories[-1].name:
      raise SystemExit

  monkeypatch.setattr(checkpoint.Writer, 'save', save_and_stop)
  with pytest.raises(SystemExit):
    loop.train(run)
  monkeypatch.undo()


@pytest.mark.parametrize('shape', [(), (2, 2, 1)])
def test_stop_and_resume_is_not_stopping_bit_for_bit(shape, whole, tmp_path, monkeypatch):
  stop_after(monkeypatch, 2, tiny_runs.run(tmp_path, shape=shape))
  stop_after(monkeypatch, 4, tiny_runs.run(tmp_path, shape=shape))
  loop.train(tiny_runs.run(tmp_path, shape=shape))
  jax.tree.map(np.testing.assert_array_equal, final(tmp_path), final(whole(*shape)))
  assert optimizer_checksum(tmp_path) == optimizer_checksum(whole(*shape))
  metrics = [[{**line, 'seconds': None} for line in monitor.read(directory / 'seed_3')]
             for directory in (tmp_path, whole(*shape))]
  assert metrics[0] == metrics[1]
  assert [line['step'] for line in metrics[0]] == [1, 2, 3, 3, 4, 5, 6, 6]


def test_from_four_devices_to_one_and_back(whole, tmp_path, monkeypatch):
  stop_after(monkeypatch, 2, tiny_runs.run(tmp_path, shape=(1, 2, 2)))
  stop_after(monkeypatch, 4, tiny_runs.run(tmp_path))
  loop.train(tiny_runs.run(tmp_path, shape=(1, 2, 2)))
  assert_close(final(tmp_path), final(whole()))


def test_networks_trained_together_are_those_trained_alone(whole, tmp_path, monkeypatch):
  """Also when killed between the saves of two networks, the very first ones too."""
  stop_after(monkeypatch, 0, tiny_runs.run(tmp_path, seeds=(2, 3)))
  (tmp_path / 'seed_3' / '0').rename(tmp_path / 'seed_3' / '0.orbax-checkpoint-tmp')
  stop_after(monkeypatch, 4, tiny_runs.run(tmp_path, seeds=(2, 3)))
  (tmp_path / 'seed_3' / '4').rename(tmp_path / 'seed_3' / '4.orbax-checkpoint-tmp')
  loop.train(tiny_runs.run(tmp_path, seeds=(2, 3)))
  assert_close(final(tmp_path), final(whole()))
  different = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), final(tmp_path, 2), final(tmp_path))
  assert different['embedding'] > 0.01


def test_a_signal_saves_first(tmp_path, monkeypatch):
  add = monitor.Monitor.add

  def add_and_interrupt(self, step, metrics):
    add(self, step, metrics)
    if step == 3:
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(monitor.Monitor, 'add', add_and_interrupt)
  with pytest.raises(KeyboardInterrupt):
    loop.train(tiny_runs.run(tmp_path))
  assert checkpoint.steps(tmp_path / 'seed_3') == [0, 2, 3]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
  with pytest.raises(InputError, match=r'is (nan|inf) at step [3-6] of .*seed_3'):
    loop.train(tiny_runs.run(tmp_path, recipe=dict(peak_lr=1e30)))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(final(tmp_path)))


def test_where_a_run_begins(whole, tmp_path):
  """Own folder, then resume, then init_from, then the seed."""
  parent = whole()
  started = lambda **source: loop.begin(tiny_runs.run(tmp_path / 'new', recipe=dict(num_steps=8), **source))
  last = final(parent)
  (state, _), = [started(resume=parent, init_from=parent / 'seed_3')]
  jax.tree.map(np.testing.assert_array_equal, state.params, last)
  assert int(state.step) == 6 and float(state.opt_state[1][0].mu['embedding'].std()) > 0
  state, (story,) = started(init_from=parent)
  jax.tree.map(np.testing.assert_array_equal, state.params, last)
  assert int(state.step) == 0 and float(state.opt_state[1][0].mu['embedding'].std()) == 0
  assert (story['seed'], story['step'], story['checksum']) == (3, 6, int(checkpoint.checksum(last)))
  state, parents = started()
  np.testing.assert_array_equal(state.params['embedding'],
                                checkpoint.load_params(parent / 'seed_3', 0)[1]['embedding'])
  assert parents == [None]
  loop.train(tiny_runs.run(tmp_path / 'new', recipe=dict(num_steps=8), init_from=parent))
  assert int(started(init_from=parent)[0].step) == 8


def test_onwards_from_a_transformers_directory(whole, tmp_path):
  config, params = checkpoint.load_params(whole() / 'seed_3')
  huggingface.save(tmp_path / 'exported', config, params)
  state, _ = loop.begin(tiny_runs.run(tmp_path / 'new', init_from=tmp_path / 'exported'))
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  other = dataclasses.replace(tiny_runs.CONFIG, mlp_width=32)
  with pytest.raises(InputError, match='mlp_width=64, not 32'):
    loop.begin(tiny_runs.run(tmp_path / 'new', config=other, init_from=tmp_path / 'exported'))


@pytest.mark.parametrize('change, message', [
    (dict(recipe=dict(peak_lr=1e-3)), 'peak_lr=0.01, not 0.001'),
    (dict(data=tiny_runs.tokens(2)), 'digest=digest 0, not digest 2'),
    (dict(data_seed=6), 'data_seed=5, not 6'),
    (dict(config=dataclasses.replace(tiny_runs.CONFIG, rope_theta=5.0)), 'rope_theta=10000.0, not 5.0'),
    (dict(init_from=HERE), 'init_from or resume=None'),
])
def test_the_folder_of_another_run_is_refused(whole, change, message):
  with pytest.raises(InputError, match=f'seed_3 holds a run with .*{message}'):
    loop.begin(tiny_runs.run(whole(), **change))


def test_what_may_change_between_stop_and_resume(whole):
  remat = dataclasses.replace(tiny_runs.CONFIG, remat='full')
  state, _ = loop.begin(tiny_runs.run(whole(), config=remat, recipe=dict(accumulation=2)))
  assert int(state.step) == 6


@pytest.mark.parametrize('change, message', [
    (dict(shape=(4, 1, 1), recipe=dict(batch_size=6)), 'choose a multiple of 4'),
    (dict(shape=(2, 1, 1), recipe=dict(accumulation=8)), 'choose a multiple of 16'),
    (dict(shape=(2, 1, 1), seeds=(1, 2)), '2 networks train together on one device only; here are 2'),
    (dict(recipe=dict(length=4096)), 'length=4096 exceeds'),
    (dict(seeds=(1, 1)), 'has one of them twice'),
    (dict(seeds=(2**32,)), 'seed 4294967296 is not'),
    (dict(save_every=0), 'save_every=0 must be a whole number'),
])
def test_impossible_runs_are_refused(tmp_path, change, message):
  with pytest.raises(InputError, match=message):
    tiny_runs.run(tmp_path, **change)


@pytest.mark.parametrize('change, message', [
    (dict(config=dataclasses.replace(tiny_runs.CONFIG, vocab_size=40)), 'outside the vocabulary of 40'),
    (dict(data=tiny_runs.tokens(count=10)), '10 tokens are too few'),
    (dict(validation=tiny_runs.tokens(count=10)), '10 tokens are too few'),
    (dict(resume=HERE), 'no checkpoint to resume from'),
    (dict(init_from=HERE), 'config.json'),
])
def test_a_run_that_cannot_begin_leaves_no_checkpoint(tmp_path, change, message):
  with pytest.raises(InputError, match=message):
    loop.train(tiny_runs.run(tmp_path, **change))
  assert not checkpoint.steps(tmp_path / 'seed_3')


def launch(directory, num_steps, *distributed, devices=1):
  environment = os.environ | {'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}'}
  return subprocess.Popen([sys.executable, HERE / 'tiny_runs.py', directory, str(num_steps), *distributed],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process):
  while not condition() and process.poll() is None:
    time.sleep(0.002)


@pytest.mark.parametrize('kills', [int(os.environ.get('KILLS', 1))])
def test_killed_at_random_moments_nothing_is_lost(tmp_path, kills):
  """Saves are made at every step, so that most kills come in the middle of one."""
  directory, run, num_steps = tmp_path / 'run', tmp_path / 'run' / 'seed_3', 30 * kills
  delays = np.random.default_rng(kills).uniform(0, 1.0, kills)
  for delay in delays:
    before = checkpoint.steps(run)
    process = launch(directory, num_steps)
    wait_for(lambda before=before: checkpoint.steps(run)[-1:] > before[-1:], process)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    saved = checkpoint.steps(run)
    story, _ = checkpoint.restore(run, lambda story: {}, saved)
    assert story['step'] == saved[-1] >= (before or [0])[-1]
    checkpoint.load_params(run, saved[-1])
  _, error = launch(directory, num_steps).communicate()
  assert checkpoint.steps(run)[-1] == num_steps, error
  loop.train(tiny_runs.run(tmp_path / 'whole', recipe=dict(num_steps=num_steps), save_every=num_steps))
  assert optimizer_checksum(directory) == optimizer_checksum(tmp_path / 'whole')


def test_two_processes_train_as_one(tmp_path):
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{free.getsockname()[1]}'
  processes = [launch(tmp_path / 'pair', 6, address, '2', str(i), devices=2) for i in range(2)]
  outputs = [process.communicate() for process in processes]
  assert [process.returncode for process in processes] == [0, 0], outputs
  loop.train(tiny_runs.run(tmp_path / 'one', shape=(2, 2, 1), save_every=1))
  assert_close(final(tmp_path / 'pair'), final(tmp_path / 'one'))
  lines = (tmp_path / 'pair' / 'seed_3' / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['step'] for line in lines] == [1, 2, 3, 3, 4, 5, 6, 6]
  assert [output[1].count('6/6') > 0 for output in outputs] == [True, False]
