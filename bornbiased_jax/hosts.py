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

  Raises:
    InputError: on every host, if `make` raises it on the first.
  """
  if not jax.distributed.is_initialized():
    return make()
  content, error = pickle.loads(_broadcast(pickle.dumps(_outcome(make) if is_first() else None)))
  if error is not None:
    raise InputError(error)
  return content


def _outcome(make):
  try:
    return make(), None
  except InputError as error:
    return None, str(error)


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
