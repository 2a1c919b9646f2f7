"""Fingerprints come back from files as they were, and those that strangers wrote are checked."""

import dataclasses
import io
import json
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprints, reading
from bornbiased_jax.models.initialization import init_params

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)
TOKENS = Probe('tokens', 40, 6)


@pytest.fixture(scope='module')
def params():
  return init_params(CONFIG, 5)


def test_networks_of_different_vocabularies_can_read_the_same():
  probe = Probe('tokens', 40, 6, num_ids=30)
  larger = dataclasses.replace(CONFIG, vocab_size=60)
  index = jnp.arange(40)
  np.testing.assert_array_equal(probe.inputs(CONFIG, index), probe.inputs(larger, index))
  assert fingerprints.probe_settings(probe, CONFIG) == fingerprints.probe_settings(probe, larger)
  assert fingerprints.probe_settings(TOKENS, CONFIG) != fingerprints.probe_settings(TOKENS, larger)
  with pytest.raises(InputError, match='num_ids=51 exceeds'):
    Probe('tokens', 40, 6, num_ids=51).inputs(CONFIG, jnp.arange(4))


@pytest.fixture
def saved(tmp_path, params):
  path = tmp_path / 'a.npz'
  reading.fingerprint(CONFIG, params, TOKENS, about={'name': 'a'}).save(path)
  return path


def test_a_saved_fingerprint_comes_back(saved, params):
  made = reading.fingerprint(CONFIG, params, TOKENS, about={'name': 'a'})
  back = fingerprints.load(saved)
  np.testing.assert_array_equal(back.hidden_ND, made.hidden_ND)
  np.testing.assert_array_equal(back.input_ND, made.input_ND)
  assert back.metadata == made.metadata
  assert fingerprints.config_of(back) == CONFIG
  assert set(np.load(saved)) == {'hidden_ND', 'input_ND', 'metadata'}


def rewrite(path, change, **zip_options):
  with zipfile.ZipFile(path) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
  change(members)
  with zipfile.ZipFile(path, 'w', **zip_options) as archive:
    for name, content in members.items():
      archive.writestr(name, content)


def replace_array(name, make):
  def change(members):
    content = io.BytesIO()
    old = np.load(io.BytesIO(members[f'{name}.npy']), allow_pickle=False)
    np.save(content, make(old), allow_pickle=True)
    members[f'{name}.npy'] = content.getvalue()
  return change


def huge_header(members):
  content = io.BytesIO()
  header = {'shape': (2**40, 2**20), 'fortran_order': False, 'descr': '<f4'}
  np.lib.format.write_array_header_1_0(content, header)
  members['hidden_ND.npy'] = content.getvalue() + bytes(100)


def edit_metadata(**values):
  def encode(old):
    return np.frombuffer(json.dumps(json.loads(old.tobytes()) | values).encode(), np.uint8)
  return replace_array('metadata', encode)


CHANGES = {
    'a header that asks for exabytes': (huge_header, 'not a fingerprint'),
    'pickled objects': (
        replace_array('hidden_ND', lambda x: np.array([print, {}], object)), 'not a fingerprint'),
    'another type': (replace_array('hidden_ND', lambda x: x.astype(np.float64)), 'float64'),
    'another rank': (replace_array('input_ND', lambda x: x.ravel()), 'not a fingerprint'),
    'another length': (replace_array('input_ND', lambda x: x[:-1]), 'do not fit'),
    'NaN': (replace_array('hidden_ND', lambda x: x * np.nan), 'not finite'),
    'infinity': (replace_array('input_ND', lambda x: x + np.inf), 'not finite'),
    'a missing part': (lambda members: members.pop('input_ND.npy'), 'input_ND'),
    'no answers': (replace_array('hidden_ND', lambda x: x[:, :0]), 'do not fit'),
    'a network without a configuration': (edit_metadata(model=None), 'do not fit'),
    'another schema': (edit_metadata(schema=7), 'schema 7'),
    'no probe': (edit_metadata(probe=None), 'not a fingerprint'),
    'metadata that is no JSON': (replace_array('metadata', lambda x: x[:-3]), 'not a fingerprint'),
    'deeply nested metadata': (
        replace_array('metadata', lambda x: np.frombuffer(b'[' * 10**5, np.uint8)), 'a.npz'),
    'ids that are no number': (edit_metadata(probe={'hash': 'x', 'num_ids': 'x'}), 'do not fit'),
    'endless metadata': (
        replace_array('metadata', lambda x: np.zeros(2**21, np.uint8)), 'too long'),
}


@pytest.mark.parametrize('kind', CHANGES)
def test_a_strangers_fingerprint_is_refused_in_one_line(saved, kind):
  change, message = CHANGES[kind]
  rewrite(saved, change)
  with pytest.raises(InputError, match=message) as error:
    fingerprints.load(saved)
  assert str(saved) in str(error.value)


def test_a_zip_bomb_is_refused(saved):
  rewrite(saved, replace_array('hidden_ND', lambda x: np.zeros((10**4, 32), np.float32)),
          compression=zipfile.ZIP_DEFLATED)
  with pytest.raises(InputError, match='not stored as savez'):
    fingerprints.load(saved)


@pytest.mark.parametrize('content', [b'', b'no zip', None], ids=['empty', 'other', 'truncated'])
def test_files_that_are_no_fingerprints(saved, content):
  saved.write_bytes(saved.read_bytes()[:-200] if content is None else content)
  with pytest.raises(InputError, match='not a fingerprint'):
    fingerprints.load(saved)


def test_a_missing_file_is_named(tmp_path):
  with pytest.raises(InputError, match='none.npz: No such file'):
    fingerprints.load(tmp_path / 'none.npz')
