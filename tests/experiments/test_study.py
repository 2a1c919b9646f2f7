"""The training study and the experiments that read its checkpoints, at smoke scale."""

import functools
import itertools
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bornbiased_jax import configs, lineage
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.comparison import seedprint
from bornbiased_jax.lineage.evidence.hidden_states import of_seeds
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training import loop
from bornbiased_jax.training.start import begin
from experiments import (
  baselines,
  pretrain,
  robustness,
  seedprint_tables,
  training_study,
)
from experiments.calibrate import __main__ as calibrate
from experiments.calibrate import judged_pairs, report, unrelated_pairs
from experiments.shared import networks, runs
from experiments.shared.settings import resolve
from experiments.small_networks import training as small_training
from programs import TRAINED, results_of
from small_networks import DEEP, DEEP_GPT2
from small_signatures import random_signature

pytestmark = pytest.mark.slow

CONFIG = TRAINED['config']
NUM_SEQUENCES = '200'  # More than twice the width, and so the networks can be compared.


def smoke(experiment, **given):
  fields = experiment.Settings.__dataclass_fields__
  small = {name: value for name, value in (('config', CONFIG), ('num_sequences', NUM_SEQUENCES))
           if name in fields}
  return resolve(experiment.Settings, 'smoke', **small | given)


def pretraining(**given):
  own = {} if given.keys() & {'init_from', 'resume'} else dict(config=CONFIG)
  return resolve(pretrain.Settings, 'smoke', **dict(batch_size='2', length='16') | own | given)


@pytest.fixture
def study(small):
  return small('training_study')


def test_an_adapter_is_trained_from_a_folder_of_runs(study, tmp_path):
  lora, prefix = (runs.runs_of(pretraining(
      seeds='42', init_from=str(study / 'english'), adapter=adapter, **given), tmp_path)[0]
                  for adapter, given in (('lora', dict(rank='2')), ('prefix_plus', {})))
  assert (lora.recipe.adapter, lora.recipe.rank) == ('lora', 2) and not lora.config.prefix_plus
  assert prefix.config.prefix_plus and prefix.recipe.adapter == 'prefix_plus'
  state, (parent,) = begin(lora)
  assert parent['step'] == 6
  jax.tree.map(np.testing.assert_array_equal, state.params,
               checkpoint.load_params(study / 'english' / 'seed_42')[1])


def test_passages_are_spread_over_a_text(tmp_path):
  config = configs.get('tiny_llama2', vocab_size=257)
  text = str(tmp_path / 'text.txt')
  (tmp_path / 'text.txt').write_text('\n'.join(f'{i:07}' for i in range(400)) + '\n')
  read = networks.passages(text, 'bytes', 8, config)
  assert read.shape == (200, 8) and len({tuple(row) for row in read}) == 200
  assert [bytes(map(int, row)).decode() for row in read[[0, -1]]] == ['0000000\n', '0000399\n']
  for message, *arguments in (
      ('has 100 passages of 32 tokens; at least 200', text, 'bytes', 32, config),
      ('--statement_length: 9999 exceeds', text, 'bytes', 9999, config),
      ('--tokenizer: bytes has 257 token ids, the networks 9', text, 'bytes', 8,
       configs.get('tiny_llama2', vocab_size=9)),
      ('--statements: .*nowhere', 'nowhere', 'bytes', 8, config)):
    with pytest.raises(InputError, match=message):
      networks.passages(*arguments)


def test_the_study_leaves_checkpoints_of_known_lineage(study):
  steps = [checkpoint.steps(study / 'english' / f'seed_{seed}') for seed in (42, 43)]
  assert steps == [[0, 3, 6]] * 2
  assert checkpoint.steps(study / 'python' / 'seed_42') == [0, 2, 4]
  parent, child = (checkpoint.load_params(study / phase / 'seed_42', step)[1]
                   for phase, step in (('english', 6), ('python', 0)))
  jax.tree.map(np.testing.assert_array_equal, parent, child)
  metadata, _ = checkpoint.restore(study / 'python' / 'seed_42', lambda metadata: {}, [4])
  assert metadata['parent']['seed'] == 42 and metadata['parent']['step'] == 6
  for phase in ('.', 'english', 'python'):
    assert (study / phase / 'figure.png').stat().st_size > 10000
    for row in results_of(study / phase)['summary']:
      assert row['perplexity'] == pytest.approx(np.exp(row['validation_loss']))
  whole, *phases = (results_of(study / phase)['run']['seconds']
                    for phase in ('.', 'english', 'python'))
  assert whole >= sum(phases) - 0.1


