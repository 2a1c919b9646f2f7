"""Corpora: what is read, what is stored, how it survives being stopped, and the order of its windows."""

import contextlib
import io
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bornbiased_jax import corpus, memory_map, text, tokenizers
from bornbiased_jax.errors import InputError

BYTES = tokenizers.load('bytes')
STORIES = '\nOne.\nTwo.\n<|endoftext|>\nThree\r\n\n<|endoftext|><|endoftext|>Föur 四 \n'
JSON_LINES = '{"text": "a\\nb", "source": 1}\n\n{"text": ""}\n{"text": "<|endoftext|>\\ud83d\\ude00"}'
FILES = {
    'one.txt': ('Only one.\n\n', ['Only one.\n\n']),
    'stories.txt': (STORIES, ['\nOne.\nTwo.', 'Three\r\n', 'Föur 四 \n']),
    'mark.txt': ('\ufeffmarked', ['marked']),
    'lines.jsonl': (JSON_LINES, ['a\nb', '<|endoftext|>😀']),
    'windows.jsonl': ('\ufeff{"text": "x"}\r\n{"text": "y"}\r\n', ['x', 'y']),
}


def store(path, content):
  content = content if isinstance(content, bytes) else content.encode()
  path.write_bytes(lzma.compress(content) if path.suffix == '.xz' else content)
  return path


def documents(*specs):
  """What a source is read as; every part says rightly whether it begins and ends a document."""
  read, before = [], True
  for fragment in text.fragments(text.sources(specs)):
    assert fragment.begins == before
    before = fragment.ends
    if fragment.begins:
      read.append('')
    read[-1] += fragment.text
  assert before
  return read


def ended(read):
  """Bytes and an end after each document: what a corpus must hold."""
  return [id_ for document in read for id_ in [*document.encode(), 256]]


# Text


@pytest.mark.parametrize('name', FILES)
def test_documents_of_a_file(name, tmp_path):
  content, expected = FILES[name]
  for path in (tmp_path / name, tmp_path / f'{name}.xz'):
    store(path, content)
    assert documents(path) == expected
    assert corpus.load(path).tokens.tolist() == ended(expected)


def test_a_folder_in_the_order_of_names(tmp_path):
  for folder in ('b', '.git'):
    (tmp_path / folder).mkdir()
  for name in ('c.txt', 'a.txt', 'b/z.jsonl.xz', '.hidden.txt', '.git/d.txt', 'notes.md'):
    store(tmp_path / name, '{"text": "b"}' if 'jsonl' in name else name[0])
  assert documents(tmp_path) == ['a', 'b', 'c']
  assert documents(tmp_path / 'c.txt', tmp_path / 'a.txt') == ['c', 'a']


@pytest.mark.parametrize('block', [1, 7, 64, 10**6])
def test_a_cut_document_is_whole_again(block, tmp_path, monkeypatch):
  """However the file falls into blocks, the fragments are the same and join to what one split finds."""
  monkeypatch.setattr(text, 'SHORTEST_CUT', 16)
  monkeypatch.setattr(text, 'LONGEST', 32)
  rng = np.random.default_rng(0)
  pieces = np.array(['a', 'é', 'word', ' ', '\n', '  ', '四' * 40, '\n<|endoftext|>\n', '<|endoftext|>', '<|end'])
  content = ''.join(rng.choice(pieces, 3000, p=[.2, .1, .2, .2, .1, .05, .02, .03, .05, .05]))
  path = store(tmp_path / 'a.txt', content)
  expected = [document for document in re.split(r'\n?<\|endoftext\|>\n?', content) if document]
  monkeypatch.setattr(text, 'BLOCK', 10**6)
  at_once = [fragment[:3] for fragment in text.fragments(text.sources([path]))]
  monkeypatch.setattr(text, 'BLOCK', block)
  assert documents(path) == expected
  assert [fragment[:3] for fragment in text.fragments(text.sources([path]))] == at_once
  assert max(len(fragment[0]) for fragment in at_once) == 32
  lines = store(tmp_path / 'a.jsonl', '\n'.join(json.dumps({'text': document}) for document in expected))
  assert documents(lines) == expected


def test_positions_end_at_the_size(tmp_path):
  sources = text.sources([store(tmp_path / 'a.txt.xz', 'some text ' * 10**5), store(tmp_path / 'b.txt', 'more')])
  positions = [fragment.position for fragment in text.fragments(sources)]
  assert positions == sorted(positions) and positions[-1] == sum(source.size for source in sources)


def test_memory_does_not_grow_with_the_text(tmp_path):
  """30 MB in one line without a blank, read by a process of its own."""
  path = store(tmp_path / 'long.txt', b'x' * 30_000_000)
  program = ('import resource, sys; from bornbiased_jax import text\n'
             'peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n'
             'sources = text.sources(sys.argv[1:])\n'
             'fragments = text.fragments(sources); next(fragments); before = peak()\n'
             'assert sum(len(fragment.text) for fragment in fragments) + text.LONGEST == 30_000_000\n'
             'print(peak() - before)')
  done = subprocess.run([sys.executable, '-c', program, str(path)], capture_output=True, text=True, check=True)
  assert int(done.stdout) < 4000  # kB


@pytest.mark.parametrize('name, content, message', [
    ('a.txt', b'', 'a.txt: no text'),
    ('a.txt', '<|endoftext|>\n<|endoftext|>', 'a.txt: no text'),
    ('a.jsonl', '{"text": ""}\n\n', 'a.jsonl: no text'),
    ('a.txt', b'good \xc3\xa9 ' * 20_000 + b'\xff bad', 'a.txt is not UTF-8 text: see byte 160000$'),
    ('a.txt', 'cut short: é'.encode()[:-1], 'a.txt is not UTF-8 text: see byte 11$'),
    ('a.jsonl', b'{"text": "a"}\n{"text": "\xff"}', 'a.jsonl, line 2: not UTF-8 text$'),
    ('a.jsonl', '{"text": "\\ud800"}', 'a.jsonl, line 1: not UTF-8 text$'),
    ('a.jsonl', '{"text": "a"}\n{"tex": "b"}', 'a.jsonl, line 2: no text under "text"$'),
    ('a.jsonl', '\n{"text": 5}', 'a.jsonl, line 2: no text under "text"$'),
    ('a.jsonl', '["text"]', 'a.jsonl, line 1: no text under "text"$'),
    ('a.jsonl', 'plain text', 'a.jsonl, line 1: not JSON; each line is an object like'),
    ('a.jsonl', '[' * 10**5, 'a.jsonl, line 1: not JSON'),
    ('a.txt.gz', b'', "no text '.*a.txt.gz': give a file .txt"),
])
def test_a_mistake_in_a_text_is_one_line(name, content, message, tmp_path):
  path = store(tmp_path / name, content)
  with pytest.raises(InputError, match=message) as error:
    corpus.load(path)
  assert '\n' not in str(error.value)
  with pytest.raises(InputError, match=message):
    corpus.write([path], BYTES, tmp_path / 'out')
  assert not (tmp_path / 'out' / 'tokens.json').exists()
  # Once the mistake is mended, the same folder serves.
  mended = store(tmp_path / 'mended.txt', 'some text')
  assert corpus.write([mended], BYTES, tmp_path / 'out').tokens.size == 10


@pytest.mark.parametrize('damage, message', [
    (lambda content: content[:-20], 'a.txt.xz is cut short; copy it again'),
    (lambda content: b'', 'a.txt.xz is cut short'),
    (lambda content: b'plain text', 'a.txt.xz is not an .xz file'),
    (lambda content: content[:99] + bytes(9) + content[108:], 'a.txt.xz is not an .xz file, or damaged'),
])
def test_a_damaged_xz_file(damage, message, tmp_path):
  path = tmp_path / 'a.txt.xz'
  path.write_bytes(damage(lzma.compress(np.random.default_rng(0).integers(32, 127, 10**4, np.uint8).tobytes())))
  with pytest.raises(InputError, match=message):
    corpus.load(path)


