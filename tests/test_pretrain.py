"""The pretraining program and the study built on it, at smoke scale; and what each of its flags refuses."""

import json

import jax
import numpy as np
import pytest

from bornbiased_jax import checkpoint, huggingface, sharding
from bornbiased_jax.errors import InputError
from bornbiased_jax.transformer import Transformer
from experiments import pretrain, training_study
from experiments.settings import resolve
from tiny_runs import mesh


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
  monkeypatch.setattr(sharding, 'make_mesh', lambda *shape: mesh())


def settings(**overrides):
  small = dict(batch_size='2', length='16') | overrides
  return resolve(pretrain.SCALES, 'smoke', pretrain.TRAINING_KINDS, **small)


@pytest.fixture(scope='module')
def study(tmp_path_factory):
  directory = tmp_path_factory.mktemp('study')
  patch = pytest.MonkeyPatch()
  patch.setattr(sharding, 'make_mesh', lambda *shape: mesh())
  training_study.main(resolve(training_study.SCALES, 'smoke', training_study.STUDY_KINDS, batch_size='2', length='16'),
                      directory)
  patch.undo()
  return directory


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
  assert run.data.tokens.size + run.validation.tokens.size == 1115395
  assert run.validation.tokens.size == pytest.approx(0.05 * 1115395, abs=1)
  assert run.data.tokens.size + run.validation.tokens.size > run.recipe.batch_size


def test_large_models_train_one_after_another(tmp_path):
  runs = pretrain.runs(settings(config='nano_llama2', length='64'), tmp_path)
  assert [run.seeds for run in runs] == [(42,), (43,)]


@pytest.mark.parametrize('wrong, message', [
    (dict(data='nowhere.txt'), '--data: .*nowhere.txt'),
    (dict(data='tfds:no_such_set'), '--data: .*no_such_set'),
    (dict(valid='nowhere.txt'), '--valid: .*nowhere.txt'),
    (dict(init_from='nowhere'), '--init_from: nowhere is not a directory'),
    (dict(resume='nowhere'), '--resume: nowhere is not a directory'),
    (dict(tokenizer='nowhere.model'), 'nowhere.model'),
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
