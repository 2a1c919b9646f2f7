"""Fingerprints and verdicts of networks by name, from the cache where it has them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage import damage, features, networks
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import checkpoint

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)
TOKENS = Probe('tokens', 40, 6)


@pytest.fixture(scope='module')
def params():
  return init_params(CONFIG, 5)


def test_a_fingerprint_is_made_once(tmp_path, params):
  writer = checkpoint.Writer(tmp_path / 'run')
  writer.save(7, params, {'count': jnp.zeros(3)}, checkpoint.as_metadata(config=CONFIG))
  writer.close()
  cache = tmp_path / 'cache'
  made = networks.fingerprint(f'{tmp_path}/run', TOKENS, cache)
  file, = cache.iterdir()
  before = file.stat().st_mtime_ns
  again = networks.fingerprint(f'{tmp_path}/run@7', TOKENS, cache)
  np.testing.assert_array_equal(again.hidden_ND, made.hidden_ND)
  assert file.stat().st_mtime_ns == before and again.metadata['about']['name'].endswith('@7')
  saved = networks.fingerprint(str(file), TOKENS)
  np.testing.assert_array_equal(saved.hidden_ND, made.hidden_ND)
  file.write_bytes(file.read_bytes()[:-100])
  mended = networks.fingerprint(f'{tmp_path}/run', TOKENS, cache)
  np.testing.assert_array_equal(mended.hidden_ND, made.hidden_ND)
  assert [path.name for path in cache.iterdir()] == [file.name]


def test_two_networks_by_name(tmp_path, params):
  """From names to a verdict, with and without the networks themselves."""
  for name, seed in (('a', 1), ('b', 2)):
    writer = checkpoint.Writer(tmp_path / name)
    writer.save(0, init_params(CONFIG, seed), {'count': jnp.zeros(3)},
                checkpoint.as_metadata(config=CONFIG))
    writer.close()
  a, b, cache = f'{tmp_path}/a', f'{tmp_path}/b', tmp_path / 'cache'
  compare = lambda *names: networks.compare_networks(*names, TOKENS, cache)
  report = compare(a, a)
  assert report['verdict'] == 'related' and 'copy of the other' in ' '.join(report['reasons'])
  assert report['base']['name'] == a
  report = compare(a, b)
  assert report['verdict'] == 'inconclusive' and '40 sequences' in report['reasons'][-1]
  saved = [str(path) for path in cache.glob('*.npz')]
  assert len(saved) == 2
  report = compare(a, saved[0])
  assert 'aligned answers' not in [row['witness'] for row in report['witnesses']]
  assert compare(a, 'tiny_gpt2:1')['verdict'] == 'not comparable'
  larger = dataclasses.replace(CONFIG, vocab_size=60)
  writer = checkpoint.Writer(tmp_path / 'c')
  writer.save(0, init_params(larger, 1), {'count': jnp.zeros(3)},
              checkpoint.as_metadata(config=larger))
  writer.close()
  assert compare(a, f'{tmp_path}/c')['probe']['num_ids'] == 50


def test_a_seed_that_people_choose_is_recognized(params):
  """The network of seed 5, after some training; one of a seed that nobody chooses is not."""
  noisy = damage.add_noise(CONFIG, params, jax.random.key(0), 0.5)
  assert networks.seed_of(CONFIG, features.sketch(*noisy)) == 5
  unknown = init_params(CONFIG, 987654321)
  assert networks.seed_of(CONFIG, features.sketch(CONFIG, unknown)) is None
  dead = {name: np.zeros_like(x) for name, x in features.sketch(*noisy).items()}
  assert networks.seed_of(CONFIG, dead) is None
  report = networks.compare_networks('tiny_gpt2:7', 'tiny_gpt2:7', TOKENS)
  assert 'random network of seed 7' in report['reasons'][-1]
