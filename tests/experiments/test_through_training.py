"""A run is followed through its checkpoints, which are measured as each by itself would be."""

import shutil

import numpy as np
import pytest

from bornbiased_jax import analysis, configs, models, storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
import programs
from programs import results_of

pytestmark = pytest.mark.slow


def test_every_checkpoint_has_what_it_has_by_itself(small):
  results = results_of(small('through_training'))
  runs, settings = results['settings']['runs'], results['settings']
  *given, one, two = results['rows']
  assert [(row['run'], row['step']) for row in given] == [
      (run, step) for run in runs for step in (0, 3, 6)]
  probe = analysis.Probe('tokens', settings['num_sequences'], settings['length'])
  config, params = storage.open(f'{given[-1]["run"]}@{given[-1]["step"]}').load()
  tokens_NT = probe.inputs(config, np.arange(settings['num_sequences']))
  rate = analysis.sink_rate(config, params, tokens_NT).rate
  assert given[-1]['sink_rate'] == pytest.approx(rate, abs=0.01)
  own, = analysis.measure([(config, params)], analysis.inter_sequence('hidden_last'), probe)
  assert given[-1]['cosine'] == pytest.approx(float(own['cosine']), abs=1e-5)
  overlaps = np.reshape([row['overlap'] for row in given], (2, 3))
  np.testing.assert_allclose(overlaps[:, 0], 1, rtol=1e-5)
  assert np.all(overlaps[:, 1:] < 0.9999)
  drawn = analysis.measure(analysis.transformer(config), analysis.inter_sequence('hidden_last'),
                           probe, seeds=settings['seeds'])
  cosines = [float(each['cosine']) for each in drawn]
  assert [one['cosine'], two['cosine']] == pytest.approx(cosines, abs=1e-5)
  random, theory, chance = results['summary'][-3:]
  assert random['cosine'] == pytest.approx(np.mean(cosines), abs=1e-5)
  assert theory['cosine'] == pytest.approx(float(analysis.theory.finite_width(
      config, settings['length']).inter_cosine_L[-1]))
  # Of 20 draws of 257 ids the commonest is nearly always drawn twice.
  assert chance['top1_frequency'] == pytest.approx(2 / 20, abs=0.02)


def test_a_folder_of_checkpoints_and_one_model_of_transformers(tmp_path, capsys):
  config = configs.get('tiny_llama2', num_layers=1, num_heads=2, width=32, mlp_width=48,
                       vocab_size=60, norm_place='both', activation='gelu_tanh',
                       scaled_embedding=True, head_size=16)
  for step in (0, 20, 100):
    huggingface.save(tmp_path / f'trained/checkpoint-{step}', config,
                     models.init_params(config, step))
  (tmp_path / 'trained/runs').mkdir()
  one = str(tmp_path / 'trained/checkpoint-20')
  content = programs.run('through_training', tmp_path / 'out', str(tmp_path / 'trained'), one)
  rows = content['summary']
  assert [(row['run'], row.get('step')) for row in rows[:4]] == [
      (str(tmp_path / 'trained'), step) for step in (0, 20, 100)] + [(one, None)]
  assert rows[1]['cosine'] == pytest.approx(rows[3]['cosine'], abs=1e-6)
  assert 'does not know norm_place' in rows[5]['run'] and 'cosine' not in rows[5]
  assert 'nan' not in capsys.readouterr().out


def test_results_of_a_run_that_has_trained_on_are_not_given_again(small, tmp_path):
  """A folder of results has no row of the new checkpoint."""
  run = shutil.copytree(small('training_study') / 'english' / 'seed_42', tmp_path / 'run')
  shutil.move(run / '3', tmp_path)
  programs.run('through_training', tmp_path / 'out', str(run))
  shutil.move(tmp_path / '3', run)
  with pytest.raises(InputError, match='choose another folder'):
    programs.run('through_training', tmp_path / 'out', str(run))
