"""A run begins where it should; what is impossible and the folder of another run are refused."""

import contextlib
import dataclasses
import functools
from pathlib import Path
import shutil

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.storage.digests import digest
from bornbiased_jax.training.start import begin
import small_adapters
import small_hub
from small_networks import born
import tiny_runs
from tiny_runs import final

HERE = Path(__file__).parents[1]


@pytest.fixture(scope='module')
def stopped(tmp_path_factory):
  """The folder of a run that was stopped after six steps, in each of which nothing was computed.

  Everything is larger by 1 than at the beginning, so that it shows where a run begins.
  """
  run = tiny_runs.run(tmp_path_factory.mktemp('stopped'))
  (state, _), writer = begin(run), checkpoint.Writer(*run.directories)
  for step in (0, 6):
    own = jax.tree.map(lambda x, more=step > 0: np.asarray(x) + x.dtype.type(more), state)
    writer.save(step, own.params, own.opt_state, run.metadata(*run.seeds, None))
  writer.close()
  return run.directory


@pytest.mark.slow
def test_where_a_run_begins(stopped, tmp_path):
  """It begins in its own folder, else at `resume`, else at `init_from`, else at its seed."""
  parent = stopped
  run = functools.partial(tiny_runs.run, tmp_path / 'new', recipe=dict(num_steps=8))
  started = lambda **source: begin(run(**source))
  last = final(parent)
  (state, _), = [started(resume=parent, init_from=parent / 'seed_3')]
  jax.tree.map(np.testing.assert_array_equal, state.params, last)
  assert int(state.step) == 6 and (state.opt_state[1][0].mu['embedding'] == 1).all()
  state, (metadata,) = started(init_from=parent)
  jax.tree.map(np.testing.assert_array_equal, state.params, last)
  assert int(state.step) == 0 and not state.opt_state[1][0].mu['embedding'].any()
  assert (metadata['seed'], metadata['step']) == (3, 6)
  assert metadata['digest'] == digest(last)
  state, parents = started()
  np.testing.assert_array_equal(state.params['embedding'],
                                checkpoint.load_params(parent / 'seed_3', 0)[1]['embedding'])
  assert parents == [None]
  tiny_runs.save_beginning(run(init_from=parent), 7)
  assert int(started(init_from=parent)[0].step) == 7


@pytest.mark.slow
def test_a_run_with_a_start_token_and_scaled_rope_goes_on(tmp_path):
  config = dataclasses.replace(tiny_runs.CONFIG, rope_scaling=configs.RopeScaling('linear', 2.0))
  run = functools.partial(tiny_runs.run, config=config)
  recipe = dict(num_steps=3, start_id=7)
  old = run(tmp_path / 'old', recipe=recipe)
  tiny_runs.save_beginning(old, 3)
  assert int(begin(old)[0].step) == 3
  parent = dict(init_from=tmp_path / 'old')
  assert int(begin(run(tmp_path / 'new', recipe=recipe, **parent))[0].step) == 0
  with pytest.raises(InputError, match='has start_id=7, not None'):
    begin(run(tmp_path / 'new', recipe=dict(num_steps=3), **parent))


def test_onwards_from_a_transformers_directory(stopped, tmp_path):
  config, params = checkpoint.load_params(stopped / 'seed_3')
  huggingface.save(tmp_path / 'exported', config, params)
  state, _ = begin(tiny_runs.run(tmp_path / 'new', init_from=tmp_path / 'exported'))
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  other = dataclasses.replace(tiny_runs.CONFIG, mlp_width=32)
  with pytest.raises(InputError, match='mlp_width=64, not 32'):
    begin(tiny_runs.run(tmp_path / 'new', config=other, init_from=tmp_path / 'exported'))


def test_onwards_from_what_memory_holds(tmp_path):
  params = born(tiny_runs.CONFIG, 1)
  state, (parent,) = begin(tiny_runs.run(tmp_path / 'new', init_from=(tiny_runs.CONFIG, params)))
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  assert parent == {'directory': f'model {digest(params)[:12]}', 'digest': digest(params)}


def test_onwards_from_a_base_with_an_adapter(tmp_path):
  huggingface.save(tmp_path / 'base', tiny_runs.CONFIG, born(tiny_runs.CONFIG, 1))
  width = tiny_runs.CONFIG.width
  small_adapters.write_adapter(tmp_path / 'adapter', {small_adapters.QUERY: (width, width)})
  _, params = huggingface.load(tmp_path / 'base', adapter=tmp_path / 'adapter')
  name = f'{tmp_path}/base+{tmp_path}/adapter'
  state, (parent,) = begin(tiny_runs.run(tmp_path / 'new', init_from=name))
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  assert parent == {'directory': name, 'digest': digest(params)}


