"""Files of others, which are not trusted, and ours, which a reader finds whole or not at all.

A path is local, or names an object in a bucket, gs://BUCKET/NAME. Of several hosts that run
one program only the first writes, as all have the same content.
"""

from collections.abc import Callable, Iterator
import contextlib
import difflib
import importlib.util
import io
import json
import lzma
import os
from pathlib import Path
import re
import shutil
from typing import Any, BinaryIO
import uuid

from bornbiased_jax import hosts
from bornbiased_jax.errors import InputError, show

_BUCKET = 'gs://'
_LARGEST = 100_000_000
_LONGEST_NAME = 255
_POINTER = b'version https://git-lfs.github.com/spec/'
# What an entry of JSON must be, in words and as a test. The tests compare types, because in Python
# a bool is an int.
_is_count = lambda value: type(value) is int and 0 < value < 2**31
COUNT = ('a whole number from 1 to 2147483647', _is_count)
COUNT_OR_NULL = (COUNT[0] + ' or null', lambda value: value is None or _is_count(value))
NUMBER = ('a positive number below 1e30',
          lambda value: type(value) in (int, float) and 0 < value < 1e30)
NUMBER_OR_NULL = (NUMBER[0] + ' or null', lambda value: value is None or NUMBER[1](value))
FLAG = ('true or false', lambda value: type(value) is bool)


def in_bucket(path: str | os.PathLike) -> bool:
  """Whether a path names an object in a bucket."""
  return os.fspath(path).startswith(_BUCKET)


def path_of(path: str | os.PathLike) -> Path:
  """A path as an object: of a local file, or of an object in a bucket (etils.epath)."""
  text = os.fspath(path)
  if not text:
    raise InputError('the path is empty')
  if any(len(os.fsencode(part)) > _LONGEST_NAME for part in text.split('/')):
    raise InputError(f'{show(text)} has a part of more than {_LONGEST_NAME} bytes, as no path has')
  if in_bucket(text):
    # Imported here, as few programs need it.
    from etils import epath
    if not re.match(f'{_BUCKET}[^/]', text):
      raise InputError(f'{text} names no bucket; write {_BUCKET}BUCKET/NAME')
    _check_reach(text)
    return epath.Path(text)
  if re.match(r'[a-z][a-z0-9]+:/', text, re.IGNORECASE):
    raise InputError(f'{text} is no local path and no {_BUCKET}BUCKET/NAME; a local folder of '
                     f'this name is ./{text}')
  try:
    return Path(text).expanduser()
  except RuntimeError:
    raise InputError(f'{text}: there is no such user') from None


def _check_reach(text):
  import fsspec
  if importlib.util.find_spec('tensorflow') is None:
    try:
      fsspec.get_filesystem_class('gs')
    except ImportError:
      raise InputError(f'{text}: gcsfs is missing, which reaches buckets; install the extra: '
                       "pip install 'bornbiased_jax[gcs]'") from None


def local(path: str | os.PathLike) -> Path:
  """A path that must be local, for files that grow or are read in parts."""
  if in_bucket(path):
    raise InputError(f'{os.fspath(path)}: this must be a local folder')
  return path_of(path)


def nearest(place: Path) -> Path | None:
  """The path that is here and is most like one that is not, if any is like it."""
  if place.exists():
    return place
  parent = nearest(place.parent) if place != place.parent else None
  if not (parent and parent.is_dir()):
    return None
  others = [path.name for path in parent.iterdir()]
  meant = difflib.get_close_matches(place.name, others, n=1)
  return parent / meant[0] if meant else None


def check_fetched(path: Path) -> None:
  """Raises InputError for a pointer of Git LFS: the content of the file was not fetched."""
  with contextlib.suppress(OSError), open(path, 'rb') as file:
    if file.read(len(_POINTER)) == _POINTER:
      raise InputError(f'{path} is a pointer of Git LFS, not the file itself: run git lfs pull in '
                       'its folder')


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
  """Turns errors in the block, which reads a file, possibly an .xz, into InputError."""
  try:
    yield
  except EOFError:
    raise InputError(f'{path} is cut short; copy it again') from None
  except lzma.LZMAError:
    raise InputError(f'{path} is not an .xz file, or damaged; copy it again') from None
  except OSError as error:
    raise InputError(f'cannot read {path}: {error.strerror}') from None


