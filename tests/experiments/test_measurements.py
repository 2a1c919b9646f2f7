"""The loop over cells and seeds: what it measures, in which chunks, and what it leaves out."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis import StackConfig, ensemble, inter_sequence
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import flops
from experiments import ablation
from experiments.shared import base_settings, measurements, settings
from experiments.shared.results import Results
from experiments.shared.settings import resolve


class Settings(base_settings.Stacks):
  seeds: list[int] = settings.setting([3, 1, 2, 0])
  num_sequences: int = settings.setting(6)


SETTINGS = Settings('laptop')


def row(measured):
  return {'cosine': measured['cosine']}


def stacks():
  """Two cells, of one and of two layers; the second has seeds of its own."""
  statistic = inter_sequence('residual_last')
  one, two = (measurements.stack_cell({'layers': depth}, StackConfig(('mlp',) * depth, 8, 8), 2,
                                      SETTINGS, statistic, row) for depth in (1, 2))
  return [one, two._replace(seeds=[7, 5])]


def measured(directory, **changed):
  results = Results(directory, 'stacks', SETTINGS)
  measurements.measure_cells(stacks(), dataclasses.replace(SETTINGS, **changed), results)
  return results


@pytest.fixture
def asked(monkeypatch):
  """The seeds that `ensemble.measure` is asked for, one list per call."""
  calls, measure = [], ensemble.measure

  def spy(network, statistic, probe, seeds, **how):
    calls.append(list(seeds))
    return measure(network, statistic, probe, seeds, **how)

  monkeypatch.setattr(ensemble, 'measure', spy)
  return calls


@pytest.mark.slow
def test_chunks_that_lack_a_row_are_measured_again_as_a_whole(tmp_path, asked):
  chunk_size = jax.device_count()
  seeds = list(range(2 * chunk_size))
  sizes = dict(batch_size=4, chunk_size=chunk_size, seeds=seeds)
  whole = measured(tmp_path / 'whole', **sizes).rows
  assert asked == [seeds, [7, 5]]
  partial = Results(tmp_path / 'partial', 'stacks', SETTINGS)
  there = [row | {'marked': True} for row in whole[:chunk_size + 1]]
  for row in there:
    partial.add(row)
  asked.clear()
  measurements.measure_cells(stacks(), dataclasses.replace(SETTINGS, **sizes), partial)
  assert asked == [seeds[chunk_size:], [7, 5]]
  assert partial.rows == there + whole[chunk_size + 1:]
  asked.clear()
  measurements.measure_cells(stacks(), dataclasses.replace(SETTINGS, **sizes), partial)
  assert asked == []


def test_an_interrupted_run_keeps_what_it_has_measured(tmp_path, monkeypatch):
  results = Results(tmp_path, 'stacks', SETTINGS)
  first, add = [], results.add

  def add_and_stop(row):
    if len(first) == 3:
      raise KeyboardInterrupt
    first.append(row)
    add(row)

  monkeypatch.setattr(results, 'add', add_and_stop)
  with pytest.raises(KeyboardInterrupt):
    measurements.measure_cells(stacks(), SETTINGS, results)
  kept = json.loads((tmp_path / 'results.json').read_text())
  assert [(row['layers'], row['seed']) for row in kept['rows']] == [(1, 3), (1, 1), (1, 2)]
  assert not kept['complete']


def test_a_transformer_cell_is_what_its_settings_say():
  own = resolve(ablation.Settings, num_sequences='6', embedding_seed='none', dtype='bfloat16')
  cell = measurements.transformer_cell('tiny_gpt2', 5, own, lambda config: config.width, row,
                                sublayers='mlp_only')
  config = configs.get('tiny_gpt2', dtype='bfloat16', length=5, sublayers='mlp_only')
  assert cell.fields == {'config': 'tiny_gpt2', 'length': 5, 'sublayers': 'mlp_only'}
  assert cell.ensemble.config == config and cell.statistic == 128 and cell.readout is None
  assert (cell.probe.kind, cell.probe.num_sequences, cell.probe.length) == ('gaussian', 6, 5)
  assert not cell.probe.of_each
  assert cell.flops == flops.forward_flops(config, 5, num_logits=1)


@pytest.mark.parametrize('length, config, said', [
    (4096, 'tiny_gpt2', 'sequences of up to 4,096 positions: about 17 min to measure\n'),
    (8, 'tiny_gpt2', ''), (8, 'nano_gpt2', '')])
def test_a_long_measurement_is_said_before_it_begins(length, config, said, tmp_path, monkeypatch,
                                                     capsys):
  """At a rate of 200 GFLOP/s a forward pass of 4,096 positions was seen to take some 2 s."""
  monkeypatch.setattr(flops, 'matmul_rate', lambda dtype: 2e11)
  monkeypatch.setattr(measurements, '_measure_cell', lambda *_: None)
  own = resolve(ablation.Settings, 'smoke')
  cells = [measurements.transformer_cell(config, length, own, lambda config: None, row,
                                         sublayers=sublayers) for sublayers in configs.SUBLAYERS]
  measurements.measure_cells(cells, own, Results(tmp_path, 'any', own))
  assert ''.join(line for line in capsys.readouterr().err.splitlines(keepends=True)
                 if 'to measure' in line) == said


def test_windows_that_are_read_twice_are_said(tmp_path, capsys):
  """A text of 30 letters has windows of 12 at 19 places, and one of 1,000 words enough."""
  texts = {'short.txt': 'abcdefghijklmnopqrstuvwxyz1234',
           'long.txt': ' '.join(map(str, range(1000)))}
  for name, text in texts.items():
    (tmp_path / name).write_text(text)
    asked = resolve(base_settings.Transformers, 'laptop', probe='text', data=str(tmp_path / name),
                    num_sequences='15', seeds='0')
    cell = measurements.transformer_cell('tiny_gpt2', 12, asked, lambda config: inter_sequence(
        'residual_last'), row)
    none = dataclasses.replace(asked, seeds=[])
    measurements.measure_cells([cell], none, Results(tmp_path / name[0], 'any', none))
  different = len(set(map(tuple, cell.probe.inputs(cell.ensemble.config, np.arange(15)).tolist())))
  said = capsys.readouterr().out
  assert different == 15 and said.count('short.txt') == 1 and 'long.txt' not in said
  assert 'of 15 windows of 12 tokens' in said


def test_theory_says_nothing_of_what_it_does_not_know(capsys):
  own = resolve(base_settings.Transformers, 'laptop', num_sequences='4', seeds='0')
  known, not_known = (measurements.transformer_cell(name, 3, own, lambda config: None, row)
                      for name in ('tiny_gpt2', 'tiny_gpt2,parallel_residual=true'))
  assert np.isfinite(measurements.predicted_cosine(known)).all()
  cosine_L = measurements.predicted_cosine(not_known)
  assert np.isnan(cosine_L).all() and len(cosine_L) == not_known.ensemble.config.num_layers
  share = measurements.preferred_tokens(not_known.ensemble.config, 4)['theory_top1_frequency']
  assert np.isnan(share)
  assert capsys.readouterr().err.count('no theory: ') == 1


def test_flops_of_a_stack():
  mlp, attention = (
      measurements.stack_cell({}, StackConfig((layer,), 8, 16), 3, SETTINGS, None, row).flops
      for layer in ('mlp', 'attention'))
  assert (mlp, attention) == (3 * 2 * 2 * 8 * 16, 3 * 8)


def test_results_of_a_text_are_not_those_of_another_one_of_its_name(tmp_path):
  file = tmp_path / 'text.txt'
  asked = resolve(base_settings.Transformers, 'laptop', probe='text', data=str(file),
                  num_sequences='4', seeds='0-1')

  def measure(seeds):
    base_settings.load_corpus.cache_clear()
    cell = measurements.transformer_cell('tiny_gpt2', 3, asked, lambda config: inter_sequence(
        'residual_last'), row)
    results = Results(tmp_path, 'any', asked)
    measurements.measure_cells([cell._replace(seeds=seeds)], asked, results)
    return results.rows

  file.write_text('one text ' * 50)
  kept = measure([0])
  assert measure([0]) == kept
  file.write_text('another text ' * 50)
  with pytest.raises(InputError, match='other texts'):
    measure([0, 1])