def only_recorded(monkeypatch):
  """Has training change nothing but results.json."""
  monkeypatch.setattr(loop, 'train', lambda run: {})
  monkeypatch.setattr(runs.monitor, 'read', lambda directory: [
      {'step': 6, 'loss': 1.0}, {'step': 6, 'validation_loss': 1.0, 'perplexity': 2.7}])


@pytest.mark.parametrize('complete', [True, False])
def test_results_of_an_earlier_version_without_a_record(tmp_path, monkeypatch, complete):
  only_recorded(monkeypatch)
  monkeypatch.setattr(runs, 'is_trained', lambda *run: complete)
  settings = pretraining(seeds='1')
  (tmp_path / 'results.json').write_text(json.dumps({
      'experiment': 'pretrain', 'settings': vars(runs.recorded(settings)), 'complete': complete}))
  (tmp_path / 'seed_1' / '3').mkdir(parents=True)
  pretrain.main(settings, tmp_path)
  run = results_of(tmp_path)['run']
  assert run is None if complete else run['seconds'] is run['started'] is None


def test_the_time_of_sessions_without_a_record_is_unknown(study, tmp_path, monkeypatch):
  only_recorded(monkeypatch)
  (tmp_path / 'pretrain' / 'seed_1' / '3').mkdir(parents=True)
  for _ in range(2):  # It stays unknown in the next session.
    pretrain.main(pretraining(seeds='1'), tmp_path / 'pretrain')
  shutil.copytree(study / 'english', tmp_path / 'study' / 'english')
  (tmp_path / 'study' / 'english' / 'results.json').unlink()
  settings = smoke(training_study, seeds='42,43', batch_size='2', length='16')
  training_study.main(settings, tmp_path / 'study')
  for folder in ('pretrain', 'study', 'study/english'):
    run = results_of(tmp_path / folder)['run']
    assert run['seconds'] is run['started'] is None
    assert run['commit'].startswith('unknown, ')
  assert results_of(tmp_path / 'study' / 'python')['run']['seconds'] >= 0


def test_a_record_is_kept_as_long_as_its_networks_and_settings(tmp_path, monkeypatch):
  settings, seen = pretraining(seeds='1'), []
  only_recorded(monkeypatch)
  monkeypatch.setattr(loop, 'train', lambda run: seen.append(results_of(tmp_path)) or {})
  pretrain.main(settings, tmp_path)
  done = results_of(tmp_path)
  assert not seen[0]['complete'] and seen[0]['settings'] == done['settings']
  done['run']['seconds'] = 1000.0
  # Other settings, which training may refuse, touch the file only at the end.
  for changed in (dict(data_seed='7'), dict(init_scheme='plain'), {}):
    (tmp_path / 'results.json').write_text(json.dumps(done))
    pretrain.main(pretraining(seeds='1', **changed), tmp_path)
    assert (seen[-1] == done or not changed) and results_of(tmp_path)['run']['seconds'] < 1000


def test_results_have_no_preset_where_the_model_is_the_parents(study):
  config = [results_of(study / phase)['settings']['config'] for phase in ('english', 'python')]
  assert config == [CONFIG, None]


def test_the_studys_bias_persists(small):
  rows = results_of(small('persistence'))['rows']
  english, python = (0, 3, 6), (0, 2, 4)
  assert [(row['seed'], row['phase'], row['step']) for row in rows] == [
      *((42, 'english', step) for step in english), *((42, 'python', step) for step in python),
      *((43, 'english', step) for step in english)]
  for row in rows:
    assert row['own_tau'] > row['control_tau'] + 0.1
    for counted in ('token', 'dimension'):
      assert sum(row[f'largest_{counted}_counts']) == 200
  assert rows[0]['own_tau'] == pytest.approx(1, abs=1e-6)


