"""Corpora come from files of ids, texts and prepared data sets, and windows in a fixed order."""

import contextlib
import io
import sys

import numpy as np
import pytest

from bornbiased_jax.data import corpus, windows
from bornbiased_jax.errors import InputError
from experiments import tokenize_text
from experiments.shared.settings import resolve
from texts import BYTES, documents, ended, nine_documents, store
import two_hosts


@pytest.mark.parametrize('suffix, dtype', [('.bin', '<u2'), ('.uint16', '<u2'), ('.uint32', '<u4')])
def test_a_file_of_ids(suffix, dtype, tmp_path):
  path = store(tmp_path / f'train{suffix}', np.array([5, 0, 50256], dtype).tobytes())
  loaded = corpus.load(path)
  assert loaded.tokens.tolist() == [5, 0, 50256]
  assert (loaded.vocab_size, loaded.tokenizer) == (50257, 'unknown')
  assert corpus.load(path, BYTES).vocab_size == 257
  for content in (b'', b'odd'):
    with pytest.raises(InputError, match='is not an array of uint'):
      corpus.load(store(path, content))


@pytest.mark.parametrize('position', [0, 4, 5, 9])
def test_ids_outside_the_vocabulary(position, monkeypatch):
  monkeypatch.setattr(corpus, 'CHUNK', 5)
  tokens = np.zeros(10, np.uint16)
  tokens[position:] = 300
  loaded = corpus.Corpus(tokens, 301, 'some', 'bytes', '')
  loaded.check(301)
  message = f'^some: token {position} is id 300, outside the vocabulary of 300 ids'
  with pytest.raises(InputError, match=message):
    loaded.check(300)


def test_the_embedded_default():
  loaded = corpus.load('tinyshakespeare')
  assert (loaded.tokens.size, loaded.tokens.dtype, loaded.vocab_size) == (1115395, np.uint16, 257)
  assert BYTES.decode(loaded.tokens[:14]) == 'First Citizen:' and loaded.tokens[-1] == 256
  assert loaded.metadata() == {
      'name': 'tinyshakespeare', 'digest': loaded.digest, 'num_tokens': 1115395,
      'vocab_size': 257, 'tokenizer': 'bytes'}


def test_large_text_is_not_tokenized_in_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, 'IN_MEMORY_CHARACTERS', 10**6)
  path = store(tmp_path / 'a.txt.xz', 'word ' * 200_001)
  with pytest.raises(InputError, match='more than 1 million characters, .*corpus.write'):
    corpus.load(path)


# tensorflow-datasets


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """The folder of a tiny data set in array_record, prepared without TensorFlow."""
  tfds = pytest.importorskip('tensorflow_datasets')

  class TinyText(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version('1.0.0')
    code_path = None

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(
          {'text': tfds.features.Text(), 'title': tfds.features.Text()}))

    def _split_generators(self, manager):
      return {'train': self._generate_examples(20), 'validation': self._generate_examples(2)}

    def _generate_examples(self, count):
      for i in range(count):
        yield i, {'text': b'\xff' if count == 2 else f'Téxt {i} ' * i, 'title': 'none'}

  data_dir = tmp_path_factory.mktemp('tfds')
  builder = TinyText(data_dir=data_dir, file_format='array_record')
  with contextlib.redirect_stdout(io.StringIO()):
    builder.download_and_prepare()
  tfds.core.add_data_dir(data_dir)
  return builder.data_dir


def test_a_tfds_dataset(prepared, tmp_path):
  expected = {f'Téxt {i} ' * i for i in range(1, 20)}
  read = documents(f'tfds:{prepared}')
  assert set(read) == expected and len(read) == 19
  for spec in (f'tfds:{prepared}:train', 'tfds:tiny_text', 'tfds:tiny_text:1.0.0',
               'tfds:tiny_text:1.0.0:train'):
    assert documents(spec) == read
  second_half = documents('tfds:tiny_text:train[50%:]')
  assert read[-len(second_half):] == second_half
  stored = corpus.write(['tfds:tiny_text'], BYTES, tmp_path / 'out')
  assert stored.tokens.tolist() == corpus.load('tfds:tiny_text').tokens.tolist() == ended(read)
  assert 'tensorflow' not in sys.modules


@pytest.mark.parametrize('spec, message', [
    ('tfds:none_such',
     "no prepared data set 'none_such': give a folder with dataset_info.json, or NAME"),
    ('tfds:tiny_text:9.9.9', "no prepared data set 'tiny_text:9.9.9'"),
    ('tfds:tiny_text:test', "tiny_text/1.0.0 has no split 'test', but train, validation"),
    ('tfds:tiny_text:validation', 'tiny_text/1.0.0:validation, example 0: not UTF-8 text'),
])
def test_a_mistaken_tfds_dataset(spec, message, prepared, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match=message):
    corpus.load(spec)


# Batches


def test_each_window_once_an_epoch():
  """The tokens count upward, so that a window is known by its first id."""
  length, num_windows, batch_size = 5, 37, 4
  tokens = np.arange(num_windows * length + 3, dtype=np.uint16)
  rows = np.concatenate([windows.batch(tokens, 7, step, batch_size, length) for step in range(37)])
  assert rows.dtype == np.int32 and rows.shape == (148, 6)
  np.testing.assert_array_equal(rows, rows[:, :1] + np.arange(6))
  epochs = rows[:, 0].reshape(4, num_windows)
  for epoch in epochs:
    assert sorted(epoch) == list(range(0, num_windows * length, length))
  assert len({tuple(epoch) for epoch in epochs}) == 4
  targets = rows[:num_windows, 1:].ravel()
  assert sorted(targets) == list(range(1, num_windows * length + 1))


