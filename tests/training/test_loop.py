"""Runs that are stopped, killed, moved to other devices or made together end as whole ones do.

That of two processes is in test_hosts.
"""

import dataclasses
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bornbiased_jax import data, models
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training import loop, monitor
import tiny_runs
from tiny_runs import final, stop_after
import two_hosts

HERE = Path(__file__).parents[1]


@jax.jit
def loss(params, ids_NT):
  return models.next_token_loss(tiny_runs.CONFIG, params, ids_NT)


def saved_digests(directory, seed=3):
  directory = directory / f'seed_{seed}'
  metadata, _ = checkpoint.restore(directory, lambda metadata: {}, checkpoint.steps(directory))
  return metadata['step'], metadata['digests']


def assert_close(a, b):
  # Adam divides by a root of squares, so that the rounding of a small gradient grows a
  # thousandfold.
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=2e-4), a, b)


@pytest.mark.slow
def test_stop_and_resume_is_not_stopping_bit_for_bit(whole, tmp_path, monkeypatch):
  """On one device the run that is killed shows the same."""
  shape = 2, 2, 1
  stop_after(monkeypatch, 4, tiny_runs.run(tmp_path, shape=shape))
  loop.train(tiny_runs.run(tmp_path, shape=shape))
  jax.tree.map(np.testing.assert_array_equal, final(tmp_path), final(whole(*shape)))
  assert saved_digests(tmp_path) == saved_digests(whole(*shape))
  metrics = [[{**line, 'seconds': None} for line in monitor.read(directory / 'seed_3')]
             for directory in (tmp_path, whole(*shape))]
  assert metrics[0] == metrics[1]
  assert [line['step'] for line in metrics[0]] == [1, 2, 3, 3, 4, 5, 6, 6]


@pytest.mark.slow
def test_from_four_devices_to_one_and_back(whole, tmp_path, monkeypatch):
  stop_after(monkeypatch, 2, tiny_runs.run(tmp_path, shape=(2, 2, 1)))
  stop_after(monkeypatch, 4, tiny_runs.run(tmp_path))
  loop.train(tiny_runs.run(tmp_path, shape=(2, 2, 1)))
  assert_close(final(tmp_path), final(whole()))