@pytest.mark.parametrize('spec', ['tinyshakespear', 'none/a.txt', ''])
def test_no_such_text(spec, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match='tinyshakespeare$|has no files'):
    corpus.load(spec)


def test_the_embedded_default():
  loaded = corpus.load('tinyshakespeare')
  assert (loaded.tokens.size, loaded.tokens.dtype, loaded.vocab_size) == (1115395, np.uint16, 257)
  assert BYTES.decode(loaded.tokens[:14]) == 'First Citizen:' and loaded.tokens[-1] == 256
  assert loaded.metadata() == {'name': 'tinyshakespeare', 'digest': loaded.digest, 'num_tokens': 1115395,
                               'vocab_size': 257, 'tokenizer': 'bytes'}


def test_large_text_is_not_tokenized_in_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, 'IN_MEMORY_CHARACTERS', 10**6)
  path = store(tmp_path / 'a.txt.xz', 'word ' * 200_001)
  with pytest.raises(InputError, match='more than 1 million characters; first do python -m experiments.tokenize_text'):
    corpus.load(path)


# The memory map


def big_tokenizer(vocab_size=70_000):
  """Each character is an id, ends with the largest."""
  return tokenizers.Tokenizer('characters', vocab_size, vocab_size - 1,
                              lambda text, continues: [ord(letter) for letter in text], None)


@pytest.mark.parametrize('tokenizer, dtype', [(BYTES, np.uint16), (big_tokenizer(2**16), np.uint16),
                                              (big_tokenizer(2**16 + 1), np.uint32), (big_tokenizer(), np.uint32)])
def test_stored_equals_in_memory(tokenizer, dtype, tmp_path):
  paths = [store(tmp_path / name, content) for name, (content, _) in FILES.items() if name != 'lines.jsonl']
  stored = corpus.write(paths, tokenizer, tmp_path / 'out')
  in_memory = np.concatenate([corpus.load(path, tokenizer).tokens for path in paths])
  assert isinstance(stored.tokens, np.memmap) and stored.tokens.dtype == in_memory.dtype == dtype
  np.testing.assert_array_equal(stored.tokens, in_memory)
  assert stored.digest == text.digest(in_memory)
  assert (stored.vocab_size, stored.tokenizer) == (tokenizer.vocab_size, tokenizer.name)
  described = json.loads((tmp_path / 'out' / 'tokens.json').read_text())
  assert (described['num_tokens'], described['num_documents']) == (stored.tokens.size, 7)
  assert [source['name'] for source in described['sources']] == [path.name for path in paths]
  assert sorted(os.listdir(tmp_path / 'out')) == ['tokens.bin', 'tokens.json']


class Stopped(Exception):
  pass


def stopping(after):
  """The bytes tokenizer, which fails after so many fragments, and counts them."""
  calls = []

  def to_ids(written, continues):
    if len(calls) == after:
      raise Stopped
    calls.append(written)
    return BYTES.to_ids(written, continues)

  return BYTES._replace(to_ids=to_ids), calls


@pytest.fixture
def paths(tmp_path):
  """14 fragments of 9 documents, of which the first is cut."""
  lines = '\n'.join(json.dumps({'text': f'document {i}'}) for i in range(5))
  return [store(tmp_path / 'a.txt.xz', 'a b ' * 25_000), store(tmp_path / 'b.jsonl', lines),
          store(tmp_path / 'c.txt', STORIES)]


