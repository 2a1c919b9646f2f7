"""Dossiers are saved and loaded as they are, and files from strangers are not trusted."""

import json

import numpy as np
import pytest

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import dossiers, fingerprints
from bornbiased_jax.models.initialization import init_params
from small_networks import LLAMA

PROBE = Probe('tokens', 30, 5)


@pytest.fixture(scope='module')
def dossier():
  return dossiers.take(LLAMA, init_params(LLAMA, 1), PROBE, {'name': 'a'})


def test_a_saved_dossier_is_the_same(dossier, tmp_path):
  dossier.save(tmp_path / 'a.npz')
  loaded = dossiers.load(tmp_path / 'a.npz')
  assert loaded.about == {'name': 'a'} and loaded.width == LLAMA.width
  for kind in ('tokens', 'vectors'):
    np.testing.assert_array_equal(getattr(loaded, kind).hidden_ND, getattr(dossier, kind).hidden_ND)
    assert getattr(loaded, kind).metadata == getattr(dossier, kind).metadata
  for name, x in dossier.sketch.items():
    np.testing.assert_array_equal(loaded.sketch[name], x)
  assert loaded.tensors.keys() == dossier.tensors.keys()
  for name, tensor in dossier.tensors.items():
    assert (loaded.tensors[name].digest, loaded.tensors[name].shape) == (
        tensor.digest, tensor.shape)
    np.testing.assert_array_equal(loaded.tensors[name].sample, tensor.sample)


def test_answers_alone_are_a_dossier_too(dossier, tmp_path):
  for kind in ('tokens', 'vectors'):
    getattr(dossier, kind).save(tmp_path / 'answers.npz')
    loaded = dossiers.load(tmp_path / 'answers.npz')
    assert loaded.sketch is None and loaded.tensors is None
    assert [name for name in ('tokens', 'vectors') if getattr(loaded, name)] == [kind]


def test_the_vectors_of_a_dossier_have_one_position_and_suffice_to_be_projected_out(dossier):
  assert len(dossier.vectors.hidden_ND) == 4 * LLAMA.width
  assert dossier.vectors.metadata['probe']['length'] == 1
  length_N = np.linalg.norm(dossier.vectors.input_ND, axis=1)
  np.testing.assert_allclose(length_N, length_N[0], rtol=1e-5)


@pytest.mark.parametrize('damage', [
    lambda arrays, metadata: arrays.pop('samples'),
    lambda arrays, metadata: arrays.update(sketch_up=arrays['sketch_up'][:, :3]),
    lambda arrays, metadata: arrays.update(sketch_up=np.float64(arrays['sketch_up'])),
    lambda arrays, metadata: arrays.update(sketch_up=np.nan * arrays['sketch_up']),
    lambda arrays, metadata: arrays.update(samples=arrays['samples'][:3]),
    lambda arrays, metadata: metadata.update(dossier=99),
    lambda arrays, metadata: metadata.pop('about'),
    lambda arrays, metadata: metadata.update(about=3),
    lambda arrays, metadata: metadata.update(tensors=[1, 2]),
    lambda arrays, metadata: metadata['tensors'].update(head=7),
    lambda arrays, metadata: metadata['tokens'].pop('probe'),
    lambda arrays, metadata: metadata.update(vectors=None),
])
def test_a_damaged_dossier_is_refused(dossier, tmp_path, damage):
  path = tmp_path / 'a.npz'
  dossier.save(path)
  with np.load(path) as file:
    arrays = dict(file)
  metadata = json.loads(arrays.pop('metadata').tobytes())
  damage(arrays, metadata)
  np.savez(path, **arrays, metadata=np.frombuffer(json.dumps(metadata).encode(), np.uint8))
  with pytest.raises(InputError, match='a.npz'):
    dossiers.load(path)
  path.write_bytes(path.read_bytes()[:-200])
  with pytest.raises(InputError, match='a.npz'):
    dossiers.load(path)
  with pytest.raises(InputError, match='missing.npz'):
    fingerprints.load(tmp_path / 'missing.npz')
