"""How many sequences a device takes at once, and a function of all sequences batch by batch."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bornbiased_jax import hosts

# Tokens per batch of one network: on a CPU so many that they stay in its cache, on an
# accelerator so many that they fill it.
_BATCH_TOKENS = {'cpu': 2048}
_BATCH_TOKENS_ACCELERATOR = 65536
# An accelerator holds a batch's attention weights, in float32, two or three times at once. This
# leaves most of the 16 GB of a TPU v5e to the parameters.
_BATCH_WEIGHTS_BYTES = 2**31


def default_batch_size(num_sequences: int, length: int, backend: str | None = None, *,
                       num_heads: int = 0) -> int:
  """Number of sequences per batch that keeps a device at work, and whose attention it can hold.

  All batches get nearly the same size.

  Args:
    num_sequences: number of sequences in all.
    length: number of positions per sequence.
    backend: 'cpu' | 'gpu' | 'tpu'; None means the backend of this process.
    num_heads: heads of a layer, each with length² attention weights per sequence.
  """
  backend = backend or jax.default_backend()
  most = _BATCH_TOKENS.get(backend, _BATCH_TOKENS_ACCELERATOR) // length
  # On a CPU there are few sequences, and the memory is large.
  if backend != 'cpu' and num_heads:
    most = min(most, _BATCH_WEIGHTS_BYTES // (4 * num_heads * length**2))
  num_batches = -(-num_sequences // max(1, most))
  return -(-num_sequences // num_batches)


def in_batches(measure: Callable[[np.ndarray], Any], num_sequences: int, length: int,
               size: int | None = None) -> Any:
  """Calls a function for all sequences, batch by batch, and joins what it returns.

  Args:
    measure: a function from the indices of a batch to a pytree of arrays [B, …].
    num_sequences: number of sequences, n; the pytree that is returned has arrays [n, …].
    length: number of positions per sequence.
    size: number of sequences per batch; None means `default_batch_size`.

  Example:
    >>> in_batches(lambda index_B: 10 * index_B, num_sequences=5, length=1, size=2).tolist()
    [0, 10, 20, 30, 40]
  """
  size = size or default_batch_size(num_sequences, length)
  # The last batch wraps around to the first sequences, so that it is as large as the
  # others and needs no compilation of its own. The surplus is cut off at the end.
  parts = [jax.tree.map(hosts.on_host, measure(np.arange(first, first + size) % num_sequences))
           for first in range(0, num_sequences, size)]
  return jax.tree.map(lambda *columns: np.concatenate(columns)[:num_sequences], *parts)
