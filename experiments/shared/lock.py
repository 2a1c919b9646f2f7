"""One program at a time works in a folder of results."""

import contextlib
import hashlib
import os
from pathlib import Path
import tempfile

from filelock import FileLock, Timeout

from bornbiased_jax import files, hosts
from bornbiased_jax.errors import InputError


def hold(directory: Path) -> contextlib.AbstractContextManager:
  """Keeps other programs of this machine and user out of a folder during a `with` block.

  Two that write the same checkpoints and metrics would mix them. The lock is a file of the
  temporary folder, so that the folder itself need not exist. Folders in buckets are not held.
  """
  if files.in_bucket(directory) or not hosts.is_first():
    return contextlib.nullcontext()
  name = hashlib.sha256(str(Path(directory).resolve()).encode()).hexdigest()[:24]
  path = Path(tempfile.gettempdir()) / f'bornbiased_{os.getuid()}_{name}.lock'
  try:
    return FileLock(path, timeout=0, mode=0o600).acquire()
  except Timeout:
    raise InputError(f'--output_dir: another program works in {directory}; wait for it, or choose '
                     'another folder') from None
