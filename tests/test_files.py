"""Files appear whole or not at all."""

import os

import pytest

from bornbiased_jax.files import write_atomically


def contents(directory):
  return {path.name: path.read_bytes() for path in directory.iterdir()}


def fail(*args, **kwargs):
  raise OSError(28, 'No space left on device')


def test_creates_and_replaces(tmp_path):
  write_atomically(tmp_path / 'a.json', b'one')
  write_atomically(str(tmp_path / 'b.json'), b'')
  assert contents(tmp_path) == {'a.json': b'one', 'b.json': b''}
  write_atomically(tmp_path / 'a.json', b'two, longer')
  assert contents(tmp_path) == {'a.json': b'two, longer', 'b.json': b''}


@pytest.mark.parametrize('call', ['replace', 'fsync'])
@pytest.mark.parametrize('old', [{}, {'a.json': b'old'}])
def test_a_failure_leaves_the_old(tmp_path, monkeypatch, call, old):
  for name, content in old.items():
    (tmp_path / name).write_bytes(content)
  monkeypatch.setattr(os, call, fail)
  with pytest.raises(OSError, match='No space left'):
    write_atomically(tmp_path / 'a.json', b'new')
  assert contents(tmp_path) == old


def test_interrupted(tmp_path, monkeypatch):
  def interrupt(*args):
    raise KeyboardInterrupt

  (tmp_path / 'a.json').write_bytes(b'old')
  monkeypatch.setattr(os, 'fsync', interrupt)
  with pytest.raises(KeyboardInterrupt):
    write_atomically(tmp_path / 'a.json', b'new')
  assert contents(tmp_path) == {'a.json': b'old'}


def test_not_bytes(tmp_path):
  (tmp_path / 'a.json').write_bytes(b'old')
  with pytest.raises(TypeError):
    write_atomically(tmp_path / 'a.json', 'text')
  assert contents(tmp_path) == {'a.json': b'old'}


def test_the_file_is_complete_before_it_replaces(tmp_path, monkeypatch):
  seen, replace = [], os.replace

  def record(source, target):
    with open(source, 'rb') as file:
      seen.append((file.read(), os.path.dirname(source) == os.path.dirname(target)))
    replace(source, target)

  monkeypatch.setattr(os, 'replace', record)
  write_atomically(tmp_path / 'a.json', b'all of it')
  assert seen == [(b'all of it', True)]


def test_missing_directory(tmp_path):
  with pytest.raises(FileNotFoundError):
    write_atomically(tmp_path / 'nowhere' / 'a.json', b'new')
  assert contents(tmp_path) == {}


def test_a_file_in_place_of_the_directory(tmp_path):
  (tmp_path / 'file').write_bytes(b'old')
  with pytest.raises(NotADirectoryError):
    write_atomically(tmp_path / 'file' / 'a.json', b'new')
  assert contents(tmp_path) == {'file': b'old'}


def test_a_directory_in_place_of_the_file(tmp_path):
  (tmp_path / 'a.json').mkdir()
  with pytest.raises(OSError):
    write_atomically(tmp_path / 'a.json', b'new')
  assert [path.name for path in tmp_path.iterdir()] == ['a.json']