def test_the_studys_pairs_are_judged(small):
  results = results_of(small('seedprint_tables'))
  judged = {(row['group'], row['related']): (row['pairs'], row['misjudged'])
            for row in results['summary']}
  # Six steps leave descendants that every test finds; the other pairs share nothing.
  assert judged == {('a', False): (2, 0), ('b', True): (5, 0), ('c', False): (2, 0),
                    ('d', False): (1, 0), ('d', True): (1, 0), ('e', False): (1, 0)}
  assert all(row['z'] > 10 for row in results['rows'] if row['related'])


def test_networks_that_went_on_with_several_texts_are_paired(tmp_path):
  steps_of = {'english/seed_1': (0, 5), 'english/seed_2': (0, 5), 'python/seed_1': (0, 3),
              'stories/seed_1': (0, 3), 'stories/seed_2': (0, 3), 'corpora/english': ()}
  for run, steps in steps_of.items():
    for step in steps or ('',):
      (tmp_path / run / str(step)).mkdir(parents=True, exist_ok=True)
  found = seedprint_tables.pairs(SimpleNamespace(study=str(tmp_path), seeds=[1, 2]))
  short = lambda name: name.removeprefix(f'{tmp_path}/').replace('/seed_', '').removesuffix('@3')
  last = [(group, related, short(a).removesuffix('@5'), short(b).removesuffix('@5'))
          for group, related, a, b in found if group in 'de']
  assert last == [
      ('d', False, 'english2', 'english1'),
      ('e', False, 'python1', 'english2'), ('e', False, 'stories1', 'english2'),
      ('e', False, 'stories2', 'english1'),
      ('d', True, 'python1', 'stories1'), ('d', False, 'python1', 'stories2'),
      ('e', False, 'stories1', 'stories2'),
      ('d', True, 'english1', 'python1'), ('d', True, 'english1', 'stories1'),
      ('d', True, 'english2', 'stories2')]
  from_init = [(short(a), short(b)) for group, _, a, b in found if group == 'b']
  assert from_init == [('english1@0', 'english1@5'), ('english2@0', 'english2@5'),
                       ('english1@0', 'python1'), ('english1@0', 'stories1'),
                       ('english2@0', 'stories2')]


def test_every_method_judges_every_pair_of_the_study(small):
  """One method for each thing that methods read."""
  results = results_of(small('baselines'))
  methods = results['settings']['methods']
  # 2 seeds: from init, from the middle, one continued; one pair of either kind of unrelated ones.
  # The continued one also has three changed descendants and one unrelated network.
  assert len(results['rows']) == len(methods) * (2 + 1 + 2 + 1 + 1 + (1 + 3 + 1))
  same = {(row['table'], row['related'], row['method']): row['same'] for row in results['summary']}
  assert same['m', True, 'SeedPrint'] == same['m', True, 'MLP units'] == 1
  assert same['6', True, 'Verdict'] == 1
  assert same['6', False, 'Verdict'] == same['4a', False, 'SeedPrint'] == 0
  changed = {row['suspect'].partition(baselines.AND)[2] for row in results['rows']} - {''}
  assert changed == set(baselines.CHANGED)
  assert all(0.25 <= row['p_value'] <= 1 for row in results['rows'] if row['method'] == 'PCS')
  assert [row['at_disputed'] for row in results['summary']
          if (row['table'], row['method']) == ('4a', 'norm gains')] == [{'0.989': 1}]
  assert ' 100% at 0.989 |' in (small('baselines') / 'table.md').read_text()


def test_robustness_of_random_networks(small):
  summary = results_of(small('robustness'))['summary']
  found = {(row['transform'], row['strength']): row['found'] for row in summary}
  assert list(found) == [('none', None), ('permute units', None), ('quantize', 8), ('quantize', 4)]
  assert found['permute units', None] == {'SeedPrint': 1, 'MLP units': 0, 'Intrinsic': 1}
  assert found['none', None]['MLP units'] == 1
  assert summary[1]['logit_change'] < 1e-4 < summary[3]['logit_change']