def read_bytes(file: Path) -> bytes:
  """What a file holds, unpacked if it is an .xz; raises InputError if it cannot be read."""
  check_fetched(file)
  is_packed = file.suffix == '.xz'
  with reading(file), (lzma.open if is_packed else open)(file, 'rb') as stored:
    # What is read is memory in use, even if the file ends before.
    content = stored.read(1 + (_LARGEST if is_packed else min(_LARGEST, file.stat().st_size)))
  if len(content) > _LARGEST:
    raise InputError(f'{file} holds more than {_LARGEST} bytes')
  return content


def read_json(file: Path) -> dict:
  """The JSON object that a file holds; raises InputError if it holds none."""
  if not os.path.isfile(file):
    raise InputError(f'{file} is missing or unreadable')
  try:
    content = json.loads(read_bytes(file).decode())
  except InputError:
    raise
  except (ValueError, RecursionError) as error:
    raise InputError(f'{file} is not JSON: {show(error)}') from None
  if not isinstance(content, dict):
    raise InputError(f'{file} must hold a JSON object {{…}}')
  return content


@contextlib.contextmanager
def naming(file: str | os.PathLike) -> Iterator[None]:
  """Within it the message of an InputError begins with the name of a file."""
  try:
    yield
  # Python compares and shows what is nested deeply by recursion.
  except (InputError, RecursionError) as error:
    raise InputError(f'{file}: {error}') from None


def entry(stored: dict, name: str, words: str, is_right: Callable[[Any], bool]) -> Any:
  """The entry `name`, which must be there and be of a kind, such as *COUNT; else InputError."""
  if name not in stored:
    raise InputError(f'{name} is missing; it must be {words}')
  if not is_right(stored[name]):
    raise InputError(f'{name}={show(stored[name])} must be {words}')
  return stored[name]


def only(name: str, value: Any, *choices: Any) -> None:
  """Raises InputError unless the value of the entry `name` is one of these."""
  if value not in choices:
    raise InputError(f'{name}={show(value)} is not supported; {", ".join(map(show, choices))} '
                     f'{"are" if len(choices) > 1 else "is"}')


def of_type(stored: dict, name: str, kind: type) -> Any:
  """The dict or list under `name`, empty if it is missing or null; InputError if it is neither."""
  value = stored.get(name)
  if not isinstance(value, kind | None):
    raise InputError(f'{name}={show(value)} must be a JSON {"object" if kind is dict else "array"}')
  return value or kind()


def remove_folder(path: Path) -> None:
  """Removes a folder and all in it, if it is there."""
  if in_bucket(path):
    with contextlib.suppress(FileNotFoundError):
      path.rmtree()  # type: ignore[attr-defined]
  else:
    shutil.rmtree(path, ignore_errors=True)


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
  """Writes `content` to `path` as a whole, or leaves what was there; OSError if it cannot."""
  with replacing(path) as file:
    file.write(content)


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
  """A file to write to, which takes the place of `path` after the block, as `write_atomically`.

  If the block fails, what was there stays.
  """
  if not hosts.is_first():
    yield io.BytesIO()
    return
  path = path_of(path)
  if in_bucket(path):
    content = io.BytesIO()
    yield content
    path.write_bytes(content.getvalue())
    return
  # The random part keeps apart two processes that write the same file at once.
  partial = path.with_name(f'.{path.name}.{uuid.uuid4().hex[:8]}.partial')
  try:
    with open(partial, 'wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  except OSError as error:
    error.filename = error.filename or str(path)  # That of a full disk names no file.
    raise
  finally:
    partial.unlink(missing_ok=True)
