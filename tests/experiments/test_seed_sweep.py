"""The seed sweep as its users run it. That it goes on where it stopped is in test_cells."""

import json
from pathlib import Path
import types

import numpy as np
import pytest
import scipy

from bornbiased_jax import configs
from bornbiased_jax.analysis import probes
from bornbiased_jax.models.initialization import init_params
from experiments import seed_sweep
from experiments.shared.settings import resolve
import small_networks

pytestmark = pytest.mark.slow

ROW_FIELDS = {'seed', 'length', 'top1_id', 'top1_count', 'top1_frequency', 'baseline_ratio',
              'log10_p', 'inter_sequence_cosine', 'direction_top1_id'}
CONFIG = 'tiny_gpt2,num_layers=2,mlp_width=64,vocab_size=512'
SMALL = dict(config=CONFIG, seeds='0-23', num_sequences='100')


def smoke(directory, **settings):
  seed_sweep.main(resolve(seed_sweep.Settings, 'smoke', **settings), Path(directory))
  return json.loads((Path(directory) / 'results.json').read_text())


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
  directory = tmp_path_factory.mktemp('undisturbed')
  return directory, smoke(directory, **SMALL)


def test_writes_a_row_for_each_seed_and_length(undisturbed):
  directory, results = undisturbed
  assert results['complete']
  assert [(row['length'], row['seed']) for row in results['rows']] == [
      (t, s) for t in (4, 8) for s in range(24)]
  assert all(ROW_FIELDS <= set(row) for row in results['rows'])
  assert {'jax', 'backend', 'device'} <= set(results['environment'])
  assert (directory / 'figure.png').read_bytes().startswith(b'\x89PNG')


def test_of_a_text_its_own_theory_is_asked(monkeypatch):
  asked = []
  found = types.SimpleNamespace(**dict.fromkeys(
      ('top1_frequency_N', 'direction_agrees_N', 'same_token_N'), np.ones(2)))
  monkeypatch.setattr(seed_sweep.measurements.theory, 'preference_at_initialization',
                      lambda *of, **more: asked.append(of[-1]) or found)
  settings = resolve(seed_sweep.Settings, 'smoke', **SMALL | dict(
      probe='text', data='tinyshakespeare', lengths='8'))
  cell = seed_sweep.transformer_cell(CONFIG, 8, settings, seed_sweep.measurements.preference, None)
  assert seed_sweep.predicted(8, cell)['theory_cosine'] > 0.3  # Random tokens would have 0.07.
  assert asked == [cell.probe]


def row_of(results, seed, length):
  return next(row for row in results['rows'] if (row['seed'], row['length']) == (seed, length))


def test_a_row_equals_a_plain_recomputation(undisturbed):
  _, results = undisturbed
  row = row_of(results, 2, 8)
  config = configs.get(CONFIG)
  params = init_params(config, 2, embedding_seed=0)
  tokens = probes.Probe('tokens', 100, 8).inputs(config, np.arange(100))
  plain = small_networks.read(config, params, tokens, 'logits', 'hidden_last')
  count = np.bincount(plain['logits'][:, -1].argmax(-1), minlength=config.vocab_size)
  assert (row['top1_id'], row['top1_count']) == (count.argmax(), count.max())
  hidden = np.asarray(plain['hidden_last'])
  direction = (hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)).mean(0)
  assert row['direction_top1_id'] == (np.asarray(params['embedding']) @ direction).argmax()
  np.testing.assert_allclose(row['direction'], direction / np.linalg.norm(direction), atol=6e-5)


def test_the_cosine_of_directions_at_two_lengths_is_a_mean_over_networks(undisturbed):
  _, results = undisturbed
  short, long = ([row_of(results, seed, length)['direction'] for seed in range(24)]
                 for length in (4, 8))
  cosine = 1 - np.mean([scipy.spatial.distance.cosine(*pair)
                        for pair in zip(short, long, strict=True)])
  assert 0.5 < cosine < 1
  assert results['summary'][1]['direction_cosine'] == pytest.approx(cosine, abs=1e-3)
  assert 'direction_cosine' not in results['summary'][0]


def test_a_run_that_has_kept_no_directions_is_shown_without_their_cosine(undisturbed):
  _, results = undisturbed
  rows = [{name: field for name, field in row.items() if name != 'direction'}
          for row in results['rows']]
  theory = {(CONFIG, row['length']): {
      name: value for name, value in row.items() if name.startswith('theory')}
            for row in results['summary']}
  summary = seed_sweep.summarize(rows, theory)
  assert not any('direction_cosine' in row for row in summary)
  assert all(seed_sweep.display(row)['its cosine with shortest T'] == '–' for row in summary)
