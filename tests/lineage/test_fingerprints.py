"""Fingerprints hold what a network answers, and those that strangers wrote are checked."""

import dataclasses
import io
import json
import zipfile

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprints, witnesses
from bornbiased_jax.models import sharding, transformer
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import Transformer
import small_networks
from small_networks import GEMMA2

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)
TOKENS, GAUSSIAN = Probe('tokens', 40, 6), Probe('gaussian', 40, 6)


@pytest.fixture(scope='module')
def params():
  return init_params(CONFIG, 5)


@pytest.mark.parametrize('probe', [TOKENS, GAUSSIAN], ids=['tokens', 'gaussian'])
def test_a_fingerprint_is_the_last_answer_to_each_sequence(probe, params):
  made = fingerprints.fingerprint(CONFIG, params, probe, batch_size=16)
  inputs = probe.inputs(CONFIG, jnp.arange(40))
  hidden = transformer.read(CONFIG, params, inputs, ('hidden',))['hidden'][:, -1]
  np.testing.assert_allclose(made.hidden_ND, hidden, atol=2e-5)
  expected = inputs[:, -1] if probe.kind == 'gaussian' else params['embedding'][inputs[:, -1]]
  np.testing.assert_allclose(made.input_ND, expected, atol=1e-8)
  seeds = fingerprints.of_seeds(CONFIG, [4, 5], probe)
  np.testing.assert_allclose(seeds[1].hidden_ND, made.hidden_ND, atol=2e-5)
  # They come from another program, which may round the same vectors differently.
  assert witnesses.input_is_shared(seeds[1], made)
  assert witnesses.input_is_shared(seeds[0], made) == (probe.kind == 'gaussian')
  assert np.abs(seeds[0].hidden_ND - made.hidden_ND).max() > 0.1


@pytest.mark.parametrize('shape', [(4, 1, 1), (1, 2, 2)])
def test_devices_share_a_fingerprint(params, shape):
  """Their number need not divide a batch, nor the size of a batch the number of sequences."""
  mesh = sharding.make_mesh(*shape)
  spread = jax.device_put(params, sharding.shardings(mesh, params))
  made = fingerprints.fingerprint(CONFIG, spread, Probe('tokens', 38, 6), batch_size=9)
  alone = fingerprints.fingerprint(CONFIG, params, Probe('tokens', 38, 6))
  np.testing.assert_allclose(made.hidden_ND, alone.hidden_ND, atol=2e-5)
  np.testing.assert_array_equal(made.input_ND, alone.input_ND)
  assert made.metadata == alone.metadata


def test_devices_gather_parameters_but_never_reduce_activations(params):
  """Otherwise activations of all sequences would pass between devices in every layer."""
  mesh, probe = sharding.make_mesh(1, 4), Probe('tokens', 64, 6)
  index_B = jax.ShapeDtypeStruct((64,), 'int32', sharding=NamedSharding(mesh, sharding.BATCH))
  program = fingerprints.program(fingerprints.exact(CONFIG), probe, mesh=mesh)
  text = program.lower(sharding.abstract(mesh, params), index_B).compile().as_text()
  assert 'all-gather(' in text and 'all-reduce(' not in text


def test_each_device_has_as_many_sequences_as_one_would_alone():
  config, probe = configs.get('llama2_7b'), Probe('tokens', 2000, 1024)
  size = lambda mesh, *given: fingerprints.spread_batch_size(config, probe, mesh, *given,
                                                             backend='tpu')
  # 32 heads of 4 MB of weights each, twice in memory at least.
  assert size(None) == 16
  assert size(sharding.make_mesh(1, 4)) == size(sharding.make_mesh(2, 2)) == 64
  assert size(sharding.make_mesh(2, 1, 2)) == 32
  assert size(sharding.make_mesh(1, 4), 9) == 12
  assert size(sharding.make_mesh(1, 4), 10_000) == 2000


def test_logits_of_chosen_ids(params):
  made = fingerprints.fingerprint(CONFIG, params, TOKENS, logit_ids=(7, 3, 49))
  tokens = TOKENS.inputs(CONFIG, jnp.arange(40))
  logits = Transformer(CONFIG).apply({'params': params}, tokens)[:, -1]
  np.testing.assert_allclose(made.hidden_ND, logits[:, jnp.array([7, 3, 49])], atol=2e-5)
  assert made.metadata['probe']['hash'] != fingerprints.probe_settings(TOKENS, CONFIG)['hash']
  with pytest.raises(InputError, match='from 0 to 49'):
    fingerprints.fingerprint(CONFIG, params, TOKENS, logit_ids=(50,))


