"""Files and folders are read as their documents, and a mistake in one is told in one line."""

import json
import lzma
import re
import tracemalloc

import numpy as np
import pytest

from bornbiased_jax.data import corpus, text
from bornbiased_jax.errors import InputError
from texts import BYTES, FILES, documents, ended, store


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
  """The fragments are the same for all sizes of blocks, and join to what one split finds."""
  monkeypatch.setattr(text, 'SHORTEST_CUT', 16)
  monkeypatch.setattr(text, 'LONGEST', 32)
  rng = np.random.default_rng(0)
  pieces = np.array(['a', 'é', 'word', ' ', '\n', '  ', '四' * 40, '\n<|endoftext|>\n',
                     '<|endoftext|>', '<|end'])
  shares = [0.2, 0.1, 0.2, 0.2, 0.1, 0.05, 0.02, 0.03, 0.05, 0.05]
  content = ''.join(rng.choice(pieces, 3000, p=shares))
  path = store(tmp_path / 'a.txt', content)
  expected = [document for document in re.split(r'\n?<\|endoftext\|>\n?', content) if document]
  monkeypatch.setattr(text, 'BLOCK', 10**6)
  at_once = [fragment[:3] for fragment in text.fragments(text.sources([path]))]
  monkeypatch.setattr(text, 'BLOCK', block)
  assert documents(path) == expected
  assert [fragment[:3] for fragment in text.fragments(text.sources([path]))] == at_once
  assert max(len(fragment[0]) for fragment in at_once) == 32
  lines = '\n'.join(json.dumps({'text': document}) for document in expected)
  assert documents(store(tmp_path / 'a.jsonl', lines)) == expected


def test_positions_end_at_the_size(tmp_path):
  sources = text.sources([store(tmp_path / 'a.txt.xz', 'some text ' * 10**5),
                          store(tmp_path / 'b.txt', 'more')])
  positions = [fragment.position for fragment in text.fragments(sources)]
  assert positions == sorted(positions) and positions[-1] == sum(source.size for source in sources)


def test_memory_does_not_grow_with_the_text(tmp_path):
  """Here 30 MB in one line without a blank."""
  path = store(tmp_path / 'long.txt', b'x' * 30_000_000)
  fragments = text.fragments(text.sources([path]))
  tracemalloc.start()
  try:
    assert sum(len(fragment.text) for fragment in fragments) == 30_000_000
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize('name, content, message', [
    ('a.txt', b'', 'a.txt: no text'),
    ('a.txt', '<|endoftext|>\n<|endoftext|>', 'a.txt: no text'),
    ('a.jsonl', '{"text": ""}\n\n', 'a.jsonl: no text'),
    ('a.txt', b'good \xc3\xa9 ' * 20_000 + b'\xff bad',
     'a.txt is not UTF-8 text: see byte 160000$'),
    ('a.txt', 'cut short: é'.encode()[:-1], 'a.txt is not UTF-8 text: see byte 11$'),
    *(('a.jsonl', content, f'a.jsonl, line {line}: not a JSON object with text in UTF-8')
      for content, line in (
          (b'{"text": "a"}\n{"text": "\xff"}', 2), ('{"text": "\\ud800"}', 1),
          ('{"text": "a"}\n{"tex": "b"}', 2), ('\n{"text": 5}', 2), ('["text"]', 1),
          ('plain text', 1), ('[' * 10**5, 1))),
    ('a.txt.gz', b'', "no text '.*a.txt.gz': give a file .txt"),
])
def test_a_mistake_in_a_text_is_one_line(name, content, message, tmp_path):
  path = store(tmp_path / name, content)
  with pytest.raises(InputError, match=message):
    corpus.load(path)
  with pytest.raises(InputError, match=message):
    corpus.write([path], BYTES, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
  # Once the mistake is mended, the same folder serves.
  mended = store(tmp_path / 'mended.txt', 'some text')
  assert corpus.write([mended], BYTES, tmp_path / 'out').tokens.size == 10


@pytest.mark.parametrize('damage, message', [
    (lambda content: content[:-20], 'a.txt.xz is cut short; copy it again'),
    (lambda content: content[:99] + bytes(9) + content[108:],
     'a.txt.xz is not an .xz file, or damaged'),
])
def test_a_damaged_xz_file(damage, message, tmp_path):
  path = tmp_path / 'a.txt.xz'
  content = np.random.default_rng(0).integers(32, 127, 10**4, np.uint8).tobytes()
  path.write_bytes(damage(lzma.compress(content)))
  with pytest.raises(InputError, match=message):
    corpus.load(path)


@pytest.mark.parametrize('spec', ['tinyshakespear', 'none/a.txt', ''])
def test_no_such_text(spec, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match='(tinyshakespeare|no files .*); a folder that corpus.wr'):
    corpus.load(spec)
