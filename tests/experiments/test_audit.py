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
from experiments.audit import findings, injections
from experiments.shared.settings import resolve
from experiments.shared.tables import markdown

CONFIG = injections.CONFIGS['llama']


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
  return [(each['kind'], each['steps'], each['where'])
          for each in injections.said_of(CONFIG, steps)]


def rounded(params, dtype=jnp.bfloat16):
  return jax.tree.map(lambda x: np.asarray(x, dtype).astype(np.float32), params)


@pytest.mark.parametrize('fault, kind', [
    ('whole repeat', 'repeat'), ('shard of a later step', 'repeat in part'),
    ('another birth', 'other origin'), ('two steps swapped', 'order'),
    ('checkpoint of another seed', 'other origin'), ('layer of another seed', 'from elsewhere')])
def test_a_fault_is_found_and_no_other_step_is_named(fault, kind):
  faulty = injections.changes(fault, np.random.default_rng(4), CONFIG, 0, walk)
  (found, named, _), = examined(walk(CONFIG, 0) | faulty)
  assert found == kind and set(faulty) & set(named)
  assert len(set(named) - set(faulty)) <= 1  # What a part is equal to, or beside.


def test_what_is_not_finite_or_of_another_shape_is_named_and_left_out():
  steps = walk(CONFIG, 1)
  bad = jax.tree.map(np.array, steps[80])
  bad['blocks']['up']['kernel'].flat[7] = np.inf
  cut = steps[160] | {'embedding': steps[160]['embedding'][:-1]}
  assert examined(steps | {80: bad, 160: cut}) == [
      ('unreadable', [80], ''), ('other architecture', [160], '')]


@pytest.mark.parametrize('dtype', [np.float16, jnp.bfloat16])
def test_a_sound_history_is_not_suspected(dtype):
  steps = {step: rounded(each, dtype) for step, each in walk(CONFIG, 1).items()}
  mean = jax.tree.map(lambda *each: np.mean(each, axis=0), *list(steps.values())[-4:])
  assert examined(steps) == examined(steps | {360: mean}) == []


def test_a_warm_up_may_begin_with_the_same_network_twice():
  start, *others = walk(CONFIG, 1).values()
  assert examined(dict(enumerate([start, start, *others]))) == []
  assert examined(dict(enumerate([start, others[0], *others]))) == [('repeat', [1, 2], '')]


@pytest.mark.parametrize('held', [(0, 40, 80), (240, 280, 320, 360)])
def test_what_is_frozen_at_first_or_at_the_end_is_no_repeat(held):
  steps = walk(CONFIG, 2)
  same = {'embedding': steps[held[0]]['embedding']}
  assert examined(steps | {step: steps[step] | same for step in held}) == []


def test_small_updates_that_16_bits_do_not_hold_are_no_repeat():
  steps = {step: rounded(each) for step, each in walk(CONFIG, 3).items()}
  same = {'embedding': steps[160]['embedding']}
  hardly = rounded(jax.tree.map(lambda x: x * (1 + 2e-3), walk(CONFIG, 3)[160])) | same
  assert examined(dict(sorted((steps | {161: hardly}).items()))) == []
  # The same matrix, where the others move, was not trained.
  assert examined(steps | {200: steps[200] | same}) == [
      ('repeat in part', [160, 200], 'embedding')]


def test_distances_of_points_on_a_line():
  line = np.arange(6.0)
  distances = lambda x: np.abs(x[:, None] - x) + 1e-12
  assert findings.best_exchange(distances(line)) == (1, 0, 0)
  swapped = distances(line[[0, 1, 3, 2, 4, 5]])
  assert findings.best_exchange(swapped) == (pytest.approx(2), 2, 3)
  # The corner of an equilateral triangle, and a point nearer to the first of two others.
  assert findings.detours(1 - np.eye(3)[None], 1) == pytest.approx(1)
  assert findings.detours(distances(line[[0, 1, 4]])[None], 1) == pytest.approx(0.25)


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
    first, *others = [row['from_previous'] for row in report['checkpoints']]
    assert first is None and min(others) > 0.1
    # Now something goes wrong.
    weights = [tmp_path / f'history/step_{step}/model.safetensors' for step in (72, 144, 360)]
    weights[0].unlink(missing_ok=True)
    weights[1].write_bytes(weights[2].read_bytes())
  assert {each['kind']: each['steps'] for each in report['findings']} == {
      'repeat': [144, 360], 'unreadable': [72]}


@pytest.mark.parametrize('name', ['{:06d}/pretrained_model', 'step_{}', 'checkpoint-{}/a/b/c'])
def test_the_network_of_a_step_may_lie_below_its_folder(name, tmp_path):
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
