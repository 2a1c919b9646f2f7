"""Two processes give what one gives. The first alone writes and prints, and both see mistakes."""

import json

import jax
from jax.sharding import NamedSharding
import numpy as np
import pytest

from bornbiased_jax import configs, hosts
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.sharding import BATCH, make_mesh
from bornbiased_jax.storage import huggingface
from experiments import amplification
from experiments.lineage import __main__ as lineage
from experiments.seedprint import __main__ as seedprint
from experiments.shared import session, verdict_page
from experiments.shared.settings import resolve
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
  # Gloo's own greeting goes to stdout.
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


@pytest.mark.slow
def test_a_sweep(tmp_path):
  flags = '--scale=smoke', '--num_sequences=12', '--seeds=0-4'
  done = two_hosts.run('amplification', *flags, f'--output_dir={tmp_path}/pair')
  assert_first_alone_speaks(done)
  settings = resolve(amplification.Settings, 'smoke', num_sequences='12', seeds='0-4')
  amplification.main(settings, tmp_path / 'one')
  pair, one = results_in(tmp_path / 'pair'), results_in(tmp_path / 'one')
  assert pair['environment']['num_processes'] == 2
  assert pair['settings'] == one['settings']
  assert_alike(pair['rows'], one['rows'])
  assert_alike(pair['summary'], one['summary'])
  # Only the first process looks into the folder, and both hear what it finds there.
  done = two_hosts.run('amplification', *flags, '--probe_seed=1', f'--output_dir={tmp_path}/pair')
  assert [process[0] for process in done] == [2, 2]
  assert all('holds a run with probe_seed=0, not 1' in process[2] for process in done)


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  made = tmp_path_factory.mktemp('networks')
  for seed in (1, 2):
    huggingface.save(made / str(seed), CONFIG, init_params(CONFIG, seed))
  return [str(made / '1'), str(made / '2')]


READ = dict(num_sequences='200', length='4')
FLAGS = [f'--{name}={text}' for name, text in READ.items()]


@pytest.mark.slow
def test_a_comparison_of_two_networks(tmp_path, folders):
  done = two_hosts.run('seedprint', *folders, *FLAGS, f'--output_dir={tmp_path}/pair')
  assert_first_alone_speaks(done, verdict_page.EXIT_CODES['inconclusive'])
  settings = resolve(seedprint.Settings, words=folders, **READ)
  with pytest.raises(SystemExit):
    seedprint.main(settings, tmp_path / 'one')
  pair, one = results_in(tmp_path / 'pair'), results_in(tmp_path / 'one')
  assert pair['base']['digest'] == one['base']['digest']
  assert pair['verdict'] == one['verdict']
  for row, other in zip(pair['tests'], one['tests'], strict=True):
    assert (row['test'], row['reason']) == (other['test'], other['reason'])
    for field in ('z', 'statistic'):
      assert (row[field] is None) == (other[field] is None)
      if row[field] is not None:
        np.testing.assert_allclose(row[field], other[field], atol=0.02)
  # Both wrote the same files, and nothing is left of their making.
  names = [sorted(path.name for path in (tmp_path / run / 'signatures').iterdir())
           for run in ('pair', 'one')]
  assert names[0] == names[1] and len(names[0]) == 2


@pytest.mark.slow
def test_a_zoo_whose_signatures_are_there(tmp_path, folders):
  settings = resolve(lineage.Settings, words=folders, **READ)
  with pytest.raises(SystemExit):
    lineage.main(settings, tmp_path)
  one = results_in(tmp_path)
  times = {path: path.stat().st_mtime_ns for path in (tmp_path / 'signatures').iterdir()}
  done = two_hosts.run('lineage', *folders, *FLAGS, f'--output_dir={tmp_path}')
  assert_first_alone_speaks(done, verdict_page.EXIT_CODES['inconclusive'])
  pair = results_in(tmp_path)
  assert pair['environment']['num_processes'] == 2
  assert_alike(pair['rows'], one['rows'])
  assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / 'signatures').iterdir()}


@pytest.mark.parametrize('given, message', [
    (dict(coordinator='host:1'), '--coordinator: only with --distributed'),
    (dict(distributed=True, process_id='-1'), "--process_id: '-1' is not a whole number"),
    (dict(distributed=True, num_processes='two'), "--num_processes: 'two' is not a whole number"),
])
def test_flags_of_several_hosts(given, message):
  with pytest.raises(InputError, match=message):
    session.connect(**given)