@pytest.mark.parametrize('interval', [-1, 1000], ids=['saved at each fragment', 'never saved'])
def test_stopped_anywhere_it_ends_the_same(interval, paths, tmp_path, monkeypatch):
  monkeypatch.setattr(memory_map, 'SAVE_INTERVAL_S', interval)
  counted, calls = stopping(None)
  corpus.write(paths, counted, tmp_path / 'whole')
  assert len(calls) == 14
  assert json.loads((tmp_path / 'whole' / 'tokens.json').read_text())['num_documents'] == 9
  for after in range(len(calls)):
    tokenizer, early = stopping(after)
    with pytest.raises(Stopped):
      corpus.write(paths, tokenizer, tmp_path / f'{after}')
    with pytest.raises(InputError, match='is not complete; give the command'):
      corpus.load(tmp_path / f'{after}')
    again, late = stopping(None)
    corpus.write(paths, again, tmp_path / f'{after}')
    for name in ('tokens.bin', 'tokens.json'):
      assert (tmp_path / f'{after}' / name).read_bytes() == (tmp_path / 'whole' / name).read_bytes()
    assert late == (calls[after:] if interval < 0 else calls)


@pytest.mark.parametrize('call', range(1, 10))
def test_a_full_disk_is_one_line_and_loses_nothing(call, paths, tmp_path, monkeypatch):
  corpus.write(paths, BYTES, tmp_path / 'whole')
  monkeypatch.setattr(memory_map, 'SAVE_INTERVAL_S', -1)
  fsync, calls = os.fsync, []

  def fail(file):
    calls.append(file)
    if len(calls) == call:
      raise OSError(28, 'No space left on device')
    fsync(file)

  with monkeypatch.context() as patched:
    patched.setattr(os, 'fsync', fail)
    with pytest.raises(InputError, match='cannot write .*out: No space left on device; once that is mended'):
      corpus.write(paths, BYTES, tmp_path / 'out')
  corpus.write(paths, BYTES, tmp_path / 'out')
  assert (tmp_path / 'out' / 'tokens.bin').read_bytes() == (tmp_path / 'whole' / 'tokens.bin').read_bytes()


def test_killed_in_the_middle(paths, tmp_path):
  """SIGKILL, three times, at whatever moment."""
  corpus.write(paths, BYTES, tmp_path / 'whole')
  program = ('import sys, time; from bornbiased_jax import corpus, memory_map, tokenizers\n'
             'memory_map.SAVE_INTERVAL_S = 0\n'
             'tokenizer = tokenizers.load("bytes")\n'
             'slow = lambda text, continues: time.sleep(0.1) or tokenizer.to_ids(text, continues)\n'
             'corpus.write(sys.argv[2:], tokenizer._replace(to_ids=slow), sys.argv[1])\n')
  command, out = [sys.executable, '-c', program, str(tmp_path / 'out'), *map(str, paths)], tmp_path / 'out'
  for fragments in (1, 4, 8):
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
      while stored_fragments(out) < fragments and process.poll() is None:
        time.sleep(0.005)
      process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL and not (out / 'tokens.json').exists()
  corpus.write(paths, BYTES, out)
  for name in ('tokens.bin', 'tokens.json'):
    assert (out / name).read_bytes() == (tmp_path / 'whole' / name).read_bytes()


def stored_fragments(out):
  with contextlib.suppress(FileNotFoundError):
    return json.loads((out / 'progress.json').read_text())['fragments']
  return 0


def test_progress_counts_only_what_is_stored(paths, tmp_path, monkeypatch):
  monkeypatch.setattr(memory_map, 'SAVE_INTERVAL_S', -1)
  write_atomically, tokens, counts = memory_map.write_atomically, tmp_path / 'out' / 'tokens.bin', []

  def check(path, content):
    counts.append(json.loads(content)['num_tokens'])
    assert 2 * counts[-1] == (tokens.stat().st_size if tokens.exists() else 0)
    write_atomically(path, content)

  monkeypatch.setattr(memory_map, 'write_atomically', check)
  corpus.write(paths, BYTES, tmp_path / 'out')
  assert len(counts) == 1 + 14 + 2 and counts == sorted(counts)


