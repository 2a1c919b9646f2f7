"""Small texts in every form that a corpus takes, and the documents that they must be read as."""

import json
import lzma

from bornbiased_jax.data import load_tokenizer, text

BYTES = load_tokenizer('bytes')
STORIES = '\nOne.\nTwo.\n<|endoftext|>\nThree\r\n\n<|endoftext|><|endoftext|>Föur 四 \n'
JSON_LINES = ('{"text": "a\\nb", "source": 1}\n\n{"text": ""}\n'
              '{"text": "<|endoftext|>\\ud83d\\ude00"}')
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


def nine_documents(folder):
  """Files with 9 documents, which are read as 14 fragments because the first is long."""
  lines = '\n'.join(json.dumps({'text': f'document {i}'}) for i in range(5))
  return [store(folder / 'a.txt.xz', 'a b ' * 25_000), store(folder / 'b.jsonl', lines),
          store(folder / 'c.txt', STORIES)]


def documents(*specs):
  """Documents of sources; asserts that every fragment says whether it begins or ends one."""
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
  """The ids that a corpus must hold: the bytes of each document, and an end after it."""
  return [id_ for document in read for id_ in [*document.encode(), 256]]
