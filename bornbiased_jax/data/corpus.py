"""A corpus: one long array of token ids, and its windows in an order that a data seed defines."""

from collections.abc import Iterable
import dataclasses
import functools
import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from bornbiased_jax.data import memory_map, text, tokenizers
from bornbiased_jax.data.tokenizers import Tokenizer
from bornbiased_jax.errors import InputError

IN_MEMORY_CHARACTERS = 64 * 10**6
RAW = {'.bin': 'uint16', '.uint16': 'uint16', '.uint32': 'uint32'}
CHUNK = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """Documents one after another, each followed by the tokenizer's `end_id`.

  Attributes:
    tokens: ids [n], unsigned; a memory map, or an array.
    vocab_size: of the tokenizer.
    name: of the file, folder or data set.
    tokenizer: its name.
    digest: of the ids, equal in memory and in a memory map; in the parts of `hold_out` that of the whole.
  """

  tokens: np.ndarray
  vocab_size: int
  name: str
  tokenizer: str
  digest: str

  def metadata(self) -> dict:
    """What identifies the corpus, for a checkpoint or results.json."""
    return {'name': self.name, 'digest': self.digest, 'num_tokens': self.tokens.size,
            'vocab_size': self.vocab_size, 'tokenizer': self.tokenizer}

  def check(self, max_vocab: int) -> None:
    """Reads all ids once, a chunk at a time.

    Raises:
      InputError: names the first position whose id is not below `max_vocab`.
    """
    for start in range(0, self.tokens.size, CHUNK):
      chunk = self.tokens[start:start + CHUNK]
      if chunk.max() >= max_vocab:
        position = start + int(np.argmax(chunk >= max_vocab))
        raise InputError(f'{self.name}: token {position} is id {self.tokens[position]}, outside the vocabulary of '
                         f'{max_vocab} ids; choose a model with a larger vocab_size, or another tokenizer')


def load(spec: str | os.PathLike, tokenizer: Tokenizer | None = None) -> Corpus:
  """The corpus `spec`.

  Args:
    spec: a folder made by `write`; a file of ids and nothing else, `.uint16`,
      `.uint32` or `.bin` (uint16); or text as in `text.sources`, for instance
      'tinyshakespeare', tokenized in memory up to 64 million characters.
    tokenizer: for text, by default bytes; for ids, what they were made by.

  Raises:
    InputError: names what is missing, damaged, empty or too large.
  """
  path = Path(spec).expanduser()
  if memory_map.is_complete(path):
    return _mapped(path, str(spec), tokenizer)
  if memory_map.is_begun(path):
    raise InputError(f'{path} is not complete; give the command that tokenizes into it once more')
  if path.suffix in RAW and path.is_file():
    return _raw(path, str(spec), tokenizer)
  return _tokenized(spec, tokenizer or tokenizers.load('bytes'))


def write(specs: Iterable[str | os.PathLike], tokenizer: Tokenizer, directory: str | os.PathLike) -> Corpus:
  """Tokenizes text into a memory map, a folder with tokens.bin and tokens.json, behind a progress bar.

  The folder is complete once it has a tokens.json. Stopped at any moment, the
  same call goes on from about a second earlier, to the same bytes.

  Args:
    specs: text, as in `text.sources`.
    tokenizer: its ids are stored as uint16 where they fit, else as uint32.
    directory: a folder of its own, made where missing.

  Returns:
    The corpus, as `load(directory)`.

  Raises:
    InputError: the text cannot be read or is empty, the folder holds other
      tokens, or it cannot be written.
  """
  memory_map.write(specs, tokenizer, Path(directory).expanduser())
  return load(directory, tokenizer)


def _tokenized(spec, tokenizer):
  name, fragments, size = str(spec), [], 0
  for fragment in text.fragments(text.sources([spec])):
    fragments.append(fragment)
    size += len(fragment.text)
    if size > IN_MEMORY_CHARACTERS:
      raise InputError(f'{name} has more than {IN_MEMORY_CHARACTERS // 10**6} million characters; first do python -m '
                       f'experiments.tokenize_text --input={name} --output_dir=FOLDER, then name the folder')
  if not fragments:
    raise InputError(f'{name}: no text')
  bar = tqdm(fragments, desc='tokenizing', delay=1, leave=False)
  tokens = np.concatenate([memory_map.ids_of(fragment, tokenizer) for fragment in bar])
  return Corpus(tokens, tokenizer.vocab_size, name, tokenizer.name, text.digest(tokens))