def test_lost_bytes_are_made_again(paths, tmp_path, monkeypatch):
  """A progress.json that promises more than tokens.bin has, as after a power failure, is not believed."""
  monkeypatch.setattr(memory_map, 'SAVE_INTERVAL_S', -1)
  with pytest.raises(Stopped):
    corpus.write(paths, stopping(9)[0], tmp_path / 'out')
  os.truncate(tmp_path / 'out' / 'tokens.bin', 1000)
  stored = corpus.write(paths, BYTES, tmp_path / 'out')
  np.testing.assert_array_equal(stored.tokens, corpus.write(paths, BYTES, tmp_path / 'whole').tokens)


def test_a_complete_folder_is_left_alone(paths, tmp_path):
  corpus.write(paths, BYTES, tmp_path / 'out')
  before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / 'out').iterdir()}
  tokenizer, calls = stopping(0)
  assert corpus.write(paths, tokenizer, tmp_path / 'out').tokens[0] == ord('a') and not calls
  assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / 'out').iterdir()} == before


@pytest.mark.parametrize('after', [3, None], ids=['unfinished', 'complete'])
def test_a_folder_of_other_tokens_is_refused(after, paths, tmp_path, monkeypatch):
  monkeypatch.setattr(memory_map, 'SAVE_INTERVAL_S', -1)
  with contextlib.suppress(Stopped):
    corpus.write(paths, stopping(after)[0], tmp_path / 'out')
  content = (tmp_path / 'out' / 'tokens.bin').read_bytes()
  with pytest.raises(InputError, match=r'out holds other text, or the ids of another tokenizer \(bytes\); remove it'):
    corpus.write(paths[:1], BYTES, tmp_path / 'out')
  with pytest.raises(InputError, match='out holds other text'):
    corpus.write(paths, big_tokenizer(), tmp_path / 'out')
  assert (tmp_path / 'out' / 'tokens.bin').read_bytes() == content


def test_a_foreign_folder_is_refused(paths, tmp_path):
  store(tmp_path / 'tokens.bin', b'mine')
  with pytest.raises(InputError, match='tokens.bin was not made by this command; choose another folder'):
    corpus.write(paths, BYTES, tmp_path)
  with pytest.raises(InputError, match='cannot write .*c.txt: File exists'):
    corpus.write(paths, BYTES, tmp_path / 'c.txt')
  assert (tmp_path / 'tokens.bin').read_bytes() == b'mine'


@pytest.mark.parametrize('name, change, message', [
    ('tokens.bin', lambda content: content[:-2], r'tokens.bin has \d+ bytes, not the \d+ of tokens.json; tokenize'),
    ('tokens.bin', lambda content: content + b'xx', r'tokens.bin has \d+ bytes, not the \d+ of tokens.json'),
    ('tokens.json', lambda content: content.replace(b'"tokenizer"', b'"made_by"'), 'tokens.json is damaged'),
    ('tokens.bin', lambda content: content[:-2] + b'xx', 'tokens.bin is damaged: not the ids that tokens.json'),
    ('tokens.bin', None, 'lacks tokens.bin, or its tokens.json is damaged; tokenize again'),
    ('tokens.json', lambda content: content[:-20], 'lacks tokens.bin, or its tokens.json is damaged'),
    ('tokens.json', lambda content: b'[]', 'lacks tokens.bin, or its tokens.json is damaged'),
    ('tokens.json', lambda content: b'{"schema": 1}', 'lacks tokens.bin, or its tokens.json is damaged'),
    ('tokens.json', lambda content: content.replace(b'"num_tokens": ', b'"num_tokens": "5", "x":'), 'damaged'),
    ('tokens.json', lambda content: content.replace(b'"schema": 1', b'"schema": 2'), 'has schema 2, not 1'),
])
def test_a_damaged_folder(name, change, message, paths, tmp_path):
  corpus.write(paths, BYTES, tmp_path / 'out')
  path = tmp_path / 'out' / name
  if change:
    path.write_bytes(change(path.read_bytes()))
  else:
    path.unlink()
  with pytest.raises(InputError, match=message) as error:
    corpus.load(tmp_path / 'out')
  assert '\n' not in str(error.value)


