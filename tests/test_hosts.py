"""Two processes give what one gives. The first alone writes and prints, and both see mistakes."""

import json

import jax
from jax.sharding import NamedSharding
import numpy as np
import pytest

from bornbiased_jax import configs, hosts
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.sharding import BATCH, make_mesh
from bornbiased_jax.storage import huggingface
from bornbiased_jax.training import loop
from experiments import amplification
from experiments.lineage import __main__ as lineage
from experiments.shared import session, verdicts
from experiments.shared.settings import resolve
import programs
from small_networks import trained
import tiny_runs
import two_hosts

CONFIG = configs.get('tiny_llama2', num_layers=2, num_heads=2, width=32, mlp_width=64,
                     vocab_size=80)


def test_alone_the_first_process_is_the_only_one():
  assert hosts.is_first()
  assert hosts.from_first(lambda: {'a': None}) == {'a': None}
  whole = hosts.on_host(jax.device_put(np.arange(8.0), NamedSharding(make_mesh(4), BATCH)))
  np.testing.assert_array_equal(whole, np.arange(8))


def results_in(folder):
  path, = folder.rglob('results.json')
  return json.loads(path.read_text())


def assert_first_alone_speaks(done, code=0):
  assert [process[0] for process in done] == [code, code], done
  assert 'wrote' in done[0][1]
  assert 'wrote' not in done[1][1] and 'it/s' not in done[1][2] and '%|' not in done[1][2]


def assert_alike(found, expected):
  """Equal JSON, but for rounding in floats."""
  if isinstance(expected, dict):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
      assert_alike(found[name], value)
  elif isinstance(expected, list):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
      assert_alike(one, other)
  elif isinstance(expected, float):
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
  else:
    assert found == expected


READ = dict(num_sequences='200', length='4')
SWEEP = dict(lengths='8', num_sequences='12', seeds='0-4')


def flags(fields):
  return [f'--{name}={text}' for name, text in fields.items()]


@pytest.fixture(scope='module')
def networks(tmp_path_factory):
  made = tmp_path_factory.mktemp('networks')
  for seed in (1, 2):
    huggingface.save(made / str(seed), CONFIG, trained(CONFIG, seed))
  return [str(made / '1'), str(made / '2')]


def zoo_alone(folder, networks):
  """Results and times of signatures of a comparison of the networks by one process."""
  with pytest.raises(SystemExit):
    lineage.main(resolve(lineage.Settings, words=networks, **READ), folder)
  return results_in(folder), times_in(folder)


def times_in(folder):
  return {path: path.stat().st_mtime_ns for path in (folder / 'signatures').iterdir()}


@pytest.fixture(scope='module')
def pair(tmp_path_factory, networks):
  """Folders of what two processes made, what they said, and what one process has read."""
  folder = tmp_path_factory.mktemp('pair')
  places = {name: folder / name for name in ('sweep', 'read', 'read again', 'training')}
  alone = zoo_alone(places['read again'], networks)
  sweep = ['amplification', '--scale=smoke', *flags(SWEEP), f'--output_dir={places["sweep"]}']
  read = [['lineage', *networks, *flags(READ), f'--output_dir={places[name]}']
          for name in ('read', 'read again')]
  *said, refused = two_hosts.run(sweep, *read, ['tiny_runs', places['training'], 6],
                                 [*sweep, '--probe_seed=1'])
  return places, dict(zip(places, said, strict=True)) | {'refused': refused}, alone


@pytest.mark.slow
def test_a_sweep(pair, tmp_path):
  places, said, _ = pair
  assert_first_alone_speaks(said['sweep'])
  programs.main(amplification, resolve(amplification.Settings, 'smoke', **SWEEP), tmp_path)
  found, one = results_in(places['sweep']), results_in(tmp_path)
  assert found['environment']['num_processes'] == 2
  assert found['settings'] == one['settings']
  assert_alike(found['rows'], one['rows'])
  assert_alike(found['summary'], one['summary'])
  # Only the first process looks into the folder, and both hear what it finds there.
  assert [process[0] for process in said['refused']] == [2, 2]
  assert all('holds a run with probe_seed=0, not 1' in process[2] for process in said['refused'])


@pytest.mark.slow
def test_a_comparison_of_networks(pair):
  places, said, (one, _) = pair
  assert_first_alone_speaks(said['read'], verdicts.EXIT_CODES['inconclusive'])
  found = results_in(places['read'])
  assert [each['digest'] for each in found['about']] == [each['digest'] for each in one['about']]
  (found,), (one,) = found['rows'], one['rows']
  assert found['verdict'] == one['verdict']
  for row, other in zip(found['tests'], one['tests'], strict=True):
    assert (row['test'], row['reason']) == (other['test'], other['reason'])
    for field in ('z', 'statistic'):
      assert (row[field] is None) == (other[field] is None)
      if row[field] is not None:
        np.testing.assert_allclose(row[field], other[field], atol=0.02)
  # Both wrote the same files, and nothing is left of their making.
  names = [sorted(path.name for path in (places[name] / 'signatures').iterdir())
           for name in ('read', 'read again')]
  assert names[0] == names[1] and len(names[0]) == 2


@pytest.mark.slow
def test_networks_whose_signatures_are_there(pair):
  places, said, (one, times) = pair
  assert_first_alone_speaks(said['read again'], verdicts.EXIT_CODES['inconclusive'])
  found = results_in(places['read again'])
  assert found['environment']['num_processes'] == 2
  assert_alike(found['rows'], one['rows'])
  assert times == times_in(places['read again'])


@pytest.mark.slow
def test_two_processes_train_as_one(pair, tmp_path):
  places, said, _ = pair
  loop.train(tiny_runs.run(tmp_path))
  # As in test_loop: Adam divides by a root of squares.
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=2e-4),
               tiny_runs.final(places['training']), tiny_runs.final(tmp_path))
  lines = (places['training'] / 'seed_3' / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['step'] for line in lines] == [1, 2, 3, 3, 4, 5, 6, 6]
  assert [process[0] for process in said['training']] == [0, 0]
  assert [process[2].count('6/6') > 0 for process in said['training']] == [True, False]


@pytest.mark.parametrize('given, message', [
    (dict(coordinator='host:1'), '--coordinator: only with --distributed'),
    (dict(distributed=True, process_id='-1'), "--process_id: '-1' is not a whole number"),
    (dict(distributed=True, num_processes='two'), "--num_processes: 'two' is not a whole number"),
])
def test_flags_of_several_hosts(given, message):
  with pytest.raises(InputError, match=message):
    session.connect(**given)
