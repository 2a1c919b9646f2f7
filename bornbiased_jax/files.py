"""Files that appear whole or not at all."""

import os
from pathlib import Path
import uuid


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
  """Writes `content` to `path`, replacing what was there, or leaves it as it was.

  Raises:
    OSError: the directory is missing or not writable, or the disk is full.
  """
  path = Path(path)
  # Of this writer alone: another may be at the same file.
  partial = path.with_name(f'.{path.name}.{uuid.uuid4().hex[:8]}.partial')
  try:
    with open(partial, 'wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise
