"""Tokenizers: bytes, SentencePiece models and GPT-2's BPE, all from local files."""

from collections.abc import Callable, Collection
import functools
import hashlib
import importlib
import json
import lzma
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bornbiased_jax.data import tokenizer_files
from bornbiased_jax.data.tokenizer_files import END_OF_DOCUMENT
from bornbiased_jax.errors import InputError

GPT2_FILES = (('*encoder.json', '*vocab.bpe'), ('vocab.json', 'merges.txt'))
# The pieces into which GPT-2's own encoder.py splits a text, written without backtracking.
GPT2_PIECES = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


class Tokenizer(NamedTuple):
  """Turns text into ids and ids into text.

  A text never yields special tokens: characters that spell one are text like any
  other.

  Attributes:
    name: the kind of tokenizer and a digest of its content, for the metadata of
      a corpus.
    vocab_size: number of ids; all ids are below it.
    end_id: the id that follows each document.
    to_ids: function from a text, and whether it continues an earlier part of its
      document, to ids.
    to_text: function from ids without `end_id` to text.
    files: function that returns, by name, the content of the files which
      `transformers.AutoTokenizer` and `load` read (tokenizer_files.py).
  """

  name: str
  vocab_size: int
  end_id: int
  to_ids: Callable[[str, bool], list[int] | np.ndarray]
  to_text: Callable[[list[int]], str]
  files: Callable[[], dict[str, bytes]] = dict

  def encode(self, text: str, continues: bool = False) -> np.ndarray:
    """Ids of a text, int32 [n].

    Args:
      text: a document or a part of one; no `end_id` is added.
      continues: whether the text goes on in the middle of a document. The parts
        of a document that is cut before a single space or line end then have
        the same ids as the whole.

    Example:
      >>> from bornbiased_jax.data import tokenizers
      >>> tokenizers.load('bytes').encode('café').tolist()
      [99, 97, 102, 195, 169]
    """
    return np.asarray(self.to_ids(text, continues), np.int32)

  def decode(self, ids: Collection[int]) -> str:
    """Text of ids [n].

    The end of a document becomes '<|endoftext|>', and broken UTF-8 becomes U+FFFD.

    Raises:
      InputError: an id is outside the vocabulary.

    Example:
      >>> from bornbiased_jax.data import tokenizers
      >>> tokenizers.load('bytes').decode([72, 105, 256])
      'Hi<|endoftext|>'
    """
    ids = np.asarray(ids, np.int64).ravel()
    for id_ in ids[(ids < 0) | (ids >= self.vocab_size)][:1]:  # The first wrong one, if any.
      raise InputError(f'id {id_} is not of tokenizer {self.name}, whose ids are 0 to '
                       f'{self.vocab_size - 1}')
    documents = np.split(ids, np.flatnonzero(ids == self.end_id))
    return END_OF_DOCUMENT.join(self.to_text(document[document != self.end_id].tolist())
                                for document in documents)


def load(name: str) -> Tokenizer:
  """Loads the tokenizer `name`.

  Args:
    name: one of
      - 'bytes': the 256 bytes of UTF-8, and one more id for the end of a document;
      - the path of a SentencePiece `.model` file, or a folder with a tokenizer.model;
      - a folder to which 'bytes' was exported (`Tokenizer.files`);
      - for GPT-2's BPE, a folder that holds encoder.json and vocab.bpe, or
        vocab.json and merges.txt, each possibly as .xz; or the paths of these
        two files, joined by a comma.

  Raises:
    InputError: there is no such tokenizer, its files are missing or damaged, or
      it needs a package of the extra `text` that is not installed.
  """
  if name == 'bytes':
    return Tokenizer('bytes', 257, 256, _bytes_ids, lambda ids: bytes(ids).decode(errors='replace'),
                     tokenizer_files.of_bytes)
  path = Path(name).expanduser()
  if path.is_dir():
    return _in_directory(path)
  paths = [Path(part).expanduser() for part in str(name).split(',')]
  if len(paths) == 1 and path.suffix == '.model':
    return _sentencepiece(path)
  if len(paths) == 2:
    return _gpt2(*sorted(paths, key=lambda path: '.json' not in path.suffixes))
  raise InputError(f"no tokenizer {str(name)!r}: give 'bytes', a SentencePiece .model file, "
                   "or a folder with GPT-2's encoder.json and vocab.bpe")


def _in_directory(path):
  if (path / 'tokenizer.model').is_file():
    return _sentencepiece(path / 'tokenizer.model')
  whole = path / 'tokenizer.json'
  if whole.is_file() and tokenizer_files.is_of_bytes(_read(whole)):
    return load('bytes')
  return _gpt2(*_gpt2_files(path))


def _bytes_ids(text, continues):
  return np.frombuffer(text.encode(), np.uint8)


def _sentencepiece(path):
  content = _read(path)
  processor = _import('sentencepiece', path).SentencePieceProcessor()
  try:
    processor.LoadFromSerializedProto(content)
  except RuntimeError:
    raise InputError(f'{path} is not a SentencePiece model, or damaged') from None
  if processor.eos_id() < 0:
    raise InputError(f'{path} has no end-of-sentence piece, which must follow each document; '
                     'train the model with one')
  line_end = processor.encode('\n')

  def to_ids(text, continues):
    if not continues:
      return processor.encode(text)
    # SentencePiece puts a space before a text, as before the first word of a sentence.
    # It puts none after a line end, so the line end goes first and its ids are dropped.
    ids = processor.encode('\n' + text)
    return ids[len(line_end):] if ids[:len(line_end)] == line_end else processor.encode(text)

  return Tokenizer(_named('sentencepiece', content), processor.vocab_size(), processor.eos_id(),
                   to_ids, processor.decode,
                   functools.partial(tokenizer_files.of_sentencepiece, content))


def _gpt2(encoder_path, merges_path):
  content, merges = _read(encoder_path), _read(merges_path)
  try:
    encoder = json.loads(content)
    end_id = encoder.pop(END_OF_DOCUMENT)
    ranks = _gpt2_ranks(encoder, end_id, merges.decode())
  except (ValueError, KeyError, TypeError, AttributeError):
    raise InputError(f"{encoder_path} and {merges_path} are not GPT-2's encoder.json and "
                     'vocab.bpe, which list the same merges in the same order') from None
  encoding = _import('tiktoken', encoder_path).Encoding(
      'gpt2', pat_str=GPT2_PIECES, mergeable_ranks=ranks, special_tokens={END_OF_DOCUMENT: end_id})
  name = _named('gpt2', b' '.join(sorted(ranks, key=ranks.get)))
  return Tokenizer(name, encoding.n_vocab, end_id,
                   lambda text, continues: encoding.encode_ordinary(text), encoding.decode,
                   functools.partial(tokenizer_files.of_gpt2, content, merges))


def _gpt2_files(directory):
  for patterns in GPT2_FILES:
    found = [sorted([*directory.glob(pattern), *directory.glob(f'{pattern}.xz')])
             for pattern in patterns]
    if all(found):
      return [paths[0] for paths in found]
  raise InputError(f"{directory} has no tokenizer that can be read: neither SentencePiece's "
                   "tokenizer.model nor GPT-2's vocab.json and merges.txt")


def _gpt2_ranks(encoder, end_id, merges):
  """The id of each token, by the token's bytes.

  tiktoken takes for granted that merges of lower ids come first. If they do not,
  or the two files do not list the same tokens, this raises ValueError.
  """
  byte_of = tokenizer_files.gpt2_alphabet()
  lines = merges.removeprefix('#version: 0.2').split('\n')
  merged = [line.replace(' ', '') for line in lines if line]
  in_order = [encoder[token] for token in merged]
  if (in_order != sorted(in_order) or encoder.keys() != {*byte_of, *merged}
      or sorted([*encoder.values(), end_id]) != list(range(len(encoder) + 1))):
    raise ValueError
  return {bytes(byte_of[letter] for letter in token): id_ for token, id_ in encoder.items()}


def _named(kind, content):
  return f'{kind}-{hashlib.sha256(content).hexdigest()[:12]}'


def _read(path):
  try:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == '.xz' else content
  except OSError as error:
    raise InputError(f'cannot read the tokenizer {path}: {error.strerror}') from None
  except lzma.LZMAError:
    raise InputError(f'{path} is not an .xz file, or damaged; copy it again') from None


def _import(package, path):
  try:
    return importlib.import_module(package)
  except ImportError:
    raise InputError(f"{path} needs {package}: pip install 'bornbiased_jax[text]'") from None
