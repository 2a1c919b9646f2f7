"""Documents of local text files and of prepared tensorflow-datasets, read as a stream.

A long document comes in several fragments, so that memory does not grow with
its length. Where a document is cut depends only on its text.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
import hashlib
import json
import lzma
import os
from pathlib import Path
import re
from typing import NamedTuple

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import reading

EMBEDDED = 'tinyshakespeare'
SUFFIXES = ('.txt', '.txt.xz', '.jsonl', '.jsonl.xz')
SEPARATOR = re.compile(r'\n?<\|endoftext\|>\n?')
# A search needs as many characters beyond the longest fragment as the longest separator has.
MARGIN = len('\n<|endoftext|>\n')
# Documents are cut before a single space or line end: no tokenizer merges across that place.
CUT = re.compile(r'(?<=\S)[ \n](?=\S)')
# Characters: a fragment ends at the first CUT after SHORTEST_CUT, or else at LONGEST.
SHORTEST_CUT, LONGEST = 2**14, 2**15
BLOCK = 2**16
# tfds:NAME_OR_FOLDER[:SPLIT]
TFDS = re.compile(r'tfds:(.*?)(?::([A-Za-z_]\w*(?:\[.*\])?))?', re.DOTALL)
DIGEST_BLOCKS = 1024


class Fragment(NamedTuple):
  """A part of a document.

  Attributes:
    text: the part. It is empty only if the document ends right after a cut.
    begins: whether it is the first fragment of its document.
    ends: whether it is the last fragment of its document.
    position: bytes of the source that were read so far.
  """

  text: str
  begins: bool
  ends: bool
  position: int


class Source(NamedTuple):
  """Where documents come from.

  Attributes:
    name: name of the file, or of the data set and its split.
    size: bytes as stored, compressed or not.
    digest: digest of the content (see `digest`); for a tfds data set, digest of
      its name and number of examples.
    fragments: function that reads all its documents, from the beginning.
  """

  name: str
  size: int
  digest: str
  fragments: Callable[[], Iterator[Fragment]]


def sources(specs: Iterable[str | os.PathLike]) -> list[Source]:
  """Finds the texts that `specs` name.

  Args:
    specs: each is one of
      - a file `.txt`, with one document, or with several, each of them followed
        by <|endoftext|>; or `.txt.xz`;
      - a file `.jsonl`, with a JSON object per line and its document under
        "text"; or `.jsonl.xz`;
      - a folder of such files, which are taken in the order of their names;
      - 'tfds:NAME_OR_FOLDER[:split]', a prepared tensorflow-datasets data set;
      - 'tinyshakespeare', which is part of the package.
  """
  found: list[Source] = []
  for spec in map(str, specs):
    is_tfds = spec.startswith('tfds:')
    found += [_tfds_source(spec)] if is_tfds else map(_file_source, _text_files(spec))
  return found


def fragments(sources: Iterable[Source]) -> Iterator[Fragment]:
  """All documents of all sources in turn. `position` counts the bytes of all sources."""
  before = 0
  for source in sources:
    for fragment in source.fragments():
      yield fragment._replace(position=before + fragment.position)
    before += source.size


def digest(array: np.ndarray) -> str:
  """16 hexadecimal digits that identify an array by its bytes.

  They depend on all bytes of an array of up to 64 MiB, and on 1,024 evenly
  spaced blocks of a larger one.
  """
  content = array.view(np.uint8)
  sha256 = hashlib.sha256(str(content.size).encode())
  starts: Sequence[int] = range(0, content.size, BLOCK)
  if len(starts) > DIGEST_BLOCKS:
    starts = [i * (content.size - BLOCK) // (DIGEST_BLOCKS - 1) for i in range(DIGEST_BLOCKS)]
  for start in starts:
    sha256.update(content[start:start + BLOCK].data)
  return sha256.hexdigest()[:16]


def _text_files(spec):
  if spec == EMBEDDED:
    return [Path(__file__).parent / f'{EMBEDDED}.txt.xz']
  path = Path(spec).expanduser()
  if path.is_dir():
    is_hidden = lambda file: any(part.startswith('.') for part in file.relative_to(path).parts)
    files = sorted(file for file in path.rglob('*')
                   if file.name.endswith(SUFFIXES) and file.is_file() and not is_hidden(file))
    if not files:
      raise InputError(f'{path} has no files {", ".join(SUFFIXES)}')
    return files
  if not path.exists() or not path.name.endswith(SUFFIXES):
    raise InputError(f'no text {spec!r}: give a file {", ".join(SUFFIXES)}, a folder of them, '
                     f'tfds:NAME or {EMBEDDED}')
  return [path]


def _file_source(path):
  with reading(path):
    content = np.memmap(path, np.uint8, 'r') if path.stat().st_size else np.zeros(0, np.uint8)
    return Source(path.name, content.size, digest(content), lambda: _file_fragments(path))


def _file_fragments(path):
  with reading(path), open(path, 'rb') as stored:
    with lzma.open(stored) if path.suffix == '.xz' else stored as file:
      if path.name.removesuffix('.xz').endswith('.jsonl'):
        parts = (part for text in _json_texts(path, file) for part in _cut(_blocks(text)))
      else:
        parts = _cut(_decoded(path, file), SEPARATOR)
      for part in parts:
        yield Fragment(*part, stored.tell())


def _decoded(path, file):
  decoder, offset = codecs.getincrementaldecoder('utf-8-sig')(), 0
  while True:
    block = file.read(BLOCK)
    pending = len(decoder.getstate()[0])
    try:
      yield decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
      position = offset - pending + error.start
      raise InputError(f'{path} is not UTF-8 text: see byte {position}') from None
    if not block:
      return
    offset += len(block)


def _json_texts(path, file):
  for number, line in enumerate(file, 1):
    if not line.strip():
      continue
    try:
      text = json.loads(line.decode('utf-8-sig'))['text']
      text.encode()  # JSON can hold half a surrogate pair, which is not text.
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
      raise InputError(f'{path}, line {number}: not a JSON object with text in UTF-8, like '
                       '{"text": "…"}') from None
    yield text


def _blocks(text):
  return (text[i:i + BLOCK] for i in range(0, len(text), BLOCK))


def _cut(blocks, separator=None):
  """(text, begins, ends) of each fragment of the text that the blocks make up."""
  blocks, text, begins, more = iter(blocks), '', True, True
  while True:
    while more and len(text) < LONGEST + MARGIN:
      block = next(blocks, None)
      more = block is not None
      text += block or ''
    if begins and not text:
      return
    fragment, text, ends = _first_fragment(text, separator)
    if fragment or not begins:
      yield fragment, begins, ends
    begins = ends


def _first_fragment(text, separator):
  """The first fragment, the rest, and whether a document ends between them."""
  end = separator and separator.search(text, 0, LONGEST + MARGIN)
  if end and end.start() < LONGEST:
    return text[:end.start()], text[end.end():], True
  if len(text) <= LONGEST:
    return text, '', True
  cut = CUT.search(text, SHORTEST_CUT, LONGEST)
  cut = cut.start() if cut else LONGEST
  return text[:cut], text[cut:], False


def _tfds_source(spec):
  name, split = TFDS.fullmatch(spec).groups(default='train')
  try:
    builder = _tfds_builder(name)
    examples = _tfds_examples(builder, split)
  except ImportError as error:
    raise InputError(f'{spec} needs the package {error.name}; install it with pip') from None
  fields = [field for field in builder.info.features if field == 'text' or field.endswith('_text')]
  if len(fields) != 1:
    raise InputError(f'{spec}: its examples need exactly one text, but have '
                     f'{", ".join(builder.info.features)}')
  total = sum(info.num_examples for info in builder.info.splits.values())
  size = builder.info.dataset_size * len(examples) // max(total, 1)
  identity = f'{builder.info.full_name}:{split}'
  identifying = np.frombuffer(f'{identity}:{len(examples)}'.encode(), np.uint8)
  return Source(identity, size, digest(identifying),
                lambda: _tfds_fragments(identity, examples, fields[0], size))


def _tfds_builder(name):
  import tensorflow_datasets as tfds
  try:
    if (directory := Path(name).expanduser()).joinpath('dataset_info.json').is_file():
      return tfds.builder_from_directory(directory)
    return tfds.core.read_only_builder.builder_from_files(name)
  except (ValueError, OSError):
    raise InputError(
        f'no prepared data set {name!r}: give a folder with dataset_info.json, or NAME[/CONFIG] '
        'after "tfds build NAME[/CONFIG] --file_format=array_record", which needs '
        'TensorFlow') from None


def _tfds_examples(builder, split):
  try:
    return builder.as_data_source(split)
  except NotImplementedError:
    raise InputError(f'{builder.data_dir} is not stored as array_record; prepare the data set '
                     'again with "tfds build --file_format=array_record"') from None
  except ValueError:
    raise InputError(f'{builder.info.full_name} has no split {split!r}, but '
                     f'{", ".join(builder.info.splits)}') from None


def _tfds_fragments(name, examples, field, size):
  for i in range(len(examples)):
    try:
      text = examples[i][field].decode()
    except UnicodeDecodeError:
      raise InputError(f'{name}, example {i}: not UTF-8 text') from None
    for part in _cut(_blocks(text)):
      yield Fragment(*part, size * (i + 1) // len(examples))
