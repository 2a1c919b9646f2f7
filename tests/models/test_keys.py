"""Seeds, probes and what is computed from them are the same under all settings of JAX."""

import ast
import hashlib
import json
import os
from pathlib import Path
import subprocess
import sys

import flax
import jax
import numpy as np
import pytest

from bornbiased_jax import analysis, configs, data, models
from bornbiased_jax.analysis.probes import KINDS, OF_TEXT
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import signature as evidence_signature
from bornbiased_jax.models import initialization
from bornbiased_jax.models.initialization import stream_key
from experiments.shared import session

ROOT = Path(__file__).parents[2]
SHAPE = dict(num_layers=2, num_heads=2, width=16, mlp_width=32, vocab_size=50, length=16)
CONFIG = configs.get('tiny_gpt2', **SHAPE, positions='learned', init_scheme='centred')
REFUSED = {'JAX_ENABLE_X64': '1', 'JAX_THREEFRY_PARTITIONABLE': '0', 'JAX_RANDOM_SEED_OFFSET': '7',
           'FLAX_FIX_RNG_SEPARATOR': '1'}


# A program that prints what it computes.


def network():
  return models.init_params(CONFIG, seed=42, embedding_seed=7)


def probes():
  index_N, text = np.arange(6), data.from_ids(np.arange(9), 'text')
  return jax.jit(lambda: [
      analysis.Probe(kind, 6, 4, seed=3, of_each=of_each, text=text if kind in OF_TEXT else None)
      .inputs(CONFIG, index_N, 5) for kind in KINDS for of_each in (False, True)])()


def signature():
  made = evidence_signature.of_network(CONFIG, network(), analysis.Probe('tokens', 6, 4))
  return made.states.hidden_ND, made.features.arrays


COMPUTED = network, probes, signature


def digest(compute):
  """A hash of all that is computed, bit for bit, or the line of the refusal."""
  try:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(compute())]
  except InputError as error:
    return str(error)
  parts = [part for leaf in leaves for part in (str((leaf.dtype, leaf.shape)), leaf.tobytes())]
  encoded = [part if isinstance(part, bytes) else part.encode() for part in parts]
  return hashlib.sha256(b''.join(encoded)).hexdigest()


def digests():
  return {compute.__name__: digest(compute) for compute in COMPUTED}


def main():
  """Prints the settings that a library would refuse, and what a program computes under them."""
  changed = [name for _, name, *_ in initialization._find_changed()]
  session.run(lambda: print(json.dumps([changed, digests()])))


@pytest.mark.slow
def test_a_program_computes_the_same_under_all_settings_at_once():
  env = os.environ | {'PYTHONPATH': str(ROOT), 'JAX_DEFAULT_PRNG_IMPL': 'unsafe_rbg'}
  done = subprocess.run([sys.executable, __file__], env=env | REFUSED, capture_output=True,
                        text=True)
  assert not done.returncode, done.stderr
  expected = digests()
  assert all(len(value) == 64 for value in expected.values())
  assert json.loads(done.stdout) == [[name.lower() for name in REFUSED], expected]


# In one process.


def assert_refused(lines, name):
  for line in lines.values():
    assert f'unset {name.upper()},' in line and name in line and '\n' not in line


@pytest.mark.parametrize('config, name, value', [
    (jax.config, 'jax_enable_x64', True), (jax.config, 'jax_threefry_partitionable', False),
    (jax.config, 'jax_random_seed_offset', 1), (flax.config, 'flax_fix_rng_separator', True),
])
def test_a_change_of_settings_is_noticed(config, name, value):
  before = network()
  default = getattr(config, name)
  config.update(name, value)
  try:
    with pytest.raises(InputError, match=f'^{name}={value} .* must be {default},'):
      stream_key('network', 0)
    if config is flax.config:  # JAX knows nothing of it, and would run what is compiled already.
      initialization._draw.clear_cache()
    assert_refused(digests(), name)
  finally:
    config.update(name, default)
  jax.tree.map(np.testing.assert_array_equal, network(), before)


def test_a_key_is_that_of_jax_by_default():
  for seed in (0, 42, 2**32 - 1):
    assert jax.random.key_data(initialization.make_key(seed)).tolist() == [0, seed]
  own = jax.random.key(3)
  with jax.default_prng_impl('rbg'):
    assert initialization.make_key(3) == own


def test_the_library_makes_keys_in_one_place():
  calls = [f'{path.relative_to(ROOT)}:{node.lineno}'
           for path in sorted((ROOT / 'bornbiased_jax').rglob('*.py'))
           for node in ast.walk(ast.parse(path.read_text()))
           if isinstance(node, ast.Attribute)
           and ast.unparse(node) in ('jax.random.key', 'jax.random.PRNGKey')]
  paths = [call.partition(':')[0] for call in calls]
  assert paths == ['bornbiased_jax/models/initialization.py'], calls


if __name__ == '__main__':
  main()
