"""Several hosts that run one program together: the first one reads and writes files for all.

All of them must go the same way through the program, as they wait for each other wherever
devices of several hosts compute together.
"""

from collections.abc import Callable
import pickle
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from bornbiased_jax.errors import InputError


def is_first() -> bool:
  """Whether this process reads and writes files: the first one, or the only one."""
  # Without other processes nothing asks for devices here.
  return not jax.distributed.is_initialized() or jax.process_index() == 0


def from_first(make: Callable[[], Any]) -> Any:
  """What `make` returns on the first host, on every host; the others do not call it.

  Hosts thus agree about files, which they may see at different times.
  """
  if not jax.distributed.is_initialized():
    return make()
  own_error, sent = None, b''
  if is_first():
    try:
      sent = pickle.dumps((make(), None))
    except Exception as error:  # Any error, as the other hosts wait.
      own_error = error
      sent = pickle.dumps((None, str(error) or type(error).__name__))
  # Not from a stranger: the first process of this job sends it, which runs the same program.
  content, message = pickle.loads(_broadcast(sent))
  if own_error is not None:
    raise own_error
  if message is not None:
    raise InputError(message)
  return content


def _broadcast(content):
  """The bytes of the first host."""
  size = int(multihost_utils.broadcast_one_to_all(np.uint32(len(content))))
  sent = np.frombuffer(content.ljust(size, b'\0')[:size], np.uint8)
  # They are added over hosts, which makes them wider.
  return np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8).tobytes()


def on_host(leaf: Any) -> np.ndarray:
  """An array on the host, whole even if other hosts have parts of it."""
  if not getattr(leaf, 'is_fully_addressable', True):
    leaf = multihost_utils.process_allgather(leaf, tiled=True)
  return np.asarray(jax.device_get(leaf))
