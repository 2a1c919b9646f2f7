"""Networks born with and without the bias: same weights, same data, compared seed by seed."""

import json
import shutil

import numpy as np
import pytest

from bornbiased_jax.storage import checkpoint
from experiments import born_unbiased
from experiments.shared.settings import resolve
import tiny_runs

pytestmark = pytest.mark.slow

one_device = tiny_runs.one_device


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  directory = tmp_path_factory.mktemp('born_unbiased')
  settings = resolve(born_unbiased.Settings, 'smoke', batch_size='2', keep_steps='none',
                     config='tiny_gpt2,mlp_width=256,num_heads=2,width=64')
  born_unbiased.main(settings, directory)
  return settings, directory, json.loads((directory / 'results.json').read_text())


def test_every_network_and_step_has_a_row(run):
  _, directory, results = run
  assert {(row['init'], row['seed'], row['step']) for row in results['rows']} == {
      (init, seed, step) for init in ('gpt2', 'centred') for seed in (42, 43) for step in (0, 6)}
  assert (directory / 'figure.png').exists()


def test_both_are_born_with_the_same_weights(run):
  _, directory, _ = run
  own, centred = (checkpoint.load_params(directory / init / 'seed_42', 0)[1]
                  for init in ('gpt2', 'centred'))
  np.testing.assert_array_equal(own['embedding'], centred['embedding'])
  for part in ('query', 'up', 'down'):
    np.testing.assert_array_equal(own['blocks'][part]['kernel'], centred['blocks'][part]['kernel'])
  assert not own['blocks']['down']['bias'].any() and centred['blocks']['down']['bias'].all()


def test_at_birth_one_of_them_is_biased(run):
  at_start = {(row['init'], row['seed']): row for row in run[2]['rows'] if row['step'] == 0}
  for seed in (42, 43):
    own, centred = at_start['gpt2', seed], at_start['centred', seed]
    assert own['cosine'] > 0.1 and own['cosine'] > 2 * centred['cosine']
    for row in (own, centred):
      assert (row['tau'], row['birth_overlap']) == pytest.approx((1, 1), abs=1e-5)
      assert row['z'] > 20 > 5 > abs(row['control_z'])


def test_differences_are_paired_by_seed(run):
  rows = {(row['init'], row['seed']): row['z'] for row in run[2]['rows'] if row['step'] == 6}
  summary = next(row for row in run[2]['summary']
                 if (row['step'], row['init']) == (6, 'difference'))
  paired = [rows['centred', seed] - rows['gpt2', seed] for seed in (42, 43)]
  assert summary['z'] == pytest.approx(np.mean(paired))
  assert summary['z_both'] == pytest.approx(paired)


@pytest.mark.parametrize('kept', ['*', 'results.json'])
def test_the_same_command_trains_and_measures_nothing_twice(kept, run, tmp_path):
  settings, directory, results = run
  for path in directory.glob(kept):  # Of a downloaded folder there may be no checkpoints.
    (tmp_path / path.name).symlink_to(path) if path.is_dir() else shutil.copy(path, tmp_path)
  born_unbiased.main(settings, tmp_path)
  assert json.loads((tmp_path / 'results.json').read_text()) == results
  assert (tmp_path / 'centred').exists() == (kept == '*')