def test_every_sequence_begins_with_the_start_token(tmp_path):
  plain, begun = (tiny_runs.run(tmp_path, recipe=dict(start_id=each), validation_sequences=12)
                  for each in (None, 7))
  plain_BT, begun_BT = (np.asarray(loop.batch_at(run, 3)) for run in (plain, begun))
  assert (begun_BT[:, 0] == 7).all() and (plain_BT[:, 0] != 7).any()
  np.testing.assert_array_equal(begun_BT[:, 1:], plain_BT[:, 1:])
  params = models.init_params(tiny_runs.CONFIG, 3)
  windows_NT = np.lib.stride_tricks.sliding_window_view(tiny_runs.tokens(1).tokens, 17)[::16]
  # More than a batch, so that the last part is a smaller one.
  windows_NT = windows_NT[np.arange(12) * len(windows_NT) // 12]
  windows_NT = np.concatenate([np.full((12, 1), 7), windows_NT[:, 1:]], axis=1)
  expected = float(loss(params, windows_NT.astype(np.int32)))
  assert loop.evaluate(begun, params) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize('count', [3, 10])
def test_validation_is_of_the_same_sequences_on_any_devices(count, tmp_path):
  """Also of those that are left over when they are shared."""
  params = models.init_params(tiny_runs.CONFIG, 3)
  losses = [loop.evaluate(tiny_runs.run(tmp_path, shape=shape, validation_sequences=count), params)
            for shape in ((), (4, 1, 1), (2, 2, 1))]
  np.testing.assert_allclose(losses, losses[:1] * 3, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_networks_trained_together_are_those_trained_alone(whole, tmp_path, monkeypatch):
  """This holds even if the run is killed between the first, or later, saves of two networks."""
  stop_after(monkeypatch, 0, tiny_runs.run(tmp_path, seeds=(2, 3)))
  (tmp_path / 'seed_3' / '0').rename(tmp_path / 'seed_3' / '0.orbax-checkpoint-tmp')
  stop_after(monkeypatch, 4, tiny_runs.run(tmp_path, seeds=(2, 3)))
  (tmp_path / 'seed_3' / '4').rename(tmp_path / 'seed_3' / '4.orbax-checkpoint-tmp')
  loop.train(tiny_runs.run(tmp_path, seeds=(2, 3)))
  assert_close(final(tmp_path), final(whole()))
  two, three = final(tmp_path, 2), final(tmp_path)
  assert float(np.abs(two['embedding'] - three['embedding']).max()) > 0.01


def test_a_signal_saves_first(tmp_path, monkeypatch):
  """What was trained is kept: its first step has the loss of the seed's network on batch 0."""
  add = monitor.Monitor.add

  def add_and_interrupt(self, step, metrics):
    add(self, step, metrics)
    if step == 3:
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(monitor.Monitor, 'add', add_and_interrupt)
  with pytest.raises(KeyboardInterrupt):
    loop.train(tiny_runs.run(tmp_path))
  assert checkpoint.steps(tmp_path / 'seed_3') == [0, 2, 3]
  _, params = checkpoint.load_params(tmp_path / 'seed_3', 0)
  ids_NT = data.batch(tiny_runs.tokens().tokens, 5, 0, batch_size=8, length=16)
  assert monitor.read(tmp_path / 'seed_3')[0]['loss'] == pytest.approx(
      float(loss(params, ids_NT)), abs=1e-5)


@pytest.mark.parametrize('change, message', [
    (dict(config=dataclasses.replace(tiny_runs.CONFIG, vocab_size=40)),
     'outside the vocabulary of 40'),
    (dict(config=dataclasses.replace(tiny_runs.CONFIG, num_experts=4)),
     'experts_per_token=1 with renormalized_experts=True'),
    (dict(data=tiny_runs.tokens(count=10)), 'has 10 tokens, fewer than one sequence'),
    (dict(validation=tiny_runs.tokens(count=10)), 'has 10 tokens, fewer than one sequence'),
    (dict(resume=HERE), 'no checkpoint'), (dict(init_from=HERE), 'no checkpoint'),
])
def test_a_run_that_cannot_begin_leaves_no_checkpoint(tmp_path, change, message):
  with pytest.raises(InputError, match=message):
    loop.train(tiny_runs.run(tmp_path, **change))
  assert not checkpoint.steps(tmp_path / 'seed_3')


def launch(directory, num_steps):
  command = [sys.executable, HERE / 'tiny_runs.py', directory, str(num_steps)]
  return subprocess.Popen(command, env=two_hosts.with_devices(1), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)


def wait_for(condition, process):
  while not condition() and process.poll() is None:
    time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize('kills', [int(os.environ.get('KILLS', 1))])
def test_killed_at_random_moments_nothing_is_lost(tmp_path, kills):
  """The run saves at every step, so that most kills come in the middle of a save."""
  directory, run, num_steps = tmp_path / 'run', tmp_path / 'run' / 'seed_3', 15 * kills
  delays = np.random.default_rng(kills).uniform(0, 0.5, kills)
  for delay in delays:
    before = checkpoint.steps(run) or [0]  # Before its first step there is nothing to lose.
    process = launch(directory, num_steps)
    wait_for(lambda before=before: checkpoint.steps(run)[-1:] > before[-1:], process)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    saved = checkpoint.steps(run)
    metadata, _ = checkpoint.restore(run, lambda metadata: {}, saved)
    assert metadata['step'] == saved[-1] >= before[-1]
    checkpoint.load_params(run, saved[-1])
  for folder, save_every in ((directory, 1), (tmp_path / 'whole', num_steps)):
    loop.train(tiny_runs.run(folder, recipe=dict(num_steps=num_steps), save_every=save_every))
  assert checkpoint.steps(run)[-1] == num_steps
  assert saved_digests(directory) == saved_digests(tmp_path / 'whole')
