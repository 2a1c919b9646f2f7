"""A corpus: one long array of the token ids of a text."""

from collections.abc import Iterable
import dataclasses
import functools
import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from bornbiased_jax.data import memory_map, text
from bornbiased_jax.data.tokenizers import Tokenizer, load_tokenizer
from bornbiased_jax.errors import InputError

IN_MEMORY_CHARACTERS = 256 * 10**6
# Files that hold token ids and nothing else, and the type of the ids.
RAW = {'.bin': 'uint16', '.uint16': 'uint16', '.uint32': 'uint32'}
CHUNK = 2**24


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The token ids of documents in a row, each followed by the tokenizer's `end_id`.

  Two are equal, and have one hash, if all is equal but `tokens`, for which the digest stands.

  Attributes:
    tokens: ids [n], unsigned; an array in memory or a memory map.
    vocab_size: vocabulary size of the tokenizer.
    name: name of the file, folder or data set.
    tokenizer: name of the tokenizer.
    digest: digest of the ids, the same for an array and a memory map. Both parts
      that `hold_out` makes have the digest of the whole corpus.
  """

  tokens: np.ndarray = dataclasses.field(compare=False, repr=False)
  vocab_size: int
  name: str
  tokenizer: str
  digest: str

  def metadata(self) -> dict:
    """What identifies the corpus, as JSON for a checkpoint or for results.json."""
    return {'name': self.name, 'digest': self.digest, 'num_tokens': self.tokens.size,
            'vocab_size': self.vocab_size, 'tokenizer': self.tokenizer}

  @functools.cached_property
  def largest(self) -> int:
    """The largest id. It is looked for once, in chunks."""
    starts = range(0, self.tokens.size, CHUNK)
    return max((int(self.tokens[start:start + CHUNK].max()) for start in starts), default=-1)

  def check(self, max_vocab: int) -> None:
    """Raises InputError, with the position, at an id of at least `max_vocab`; reads in chunks."""
    if self.largest < max_vocab:
      return
    for start in range(0, self.tokens.size, CHUNK):
      is_outside = self.tokens[start:start + CHUNK] >= max_vocab
      if is_outside.any():
        position = start + int(np.argmax(is_outside))
        raise InputError(
            f'{self.name}: token {position} is id {self.tokens[position]}, outside the vocabulary '
            f'of {max_vocab} ids; choose a model with a larger vocab_size, or another tokenizer')

  def check_length(self, length: int) -> None:
    """Raises InputError if the corpus has no sequence of this length."""
    if self.tokens.size <= length:
      raise InputError(f'{self.name} has {self.tokens.size} tokens, fewer than one sequence of '
                       f'{length} and the token after it; give more text, or shorter sequences')


def load(spec: str | os.PathLike, tokenizer: str | Tokenizer | None = None) -> Corpus:
  """Loads the corpus that `spec` names.

  Args:
    spec: a folder made by `write`; or a file that holds token ids and nothing
      else, `.uint16`, `.uint32` or `.bin` (uint16); or text as
      `text.sources` takes it, for instance 'tinyshakespeare'. Text is tokenized in
      memory if it has at most 256 million characters.
    tokenizer: for text, the tokenizer to use, by default bytes; for ids, the
      tokenizer that made them. Or its name, as `load_tokenizer` takes it.

  Raises:
    InputError: the corpus is missing, damaged, empty or too large, or its ids
      were made by another tokenizer.

  Example:
    >>> from bornbiased_jax import data
    >>> corpus = data.load('tinyshakespeare')
    >>> bytes(corpus.tokens[:13].tolist())
    b'First Citizen'
  """
  path = Path(spec).expanduser()
  tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
  if memory_map.is_complete(path) or (path / 'tokens.bin').is_file():
    return _mapped(path, str(spec), tokenizer)
  if path.suffix in RAW and path.is_file():
    return _raw(path, str(spec), tokenizer)
  return _tokenized(spec, tokenizer or load_tokenizer('bytes'))


def from_ids(ids: np.ndarray, name: str, vocab_size: int | None = None) -> Corpus:
  """A corpus of any token ids [n].

  Args:
    ids: whole numbers from 0 to 2^32 - 1.
    name: what to call it.
    vocab_size: number of ids that there are; None means one more than the largest here.

  Example: id v is as frequent as 1 / (v + 1), the distribution of Zipf.
    >>> zipf = from_ids(np.repeat(np.arange(3), [6, 3, 2]), 'Zipf')
    >>> zipf.vocab_size, zipf.tokens.size
    (3, 11)
  """
  ids = np.asarray(ids).astype(np.uint32)
  return Corpus(ids, vocab_size or 1 + int(ids.max()), name, 'none', text.digest(ids))


def write(specs: Iterable[str | os.PathLike], tokenizer: Tokenizer,
          directory: str | os.PathLike) -> Corpus:
  """Tokenizes text into a folder with tokens.bin and tokens.json, which `load` memory-maps.

  The folder is complete once it contains tokens.json, and a call that asks for
  what it holds does nothing. A call that was stopped is made again from the
  beginning. A progress bar shows how far it is.

  Args:
    specs: texts, as `text.sources` takes them.
    tokenizer: its ids are stored as uint16 if they fit, otherwise as uint32.
    directory: a folder for only this corpus; made if it is missing.

  Returns:
    The corpus, as `load(directory)` returns it.

  Raises:
    InputError: the text cannot be read or is empty, the folder holds other
      tokens, or it cannot be written (then the error's field is 'directory').
  """
  memory_map.write(specs, tokenizer, Path(directory).expanduser())
  return load(directory, tokenizer)


def _tokenized(spec, tokenizer):
  name, fragments, size = str(spec), [], 0
  try:
    sources = text.sources([spec])
  except InputError as error:
    raise InputError(f'{error}; a folder that corpus.write made is possible too') from None
  for fragment in text.fragments(sources):
    fragments.append(fragment)
    size += len(fragment.text)
    if size > IN_MEMORY_CHARACTERS:
      raise InputError(f'{name} has more than {IN_MEMORY_CHARACTERS // 10**6} million characters, '
                       'too many to tokenize in memory; write it to a folder once with '
                       'corpus.write, then name that folder instead')
  if not fragments:
    raise InputError(f'{name}: no text')
  bar = tqdm(fragments, desc='tokenizing', delay=1, leave=False)
  tokens = np.concatenate([memory_map.ids_of(fragment, tokenizer) for fragment in bar])
  return Corpus(tokens, tokenizer.vocab_size, name, tokenizer.name, text.digest(tokens))


def _mapped(directory, name, tokenizer):
  tokens, described = memory_map.read(directory)
  if tokenizer and tokenizer.name != described['tokenizer']:
    raise InputError(f'{directory} has the ids of tokenizer {described["tokenizer"]}, not of '
                     f'{tokenizer.name}; give the tokenizer that made them, or tokenize again')
  return Corpus(tokens, described['vocab_size'], name, described['tokenizer'], described['digest'])


def _raw(path, name, tokenizer):
  if path.name == 'tokens.bin' and memory_map.is_complete(path.parent):
    raise InputError(f'{path} is part of a corpus; give its folder, {path.parent}')
  dtype, size = np.dtype(RAW[path.suffix]), path.stat().st_size
  if size % dtype.itemsize or not size:
    raise InputError(f'{path} is not an array of {dtype}: its size is {size} bytes')
  tokens = np.memmap(path, dtype, 'r')
  vocab_size = tokenizer.vocab_size if tokenizer else 1 + int(tokens.max())
  return Corpus(tokens, vocab_size, name,
                tokenizer.name if tokenizer else 'unknown', text.digest(tokens))


def hold_out(whole: Corpus, share: float) -> tuple[Corpus, Corpus]:
  """Splits a corpus into its beginning, to train on, and its end, to evaluate on.

  The end has the given share of all tokens, a number from 0 to 1.

  Example:
    >>> from bornbiased_jax import data
    >>> train, held_out = data.hold_out(data.load('tinyshakespeare'), 0.1)
    >>> train.name, held_out.name
    ('tinyshakespeare, first 90%', 'tinyshakespeare, last 10%')
  """
  kept = round(whole.tokens.size * (1 - share))
  part = lambda tokens, name: dataclasses.replace(whole, tokens=tokens, name=name)
  return (part(whole.tokens[:kept], f'{whole.name}, first {1 - share:.0%}'),
          part(whole.tokens[kept:], f'{whole.name}, last {share:.0%}'))
