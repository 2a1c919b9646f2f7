"""The audit of a history: faults are found, and sound histories are not suspected."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models import init_params
from bornbiased_jax.storage import huggingface
from directories import lay
from experiments import pages
from experiments.audit import __main__ as audit
from experiments.audit import injections, trajectory
from experiments.audit.injections import said_of
from experiments.audit.trained import CONFIGS
from experiments.shared.settings import resolve
from experiments.shared.tables import markdown

CONFIG = CONFIGS['llama']


@functools.cache
def walk(config, seed, data_seed=0, count=9):
  """A history as if trained: a random walk from an initialization, of 360 steps."""
  params = jax.device_get(init_params(config, seed))
  random, steps = np.random.default_rng([seed, data_seed]), {0: params}
  for i in range(1, count + 1):
    params = jax.tree.map(lambda x: np.float32(
        x + 0.6 / np.sqrt(count) * max(x.std(), 0.01) * random.standard_normal(x.shape)), params)
    steps[i * 360 // count] = params
  return steps


def examined(steps):
  return [(each['kind'], each['steps'], each['where']) for each in said_of(CONFIG, steps)]


def changed(steps, change):
  return {step: jax.tree.map(change, params) for step, params in steps.items()}


def halved(x, dtype=jnp.bfloat16):
  return np.asarray(x, dtype).astype(np.float32)


KINDS = {
    'whole repeat': 'repeat', 'final weights under an early step': 'repeat',
    'layer of the step before': 'repeat in part', 'shard of a later step': 'repeat in part',
    'shard of a later step that is not there': 'order in part', 'another birth': 'other origin',
    'two steps swapped': 'order', 'checkpoint of another seed': 'other origin',
    'layer of another seed': 'from elsewhere', 'NaN or infinity': 'unreadable',
}


@pytest.mark.parametrize('fault', KINDS)
def test_a_fault_is_found_and_no_other_step_is_named(fault):
  steps, faulty = injections.inject(fault, np.random.default_rng(4), CONFIG, 0, walk)
  (kind, named, _), = examined(steps)
  assert kind == KINDS[fault] and set(faulty) & set(named)
  assert len(set(named) - set(faulty)) <= 1  # What a part is equal to, or beside.


@pytest.mark.parametrize('dtype', [np.float16, jnp.bfloat16])
def test_a_sound_history_is_not_suspected(dtype):
  assert examined(changed(walk(CONFIG, 1), lambda x: halved(x, dtype))) == []


def test_a_warm_up_may_begin_with_the_same_network_twice():
  start, *others = walk(CONFIG, 1).values()
  assert examined(dict(enumerate([start, start, *others]))) == [('unchanged', [0, 1], '')]


@pytest.mark.parametrize('held', [(0, 40, 80), (240, 280, 320, 360)])
def test_what_is_frozen_at_first_or_at_the_end_is_a_note(held):
  steps = walk(CONFIG, 2)
  same = {'embedding': steps[held[0]]['embedding']}
  made = steps | {step: steps[step] | same for step in held}
  assert examined(made) == [('unchanged', [*held], 'embedding')]


def test_small_updates_that_16_bits_do_not_hold_are_no_repeat():
  """A matrix that stays between two steps in the middle, where the others hardly move."""
  rounded = changed(walk(CONFIG, 3), halved)
  same = {'embedding': rounded[160]['embedding']}
  hardly = jax.tree.map(lambda x: halved(x * (1 + 2e-3)), walk(CONFIG, 3)[160]) | same
  made = dict(sorted((rounded | {161: hardly}).items()))
  assert examined(made) == [('unchanged', [160, 161], 'embedding')]
  # The same matrix, where the others move, was not trained.
  assert examined(rounded | {200: rounded[200] | same}) == [
      ('repeat in part', [160, 200], 'embedding')]


def test_distances_of_points_on_a_line():
  """In order, i and j > i are never exchanged; an exchange of neighbours has the ratio 2."""
  line = np.arange(6.0)
  distances = lambda x: np.abs(x[:, None] - x)[None] + 1e-12
  assert trajectory.exchange_ratios(distances(line)).max() < 1
  swapped = distances(line[[0, 1, 3, 2, 4, 5]])
  ratio_NN = trajectory.exchange_ratios(swapped)[0]
  assert np.unravel_index(ratio_NN.argmax(), (6, 6)) == (2, 3)
  assert ratio_NN.max() == pytest.approx(2)
  assert trajectory.shortening_exchange(swapped[0]) == (2, 3)
  assert trajectory.shortening_exchange(distances(line)[0]) is None
  # The corner of an equilateral triangle, and a point nearer to the first of two others.
  assert trajectory.detours(1 - np.eye(3)[None], 1) == pytest.approx(1)
  assert trajectory.detours(distances(line[[0, 1, 4]]), 1) == pytest.approx(0.25)


def test_a_folder_is_audited(tmp_path, capsys):
  for step, params in walk(CONFIG, 0, count=5).items():
    huggingface.save(tmp_path / 'history' / f'step_{step}', CONFIG, params)
  (tmp_path / 'history' / 'logs').mkdir()
  settings = resolve(audit.Settings, 'laptop', [str(tmp_path / 'history')])
  for code, said in ((0, 'Nothing was found'), (1, '2 things do not fit')):
    with pytest.raises(SystemExit) as stop:
      audit.main(settings, tmp_path / 'out')
    printed = capsys.readouterr()
    assert stop.value.code == code and printed.out.startswith(said)
    assert 'logs has no step' in printed.err
    report = json.loads((tmp_path / 'out' / 'results.json').read_text())
    assert len(report['checkpoints']) == 6 - code and (tmp_path / 'out' / 'figure.png').exists()
    if not code:
      far = [row['from_first'] for row in report['checkpoints']]
      assert far[0] < 1e-6 < far[1] and far == sorted(far)
      # Now something goes wrong.
      weights = [tmp_path / f'history/step_{step}/model.safetensors' for step in (72, 144, 360)]
      weights[0].unlink()
      weights[1].write_bytes(weights[2].read_bytes())
  assert {each['kind']: each['steps'] for each in report['findings']} == {
      'repeat': [144, 360], 'unreadable': [72]}


@pytest.mark.parametrize('name', ['{:06d}', '{:06d}/pretrained_model', 'step_{}',
                                  'global_step_{}/actor/huggingface', 'checkpoint-{}/a/b/c'])
def test_the_network_of_a_step_may_lie_below_its_folder(name, tmp_path):
  """As lerobot and verl write them."""
  wanted = {step: f'{tmp_path}/run/{name.format(step)}' for step in (500, 1000, 1500)}
  lay(tmp_path, *wanted.values())
  assert audit.find([f'{tmp_path}/run']) == wanted
  assert [*audit.find([*wanted.values()][::-1]).items()] == [*wanted.items()]


def test_a_step_with_several_networks_is_named(tmp_path):
  critics = [f'{tmp_path}/run/step_{step}/critic' for step in range(3)]
  lay(tmp_path, *critics, *(name.replace('critic', 'actor') for name in critics))
  message = f'{tmp_path}/run/step_0 holds several models; give all of one kind, such as'
  with pytest.raises(InputError, match=f'{message} {tmp_path}/run/\\*/actor'):
    audit.find([f'{tmp_path}/run'])
  assert audit.find(critics) == dict(enumerate(critics))


@pytest.mark.parametrize('words, message', [
    ([], 'no history: 0 checkpoints'), (['nowhere'], 'no such folder'),
    (['a/b@step1', 'a/b@step2'], '2 checkpoints, and at least 3'),
    (['a/b@step1', 'c/d@step1'], 'both of step 1'), (['org/model-70m'], 'no step in this name')])
def test_a_history_that_is_none_is_one_line(words, message):
  with pytest.raises(InputError, match=message):
    audit.find(words)


def test_the_stored_measurement_is_read_and_drawn():
  rows = json.loads((pages.MEASURED / 'audit' / 'results.json').read_text())['rows']
  summary = injections.summarize(rows)
  shown = markdown([injections.display(row) for row in summary])
  assert shown == (pages.MEASURED / 'audit' / 'table.md').read_text()
  assert len(injections.draw(summary).axes[0].patches) == len(summary) - 1