def test_robustness_of_networks_that_it_trains_itself(monkeypatch):
  monkeypatch.setattr(small_training, 'STEPS', 15)
  settings = smoke(robustness, transforms='train on', train_steps='2', peak_lr='1e-3')
  originals = robustness.random_networks(settings)
  born = robustness.random_networks(smoke(robustness))
  made = {name: make() for name, _, make in robustness.transforms_of(settings, originals)}
  assert list(made) == ['none', 'train on']
  bases, suspects = made['train on']
  change = lambda a, b: np.abs(a.params['embedding'] - b.params['embedding']).max()
  assert bases is originals and list(suspects) == settings.seeds
  # Adam's first steps are as large as the rate; each run makes two or three of them.
  for seed in settings.seeds:
    assert 0 < change(originals[seed], born[seed]) <= 2 * 1.1e-3
    assert 0 < change(suspects[seed], originals[seed]) <= 3 * 1.1e-3


def test_robustness_of_trained_networks(study, monkeypatch):
  """What only a study has: initializations and continuations as bases and suspects."""
  monkeypatch.setattr(small_training, 'STEPS', 15)
  settings = smoke(robustness, study=str(study), transforms='prune', seeds='42,43')
  originals = robustness.load(settings, '')
  made = {name: make() for name, _, make in robustness.transforms_of(settings, originals)
          if name.startswith('train')}
  assert [list(suspects) for _, suspects in made.values()] == [[42, 43]] * 3 + [[42]]
  bases, adapted = made['train with LoRA']
  change = adapted[42].params['blocks']['up']['kernel'] - bases[42].params['blocks']['up']['kernel']
  assert all(np.linalg.matrix_rank(layer, 1e-5) == 8 for layer in change)
  bases, adapted = made['train with prefix_plus']
  memory = adapted[42].params['blocks']['prefix']['memory']
  assert adapted[42].config.prefix_plus and (np.abs(memory).max(axis=(2, 3)) > 0).all()
  np.testing.assert_array_equal(adapted[42].params['embedding'], bases[42].params['embedding'])
  row = robustness.measure(*made['train from init'], ['PCS'])
  assert len(row['PCS, related']) == len(row['PCS, unrelated']) == 2
  assert row['PCS, related log10 p'] == [None] * 2


@pytest.mark.parametrize('preset, name', [
    ('tiny_gpt2', 'GPT-2'), ('tiny_llama2', 'LLaMA'), ('tiny_qwen2', 'Qwen'),
    ('pythia_70m', 'Pythia')])
def test_an_architecture_has_its_name(preset, name):
  assert calibrate.label(configs.get(preset, width=64)).startswith(f'{name} of width 64')


def test_unrelated_networks_are_calibrated(small):
  results = results_of(small('calibrate'))
  row, judged, order = results['rows']
  assert row['pairs'] == judged['pairs'] == 10 and row['input_shared']
  assert row['calibrated_0.01'] <= row['unprojected_0.01'] and abs(row['mean_z']) < 1.5
  assert 'published_t_0.01' not in judged
  for verdicts in (judged, order):
    assert verdicts['verdict_0.001'] == 0 and 'related' not in verdicts['verdicts']
  found = results['summary'][1]['z_of']
  assert found.keys() == set(judged_pairs.WITH_P_VALUE)
  for name, test in found.items():
    z, p_values = (np.array(judged[field][name]) for field in ('z', 'p_values'))
    assert test['pairs'] == len(z) == 10 and test['max'] == z.max() < 4
    assert test['mean'] == pytest.approx(z.mean()) and test['mean'] < 1.5
    assert [test['p_0.05'], test['p_0.01']] == [sum(p_values <= 0.05), sum(p_values <= 0.01)]


