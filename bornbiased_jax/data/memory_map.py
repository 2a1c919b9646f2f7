"""A folder of token ids: tokens.bin holds the ids, tokens.json describes them and their text.

While the folder is being written, progress.json says how far the writing is.
"""

from collections.abc import Iterable
import contextlib
import itertools
import json
import os
from pathlib import Path
import time

import numpy as np
from tqdm import tqdm

from bornbiased_jax.data import text
from bornbiased_jax.data.tokenizers import Tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

SCHEMA = 1
SAVE_INTERVAL_S = 1.0
# The progress of a call that has not tokenized anything yet.
START = {'fragments': 0, 'position': 0, 'num_documents': 0, 'num_tokens': 0}


def dtype_of(vocab_size: int) -> np.dtype:
  """The smaller of uint16 and uint32 that holds every id of a vocabulary."""
  return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def ids_of(fragment: text.Fragment, tokenizer: Tokenizer) -> np.ndarray:
  """Ids of a fragment of a document, followed by `end_id` if the document ends with it."""
  ids = tokenizer.encode(fragment.text, continues=not fragment.begins)
  ids = ids.astype(dtype_of(tokenizer.vocab_size))
  return np.append(ids, ids.dtype.type(tokenizer.end_id)) if fragment.ends else ids


def is_begun(directory: Path) -> bool:
  """Whether the folder holds the beginning of a corpus, which `write` can complete."""
  return (directory / 'progress.json').is_file() and not is_complete(directory)


def is_complete(directory: Path) -> bool:
  """Whether the folder holds a whole corpus: tokens.json is written last."""
  return (directory / 'tokens.json').is_file()


def read(directory: Path) -> tuple[np.ndarray, dict]:
  """Ids [n] as a memory map, and the content of tokens.json."""
  tokens_path = directory / 'tokens.bin'
  try:
    described = json.loads((directory / 'tokens.json').read_bytes())
    schema, digest = described['schema'], described['digest']
    dtype = dtype_of(described['vocab_size'])
    if not isinstance(described['tokenizer'], str):
      raise TypeError
    expected, size = described['num_tokens'] * dtype.itemsize, tokens_path.stat().st_size
  except (ValueError, KeyError, TypeError, OSError):
    raise InputError(f'{directory} lacks tokens.bin, or its tokens.json is damaged; '
                     'tokenize again') from None
  if schema != SCHEMA:
    raise InputError(f'{directory}/tokens.json has schema {schema}, not {SCHEMA}; tokenize again')
  if size != expected or not size:
    raise InputError(f'{tokens_path} has {size} bytes, not the {expected} of tokens.json; '
                     'tokenize again')
  tokens = np.memmap(tokens_path, dtype, 'r')
  if text.digest(tokens) != digest:
    raise InputError(f'{tokens_path} is damaged: not the ids that tokens.json describes; '
                     'tokenize again')
  return tokens, described


def write(specs: Iterable[str | os.PathLike], tokenizer: Tokenizer, directory: Path) -> None:
  """Tokenizes text into the folder (see `corpus.write`)."""
  sources = text.sources(specs)
  request = {'schema': SCHEMA, 'tokenizer': tokenizer.name, 'vocab_size': tokenizer.vocab_size,
             'sources': [{'name': source.name, 'size': source.size, 'digest': source.digest}
                         for source in sources]}
  try:
    directory.mkdir(parents=True, exist_ok=True)
    if is_complete(directory):
      _stored(directory / 'tokens.json', request)
    else:
      _complete(directory, request, sources, tokenizer)
    (directory / 'progress.json').unlink(missing_ok=True)
  except OSError as error:
    raise InputError(f'cannot write {directory}: {error.strerror}; '
                     'once that is mended, the same command goes on from here') from None


def _complete(directory, request, sources, tokenizer):
  progress = _begin(directory, request)
  try:
    with open(directory / 'tokens.bin', 'ab') as file:
      _append(file, progress, sources, tokenizer, lambda: _save(directory, progress))
    if not progress['num_tokens']:
      raise InputError(f'{", ".join(source.name for source in sources)}: no text')
  except InputError:  # The text is refused, so that no call could go on from here.
    for name in ('tokens.bin', 'progress.json'):
      (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
      directory.rmdir()
    raise
  tokens = np.memmap(directory / 'tokens.bin', dtype_of(tokenizer.vocab_size), 'r')
  counts = {name: progress[name] for name in ('num_documents', 'num_tokens')}
  described = request | counts | {'dtype': tokens.dtype.name, 'digest': text.digest(tokens)}
  _save(directory, described, 'tokens.json')


def _begin(directory, request):
  """The progress of an earlier call with the same request, or START if ids were lost since."""
  path, tokens_path = directory / 'progress.json', directory / 'tokens.bin'
  if path.exists():
    stored = _stored(path, request)
    size = stored['num_tokens'] * dtype_of(request['vocab_size']).itemsize
    if stored['num_tokens'] and tokens_path.is_file() and tokens_path.stat().st_size >= size:
      return stored
  elif tokens_path.exists():
    raise InputError(f'{tokens_path} was not made by this command; choose another folder')
  _save(directory, request | START)
  return request | START


def _stored(path, request):
  """What an earlier call stored of itself, which must be of this request if it stored a token."""
  try:
    earlier = json.loads(path.read_bytes())
    names = START if path.name == 'progress.json' else ('num_tokens',)
    counts = [earlier[name] for name in names]
    same = request.items() <= earlier.items()
  except (ValueError, KeyError, TypeError, AttributeError):
    raise InputError(f'{path} is damaged; remove its folder, or choose another') from None
  if any(counts) and not same:
    raise InputError(f'{path.parent} holds other text, or the ids of another tokenizer '
                     f'({earlier.get("tokenizer")}); remove it, or choose another folder')
  return earlier


def _append(file, progress, sources, tokenizer, save):
  """Appends the ids of all fragments that `progress` does not count yet, and counts them."""
  file.truncate(progress['num_tokens'] * dtype_of(tokenizer.vocab_size).itemsize)
  saved = time.monotonic()
  with tqdm(total=sum(source.size for source in sources), initial=progress['position'],
            unit='B', unit_scale=True, desc='tokenizing') as bar:
    # Fragments that were counted are read again but not tokenized, because an .xz
    # file can only be read from its beginning.
    for fragment in itertools.islice(text.fragments(sources), progress['fragments'], None):
      ids = ids_of(fragment, tokenizer)
      file.write(ids)
      progress['fragments'] += 1
      progress['num_documents'] += fragment.ends
      progress['num_tokens'] += ids.size
      progress['position'] = fragment.position
      bar.update(fragment.position - bar.n)
      if time.monotonic() - saved > SAVE_INTERVAL_S:
        _sync(file)
        save()
        saved = time.monotonic()
  _sync(file)
  save()


def _sync(file):
  file.flush()
  os.fsync(file.fileno())


def _save(directory, content, name='progress.json'):
  write_atomically(directory / name, (json.dumps(content, indent=1) + '\n').encode())
