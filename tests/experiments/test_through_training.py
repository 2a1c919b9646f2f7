"""A run is followed through its checkpoints, which are measured as each alone would be."""

import json

import numpy as np
import pytest

from bornbiased_jax import analysis, lineage
from bornbiased_jax.errors import InputError
from bornbiased_jax.training import loop
from experiments import through_training
from experiments.shared.settings import resolve
import tiny_runs
from tiny_runs import one_device  # noqa: F401

STEPS = [0, 2, 4, 6]


@pytest.fixture(scope='module')
def trained(tmp_path_factory, one_device):  # noqa: F811
  run = tiny_runs.run(tmp_path_factory.mktemp('runs'), seeds=(3, 4), keep_steps=tuple(STEPS))
  loop.train(run)
  return run


@pytest.mark.slow
def test_the_step_of_several_networks_was_compiled_once(trained):
  assert loop.compiled_step(trained)._cache_size() == 1


@pytest.fixture(scope='module')
def followed(trained):
  """Two runs of one architecture, and what the program says of them."""
  folder = trained.directory
  runs = [f'{folder}/seed_{seed}' for seed in (3, 4)]
  settings = resolve(through_training.Settings, 'smoke', words=runs)
  through_training.main(settings, folder / 'results')
  return runs, settings, folder / 'results'


@pytest.mark.slow
def test_every_checkpoint_has_what_it_has_alone(followed):
  runs, settings, folder = followed
  rows = json.loads((folder / 'results.json').read_text())['rows']
  assert [(row['run'], row['step']) for row in rows] == [
      (run, step) for run in runs for step in STEPS]
  probe = analysis.Probe('tokens', settings.num_sequences, settings.length)
  for row in (rows[0], rows[-1]):
    config, params = lineage.load(f'{row["run"]}@{row["step"]}')
    tokens_NT = probe.inputs(config, np.arange(settings.num_sequences))
    rate = analysis.sink_rate(config, params, tokens_NT).rate
    assert row['sink_rate'] == pytest.approx(rate, abs=0.01)
    own, = analysis.measure([(config, params)], analysis.inter_sequence('hidden_last'), probe)
    assert row['cosine'] == pytest.approx(float(own['cosine']), abs=1e-5)
  overlaps = np.reshape([row['overlap'] for row in rows], (2, len(STEPS)))
  np.testing.assert_allclose(overlaps[:, 0], 1, rtol=1e-5)
  assert np.all(overlaps[:, 1:] < 0.9999)


@pytest.mark.slow
def test_drawn_again_it_is_the_same(followed):
  _, settings, folder = followed
  before = (folder / 'results.json').read_bytes()
  through_training.main(settings, folder)
  assert (folder / 'results.json').read_bytes() == before
  assert (folder / 'figure.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize('words, flags, named', [
    ([], {}, 'name the folders'), (['.'], {}, 'no checkpoint')])
def test_what_is_no_run_is_refused(words, flags, named, tmp_path):
  settings = resolve(through_training.Settings, 'smoke', words=words, **flags)
  with pytest.raises(InputError, match=named):
    through_training.main(settings, tmp_path / 'results')
  assert not (tmp_path / 'results').exists()


@pytest.mark.slow
def test_results_of_a_run_that_has_trained_on_are_not_given_again(followed):
  """A folder of results has no row of the new checkpoint."""
  _, settings, folder = followed
  fewer = [each for each in through_training.checkpoints_of(settings) if each[2] != STEPS[1]]
  results = through_training.Results(folder, 'through_training', settings)
  with pytest.raises(InputError, match='choose another folder'):
    results.read_from(f'{run}@{step}' for _, run, step in fewer)