def test_networks_of_several_architectures_are_judged_with_each_other():
  settings = smoke(calibrate, probes='verdict', config='tiny_gpt2,tiny_llama2', widths='16,32',
                   seeds='0-2')
  names = [f'{preset} ({width})' for preset in settings.config for width in settings.widths]
  assert list(calibrate.random_cells(settings)) == [
      f'{name}, gpt2 init, verdict'
      for name in (*names, *map(' and '.join, itertools.combinations(names, 2)))]
  groups = {name: {seed: functools.partial(random_signature, config, seed) for seed in seeds}
            for name, config, seeds in (('gated', DEEP, range(3)), ('plain', DEEP_GPT2, (3, 4)))}
  rows = [{'cell': name} | judge() for name, judge in judged_pairs.judged_cells(
      groups, 'verdict', lineage.compare).items()]
  assert [row['pairs'] for row in rows] == [3, 1, 6]
  whole = report.summarize(rows)[-1]
  assert whole['cell'] == 'all random networks, verdict'
  assert whole['pairs'] == sum(whole['verdicts'].values()) == 10
  pair = [random_signature(DEEP, seed) for seed in range(2)]
  by_name = lambda report: {row['test']: row for row in report['tests'] if row['decides']}
  assert by_name(judged_pairs.by_order(*(each.features for each in pair))) == by_name(
      lineage.compare(*pair))
  # Units are compared within a family alone.
  assert [whole['z_of'][name]['pairs'] for name in ('SeedPrint', 'unit order')] == [10, 4]


def test_no_two_networks_that_are_judged_have_one_seed():
  settings = smoke(calibrate, seeds='0-4')
  models = {name: configs.get(name) for name in ('tiny_llama2', 'tiny_qwen2')}
  groups = calibrate.random_takers(models, 'verdict', settings)
  assert [list(own) for own in groups.values()] == [list('01234'), list('56789')]
  # Of runs, those that began from one seed in two folders.
  cells = judged_pairs.judged_cells(
      {name: dict.fromkeys(('seed_1', 'seed_2', 'seed_3')) for name in 'ab'}, 'verdict', None)
  assert {name: make.args[-1].tolist() for name, make in cells.items()} == {
      'a, verdict': [[0, 1], [0, 2], [1, 2]], 'b, verdict': [[0, 1], [0, 2], [1, 2]],
      'a and b, verdict': [[0, 4], [0, 5], [1, 3], [1, 5], [2, 3], [2, 4]]}


def test_intervals_of_pairs_that_share_networks():
  within, between = unrelated_pairs.all_pairs(6), np.array([(i, 4 + j) for i in range(4)
                                                            for j in range(3)])
  # Where no pair counts: Clopper and Pearson's interval of as many pairs as share no network.
  for pairs in (within, between):
    low, high = unrelated_pairs.bootstrap(np.zeros(len(pairs), bool), pairs)
    assert (low, high) == (0, pytest.approx(1 - 0.025 ** (1 / 3)))
  # Two networks that agree with all others: a rate of 9 in 15, which two networks decide.
  low, high = unrelated_pairs.bootstrap((within < 2).any(axis=1), within)
  assert low < 0.4 and 0.8 < high <= 1


def test_calibrate_and_the_test_agree(tmp_path):
  """The z of many pairs at once is that of one pair."""
  networks = of_seeds(configs.get(CONFIG), range(3), Probe('gaussian', 200, 4))
  hidden_SND, input_ND = np.stack([each.hidden_ND for each in networks]), networks[0].input_ND
  z_P = unrelated_pairs.pairwise_z(*unrelated_pairs.project(hidden_SND, input_ND))
  for z, (i, j) in zip(z_P, ((0, 1), (0, 2), (1, 2)), strict=True):
    alone = seedprint.calibrated_test(hidden_SND[i], hidden_SND[j], input_ND)
    assert z == pytest.approx(alone.z, abs=1e-3)


def test_runs_go_on_from_a_checkpoint_that_went_out_to_transformers(study, tmp_path):
  config, params = checkpoint.load_params(study / 'english' / 'seed_42')
  huggingface.save(tmp_path / 'model', config, params)
  run, = runs.runs_of(pretraining(init_from=str(tmp_path / 'model'), seeds='1'), tmp_path / 'on')
  assert run.config.vocab_size == 257 and run.config.num_layers == 2
