"""Tokenizers: bytes, any tokenizer.json, GPT-2's two files and SentencePiece, from local files."""

from collections.abc import Callable, Collection
import contextlib
import hashlib
import importlib
import json
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from bornbiased_jax.data import tokenizer_files
from bornbiased_jax.data.tokenizer_files import END_OF_DOCUMENT
from bornbiased_jax.errors import STOPS, InputError, show
from bornbiased_jax.files import local, read_bytes

GPT2_FILES = (('*encoder.json', '*vocab.bpe'), ('vocab.json', 'merges.txt'))
# What ends a document if tokenizer_config.json names no eos_token.
ENDS = END_OF_DOCUMENT, '</s>'
_MOST_GROWTH = 10_000


class Tokenizer(NamedTuple):
  """Turns text into ids and ids into text.

  A text never yields special tokens: characters that spell one are text like any
  other, except in a Unigram tokenizer.json, whose subwords they are.

  Attributes:
    name: the kind of tokenizer and a digest of its content, for the metadata of
      a corpus.
    vocab_size: number of ids; all ids are below it.
    end_id: the id that follows each document.
    to_ids: function from a text, and whether it continues an earlier part of its
      document, to ids.
    to_text: function from ids without `end_id` to text.
    files: function that returns, by name, the content of the files which
      `transformers.AutoTokenizer` and `load_tokenizer` read (tokenizer_files.py).
    begin_ids: the ids that the tokenizer's settings put before a text: BOS, or none.
      `encode` does not add them.
  """

  name: str
  vocab_size: int
  end_id: int
  to_ids: Callable[[str, bool], list[int] | np.ndarray]
  to_text: Callable[[list[int]], str]
  files: Callable[[], dict[str, bytes]] = dict
  begin_ids: tuple[int, ...] = ()

  def encode(self, text: str, continues: bool = False) -> np.ndarray:
    """Ids of a text, int32 [n].

    Args:
      text: a document or a part of one; `begin_ids` and `end_id` are not added.
      continues: whether the text goes on in the middle of a document. The parts
        of a document that is cut before a single space or line end then have
        the same ids as the whole, unless the tokenizer merges over line ends.

    Example:
      >>> from bornbiased_jax.data import load_tokenizer
      >>> load_tokenizer('bytes').encode('café').tolist()
      [99, 97, 102, 195, 169]
    """
    return np.asarray(self.to_ids(text, continues), np.int32)

  def decode(self, ids: Collection[int]) -> str:
    """Text of ids [n].

    The end of a document becomes '<|endoftext|>', and broken UTF-8 becomes U+FFFD.

    Raises:
      InputError: an id is outside the vocabulary.

    Example:
      >>> from bornbiased_jax.data import load_tokenizer
      >>> load_tokenizer('bytes').decode([72, 105, 256])
      'Hi<|endoftext|>'
    """
    ids = np.asarray(ids, np.int64).ravel()
    for id_ in ids[(ids < 0) | (ids >= self.vocab_size)][:1]:  # The first wrong one, if any.
      raise InputError(f'id {id_} is not of tokenizer {self.name}, whose ids are 0 to '
                       f'{self.vocab_size - 1}')
    documents = np.split(ids, np.flatnonzero(ids == self.end_id))
    return END_OF_DOCUMENT.join(self.to_text(document[document != self.end_id].tolist())
                                for document in documents)


def load_tokenizer(name: str) -> Tokenizer:
  """Loads the tokenizer `name`.

  Args:
    name: one of
      - 'bytes': the 256 bytes of UTF-8, and one more id for the end of a document;
      - the path of a tokenizer.json or of a SentencePiece `.model` file;
      - for GPT-2's BPE, the paths of encoder.json and vocab.bpe, or of vocab.json
        and merges.txt, joined by a comma, each possibly as .xz;
      - a folder with any of these files. A tokenizer.json goes before all others, like in
        `transformers`, and SentencePiece's tokenizer.model before GPT-2's files.

      tokenizer_config.json and special_tokens_map.json in the same folder say what ends a
      document of a tokenizer.json (eos_token), and whether one of the other files
      begins with BOS (add_bos_token). A tokenizer.json says so itself.

  Raises:
    InputError: there is no such tokenizer, its files are missing or damaged, or
      it needs a package of the extra `text` that is not installed.
  """
  if name == 'bytes':
    return Tokenizer('bytes', 257, 256, _bytes_ids, lambda ids: bytes(ids).decode(errors='replace'),
                     tokenizer_files.of_bytes)
  path = local(name)
  if path.is_dir():
    return _in_folder(path)
  paths = [local(part) for part in str(name).split(',')]
  if len(paths) == 2:
    return _gpt2(*sorted(paths, key=lambda path: '.json' not in path.suffixes))
  if len(paths) == 1 and path.suffix in ('.model', '.json'):
    return _sentencepiece(path) if path.suffix == '.model' else _from_json(path)
  raise InputError(f"no tokenizer {str(name)!r}: give 'bytes', a tokenizer.json, a SentencePiece "
                   ".model file, or a folder with one or with GPT-2's encoder.json and vocab.bpe")


def _in_folder(folder):
  whole, model = folder / 'tokenizer.json', folder / 'tokenizer.model'
  if not whole.is_file():
    return _sentencepiece(model) if model.is_file() else _gpt2(*_gpt2_files(folder))
  if model.is_file():
    with contextlib.suppress(InputError):  # It may be of another kind, or need a package.
      made = _sentencepiece(model)
      if made.files()['tokenizer.json'] == read_bytes(whole):  # Which was made of it here.
        return made
  return _from_json(whole)


def _bytes_ids(text, continues):
  return np.frombuffer(text.encode(), np.uint8)


