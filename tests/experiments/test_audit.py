"""The audit of a history: faults are found, and sound histories are not suspected."""

import functools
import json
from pathlib import Path
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models import init_params
from bornbiased_jax.storage import huggingface
from directories import lay
from experiments.audit import __main__ as audit
from experiments.audit import findings, history, injections, trajectory
from experiments.audit.trained import CONFIGS
from experiments.shared.settings import resolve
from experiments.shared.tables import markdown

FAMILY = 'llama'
CONFIG = CONFIGS[FAMILY]


@functools.cache
def walk(seed, data_seed=0, count=9):
  """A history as if trained: a random walk from an initialization, of 360 steps."""
  params = jax.tree.map(np.asarray, init_params(CONFIG, seed))
  random, steps = np.random.default_rng([seed, data_seed]), {0: params}
  for i in range(1, count + 1):
    params = jax.tree.map(lambda x: np.float32(
        x + 0.6 / np.sqrt(count) * max(x.std(), 0.01) * random.standard_normal(x.shape)), params)
    steps[i * 360 // count] = params
  return steps


@pytest.fixture(autouse=True)
def walks(monkeypatch):
  monkeypatch.setattr(injections, 'base', lambda family, *seeds, **how: walk(*seeds, **how))


def examined(steps):
  return findings.examine((step, injections._survey(FAMILY, params))
                          for step, params in steps.items())['findings']


def faults(steps):
  return [each for each in examined(steps) if each['is_fault']]


KINDS = {
    'whole repeat': 'repeat', 'final weights under an early step': 'repeat',
    'layer of the step before': 'repeat in part', 'shard of a later step': 'repeat in part',
    'shard of a later step that is not there': 'order in part', 'another birth': 'other origin',
    'two steps swapped': 'order', 'checkpoint of another seed': 'other origin',
    'layer of another seed': 'from elsewhere', 'NaN or infinity': 'unreadable',
}


@pytest.mark.parametrize('fault', KINDS)
def test_a_fault_is_found_and_no_other_step_is_named(fault):
  steps, faulty = injections.inject(fault, np.random.default_rng(4), FAMILY, 0)
  found = faults(steps)
  assert [each['kind'] for each in found] == [KINDS[fault]]
  assert set(faulty) & set(found[0]['steps'])
  assert len(set(found[0]['steps']) - set(faulty)) <= 1  # What a part is equal to, or beside.


@pytest.mark.parametrize('dtype', [np.float16, jnp.bfloat16])
def test_a_sound_history_is_not_suspected(dtype):
  rounded = {step: jax.tree.map(lambda x: np.asarray(x, dtype).astype(np.float32), params)
             for step, params in walk(1).items()}
  assert examined(rounded) == []


def test_a_warm_up_may_begin_with_the_same_network_twice():
  steps = walk(1)
  note, = examined({0: steps[0], 1: steps[0]} | {2 + step: each for step, each in steps.items()
                                                 if step})
  assert note['steps'] == [0, 1] and not note['is_fault']


@pytest.mark.parametrize('is_frozen', [lambda i: i < 3, lambda i: i >= 6])
def test_what_is_frozen_at_first_or_at_the_end_is_a_note(is_frozen):
  steps = walk(2)
  held = [params['embedding'] for i, params in enumerate(steps.values()) if is_frozen(i)][0]
  note, = examined({step: params | ({'embedding': held} if is_frozen(i) else {})
                    for i, (step, params) in enumerate(steps.items())})
  assert (note['kind'], note['where'], note['is_fault']) == ('unchanged', 'embedding', False)


def test_small_updates_that_16_bits_do_not_hold_are_no_repeat():
  """A matrix that stays between two steps in the middle, where the others hardly move."""
  half = lambda x: np.asarray(x, jnp.bfloat16).astype(np.float32)
  rounded = {step: jax.tree.map(half, params) for step, params in walk(3).items()}
  *first, before, after = list(rounded)[:6]
  still = jax.tree.map(lambda x: half(x * (1 + 2e-3)), walk(3)[before])
  still['embedding'] = rounded[before]['embedding']
  made = dict(sorted((rounded | {before + 1: still}).items()))
  assert [(each['kind'], each['is_fault']) for each in examined(made)] == [('unchanged', False)]
  # The same matrix, where the others move, was not trained.
  made = rounded | {after: rounded[after] | {'embedding': rounded[before]['embedding']}}
  assert [each['kind'] for each in faults(made)] == ['repeat in part']


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
  # The corner of an equilateral triangle, and a point in the middle of two.
  assert trajectory.detours(1 - np.eye(3)[None], 1) == pytest.approx(1)
  assert trajectory.detours(distances(line[:3]), 1) == pytest.approx(0.5)


def test_a_folder_is_audited(tmp_path, capsys):
  for step, params in walk(0, count=5).items():
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
    if not code:  # Now something goes wrong.
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
  assert history.find([f'{tmp_path}/run']) == wanted
  assert history.find(list(wanted.values())) == wanted


def test_a_step_with_several_networks_is_named(tmp_path):
  lay(tmp_path, *(f'run/step_{step}/{kind}' for step in range(3) for kind in ('actor', 'critic')))
  message = f'{tmp_path}/run/step_0 holds several models; give all of one kind, such as'
  with pytest.raises(InputError, match=f'{message} {tmp_path}/run/\\*/actor'):
    history.find([f'{tmp_path}/run'])
  critics = [f'{tmp_path}/run/step_{step}/critic' for step in range(3)]
  assert history.find(critics) == dict(enumerate(critics))


@pytest.mark.parametrize('words, message', [
    ([], 'no history: 0 checkpoints'), (['nowhere'], 'no such folder'),
    (['a/b@step1', 'a/b@step2'], '2 checkpoints, and at least 3'),
    (['a/b@step1', 'c/d@step1'], 'both of step 1'), (['org/model-70m'], 'no step in this name')])
def test_a_history_that_is_none_is_one_line(words, message):
  with pytest.raises(InputError, match=re.escape(message)):
    history.find(words)


def test_the_stored_measurement_is_read_and_drawn():
  stored = Path(injections.__file__).parents[1] / 'measured' / 'audit'
  rows = json.loads((stored / 'results.json').read_text())['rows']
  shown = [injections.display(row) for row in injections.summarize(rows)]
  assert markdown(shown).strip() == (stored / 'table.md').read_text().strip()
  assert len(injections.draw(rows).axes[0].patches) == len(shown) - 1