def _mapped(directory, name, tokenizer):
  tokens, described = memory_map.read(directory)
  if tokenizer and tokenizer.name != described['tokenizer']:
    raise InputError(f'{directory} has the ids of tokenizer {described["tokenizer"]}, not of {tokenizer.name}; '
                     'give that one, or tokenize again')
  return Corpus(tokens, described['vocab_size'], name, described['tokenizer'], described['digest'])


def _raw(path, name, tokenizer):
  dtype, size = np.dtype(RAW[path.suffix]), path.stat().st_size
  if size % dtype.itemsize or not size:
    raise InputError(f'{path}, {size} bytes, is not an array of {dtype}')
  tokens = np.memmap(path, dtype, 'r')
  largest = lambda: max(int(tokens[start:start + CHUNK].max()) for start in range(0, tokens.size, CHUNK))
  return Corpus(tokens, tokenizer.vocab_size if tokenizer else 1 + largest(), name,
                tokenizer.name if tokenizer else 'unknown', text.digest(tokens))


def hold_out(whole: Corpus, share: float) -> tuple[Corpus, Corpus]:
  """A corpus without its last tokens, to train on, and these, a share from 0 to 1 of all, to evaluate on."""
  kept = round(whole.tokens.size * (1 - share))
  part = lambda tokens, name: dataclasses.replace(whole, tokens=tokens, name=name)
  return (part(whole.tokens[:kept], f'{whole.name}, first {1 - share:.0%}'),
          part(whole.tokens[kept:], f'{whole.name}, last {share:.0%}'))


def num_windows(tokens: np.ndarray, length: int) -> int:
  """Windows of `length` + 1 ids that share their last id with the next one's first.

  Raises:
    InputError: not one fits.
  """
  count = (len(tokens) - 1) // length
  if count < 1:
    raise InputError(f'{len(tokens)} tokens are too few for one sequence of length {length}; '
                     'bring more text, or choose a smaller length')
  return count


def batch(tokens: np.ndarray, data_seed: int, step: int, batch_size: int, length: int,
          rows: slice | np.ndarray | None = None) -> np.ndarray:
  """The batch at a step: a pure function of the data seed and the step.

  Steps read one window after another of epoch 0, 1, … without a gap; every
  epoch has each window once, in an order drawn from (data_seed, epoch).

  Args:
    tokens: ids [n] of a corpus.
    data_seed: whole number in [0, 2^64), independent of a network's seed.
    step: optimizer steps before this one.
    batch_size: sequences a step on all hosts together, B.
    length: predicted positions of a sequence, T.
    rows: which of the B this host needs; None: all.

  Returns:
    Ids [rows, T + 1] int32: inputs are [:, :-1], targets [:, 1:]. Each id but
    the first is a target once an epoch, save up to T - 1 at the end.

  Raises:
    InputError: the corpus is too short for one window.

  Example:
    corpus.batch(tokens, data_seed=42, step=7, batch_size=128, length=2048, rows=slice(0, 32))
  """
  count = num_windows(tokens, length)
  sequences = step * batch_size + np.arange(batch_size)[slice(None) if rows is None else rows]
  return _read_windows(tokens, [_order(data_seed, int(sequence) // count, count)[sequence % count]
                                for sequence in sequences], length)


def first_windows(tokens: np.ndarray, limit: int, length: int) -> np.ndarray:
  """The first `limit` windows in order, or all where there are fewer, [windows, T + 1] int32: for validation.

  Raises:
    InputError: the corpus is too short for one window.
  """
  return _read_windows(tokens, range(min(limit, num_windows(tokens, length))), length)


@functools.lru_cache(maxsize=4)
def _order(data_seed, epoch, count):
  """A permutation of the windows; from Philox's raw bits, which no release of numpy may change."""
  bits = np.random.Philox(key=np.array([data_seed, epoch], np.uint64)).random_raw(count)
  order = np.argsort(bits, kind='stable')
  order.flags.writeable = False
  return order


def _read_windows(tokens, windows, length):
  return np.stack([tokens[window * length:(window + 1) * length + 1] for window in windows]).astype(np.int32)
