"""Files that appear whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
  """Writes `content` to `path`, replacing what was there, or leaves it as it was.

  Raises:
    OSError: the directory is missing or not writable, or the disk is full.
  """
  path = Path(path)
  partial = path.with_name(f'.{path.name}.partial')
  try:
    with open(partial, 'wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise
