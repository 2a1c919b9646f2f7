"""Tokenizers: bytes, SentencePiece models and GPT-2's BPE, from local files."""

from collections.abc import Callable
import hashlib
import importlib
import json
import lzma
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bornbiased_jax.errors import InputError

END_OF_DOCUMENT = '<|endoftext|>'
GPT2_FILES = (('*encoder.json', '*vocab.bpe'), ('vocab.json', 'merges.txt'))
# As in GPT-2's own encoder.py; the same pieces, written without backtracking.
GPT2_PIECES = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


class Tokenizer(NamedTuple):
  """Text to ids and back, without special tokens: these are never read out of a text.

  Attributes:
    name: kind and a digest of its content, for the metadata of a corpus.
    vocab_size: ids are below it.
    end_id: the id that follows each document.
    to_ids: text, whether it continues an earlier part of its document → ids.
    to_text: ids without `end_id` → text.
  """

  name: str
  vocab_size: int
  end_id: int
  to_ids: Callable[[str, bool], list[int] | np.ndarray]
  to_text: Callable[[list[int]], str]

  def encode(self, text: str, continues: bool = False) -> np.ndarray:
    """Ids of a text, int32 [n].

    Args:
      text: without an end of document; what spells a special token is text too.
      continues: the text goes on in the middle of a document. Cut before a
        single space or line end, the parts then have the ids of the whole.
    """
    return np.asarray(self.to_ids(text, continues), np.int32)

  def decode(self, ids) -> str:
    """Text of ids [n]; the end of a document reads '<|endoftext|>', broken UTF-8 as U+FFFD.

    Raises:
      InputError: an id outside the vocabulary.
    """
    ids = np.asarray(ids, np.int64).ravel()
    for id_ in ids[(ids < 0) | (ids >= self.vocab_size)][:1]:
      raise InputError(f'id {id_} is not of tokenizer {self.name}, whose ids are 0 to {self.vocab_size - 1}')
    documents = np.split(ids, np.flatnonzero(ids == self.end_id))
    return END_OF_DOCUMENT.join(self.to_text(document[document != self.end_id].tolist()) for document in documents)


def load(name: str) -> Tokenizer:
  """The tokenizer `name`.

  Args:
    name: 'bytes': UTF-8, 256 ids and an end of document; the path of a
      SentencePiece `.model`; or GPT-2's BPE: a folder, or two paths joined by a
      comma, with encoder.json and vocab.bpe (or vocab.json and merges.txt),
      each also as .xz.

  Raises:
    InputError: there is no such tokenizer, its files are missing or damaged, or
      a package of the extra `text` is not installed.
  """
  if name == 'bytes':
    return Tokenizer('bytes', 257, 256, _bytes_ids, lambda ids: bytes(ids).decode(errors='replace'))
  paths = [Path(part).expanduser() for part in str(name).split(',')]
  if len(paths) == 1 and paths[0].suffix == '.model':
    return _sentencepiece(paths[0])
  if len(paths) == 2:
    return _gpt2(*sorted(paths, key=lambda path: '.json' not in path.suffixes))
  if len(paths) == 1 and paths[0].is_dir():
    return _gpt2(*_gpt2_files(paths[0]))
  raise InputError(f"no tokenizer {str(name)!r}: give 'bytes', a SentencePiece .model file, "
                   "or a folder with GPT-2's encoder.json and vocab.bpe")


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
    # A text by itself would be given the space that begins a sentence; one after a line end is not.
    ids = processor.encode('\n' + text)
    return ids[len(line_end):] if ids[:len(line_end)] == line_end else processor.encode(text)

  return Tokenizer(_named('sentencepiece', content), processor.vocab_size(), processor.eos_id(),
                   to_ids, processor.decode)


def _gpt2(encoder_path, merges_path):
  encoder, merges = _read(encoder_path), _read(merges_path)
  try:
    encoder = json.loads(encoder)
    end_id = encoder.pop(END_OF_DOCUMENT)
    ranks = _gpt2_ranks(encoder, end_id, merges.decode())
  except (ValueError, KeyError, TypeError, AttributeError):
    raise InputError(f"{encoder_path} and {merges_path} are not GPT-2's encoder.json and vocab.bpe, "
                     'which list the same merges in the same order') from None
  encoding = _import('tiktoken', encoder_path).Encoding(
      'gpt2', pat_str=GPT2_PIECES, mergeable_ranks=ranks, special_tokens={END_OF_DOCUMENT: end_id})
  return Tokenizer(_named('gpt2', b' '.join(sorted(ranks, key=ranks.get))), encoding.n_vocab, end_id,
                   lambda text, continues: encoding.encode_ordinary(text), encoding.decode)


def _gpt2_files(directory):
  for patterns in GPT2_FILES:
    found = [sorted([*directory.glob(pattern), *directory.glob(f'{pattern}.xz')]) for pattern in patterns]
    if all(found):
      return [paths[0] for paths in found]
  raise InputError(f"{directory} has no GPT-2 tokenizer: encoder.json and vocab.bpe, or vocab.json and merges.txt; "
                   'a SentencePiece tokenizer is named by its .model file')


def _gpt2_ranks(encoder, end_id, merges):
  """Ids by the bytes of their token; a merge of lower id comes first, as tiktoken takes for granted."""
  byte_of = _gpt2_alphabet()
  merged = [line.replace(' ', '') for line in merges.removeprefix('#version: 0.2').split('\n') if line]
  in_order = [encoder[token] for token in merged]
  if (in_order != sorted(in_order) or encoder.keys() != {*byte_of, *merged}
      or sorted([*encoder.values(), end_id]) != list(range(len(encoder) + 1))):
    raise ValueError
  return {bytes(byte_of[letter] for letter in token): id_ for token, id_ in encoder.items()}


def _gpt2_alphabet():
  """The byte that each letter of a token in GPT-2's files stands for: printable ones stand for themselves."""
  printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != ' ']
  others = sorted(set(range(256)) - set(printable))
  return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


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
