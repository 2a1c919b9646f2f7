"""One program at a time works in a folder of results."""

from collections.abc import Iterator
import contextlib
import hashlib
import os
from pathlib import Path
import tempfile

from bornbiased_jax import files, hosts
from bornbiased_jax.errors import InputError

try:
  import fcntl
except ImportError:  # Windows has no such locks.
  fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
  """Keeps other programs of this machine and user out of a folder during the block.

  Two that write the same checkpoints and metrics would mix them. A program that was killed holds
  nothing. The lock is a file of the temporary folder, so that the folder itself need not exist.
  Folders in buckets are not held.

  Raises:
    InputError: another program works there.
  """
  if fcntl is None or files.in_bucket(directory) or not hosts.is_first():
    yield
    return
  name = hashlib.sha256(str(Path(directory).resolve()).encode()).hexdigest()[:24]
  path = Path(tempfile.gettempdir()) / f'bornbiased_{os.getuid()}_{name}.lock'
  # Others may write to that folder, and a link of theirs must not be followed.
  handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
  try:
    _lock(handle, directory)
    yield
  finally:
    os.close(handle)


def _lock(handle, directory):
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise InputError(f'--output_dir: another program works in {directory}; wait for it, or choose '
                     'another folder') from None
