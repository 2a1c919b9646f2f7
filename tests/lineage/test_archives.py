"""Files from strangers: what is not as savez stores it is refused before memory is taken."""

import json
import zipfile

import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import archives


def read(path):
  with archives.opened(path) as (archive, metadata):
    return archives.array(archive, 'x', np.float32, 2), metadata


def write(path, x, metadata=b'{}', save=np.savez):
  save(path, x=x, metadata=np.frombuffer(metadata, np.uint8))


def test_an_array_and_its_metadata_are_read(tmp_path):
  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  write(tmp_path / 'a.npz', x, json.dumps({'schema': 1}).encode())
  back, metadata = read(tmp_path / 'a.npz')
  np.testing.assert_array_equal(back, x)
  assert metadata == {'schema': 1}


@pytest.mark.parametrize('x, metadata, save', [
    (np.zeros((2, 3), np.float32), b'{}', np.savez_compressed),
    (np.zeros((2, 3)), b'{}', np.savez), (np.zeros(6, np.float32), b'{}', np.savez),
    (np.array([[print]], object), b'{}', np.savez),
    (np.zeros((2, 3), np.float32), b'not JSON', np.savez),
    (np.zeros((2, 3), np.float32), b' ' * 2**21 + b'{}', np.savez),
    (np.zeros((2, 3), np.float32), b'[' * 100_000, np.savez),
])
def test_what_is_not_as_it_should_be_is_refused(tmp_path, x, metadata, save):
  write(tmp_path / 'a.npz', x, metadata, save)
  with pytest.raises(InputError, match='a.npz is not a fingerprint, or damaged'):
    read(tmp_path / 'a.npz')


def test_a_length_that_the_file_does_not_have_takes_no_memory(tmp_path):
  path = tmp_path / 'a.npz'
  write(path, np.zeros((2, 3), np.float32))
  with zipfile.ZipFile(path) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
  members['x.npy'] = members['x.npy'].replace(b'(2, 3)', b'(2, 9)')
  with zipfile.ZipFile(path, 'w') as archive:
    for name, content in members.items():
      archive.writestr(name, content)
  with pytest.raises(InputError, match='in 24 bytes'):
    read(path)
  with pytest.raises(InputError, match='nowhere.npz'):
    read(tmp_path / 'nowhere.npz')
