"""Writing files so that a reader finds either the whole new content or the old file.

Of several hosts that run one program the first alone writes, as all have the same content.
"""

from collections.abc import Iterator
import contextlib
import io
import os
from pathlib import Path
from typing import BinaryIO
import uuid

from bornbiased_jax import hosts


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
  """Writes `content` to `path` as a whole, or leaves what was there untouched.

  The content goes to a temporary file in the same directory, which then takes
  the place of `path` in one step.

  Raises:
    OSError: the directory is missing or not writable, or the disk is full.
  """
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
  path = Path(path)
  # The random part keeps apart two processes that write the same file at once.
  partial = path.with_name(f'.{path.name}.{uuid.uuid4().hex[:8]}.partial')
  try:
    with open(partial, 'wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise
