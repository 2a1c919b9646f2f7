"""The pretraining program and the study built on it, at smoke scale; and what each of its flags refuses."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.data import corpus
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import seedprint
from bornbiased_jax.lineage.fingerprints import of_seeds
from bornbiased_jax.lineage.methods import METHODS
from bornbiased_jax.models.transformer import Transformer
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training import loop
from experiments import baselines, calibrate, persistence, pretrain, robustness, seedprint_tables, training_study
from experiments.command_line import resolve
import tiny_runs

one_device = tiny_runs.one_device


def settings(**overrides):
  small = dict(batch_size='2', length='16') | overrides
  return resolve(pretrain.SCALES, 'smoke', pretrain.TRAINING_KINDS, **small)


@pytest.fixture(scope='module')
def study(tmp_path_factory):
  directory = tmp_path_factory.mktemp('study')
  training_study.main(resolve(training_study.SCALES, 'smoke', training_study.STUDY_KINDS, seeds='42,43', batch_size='2',
                              length='16'), directory)
  return directory


def test_seeds_that_are_continued_must_be_trained(tmp_path):
  with pytest.raises(InputError, match='--continued: 7 is not one of --seeds=42,43,44'):
    training_study.main(resolve(training_study.SCALES, 'smoke', training_study.STUDY_KINDS, continued='42,7'),
                        tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('flag', ['init_from', 'resume'])
def test_seeds_that_a_folder_of_runs_has_not_are_named_before_training(study, tmp_path, monkeypatch, flag):
  monkeypatch.setattr(loop, 'train', lambda run: pytest.fail('trained'))
  with pytest.raises(InputError, match='--seeds: .*english has no seed_44; it has seed_42, seed_43$'):
    pretrain.main(settings(seeds='42,44', together='1', **{flag: str(study / 'english')}), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_the_study_leaves_checkpoints_of_known_lineage(study):
  assert [checkpoint.steps(study / 'english' / f'seed_{seed}') for seed in (42, 43)] == [[0, 3, 4, 6]] * 2
  assert checkpoint.steps(study / 'python' / 'seed_42') == [0, 2, 4]
  parent, child = (checkpoint.load_params(study / phase / 'seed_42', step)[1]
                   for phase, step in (('english', 6), ('python', 0)))
  jax.tree.map(np.testing.assert_array_equal, parent, child)
  story, _ = checkpoint.restore(study / 'python' / 'seed_42', lambda story: {}, [4])
  assert story['parent']['seed'] == 42 and story['parent']['step'] == 6
  for phase in ('.', 'english', 'python'):
    assert (study / phase / 'figure.png').stat().st_size > 10000
    summary = json.loads((study / phase / 'results.json').read_text())['summary']
    assert all(row['perplexity'] == pytest.approx(np.exp(row['validation_loss'])) for row in summary)


def read_study(experiment, kinds, study, directory):
  experiment.main(resolve(experiment.SCALES, 'smoke', kinds, study=str(study)), directory)
  assert (directory / 'figure.png').stat().st_size > 10000
  return json.loads((directory / 'results.json').read_text())


def test_the_studys_bias_persists(study, tmp_path):
  rows = read_study(persistence, persistence.PERSISTENCE_KINDS, study, tmp_path)['rows']
  assert [(row['seed'], row['phase'], row['step']) for row in rows] == [
      *((42, 'english', step) for step in (0, 3, 4, 6)), *((42, 'python', step) for step in (0, 2, 4)),
      *((43, 'english', step) for step in (0, 3, 4, 6))]
  for row in rows:
    assert row['own_tau'] > row['control_tau'] + 0.1
    assert sum(row['largest_count']) == 300
  assert rows[0]['own_tau'] == pytest.approx(1, abs=1e-6)


def test_the_studys_pairs_are_judged(study, tmp_path):
  results = read_study(seedprint_tables, seedprint_tables.TABLES_KINDS, study, tmp_path)
  # Six steps leave descendants that every test finds; the other pairs share nothing.
  assert {(row['group'], row['related']): (row['pairs'], row['misjudged']) for row in results['summary']} == {
      ('a', False): (2, 0), ('b', True): (7, 0), ('c', False): (2, 0), ('d', False): (2, 0), ('d', True): (1, 0)}
  assert all(row['z'] > 10 for row in results['rows'] if row['related'])


def test_every_method_judges_every_pair_of_the_study(study, tmp_path):
  results = read_study(baselines, baselines.BASELINES_KINDS, study, tmp_path)
  # 2 seeds: from init, from the middle, one continued; one pair of either kind of stranger.
  # Logits alone have no null.
  assert len(results['rows']) == (len(METHODS) - 1) * (2 + 1 + 2 + 1 + 1)
  same = {(row['table'], row['method']): row['same'] for row in results['summary']}
  assert same['6', 'SeedPrint'] == same['6', 'MLP units'] == 1 and same['4a', 'SeedPrint'] == 0
  assert all(0.25 <= row['p_value'] <= 1 for row in results['rows'] if row['method'] == 'PCS')


READERS = [(persistence, persistence.PERSISTENCE_KINDS), (seedprint_tables, seedprint_tables.TABLES_KINDS),
           (baselines, baselines.BASELINES_KINDS), (robustness, robustness.ROBUSTNESS_KINDS)]


@pytest.mark.parametrize('experiment, kinds', READERS)
@pytest.mark.parametrize('wrong, message', [
    (dict(study='nowhere'), '--study: nowhere/english/seed_42 has no checkpoint of step 0'),
    (dict(seeds='42,43,44'), '--study: .*seed_44 has no checkpoint of step 0'),
    (dict(num_sequences='256'), '--num_sequences: .* more than 256 are needed'),
])
def test_what_a_study_has_not_is_named_and_nothing_written(study, tmp_path, monkeypatch, experiment, kinds, wrong,
                                                           message):
  made = resolve(experiment.SCALES, 'smoke', kinds, **dict(study=str(study), seeds='42,43') | wrong)
  if experiment is robustness and len(made.seeds) < 3:
    made.seeds.append(42)  # A third, which the study has.
  with pytest.raises(InputError, match=message):
    experiment.main(made, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('experiment, kinds', READERS[:2])
def test_a_network_is_no_stranger_to_itself(study, tmp_path, experiment, kinds):
  with pytest.raises(InputError, match='--seeds: at least two'):
    experiment.main(resolve(experiment.SCALES, 'smoke', kinds, study=str(study), seeds='42'), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_robustness_of_random_networks(tmp_path):
  settings = resolve(robustness.SCALES, 'smoke', robustness.ROBUSTNESS_KINDS)
  robustness.main(settings, tmp_path)
  summary = json.loads((tmp_path / 'results.json').read_text())['summary']
  found = {(row['alteration'], row['strength']): row['found'] for row in summary}
  assert list(found) == [('none', None), ('permute units', None), ('quantize', 8), ('quantize', 4)]
  assert found['permute units', None] == {'SeedPrint': 1, 'MLP units': 0, 'Intrinsic': 1}
  assert found['none', None]['MLP units'] == 1 and summary[1]['logit_change'] < 1e-4 < summary[3]['logit_change']
  with pytest.raises(InputError, match='--seeds: at least three'):
    robustness.main(SimpleNamespace(**vars(settings) | {'seeds': [1, 2]}), tmp_path)


def test_robustness_of_trained_networks(study):
  """What only a study has: initializations and continuations as bases and suspects."""
  settings = resolve(robustness.SCALES, 'smoke', robustness.ROBUSTNESS_KINDS, study=str(study), alterations='prune')
  settings.seeds = [42, 43]
  originals = robustness.load(settings, '')
  made = {name: make() for name, _, make in robustness.alterations_of(settings, originals)
          if name.startswith('train')}
  assert [list(suspects) for _, suspects in made.values()] == [[42, 43], [42]]
  row = robustness.measure(*made['train from init'], ['PCS'])
  assert len(row['PCS, related']) == 2 and len(row['PCS, unrelated']) == 1 and row['PCS, related log10 p'] == [None] * 2


def test_unrelated_networks_are_calibrated(tmp_path, study):
  settings = resolve(calibrate.SCALES, 'smoke', calibrate.CALIBRATE_KINDS, probes='gaussian')
  calibrate.main(settings, tmp_path)
  row, aligned = json.loads((tmp_path / 'results.json').read_text())['rows']
  assert row['pairs'] == aligned['pairs'] == 10 and row['input_shared']
  assert row['calibrated_0.01'] <= row['unprojected_0.01'] and abs(row['mean_z']) < 1.5
  assert abs(aligned['mean_z']) < 1.5 and 'published_t_0.01' not in aligned
  with pytest.raises(InputError, match='has 2 folders seed_'):
    calibrate.main(resolve(calibrate.SCALES, 'smoke', calibrate.CALIBRATE_KINDS, probes='gaussian',
                           runs=str(study / 'english')), tmp_path / 'trained')
  with pytest.raises(InputError, match='--num_sequences: .* more than 256 are needed'):
    calibrate.main(resolve(calibrate.SCALES, 'smoke', calibrate.CALIBRATE_KINDS, num_sequences='256'),
                   tmp_path / 'trained')
  assert not (tmp_path / 'trained').exists()


def test_calibrate_and_the_test_agree(tmp_path):
  """The z of many pairs at once is that of one pair."""
  networks = of_seeds(configs.get('tiny_llama2'), range(3), Probe('gaussian', 300, 4))
  hidden_SND = np.stack([network.hidden_ND for network in networks])
  z_P = calibrate.pairwise_z(*calibrate.project(hidden_SND, networks[0].input_ND))
  for z, (i, j) in zip(z_P, ((0, 1), (0, 2), (1, 2)), strict=True):
    alone = seedprint.calibrated_test(hidden_SND[i], hidden_SND[j], networks[0].input_ND, num_permutations=9)
    assert z == pytest.approx(alone.z, abs=1e-3)


def test_a_checkpoint_goes_out_to_transformers(study, tmp_path):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  config, params = checkpoint.load_params(study / 'english' / 'seed_42')
  huggingface.save(tmp_path / 'model', config, params)
  peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'model')
  ids = np.arange(20)[None]
  with torch.inference_mode():
    logits = peer(torch.tensor(ids)).logits.numpy()
  np.testing.assert_allclose(Transformer(config).apply({'params': params}, ids), logits, atol=2e-5)
  run, = pretrain.runs(settings(init_from=str(tmp_path / 'model'), seeds='1'), tmp_path / 'onwards')
  assert run.config.vocab_size == 257 and run.config.num_layers == 4


def test_the_held_out_text_is_not_trained_on(tmp_path):
  run, = pretrain.runs(settings(), tmp_path)
  assert run.together and run.seeds == (42, 43)
  whole = corpus.load('tinyshakespeare').tokens
  assert run.validation.tokens.size == pytest.approx(0.05 * whole.size, abs=1)
  np.testing.assert_array_equal(np.concatenate((run.data.tokens, run.validation.tokens)), whole)


def test_large_models_train_one_after_another(tmp_path):
  runs = pretrain.runs(settings(config='nano_llama2', length='64'), tmp_path)
  assert [run.seeds for run in runs] == [(42,), (43,)]


@pytest.mark.parametrize('wrong, message', [
    (dict(data='nowhere.txt'), '--data: .*nowhere.txt'),
    (dict(data='tfds:no_such_set'), '--data: .*no_such_set'),
    (dict(valid='nowhere.txt'), '--valid: .*nowhere.txt'),
    (dict(init_from='nowhere'), '--init_from: nowhere is not a directory'),
    (dict(resume='nowhere'), '--resume: nowhere is not a directory'),
    (dict(tokenizer='nowhere.model'), '--tokenizer: .*nowhere.model'),
    (dict(init_from='a', resume='b'), '--init_from: only without --resume'),
    (dict(coordinator='host:1'), '--coordinator: only with --distributed'),
    (dict(keep_steps='3,99'), '--keep_steps: 99 exceeds --num_steps=6'),
    (dict(intervention='mask', intervention_position='16'), '--intervention_position: 16 is not one of --length=16'),
    (dict(min_lr='1'), 'min_lr=1.0 exceeds peak_lr'),
    (dict(batch_size='3', accumulation='2'), 'accumulation=2 does not divide batch_size=3'),
    (dict(warmup_steps='6'), 'warmup_steps=6 must be fewer than num_steps=6'),
])
def test_wrong_input_is_named(tmp_path, wrong, message):
  with pytest.raises(InputError, match=message):
    pretrain.runs(settings(**wrong), tmp_path)


def test_empty_text_is_refused(tmp_path):
  (tmp_path / 'empty.txt').touch()
  with pytest.raises(InputError, match='--data: .*empty.txt'):
    pretrain.runs(settings(data=str(tmp_path / 'empty.txt')), tmp_path)


@pytest.mark.parametrize('name, text, message', [
    ('peak_lr', 'fast', "--peak_lr: 'fast' is not a number"), ('clip', '-1', "--clip: '-1' is not"),
    ('keep_steps', '1,x', "--keep_steps: 'x' is not"), ('config', 'big', '--config: no preset'),
    ('remat', 'some', '--remat: .*none, dots, full'), ('num_steps', '0', '--num_steps'),
])
def test_wrong_flags_are_named(name, text, message):
  with pytest.raises(InputError, match=message):
    settings(**{name: text})


def test_the_paper_scale_wants_a_text():
  with pytest.raises(InputError, match='--data: is missing'):
    resolve(pretrain.SCALES, 'paper', pretrain.TRAINING_KINDS)