def test_a_folder_of_another_tokenizer(paths, tmp_path):
  corpus.write(paths, BYTES, tmp_path / 'out')
  assert corpus.load(tmp_path / 'out', BYTES).vocab_size == 257
  with pytest.raises(InputError, match='out has the ids of tokenizer bytes, not of characters'):
    corpus.load(tmp_path / 'out', big_tokenizer())


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
  with pytest.raises(InputError, match=f'^some: token {position} is id 300, outside the vocabulary of 300 ids'):
    loaded.check(300)


# tensorflow-datasets


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """A folder of a tiny data set in array_record, prepared without TensorFlow."""
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
  for spec in (f'tfds:{prepared}:train', 'tfds:tiny_text', 'tfds:tiny_text:1.0.0', 'tfds:tiny_text:1.0.0:train'):
    assert documents(spec) == read
  assert read[-len(documents('tfds:tiny_text:train[50%:]')):] == documents('tfds:tiny_text:train[50%:]')
  stored = corpus.write(['tfds:tiny_text'], BYTES, tmp_path / 'out')
  assert stored.tokens.tolist() == corpus.load('tfds:tiny_text').tokens.tolist() == ended(read)
  assert 'tensorflow' not in sys.modules


@pytest.mark.parametrize('spec, message', [
    ('tfds:none_such', "no prepared data set 'none_such': give a folder with dataset_info.json, or NAME"),
    ('tfds:', "no prepared data set ''"),
    ('tfds:/none/such', "no prepared data set '/none/such'"),
    ('tfds:tiny_text:9.9.9', "no prepared data set 'tiny_text:9.9.9'"),
    ('tfds:tiny_text:test', "tiny_text/1.0.0 has no split 'test', but train, validation"),
    ('tfds:tiny_text:validation', 'tiny_text/1.0.0:validation, example 0: not UTF-8 text'),
])
def test_a_mistaken_tfds_dataset(spec, message, prepared, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match=message) as error:
    corpus.load(spec)
  assert '\n' not in str(error.value)


# Batches


def test_each_window_once_an_epoch():
  """Tokens that count: a window is known by its first id."""
  length, num_windows, batch_size = 5, 37, 4
  tokens = np.arange(num_windows * length + 3, dtype=np.uint16)
  rows = np.concatenate([corpus.batch(tokens, 7, step, batch_size, length) for step in range(37)])
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
  forward = [corpus.batch(tokens, 3, step, 8, 10) for step in range(40)]
  corpus._order.cache_clear()
  mapped = np.memmap(store(tmp_path / 'a.bin', tokens.tobytes()), np.uint16, 'r')
  for step in reversed(range(40)):
    alone = corpus.batch(mapped, 3, step, 8, 10)
    np.testing.assert_array_equal(alone, forward[step])
    assert type(alone) is np.ndarray


@pytest.mark.parametrize('batch_size', [8, 100, 1000])
def test_rows_of_hosts_make_the_whole(batch_size):
  tokens = np.arange(1000, dtype=np.uint16)
  whole = corpus.batch(tokens, 1, 11, batch_size, 10)
  part = batch_size // 4
  hosts = [corpus.batch(tokens, 1, 11, batch_size, 10, slice(host * part, (host + 1) * part)) for host in range(4)]
  np.testing.assert_array_equal(np.concatenate(hosts), whole)
  np.testing.assert_array_equal(corpus.batch(tokens, 1, 11, batch_size, 10, np.array([5, 0])), whole[[5, 0]])