def test_onwards_from_a_model_of_the_hub(tmp_path, monkeypatch):
  pytest.importorskip('huggingface_hub')
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  params = born(tiny_runs.CONFIG, 1)
  huggingface.save(tmp_path / 'exported', tiny_runs.CONFIG, params)
  small_hub.lay(tmp_path, 'org/model', tmp_path / 'exported')
  name = f'org/model@{small_hub.COMMIT}'
  state, (parent,) = begin(tiny_runs.run(tmp_path / 'new', init_from=name))
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  assert parent == {'directory': name, 'revision': small_hub.COMMIT, 'digest': digest(params)}


@pytest.mark.parametrize('change, message', [
    (dict(recipe=dict(peak_lr=1e-3)), 'peak_lr=0.01, not 0.001'),
    (dict(data=tiny_runs.tokens(2)), 'digest=digest 0, not digest 2'),
    (dict(data_seed=6), 'data_seed=5, not 6'),
    (dict(config=dataclasses.replace(tiny_runs.CONFIG, rope_theta=5.0)),
     'rope_theta=10000.0, not 5.0'),
    (dict(config=dataclasses.replace(tiny_runs.CONFIG, dtype='bfloat16')),
     'dtype=float32, not bfloat16'),
    (dict(init_from=HERE), 'init_from or resume=None'),
])
def test_the_folder_of_another_run_is_refused(stopped, change, message):
  with pytest.raises(InputError, match=f'seed_3 has .*{message}'):
    begin(tiny_runs.run(stopped, **change))


@pytest.mark.parametrize('now, message', [({}, None), (dict(clip=1.5), 'clip=1.0, not 1.5')])
def test_a_run_of_an_earlier_version_had_the_defaults_of_what_it_lacks(now, message, tmp_path):
  lost = 'clip', 'balance'
  run = tiny_runs.run(tmp_path)
  metadata = run.metadata(3, None)
  metadata['recipe'] = {name: value for name, value in metadata['recipe'].items()
                        if name not in lost}
  tiny_runs.save_beginning(run, 3, metadata)
  refused = pytest.raises(InputError, match=message) if message else contextlib.nullcontext()
  with refused:
    assert int(begin(tiny_runs.run(tmp_path, recipe=now))[0].step) == 3


def test_a_run_goes_on_where_its_parent_was_moved(stopped, tmp_path):
  parent, moved = tmp_path / 'parent', tmp_path / 'moved'
  shutil.copytree(stopped, parent)
  run = functools.partial(tiny_runs.run, tmp_path / 'run')
  tiny_runs.save_beginning(run(init_from=parent), 3)
  parent.rename(moved)
  assert int(begin(run(init_from=moved))[0].step) == 3
  # Another network in its place is another parent.
  shutil.rmtree(moved / 'seed_3' / '6')
  with pytest.raises(InputError, match=f'init_from or resume={parent}, not {moved}'):
    begin(run(init_from=moved))


def test_what_may_change_between_stop_and_resume(stopped):
  remat = dataclasses.replace(tiny_runs.CONFIG, remat='full')
  state, _ = begin(tiny_runs.run(stopped, config=remat, recipe=dict(accumulation=2)))
  assert int(state.step) == 6


def test_parts_of_a_batch_are_of_the_step_if_experts_are_balanced(tmp_path):
  """The mean over parts of their balance losses is not that of the whole batch."""
  config = dataclasses.replace(tiny_runs.CONFIG, num_experts=4, experts_per_token=2)
  run = lambda parts: tiny_runs.run(tmp_path, config=config, recipe=dict(
      accumulation=parts, balance=0.1))
  tiny_runs.save_beginning(run(1), 3)
  with pytest.raises(InputError, match='accumulation=1, not 2'):
    begin(run(2))


def test_the_folder_of_a_run_may_be_text(tmp_path):
  run = tiny_runs.run(f'{tmp_path}/run')
  assert run.directories == [tmp_path / 'run' / 'seed_3']


@pytest.mark.parametrize('change, message', [
    (dict(shape=(4, 1, 1), recipe=dict(batch_size=6)), 'choose a multiple of 4'),
    (dict(shape=(2, 1, 1), recipe=dict(accumulation=8)), 'choose a multiple of 16'),
    (dict(shape=(2, 1, 1), seeds=(1, 2)),
     '2 networks train together on one device only'),
    (dict(recipe=dict(length=4096)), 'length=4096 exceeds'),
    (dict(seeds=(1, 1)), 'names one twice'),
    (dict(seeds=(2**32,)), "'4294967296' is not a whole number"),
    (dict(recipe=dict(start_id=50)), 'start_id=50 is not one of the 50 token ids'),
    (dict(save_every=0), 'save_every=0: '),
])
def test_impossible_runs_are_refused(tmp_path, change, message):
  with pytest.raises(InputError, match=message):
    tiny_runs.run(tmp_path, **change)
