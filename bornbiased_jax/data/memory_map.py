"""A folder of token ids: tokens.bin holds the ids, tokens.json describes them and their text."""

from collections.abc import Iterable
import json
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from bornbiased_jax.data import text
from bornbiased_jax.data.tokenizers import Tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

SCHEMA = 1


def dtype_of(vocab_size: int) -> np.dtype:
  """The smaller of uint16 and uint32 that holds every id of a vocabulary."""
  return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def ids_of(fragment: text.Fragment, tokenizer: Tokenizer) -> np.ndarray:
  """Ids of a fragment of a document, followed by `end_id` if the document ends with it."""
  ids = tokenizer.encode(fragment.text, continues=not fragment.begins)
  ids = ids.astype(dtype_of(tokenizer.vocab_size))
  return np.append(ids, ids.dtype.type(tokenizer.end_id)) if fragment.ends else ids


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
  if directory.is_file():
    raise InputError(f'{directory} is a file; give a folder', 'directory')
  is_new = not directory.exists()
  try:
    directory.mkdir(parents=True, exist_ok=True)
    if is_complete(directory):
      _check_stored(directory / 'tokens.json', request)
    else:
      _write(directory, request, sources, tokenizer)
  except OSError as error:
    raise InputError(f'cannot write {directory}: {error.strerror}', 'directory') from None
  except InputError:
    if is_new:
      directory.rmdir()
    raise


def _check_stored(path, request):
  """Raises InputError if what an earlier call stored is not what this one asks for."""
  try:
    stored = json.loads(path.read_bytes())
    same = request.items() <= stored.items()
  except (ValueError, AttributeError):
    raise InputError(f'{path} is damaged; remove its folder, or choose another',
                     'directory') from None
  if not same:
    raise InputError(f'{path.parent} holds other text, or the ids of another tokenizer '
                     f'({stored.get("tokenizer")}); remove it, or choose another folder',
                     'directory')


def _write(directory, request, sources, tokenizer):
  """Writes both files; what is not complete has another name, and is removed."""
  path, part = directory / 'tokens.bin', directory / 'tokens.bin.part'
  if path.exists():
    raise InputError(f'{path} was not made by this command; remove it, or choose another folder',
                     'directory')
  try:
    with open(part, 'wb') as file:
      num_documents = _write_ids(file, sources, tokenizer)
    if not part.stat().st_size:
      raise InputError(f'{", ".join(source.name for source in sources)}: no text')
    tokens = np.memmap(part, dtype_of(tokenizer.vocab_size), 'r')
    described = request | {'num_documents': num_documents, 'num_tokens': tokens.size,
                           'dtype': tokens.dtype.name, 'digest': text.digest(tokens)}
    part.rename(path)
  finally:
    part.unlink(missing_ok=True)
  write_atomically(directory / 'tokens.json', (json.dumps(described, indent=1) + '\n').encode())


def _write_ids(file: BinaryIO, sources, tokenizer) -> int:
  """Writes the ids of all texts; returns the number of documents."""
  num_documents = 0
  with tqdm(total=sum(source.size for source in sources), unit='B', unit_scale=True,
            desc='tokenizing') as bar:
    for fragment in text.fragments(sources):
      file.write(ids_of(fragment, tokenizer).tobytes())
      num_documents += fragment.ends
      bar.update(fragment.position - bar.n)
  file.flush()
  os.fsync(file.fileno())
  return num_documents