def test_a_batch_depends_on_nothing_but_its_step(tmp_path):
  tokens = np.random.default_rng(0).integers(0, 60_000, 1000).astype(np.uint16)
  forward = [windows.batch(tokens, 3, step, 8, 10) for step in range(60)]
  mapped = np.memmap(store(tmp_path / 'a.bin', tokens.tobytes()), np.uint16, 'r')
  for step in reversed(range(60)):
    alone = windows.batch(mapped, 3, step, 8, 10)
    np.testing.assert_array_equal(alone, forward[step])
    assert type(alone) is np.ndarray


@pytest.mark.parametrize('batch_size', [8, 100, 1000])
def test_rows_of_hosts_make_the_whole(batch_size):
  tokens = np.arange(1000, dtype=np.uint16)
  whole = windows.batch(tokens, 1, 11, batch_size, 10)
  part = batch_size // 4
  rows = lambda rows: windows.batch(tokens, 1, 11, batch_size, 10, rows)
  hosts = [rows(slice(host * part, (host + 1) * part)) for host in range(4)]
  np.testing.assert_array_equal(np.concatenate(hosts), whole)
  np.testing.assert_array_equal(rows(np.array([5, 0])), whole[[5, 0]])


def philox4x64(counter, key):
  """Philox-4x64-10 from Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011)."""
  mask = 2**64 - 1
  for _ in range(10):
    a, b = counter[0] * 0xD2E7470EE14C6C93, counter[2] * 0xCA5A826395121157
    counter = [b >> 64 ^ counter[1] ^ key[0], b & mask, a >> 64 ^ counter[3] ^ key[1], a & mask]
    key = [key[0] + 0x9E3779B97F4A7C15 & mask, key[1] + 0xBB67AE8584CAA73B & mask]
  return counter


@pytest.mark.parametrize('seed, epoch', [(0, 0), (42, 3), (2**64 - 1, 1)])
def test_the_order_is_that_of_philox(seed, epoch):
  """This Philox follows its paper, so that a data seed keeps its order whatever numpy becomes."""
  bits = [word for block in range(1, 6) for word in philox4x64([block, 0, 0, 0], [seed, epoch])]
  order = windows.batch(np.arange(21), seed, epoch, 20, 1)[:, 0].tolist()
  assert order == sorted(range(20), key=bits.__getitem__)


def test_windows_for_validation():
  """They are of the whole text; of a short one they are all that there are."""
  firsts = windows.spaced_windows(np.arange(1000, dtype=np.uint32), 8, 10)[:, 0]
  assert firsts[0] == 0
  assert set(np.diff(firsts)) == {120, 130}  # Of 99 windows each 12th or 13th.
  tokens = np.arange(34, dtype=np.uint32)
  chosen_NT = windows.spaced_windows(tokens, 3, 10)
  assert chosen_NT.dtype == np.int32
  np.testing.assert_array_equal(chosen_NT, [range(0, 11), range(10, 21), range(20, 31)])
  np.testing.assert_array_equal(windows.spaced_windows(tokens, 99, 10), chosen_NT)


@pytest.mark.parametrize('read', [lambda tokens, length: windows.batch(tokens, 0, 0, 2, length),
                                  lambda tokens, length: windows.spaced_windows(tokens, 2, length)])
def test_too_little_text(read):
  tokens = np.arange(11, dtype=np.uint16)
  assert read(tokens, 10)[0].tolist() == list(range(11))
  message = '^11 tokens are too few for one sequence of length 11; bring more text'
  with pytest.raises(InputError, match=message):
    read(tokens, 11)


# The command


@pytest.fixture
def paths(tmp_path):
  return nine_documents(tmp_path)


def test_the_command(paths, tmp_path):
  out = f'--output_dir={tmp_path}/out'
  code, printed, progress = two_hosts.run_here(
      'tokenize_text', f'--input={paths[0]},{paths[2]}', out)
  assert code == 0, progress
  assert printed == f'{tmp_path}/out: 100,032 tokens (uint16) of tokenizer bytes\n'
  assert '100%' in progress
  np.testing.assert_array_equal(corpus.load(tmp_path / 'out').tokens,
                                corpus.write([paths[0], paths[2]], BYTES, tmp_path / 'same').tokens)


@pytest.mark.parametrize('arguments, message', [
    (('--input=none.txt', '--output_dir=out'), "--input: no text 'none.txt'"),
    (('--input=tinyshakespeare,tinyshakespeare', '--output_dir=out'), "--input: 'tinyshakespeare,"),
    (('--input=tinyshakespeare', '--output_dir=out', '--tokenizer=words'),
     "--tokenizer: no tokenizer 'words'"),
])
def test_a_mistaken_command_is_one_line_and_exit_code_2(arguments, message, tmp_path):
  code, _, said = two_hosts.run_here('tokenize_text', *(
      argument.replace('=out', f'={tmp_path}/out') for argument in arguments))
  assert code == 2 and said.startswith(f'error: {message}') and said.count('\n') == 1
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('to, flag', [('out', 'input'), ('empty.txt', 'output_dir')])
def test_what_is_found_while_reading_names_its_flag(to, flag, tmp_path):
  empty = tmp_path / 'empty.txt'
  empty.touch()
  settings = resolve(tokenize_text.Settings, input=str(empty), output_dir=str(tmp_path / to))
  with pytest.raises(InputError, match=f'--{flag}: .*empty.txt'):
    tokenize_text.main(settings)
