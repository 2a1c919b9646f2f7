"""Files appear whole or not at all."""

import importlib.util
import os
from pathlib import Path
import types

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
import numpy as np
import pytest

from bornbiased_jax import files, lineage, plotting
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically
from bornbiased_jax.lineage.evidence import signature
from experiments import born_unbiased, pretrain, training_study
from experiments.shared import results
from experiments.shared.settings import resolve
from experiments.text_sinks import __main__ as text_sinks
import programs

NETWORK = 'tiny_gpt2,num_layers=2,mlp_width=64:1'  # As in test_seedprint_program.


def contents(directory):
  return {path.name: path.read_bytes() for path in directory.iterdir()}


def fail(*args, **kwargs):
  raise OSError(28, 'No space left on device')


def interrupt(*args, **kwargs):
  raise KeyboardInterrupt


def test_creates_and_replaces(tmp_path):
  write_atomically(tmp_path / 'a.json', b'one')
  write_atomically(str(tmp_path / 'b.json'), b'')
  assert contents(tmp_path) == {'a.json': b'one', 'b.json': b''}
  write_atomically(tmp_path / 'a.json', b'two, longer')
  assert contents(tmp_path) == {'a.json': b'two, longer', 'b.json': b''}


@pytest.mark.parametrize('call, how, error', [
    ('replace', fail, OSError), ('fsync', fail, OSError), ('fsync', interrupt, KeyboardInterrupt)])
@pytest.mark.parametrize('old', [{}, {'a.json': b'old'}])
def test_a_failure_leaves_the_old(tmp_path, monkeypatch, call, how, error, old):
  for name, content in old.items():
    (tmp_path / name).write_bytes(content)
  monkeypatch.setattr(os, call, how)
  with pytest.raises(error, match='No space left' if error is OSError else None):
    write_atomically(tmp_path / 'a.json', b'new')
  assert contents(tmp_path) == old


@pytest.mark.parametrize('path, content, error', [
    ('a.json', 'text', TypeError), ('nowhere/a.json', b'new', FileNotFoundError),
    ('a.json/b.json', b'new', NotADirectoryError), ('folder', b'new', OSError)])
def test_what_cannot_be_written_changes_nothing(path, content, error, tmp_path):
  (tmp_path / 'a.json').write_bytes(b'old')
  (tmp_path / 'folder').mkdir()
  with pytest.raises(error):
    write_atomically(tmp_path / path, content)
  (tmp_path / 'folder').rmdir()
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


class Bucket(MemoryFileSystem):
  """What gcsfs is, in memory."""

  protocol = ('gs', 'gcs')
  store, pseudo_dirs = {}, ['']
  writes = []

  @classmethod
  def _strip_protocol(cls, path):
    path = path.removeprefix('gs://').strip('/')
    return f'/{path}' if path else ''

  def _open(self, path, mode='rb', **options):
    if mode == 'wb':
      self.writes.append(path)
    return super()._open(path, mode, **options)


@pytest.fixture
def bucket(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('EPATH_USE_TF', 'false')
  for name in Bucket.protocol:
    monkeypatch.setitem(_registry, name, Bucket)
  for kept in (Bucket.store, Bucket.writes):
    kept.clear()
  yield files.path_of('gs://bucket/run')
  assert not list(tmp_path.iterdir()), 'a local folder for what belongs into the bucket'


def test_a_bucket_gets_whole_objects(bucket):
  assert str(bucket / 'a.json') == 'gs://bucket/run/a.json'
  write_atomically(bucket / 'a.json', b'one')
  write_atomically('gs://bucket/run/a.json', b'two')
  assert (bucket / 'a.json').read_bytes() == b'two'
  with pytest.raises(OSError, match='No space left'):
    with files.replacing(bucket / 'a.json') as file:
      file.write(b'three')
      fail()
  assert (bucket / 'a.json').read_bytes() == b'two'
  # One write for each of the two: no object is renamed, and none is half there.
  assert Bucket.writes == ['/bucket/run/a.json'] * 2
  assert [path.name for path in bucket.iterdir()] == ['a.json']


def test_results_in_a_bucket(bucket):
  settings = types.SimpleNamespace(seeds=[1])
  begun = results.Results(bucket, 'sweep', settings)
  begun.add({'seed': 1})
  begun.finish([{'mean': 1.0}], lambda row: {'mean': '1'},
               lambda: plotting.figure(2, 2))
  found = results.Results('gs://bucket/run', 'sweep', settings)
  assert found.rows == [{'seed': 1}] and found.is_measured
  assert sorted(path.name for path in bucket.iterdir()) == ['figure.png', 'results.json',
                                                            'table.md']
  with pytest.raises(InputError, match='gs://bucket/run/results.json holds a run with seeds'):
    results.Results(bucket, 'sweep', types.SimpleNamespace(seeds=[2]))


def test_a_cache_in_a_bucket(bucket):
  probe = Probe('tokens', 40, 4)
  made = lineage.states(NETWORK, probe, 'gs://bucket/run/cache')
  kept, = (bucket / 'cache').iterdir()
  assert kept.suffix == '.safetensors', 'parts are left'
  count = len(Bucket.writes)
  again = lineage.states(NETWORK, probe, bucket / 'cache')
  np.testing.assert_array_equal(again.hidden_ND, made.hidden_ND)
  np.testing.assert_array_equal(signature.load(kept).states.hidden_ND, made.hidden_ND)
  assert len(Bucket.writes) == count


@pytest.mark.parametrize('path, message', [
    ('gs:/bucket/run', 'no local path and no gs://'),
    (Path('gs://bucket/run'), 'no local path and no gs://'),
    ('s3://bucket/run', 'no local path and no gs://'),
    ('https://host/run', 'no local path and no gs://'),
    ('GS://bucket/run', 'no local path and no gs://'),
    ('gs:///run', 'names no bucket'),
    ('~nobody_of_this_name/run', 'no such user'),
    ('runs/' + 'ä' * 128, 'has a part of more than 255 bytes'),
])
def test_other_addresses_are_refused(path, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for use in (files.path_of, lambda path: write_atomically(path, b''), results.make_directory):
    with pytest.raises(InputError, match=message):
      use(path)
  assert not list(tmp_path.iterdir())


def test_what_reaches_no_bucket_says_so(monkeypatch):
  def missing(name):
    raise ImportError('Install gcsfs')

  monkeypatch.setattr(fsspec, 'get_filesystem_class', missing)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(InputError, match='gs://bucket/run: gcsfs is missing'):
    files.path_of('gs://bucket/run')


def test_training_needs_a_local_folder(bucket):
  with pytest.raises(InputError, match='must be a local folder'):
    files.local(bucket)
  assert files.local('runs/a') == Path('runs/a')


@pytest.mark.parametrize('experiment', [born_unbiased, pretrain, text_sinks, training_study])
def test_programs_that_train_leave_nothing_in_a_bucket(bucket, experiment):
  settings = resolve(experiment.Settings, 'smoke')
  with pytest.raises(InputError, match='--output_dir: .* must be a local folder'):
    programs.main(experiment, settings, bucket)
  assert not Bucket.writes


def test_an_error_is_one_line_without_invisible_characters():
  assert str(InputError('a\nb\u2028\u202ec\x00')) == r'a\nb\u2028\u202ec\x00'
