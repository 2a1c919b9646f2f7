"""Ids on disk are those in memory, and damage is noticed."""

import json
import os

import numpy as np
import pytest

from bornbiased_jax.data import corpus, text, tokenizers
from bornbiased_jax.errors import InputError
from texts import BYTES, FILES, nine_documents, store


def big_tokenizer(vocab_size=70_000):
  """A tokenizer whose ids are characters. The largest id ends a document."""
  return tokenizers.Tokenizer('characters', vocab_size, vocab_size - 1,
                              lambda text, continues: [ord(letter) for letter in text], None)


@pytest.mark.parametrize('tokenizer, dtype', [
    (BYTES, np.uint16), (big_tokenizer(2**16), np.uint16), (big_tokenizer(2**16 + 1), np.uint32),
    (big_tokenizer(), np.uint32),
])
def test_stored_equals_in_memory(tokenizer, dtype, tmp_path):
  paths = [store(tmp_path / name, content) for name, (content, _) in FILES.items()
           if name != 'lines.jsonl']
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
  """The bytes tokenizer, made to fail after so many fragments."""
  left = iter(range(after))

  def to_ids(written, continues):
    if next(left, None) is None:
      raise Stopped
    return BYTES.to_ids(written, continues)

  return BYTES._replace(to_ids=to_ids)


@pytest.fixture
def paths(tmp_path):
  return nine_documents(tmp_path)


@pytest.mark.parametrize('after', [0, 5, 13])
def test_what_was_stopped_is_made_from_the_beginning(after, paths, tmp_path):
  corpus.write(paths, BYTES, tmp_path / 'whole')
  assert json.loads((tmp_path / 'whole' / 'tokens.json').read_text())['num_documents'] == 9
  with pytest.raises(Stopped):
    corpus.write(paths, stopping(after), tmp_path / 'out')
  with pytest.raises(InputError):
    corpus.load(tmp_path / 'out')
  (tmp_path / 'out' / 'tokens.bin.part').write_bytes(b'killed')  # What a kill leaves.
  corpus.write(paths, BYTES, tmp_path / 'out')
  assert sorted(os.listdir(tmp_path / 'out')) == ['tokens.bin', 'tokens.json']
  for name in ('tokens.bin', 'tokens.json'):
    assert (tmp_path / 'out' / name).read_bytes() == (tmp_path / 'whole' / name).read_bytes()


def test_a_full_disk_is_one_line(paths, tmp_path):
  """/dev/full is a disk without room."""
  (tmp_path / 'out').mkdir()
  (tmp_path / 'out' / 'tokens.bin.part').symlink_to('/dev/full')
  with pytest.raises(InputError, match='cannot write .*out: No space left on device'):
    corpus.write(paths, BYTES, tmp_path / 'out')
  assert os.listdir(tmp_path / 'out') == []


def test_a_complete_folder_is_left_alone(paths, tmp_path):
  corpus.write(paths, BYTES, tmp_path / 'out')
  before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / 'out').iterdir()}
  assert corpus.write(paths, stopping(0), tmp_path / 'out').tokens[0] == ord('a')
  assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / 'out').iterdir()} == before


def test_a_folder_of_other_tokens_is_refused(paths, tmp_path):
  corpus.write(paths, BYTES, tmp_path / 'out')
  content = (tmp_path / 'out' / 'tokens.bin').read_bytes()
  message = r'out holds other text, or the ids of another tokenizer \(bytes\); remove it'
  with pytest.raises(InputError, match=message):
    corpus.write(paths[:1], BYTES, tmp_path / 'out')
  with pytest.raises(InputError, match='out holds other text'):
    corpus.write(paths, big_tokenizer(), tmp_path / 'out')
  assert (tmp_path / 'out' / 'tokens.bin').read_bytes() == content


def test_a_foreign_folder_is_refused(paths, tmp_path):
  store(tmp_path / 'tokens.bin', b'mine')
  message = 'tokens.bin was not made by this command; remove it, or choose another folder'
  with pytest.raises(InputError, match=message):
    corpus.write(paths, BYTES, tmp_path)
  with pytest.raises(InputError, match='c.txt is a file; give a folder'):
    corpus.write(paths, BYTES, tmp_path / 'c.txt')
  assert (tmp_path / 'tokens.bin').read_bytes() == b'mine'


def replace(old, new):
  return lambda content: content.replace(old, new)


@pytest.mark.parametrize('name, change, message', [
    ('tokens.bin', lambda content: content[:-2],
     r'tokens.bin has \d+ bytes, not the \d+ of tokens.json; tokenize'),
    ('tokens.json', lambda content: content[:-9], 'tokens.json is damaged'),
    ('tokens.bin', lambda content: content[:-2] + b'xx',
     'tokens.bin is damaged: not the ids that tokens.json'),
    ('tokens.bin', None, 'lacks tokens.bin, or its tokens.json is damaged; tokenize again'),
    ('tokens.json', lambda content: b'[]', 'lacks tokens.bin, or its tokens.json is damaged'),
    ('tokens.json', lambda content: b'{"schema": 1}',
     'lacks tokens.bin, or its tokens.json is damaged'),
    ('tokens.json', replace(b'"num_tokens": ', b'"num_tokens": "5", "x":'), 'damaged'),
    ('tokens.json', replace(b'"schema": 1', b'"schema": 2'), 'has schema 2, not 1'),
])
def test_a_damaged_folder(name, change, message, paths, tmp_path):
  corpus.write(paths, BYTES, tmp_path / 'out')
  path = tmp_path / 'out' / name
  if change:
    path.write_bytes(change(path.read_bytes()))
  else:
    path.unlink()
  with pytest.raises(InputError, match=message):
    corpus.load(tmp_path / 'out')


def test_a_folder_of_another_tokenizer(paths, tmp_path):
  corpus.write(paths, BYTES, tmp_path / 'out')
  assert corpus.load(tmp_path / 'out', BYTES).vocab_size == 257
  with pytest.raises(InputError, match='out has the ids of tokenizer bytes, not of characters'):
    corpus.load(tmp_path / 'out', big_tokenizer())
