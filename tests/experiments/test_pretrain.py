"""The pretraining program: what it makes of its settings, and what each of its flags refuses."""

import re

import numpy as np
import pytest

from bornbiased_jax.data import corpus
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from experiments import pretrain
from experiments.shared import runs
from experiments.shared.settings import resolve
import tiny_runs

one_device = tiny_runs.one_device


def settings(**given):
  small = dict(batch_size='2', length='16') | given
  return resolve(pretrain.Settings, 'smoke', **small)


def test_the_held_out_text_is_not_trained_on(tmp_path):
  run, = runs.runs_of(settings(), tmp_path)
  assert run.together and run.seeds == (42, 43)
  whole = corpus.load('tinyshakespeare').tokens
  assert run.validation.tokens.size == pytest.approx(0.05 * whole.size, abs=1)
  parts = run.data.tokens, run.validation.tokens
  np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_large_models_train_one_after_another(tmp_path):
  made = runs.runs_of(settings(config='nano_llama2', length='64'), tmp_path)
  assert [run.seeds for run in made] == [(42,), (43,)]


def test_several_networks_at_once_need_one_device(tmp_path, monkeypatch):
  monkeypatch.setattr(sharding, 'make_mesh', lambda *shape: tiny_runs.mesh(2, 1, 1))
  with pytest.raises(InputError, match='--together: 2 networks .* here are 2; give --together=1'):
    runs.runs_of(settings(together='2'), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
  assert [run.seeds for run in runs.runs_of(settings(), tmp_path)] == [(42,), (43,)]
  with pytest.raises(InputError, match='batch_size=3 in accumulation=1 parts') as error:
    runs.runs_of(settings(batch_size='3'), tmp_path)
  assert error.value.field == 'batch_size'


def test_a_preset_beside_a_parent_is_refused(tmp_path):
  with pytest.raises(InputError, match='--config: only without --resume and --init_from'):
    pretrain.main(settings(config='tiny_gpt2', init_from='a'), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('wrong, message', [
    (dict(data='nowhere.txt'), '--data: .*nowhere.txt'),
    (dict(data='tfds:no_such_set'), '--data: .*no_such_set'),
    (dict(valid='nowhere.txt'), '--valid: .*nowhere.txt'),
    (dict(init_from='nowhere'), '--init_from: nowhere is not a directory'),
    (dict(resume='nowhere'), '--resume: nowhere is not a directory'),
    (dict(tokenizer='nowhere.model'), '--tokenizer: .*nowhere.model'),
    (dict(init_from='a', resume='b'), '--init_from: only without --resume'),
    (dict(keep_steps='3,99'), '--keep_steps: 99 exceeds --num_steps=6'),
    (dict(intervention='mask', intervention_position='16'),
     '--intervention_position: 16 is not one of --length=16'),
    (dict(intervention_position='3'), '--intervention_position: only with an --intervention'),
    (dict(intervention='gain', intervention_strength='3'), '--intervention_strength: only with'),
    (dict(adapter='lora'), '--adapter: only with --init_from or --resume'),
    (dict(rank='4'), "--rank: rank=4: only with adapter='lora'"),
    (dict(adapter='prefix_plus', init_from='a', alpha='2'), '--alpha: alpha=2.0: only with'),
    (dict(min_lr='1'), '--min_lr: min_lr=1.0 exceeds peak_lr'),
    (dict(batch_size='3', accumulation='2'), '--accumulation: accumulation=2 does not divide'),
    (dict(warmup_steps='6'), '--warmup_steps: warmup_steps=6 must be fewer'),
    (dict(balance='1'), '--balance: .* has no experts'),
    (dict(max_length='8'), '--length: length=16 exceeds the 8 positions of the model'),
])
def test_wrong_input_is_named(tmp_path, wrong, message):
  with pytest.raises(InputError) as error:
    runs.runs_of(settings(**wrong), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
  field = error.value.field
  assert re.match(message, f'--{field}: {error.value}' if field else str(error.value))


def test_a_short_text_is_named_before_anything_is_written(tmp_path):
  (tmp_path / 'short.txt').write_text('x' * 100)
  with pytest.raises(InputError, match='^--data: .*short.txt, last 5% has 5 tokens, fewer'):
    runs.runs_of(settings(data=str(tmp_path / 'short.txt')), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_training_that_goes_on_says_with_what(tmp_path):
  with pytest.raises(InputError, match='^--init_from: is missing'):
    pretrain.main(resolve(pretrain.Settings, 'continue'), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_empty_text_is_refused(tmp_path):
  (tmp_path / 'empty.txt').touch()
  with pytest.raises(InputError, match='--data: .*empty.txt'):
    runs.runs_of(settings(data=str(tmp_path / 'empty.txt')), tmp_path)


def test_of_a_text_too_large_the_program_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, 'IN_MEMORY_CHARACTERS', 10)
  with pytest.raises(InputError, match='--data: .* with python -m experiments.tokenize_text'):
    runs.runs_of(settings(), tmp_path)


@pytest.mark.parametrize('name, text, message', [
    ('peak_lr', 'fast', "--peak_lr: 'fast' is not a number"),
    ('clip', '-1', "--clip: '-1' is not"),
    ('keep_steps', '1,x', "--keep_steps: 'x' is not"),
    ('config', 'big', '--config: no preset'),
    ('remat', 'some', '--remat: .*none, dots, full'),
    ('num_steps', '0', '--num_steps'),
    ('adapter', 'ia3', '--adapter: .*lora, prefix_plus'),
    ('rank', '0', '--rank'),
])
def test_wrong_flags_are_named(name, text, message):
  with pytest.raises(InputError, match=message):
    settings(**{name: text})


def test_the_paper_scale_wants_a_text():
  with pytest.raises(InputError, match='--data: is missing'):
    resolve(pretrain.Settings, 'paper')
