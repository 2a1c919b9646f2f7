"""A run is followed through its checkpoints, which are measured as each by itself would be."""

import shutil

import numpy as np
import pytest

from bornbiased_jax import analysis, storage
from bornbiased_jax.errors import InputError
import programs
from programs import results_of

pytestmark = pytest.mark.slow


def test_every_checkpoint_has_what_it_has_by_itself(small):
  results = results_of(small('through_training'))
  runs, settings = results['settings']['runs'], results['settings']
  assert [(row['run'], row['step']) for row in results['rows']] == [
      (run, step) for run in runs for step in (0, 3, 6)]
  probe = analysis.Probe('tokens', settings['num_sequences'], settings['length'])
  for row in (results['rows'][0], results['rows'][-1]):
    config, params = storage.open(f'{row["run"]}@{row["step"]}').load()
    tokens_NT = probe.inputs(config, np.arange(settings['num_sequences']))
    rate = analysis.sink_rate(config, params, tokens_NT).rate
    assert row['sink_rate'] == pytest.approx(rate, abs=0.01)
    own, = analysis.measure([(config, params)], analysis.inter_sequence('hidden_last'), probe)
    assert row['cosine'] == pytest.approx(float(own['cosine']), abs=1e-5)
  overlaps = np.reshape([row['overlap'] for row in results['rows']], (2, 3))
  np.testing.assert_allclose(overlaps[:, 0], 1, rtol=1e-5)
  assert np.all(overlaps[:, 1:] < 0.9999)


def test_results_of_a_run_that_has_trained_on_are_not_given_again(small, tmp_path):
  """A folder of results has no row of the new checkpoint."""
  run = shutil.copytree(small('training_study') / 'english' / 'seed_42', tmp_path / 'run')
  shutil.move(run / '3', tmp_path)
  programs.run('through_training', tmp_path / 'out', str(run))
  shutil.move(tmp_path / '3', run)
  with pytest.raises(InputError, match='choose another folder'):
    programs.run('through_training', tmp_path / 'out', str(run))