def _in_parts(to_ids):
  """`to_ids` behind a line end, whose ids are dropped, for text that goes on in a document."""
  line_end = to_ids('\n')

  def with_parts(text, continues):
    if continues:
      ids = to_ids('\n' + text)
      if ids[:len(line_end)] == line_end:
        return ids[len(line_end):]
    return to_ids(text)
  return with_parts


def _sentencepiece(path):
  content, settings = read_bytes(path), _settings(path.parent)
  try:
    processor = importlib.import_module('sentencepiece').SentencePieceProcessor()
    processor.LoadFromSerializedProto(content)
  except ImportError:
    raise InputError(f"{path} needs sentencepiece: pip install 'bornbiased_jax[text]'") from None
  except RuntimeError:
    raise InputError(f'{path} is not a SentencePiece model, or damaged') from None
  if processor.eos_id() < 0:
    raise InputError(f'{path} has no end-of-sentence token, which must follow each document; '
                     'train the model with one')
  begins = settings.get('add_bos_token') is True and processor.bos_id() >= 0
  return Tokenizer(_named('sentencepiece', content), processor.vocab_size(), processor.eos_id(),
                   _in_parts(processor.encode), processor.decode,
                   lambda: tokenizer_files.of_sentencepiece(content, begins),
                   (processor.bos_id(),) if begins else ())


def _gpt2(encoder_path, merges_path):
  encoder, merges = read_bytes(encoder_path), read_bytes(merges_path)
  begins = _settings(encoder_path.parent).get('add_bos_token') is True
  with _refusing(f"{encoder_path} and {merges_path} are not GPT-2's encoder.json and vocab.bpe, "
                 'which list the same merges in the same order'):
    content = tokenizer_files.join_gpt2(encoder, merges, begins)
    if not tokenizer_files.gpt2_tokens(json.loads(content)):
      raise ValueError('other tokens than of its merges')
  return _from_json(encoder_path, content)


def _gpt2_files(folder):
  for patterns in GPT2_FILES:
    found = [sorted([*folder.glob(pattern), *folder.glob(f'{pattern}.xz')])
             for pattern in patterns]
    if all(found):
      return [paths[0] for paths in found]
  raise InputError(f"{folder} has no tokenizer that can be read: no tokenizer.json, "
                   "SentencePiece's tokenizer.model, or GPT-2's vocab.json and merges.txt")


def _from_json(path, content=None):
  """The tokenizer of a tokenizer.json, or of `content` in its place."""
  content, settings = content or read_bytes(path), _settings(path.parent)
  with _refusing(f'{path} is not a tokenizer.json, or damaged; copy it again'):
    made = tokenizers.Tokenizer.from_str(content.decode())
    spec = json.loads(content)
    gpt2, growth = tokenizer_files.gpt2_tokens(spec), tokenizer_files.growth(spec)
  if growth > _MOST_GROWTH:
    raise InputError(f'{path}: its steps could make a text {growth:.1g} times as long; '
                     f'{_MOST_GROWTH} are allowed')
  if tokenizer_files.is_of_bytes(spec):
    return load_tokenizer('bytes')
  made.no_truncation()
  made.no_padding()
  made.encode_special_tokens = True  # Characters that spell one are text.
  ids = made.get_vocab()
  end = settings.get('eos_token') or next((end for end in ENDS if end in ids), ENDS[0])
  end = str(end.get('content') if isinstance(end, dict) else end)  # An added token is a dict.
  if end not in ids:
    raise InputError(f'{path} has no token {end!r} to end a document; name one that it has as '
                     'eos_token in tokenizer_config.json in its folder')
  with _refusing(f'{path} is damaged; copy it again'):
    reason = tokenizer_files.disagreement(made, settings)
  if reason:
    raise InputError(f'{path} {reason}; load the folder by AutoTokenizer of transformers, and save '
                     'it by save_pretrained')
  if missing := tokenizer_files.undescribed_tokens(spec.get('post_processor') or {}):
    raise InputError(f'{path} is damaged: its post_processor does not describe '
                     f'{", ".join(map(repr, sorted(missing)))}; copy it again')

  def encode(text, with_template=False):
    with _refusing(f'{path} has no tokens for some texts'):
      return made.encode(text, add_special_tokens=with_template)

  def decode(ids):
    with _refusing(f'{path} has no text for some tokens'):
      return made.decode(ids, skip_special_tokens=False)

  begin = encode('a', with_template=True)  # Whatever add_bos_token may say.
  return Tokenizer(
      _named('gpt2', b' '.join(gpt2)) if gpt2 else _named('tokenizers', content),
      1 + max(ids.values()), ids[end],
      _in_parts(lambda text: encode(text).ids),
      decode,
      lambda: tokenizer_files.with_config(content, end),
      tuple(begin.ids[:[*begin.special_tokens_mask, 0].index(0)]))


@contextlib.contextmanager
def _refusing(message):
  """Turns errors of the library into InputError: it raises nothing narrower, and panics of Rust."""
  try:
    yield
  except STOPS:
    raise
  except BaseException as error:
    raise InputError(f'{message}: {show(error)}') from None


def _settings(folder) -> dict[str, Any]:
  """What tokenizer_config.json, or else special_tokens_map.json, says, and added_tokens.json."""
  settings: dict[str, Any] = {}
  for name in ('special_tokens_map.json', 'tokenizer_config.json', 'added_tokens.json'):
    if (folder / name).is_file():
      content = read_bytes(folder / name)
      try:
        found = dict(json.loads(content))
      except (ValueError, TypeError, RecursionError):
        raise InputError(f'{folder / name} is damaged; copy it again') from None
      settings |= {name: found} if name == 'added_tokens.json' else found
  return settings


def _named(kind, content):
  return f'{kind}-{hashlib.sha256(content).hexdigest()[:12]}'