def test_a_fingerprint_goes_on_where_it_was(params, tmp_path):
  class Stop(Exception):
    pass

  def stop(_):
    raise Stop

  parts = tmp_path / 'parts'
  with pytest.raises(Stop):
    fingerprints.fingerprint(CONFIG, params, TOKENS, batch_size=16, parts=parts, on_batch=stop)
  # The answers of the first batch are taken from its file; those of a damaged file are made anew.
  first, = parts.iterdir()
  np.save(first, np.load(first) + 1)
  (parts / '16_16.npy').write_bytes(first.read_bytes()[:-100])
  made = fingerprints.fingerprint(CONFIG, params, TOKENS, batch_size=16, parts=parts)
  whole = fingerprints.fingerprint(CONFIG, params, TOKENS)
  added_N = np.arange(40) < 16
  np.testing.assert_allclose(made.hidden_ND, whole.hidden_ND + added_N[:, None], atol=2e-5)


def test_random_networks_are_read_several_at_once(monkeypatch):
  alone = fingerprints.of_seeds(CONFIG, range(5), TOKENS)
  at_most_two = lambda bytes_of_one, num_seeds: min(2, bytes_of_one())
  monkeypatch.setattr(fingerprints, 'networks_at_once', at_most_two)
  for one, other in zip(alone, fingerprints.of_seeds(CONFIG, range(5), TOKENS), strict=True):
    np.testing.assert_allclose(one.hidden_ND, other.hidden_ND, atol=2e-5)
    assert one.metadata == other.metadata


def test_a_shared_embedding_is_a_shared_input():
  a, b = fingerprints.of_seeds(CONFIG, [1, 2], TOKENS, embedding_seed=9)
  np.testing.assert_array_equal(a.input_ND, b.input_ND)
  assert np.abs(a.hidden_ND - b.hidden_ND).max() > 0.1


def test_networks_of_different_vocabularies_can_read_the_same():
  probe = Probe('tokens', 40, 6, num_ids=30)
  larger = dataclasses.replace(CONFIG, vocab_size=60)
  index = jnp.arange(40)
  np.testing.assert_array_equal(probe.inputs(CONFIG, index), probe.inputs(larger, index))
  assert fingerprints.probe_settings(probe, CONFIG) == fingerprints.probe_settings(probe, larger)
  assert fingerprints.probe_settings(TOKENS, CONFIG) != fingerprints.probe_settings(TOKENS, larger)
  with pytest.raises(InputError, match='num_ids=51 exceeds'):
    Probe('tokens', 40, 6, num_ids=51).inputs(CONFIG, jnp.arange(4))


def test_answers_that_are_not_finite_are_refused(params):
  broken = params | {'embedding': params['embedding'] * np.inf}
  with pytest.raises(InputError, match='not all finite'):
    fingerprints.fingerprint(CONFIG, broken, TOKENS)


@pytest.fixture
def saved(tmp_path, params):
  path = tmp_path / 'a.npz'
  fingerprints.fingerprint(CONFIG, params, TOKENS, about={'name': 'a'}).save(path)
  return path


def test_a_saved_fingerprint_comes_back(saved, params):
  made = fingerprints.fingerprint(CONFIG, params, TOKENS, about={'name': 'a'})
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


def test_random_vectors_are_as_large_as_what_enters_the_residual_stream():
  params, ids = init_params(GEMMA2, 1), small_networks.tokens(200, 3)
  entering = np.asarray(small_networks.read(GEMMA2, params, ids, 'input_last')['input_last'])
  size = fingerprints.sized(GEMMA2, params).embedding_std
  assert 2**-0.6 < size / np.sqrt(np.mean(entering**2)) < 2**0.6


def test_the_size_of_an_embedding_is_a_finite_number(params):
  size = np.float64(params['embedding']).std()
  assert fingerprints.sized(CONFIG, params).embedding_std == 2.0**round(np.log2(size))
  for number in (np.inf, np.nan):
    with pytest.raises(InputError, match='numbers that are not finite'):
      fingerprints.sized(CONFIG, params | {'embedding': params['embedding'].at[3, 4].set(number)})
  # Its square exceeds float32.
  large = params | {'embedding': params['embedding'].at[3, 4].set(2.0**70)}
  assert fingerprints.sized(CONFIG, large).embedding_std == 2.0**round(70 - np.log2(1600) / 2)
