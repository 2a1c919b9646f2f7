"""The pretraining program: what it makes of its settings (test_mistakes: what it refuses)."""

import jax
import numpy as np
import pytest

from bornbiased_jax import models
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


def test_networks_at_once_are_as_many_as_memory_holds(tmp_path, monkeypatch):
  """Else the kernel would end the run, without a word."""
  size = 4 * sum(leaf.size for leaf in jax.tree.leaves(models.init_params(
      runs.runs_of(settings(), tmp_path)[0].config, 1)))
  monkeypatch.setattr(runs, 'free_memory', lambda: 10 * size)
  assert len(runs.runs_of(settings(seeds='1-2'), tmp_path)) == 1
  for given in dict(seeds='1-3'), dict(seeds='1', vocab_size='100000'):
    with pytest.raises(InputError, match='--together: . at once take .* GB are free'):
      runs.runs_of(settings(**given), tmp_path)
  assert len(runs.runs_of(settings(seeds='1-3', together='2'), tmp_path)) == 2


def test_a_record_of_other_seeds_is_kept(tmp_path):
  record = lambda **given: runs.record(
      tmp_path, 'pretrain', runs.recorded(settings(**given)), [(settings(**given), tmp_path)])
  record().write()
  before = (tmp_path / 'results.json').read_bytes()
  with pytest.raises(InputError, match=r'--output_dir: .* seeds=\[42, 43\], not \[44\]'):
    record(seeds='44')
  record(save_every='5')  # Other settings training judges itself.
  assert (tmp_path / 'results.json').read_bytes() == before


def test_several_networks_at_once_need_one_device(tmp_path, monkeypatch):
  monkeypatch.setattr(sharding, 'make_mesh', lambda *shape: tiny_runs.mesh(2, 1, 1))
  with pytest.raises(InputError, match='2 networks .* here are 2.*together=1') as error:
    runs.runs_of(settings(together='2'), tmp_path / 'out')
  assert error.value.field == 'together'
  assert not (tmp_path / 'out').exists()
  assert [run.seeds for run in runs.runs_of(settings(), tmp_path)] == [(42,), (43,)]
  with pytest.raises(InputError, match='batch_size=3 in accumulation=1 parts') as error:
    runs.runs_of(settings(batch_size='3'), tmp_path)
  assert error.value.field == 'batch_size'


def test_of_a_text_too_large_the_program_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, 'IN_MEMORY_CHARACTERS', 10)
  with pytest.raises(InputError, match='--data: .* with python -m experiments.tokenize_text'):
    runs.runs_of(settings(), tmp_path)


@pytest.mark.parametrize('scale, flag', [('paper', 'data'), ('continue', 'init_from')])
def test_a_scale_says_what_it_needs(scale, flag, tmp_path):
  with pytest.raises(InputError, match=f'^--{flag}: is missing'):
    pretrain.main(resolve(pretrain.Settings, scale), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