def test_seeds_and_epochs_have_orders_of_their_own():
  orders = {(seed, epoch): tuple(corpus._order(seed, epoch, 50)) for seed in (0, 1, 2**32, 2**64 - 1)
            for epoch in (0, 1, 2)}
  assert len(set(orders.values())) == 12
  assert all(sorted(order) == list(range(50)) for order in orders.values())


def philox4x64(counter, key):
  """Philox-4x64-10 of Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011)."""
  mask = 2**64 - 1
  for _ in range(10):
    a, b = counter[0] * 0xD2E7470EE14C6C93, counter[2] * 0xCA5A826395121157
    counter = [b >> 64 ^ counter[1] ^ key[0], b & mask, a >> 64 ^ counter[3] ^ key[1], a & mask]
    key = [key[0] + 0x9E3779B97F4A7C15 & mask, key[1] + 0xBB67AE8584CAA73B & mask]
  return counter


@pytest.mark.parametrize('seed, epoch', [(0, 0), (42, 3), (2**64 - 1, 1)])
def test_the_order_is_that_of_philox(seed, epoch):
  """Written from the paper, so that a data seed means the same order whatever numpy becomes."""
  bits = [word for block in range(1, 6) for word in philox4x64([block, 0, 0, 0], [seed, epoch])]
  assert corpus._order(seed, epoch, 20).tolist() == sorted(range(20), key=bits.__getitem__)


def test_first_windows():
  tokens = np.arange(34, dtype=np.uint32)
  windows = corpus.first_windows(tokens, 3, 10)
  assert windows.dtype == np.int32
  np.testing.assert_array_equal(windows, [range(0, 11), range(10, 21), range(20, 31)])
  np.testing.assert_array_equal(corpus.first_windows(tokens, 2, 10), windows[:2])
  np.testing.assert_array_equal(corpus.first_windows(tokens, 99, 10), windows)


@pytest.mark.parametrize('read', [lambda tokens, length: corpus.batch(tokens, 0, 0, 2, length),
                                  lambda tokens, length: corpus.first_windows(tokens, 2, length)])
def test_too_little_text(read):
  tokens = np.arange(11, dtype=np.uint16)
  assert read(tokens, 10)[0].tolist() == list(range(11))
  with pytest.raises(InputError, match='^11 tokens are too few for one sequence of length 11; bring more text'):
    read(tokens, 11)


# The command


def command(*arguments):
  return subprocess.run([sys.executable, '-m', 'experiments.tokenize_text', *arguments], capture_output=True, text=True)


def test_the_command(paths, tmp_path):
  out = f'--output_dir={tmp_path}/out'
  done = command(f'--input={paths[0]},{paths[2]}', out)
  assert done.returncode == 0, done.stderr
  assert done.stdout == f'{tmp_path}/out: 100,032 tokens (uint16) of tokenizer bytes\n'
  assert '100%' in done.stderr
  np.testing.assert_array_equal(corpus.load(tmp_path / 'out').tokens,
                                corpus.write([paths[0], paths[2]], BYTES, tmp_path / 'same').tokens)


@pytest.mark.parametrize('arguments, message', [
    ((), '--input is missing'), (('--input=a.txt',), '--output_dir is missing'),
    (('--input=none.txt', '--output_dir=out'), "no text 'none.txt'"),
    (('--input=a.txt', '--output_dir=out', '--tokenizer=words'), "no tokenizer 'words'"),
    (('a.txt',), "'a.txt' is not a flag"),
])
def test_a_mistaken_command_is_one_line_and_exit_code_2(arguments, message, tmp_path):
  done = command(*(argument.replace('=out', f'={tmp_path}/out') for argument in arguments))
  assert done.returncode == 2
  assert done.stderr.startswith(f'error: {message}') and done.stderr.count('\n') == 1
  assert not (tmp_path / 'out').exists()


def test_help():
  done = command('--help')
  assert done.returncode == 0
  assert all(f'--{name}: ' in done.stdout for name in ('input', 'tokenizer', 'output_dir'))
