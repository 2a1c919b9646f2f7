"""The audit of a history: faults are found, and sound histories are not suspected."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.models import init_params
from bornbiased_jax.storage import checkpoint, huggingface
from experiments.audit import __main__ as audit
from experiments.audit import findings, history, injections, trained, trajectory
from experiments.audit.trained import CONFIGS
from experiments.shared.settings import resolve

FAMILY = 'llama'
CONFIG = CONFIGS[FAMILY]


@functools.cache
def walk(seed, data_seed=0, count=9):
  """A history as if trained: a random walk that begins at a birth, of 360 steps."""
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


def test_every_fault_has_an_expected_name():
  assert injections.FAULTS.keys() - KINDS.keys() == {'checkpoint of another order of the text'}


@pytest.mark.parametrize('dtype', [np.float32, np.float16, jnp.bfloat16])
def test_a_sound_history_is_not_suspected(dtype):
  rounded = {step: jax.tree.map(lambda x: np.asarray(x, dtype).astype(np.float32), params)
             for step, params in walk(1).items()}
  assert examined(rounded) == []


def test_a_warm_up_may_begin_with_the_birth_twice():
  steps = walk(1)
  note, = examined({0: steps[0], 1: steps[0]} | {2 + step: each for step, each in steps.items()
                                                 if step})
  assert note['steps'] == [0, 1] and not note['is_fault']


def test_one_checkpoint_of_32_bits_makes_no_repeats_of_16():
  """Rounding hides the updates of one matrix between some steps; the first is not rounded."""
  rounded = {step: jax.tree.map(lambda x: np.asarray(x, jnp.bfloat16).astype(np.float32), params)
             for step, params in walk(1).items()}
  first, second, third, *others = rounded
  still = jax.tree.map(lambda x: np.asarray(x * (1 + 4e-3), jnp.bfloat16).astype(np.float32),
                       rounded[second])
  still['embedding'] = rounded[second]['embedding']
  made = {first: walk(1)[first], second: rounded[second], second + 1: still} | {
      step: rounded[step] for step in (third, *others)}
  assert not [each for each in examined(made) if each['is_fault']]


@pytest.mark.slow
def test_frozen_tensors_are_notes():
  steps, first = walk(2), walk(2)[0]
  frozen = {step: params | {'embedding': first['embedding']} for step, params in steps.items()}
  note, = examined(frozen)
  assert (note['kind'], note['where'], note['is_fault']) == ('unchanged', 'embedding', False)
  for released in (3, 6):  # Frozen at first, or from then on.
    some = {step: frozen[step] if (i < released) == (released == 3) else steps[step]
            for i, step in enumerate(steps)}
    if released == 6:
      held = steps[list(steps)[6]]['embedding']
      some = {step: params | {'embedding': held} if i >= 6 else params
              for i, (step, params) in enumerate(steps.items())}
    assert [(each['kind'], each['is_fault']) for each in examined(some)] == [('unchanged', False)]


def test_small_updates_that_16_bits_do_not_hold_are_no_repeat():
  """A matrix that stays between two steps in the middle, where the others hardly move."""
  steps = walk(3)
  names = list(steps)
  still = jax.tree.map(lambda x: np.asarray(x * (1 + 2e-3), jnp.bfloat16).astype(np.float32),
                       steps[names[4]])
  rounded = {step: jax.tree.map(lambda x: np.asarray(x, jnp.bfloat16).astype(np.float32), params)
             for step, params in steps.items()}
  still['embedding'] = rounded[names[4]]['embedding']
  made = {step: rounded[step] for step in names[:5]} | {names[4] + 1: still} | {
      step: rounded[step] for step in names[5:]}
  assert [(each['kind'], each['is_fault']) for each in examined(made)] == [('unchanged', False)]
  # The same matrix, where the others move, was not trained.
  made = dict(rounded)
  made[names[5]] = made[names[5]] | {'embedding': rounded[names[4]]['embedding']}
  assert [each['kind'] for each in faults(made)] == ['repeat in part']


def test_a_single_number_of_16_bits_that_comes_back_is_no_repeat():
  half = lambda x: np.asarray(x, jnp.bfloat16).astype(np.float32)
  rounded = {step: jax.tree.map(half, params) for step, params in walk(3).items()}
  last = rounded[360]
  there = last | {'embedding': last['embedding'].copy(), 'head': last['head'] * 2}
  there['embedding'][5, 5] = half(there['embedding'][5, 5] * (1 + 2**-7))
  assert not np.array_equal(there['embedding'], last['embedding'])
  again = last | {'head': last['head'] * 4}
  assert faults(rounded | {361: there, 362: again}) == []


@pytest.mark.slow
def test_averages_are_not_suspected():
  steps = walk(5)
  last = list(steps)[-1]
  for count in (2, 3, 4, 6):
    assert faults(steps | {last: trained.mix(list(steps.values())[-count:])}) == []


def test_minus_zero_is_zero():
  steps = walk(1)
  zero, minus = (jax.tree.map(np.array, steps[0]) for _ in range(2))
  zero['embedding'][0], minus['embedding'][0] = 0.0, -0.0
  assert [each['steps'] for each in faults({0: zero, 2: minus} | {
      step + 2: steps[step] for step in list(steps)[1:]})] == [[0, 2]]


def test_distances_of_points_on_a_line():
  """In order, i and j > i are never exchanged; an exchange of neighbours has the ratio 2."""
  line = np.arange(6.0)
  distances = lambda x: np.abs(x[:, None] - x)[None] + 1e-12
  assert trajectory.exchange_ratios(distances(line)).max() < 1
  swapped = line[[0, 1, 3, 2, 4, 5]]
  ratio_NN = trajectory.exchange_ratios(distances(swapped))[0]
  assert np.unravel_index(ratio_NN.argmax(), (6, 6)) == (2, 3)
  assert ratio_NN.max() == pytest.approx(2)
  assert trajectory.shortening_exchange(distances(swapped)[0]) == (2, 3)
  assert trajectory.shortening_exchange(distances(line)[0]) is None
  # The corner of an equilateral triangle, and a point in the middle of two.
  assert trajectory.detours(1 - np.eye(3)[None], 1) == pytest.approx(1)
  assert trajectory.detours(distances(line[:3]), 1) == pytest.approx(0.5)


@pytest.fixture
def folder(tmp_path):
  """A history as transformers directories, in two shards each."""
  for step, params in walk(0, count=5).items():
    path = tmp_path / 'history' / f'step_{step}'
    huggingface.save(path, CONFIG, params)
    tensors = load_file(path / 'model.safetensors')
    (path / 'model.safetensors').unlink()
    names = sorted(tensors)
    shards = {f'model-0000{i + 1}-of-00002.safetensors': names[i::2] for i in range(2)}
    for file, held in shards.items():
      save_file({name: tensors[name] for name in held}, path / file)
    (path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': {
        name: file for file, held in shards.items() for name in held}}))
  return tmp_path / 'history'


def run(tmp_path, *words):
  """Exit code and report."""
  output = tmp_path / 'out'
  with pytest.raises(SystemExit) as stop:
    audit.main(resolve(audit.Settings, 'laptop', list(map(str, words))), output)
  path, = output.glob('*/results.json')
  return stop.value.code, json.loads(path.read_text()), path.parent


def test_a_sound_folder(folder, tmp_path, capsys):
  (folder / 'logs').mkdir()
  code, report, out = run(tmp_path, folder)
  assert (code, report['findings'], len(report['checkpoints'])) == (0, [], 6)
  printed = capsys.readouterr()
  assert printed.out.startswith('Nothing was found') and 'logs has no step' in printed.err
  assert (out / 'figure.png').stat().st_size > 10_000


def test_a_shard_of_another_step_is_named_with_its_file(folder, tmp_path, capsys):
  file = 'model-00001-of-00002.safetensors'
  (folder / 'step_144' / file).write_bytes((folder / 'step_360' / file).read_bytes())
  (folder / 'step_216' / file).unlink()
  code, report, out = run(tmp_path, *folder.iterdir())
  assert code == 1
  assert {each['kind']: each['steps'] for each in report['findings']} == {
      'repeat in part': [144, 360], 'unreadable': [216]}
  page, printed = (out / 'report.html').read_text(), capsys.readouterr().out
  for text in (page, printed):
    assert file in text and '144' in text and 'is missing' in ' '.join(text.split())
  assert not re.search(r'(src|href)="(?!data:)', page)


@pytest.mark.slow
def test_a_run_of_ours_and_its_numbers(tmp_path):
  steps = walk(0)
  writer = checkpoint.Writer(tmp_path / 'run', tuple(steps))
  for step, params in steps.items():
    params = jax.tree.map(jnp.asarray, params)
    writer.save(step, params, {'count': jnp.zeros(1)}, checkpoint.as_metadata(config=CONFIG))
  writer.close()
  code, report, _ = run(tmp_path, tmp_path / 'run')
  assert code == 0 and [row['step'] for row in report['checkpoints']] == list(steps)
  # The typical matrix's distance, from all of its entries.
  far = [np.linalg.norm(b - a) / np.linalg.norm(b) for a, b in (
      (steps[0]['blocks'][name]['kernel'][i], steps[360]['blocks'][name]['kernel'][i])
      for name in ('query', 'key', 'value', 'output', 'gate', 'up', 'down') for i in range(4))]
  assert report['checkpoints'][-1]['from_first'] == pytest.approx(np.median(far), rel=0.05)


@pytest.mark.parametrize('words, message', [
    ([], 'no history: 0 checkpoints'), (['nowhere'], 'no such folder'),
    (['a/b@step1', 'a/b@step2'], '2 checkpoints, and at least 3'),
    (['a/b@step1', 'c/d@step1'], 'both of step 1'), (['org/model-70m'], 'no step in this name')])
def test_a_history_that_is_none_is_one_line(words, message):
  with pytest.raises(InputError, match=re.escape(message)) as error:
    history.find(words)
  assert '\n' not in str(error.value)


def test_a_folder_of_which_nothing_can_be_read(tmp_path):
  for step in range(3):
    (tmp_path / 'history' / f'step_{step}').mkdir(parents=True)
  with pytest.raises(InputError, match='step_0'):
    audit.main(resolve(audit.Settings, 'laptop', [str(tmp_path / 'history')]), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
