"""Windows of a corpus: the batch at each training step, whose order a data seed decides."""

import functools

import numpy as np

from bornbiased_jax.errors import InputError


def num_windows(tokens: np.ndarray, length: int) -> int:
  """Number of windows of `length` + 1 ids; the last id of each is the first of the next."""
  count = (len(tokens) - 1) // length
  if count < 1:
    raise InputError(f'{len(tokens)} tokens are too few for one sequence of length {length}; '
                     'bring more text, or choose a smaller length')
  return count


def batch(tokens: np.ndarray, data_seed: int, step: int, batch_size: int, length: int,
          rows: slice | np.ndarray | None = None) -> np.ndarray:
  """The batch at a training step, a pure function of the data seed and the step.

  The steps read the windows of epoch 0, then of epoch 1, and so on without
  a gap. Every epoch has each window once, in an order drawn from
  (data_seed, epoch).

  Args:
    tokens: ids [n] of a corpus.
    data_seed: whole number in [0, 2^64), independent of a network's seed.
    step: number of optimizer steps before this one.
    batch_size: sequences per step on all hosts together, B.
    length: predicted positions per sequence, T.
    rows: which of the B sequences this host needs, by default all.

  Returns:
    Ids [rows, T + 1] int32. Inputs are [:, :-1] and targets [:, 1:]. In every
    epoch each id is a target once, except the first id and up to T - 1 ids at
    the end of the corpus.

  Example:
    >>> from bornbiased_jax import data
    >>> ids = np.arange(1000, dtype=np.uint16)
    >>> data.batch(ids, data_seed=42, step=7, batch_size=4, length=8).shape
    (4, 9)
  """
  count = num_windows(tokens, length)
  # Windows are numbered on from epoch to epoch: sequence // count is the epoch.
  sequences = step * batch_size + np.arange(batch_size)[slice(None) if rows is None else rows]
  return _read_windows(tokens, [_order(data_seed, int(sequence) // count, count)[sequence % count]
                                for sequence in sequences], length)


def spaced_windows(tokens: np.ndarray, limit: int, length: int) -> np.ndarray:
  """Up to `limit` windows [windows, T + 1] at even distances over the text, for validation.

  Example:
    >>> spaced_windows(np.arange(100), limit=3, length=2)
    array([[ 0,  1,  2],
           [32, 33, 34],
           [64, 65, 66]], dtype=int32)
  """
  count = num_windows(tokens, length)
  chosen = min(limit, count)
  return _read_windows(tokens, [i * count // chosen for i in range(chosen)], length)


def begin(ids_NT: np.ndarray, start_id: int | None) -> np.ndarray:
  """Sequences that begin with the id `start_id` instead of their first; None changes nothing."""
  if start_id is None:
    return ids_NT
  ids_NT = ids_NT.copy()
  ids_NT[:, 0] = start_id
  return ids_NT


@functools.lru_cache(maxsize=4)
def _order(data_seed, epoch, count):
  """A random order of the windows of an epoch.

  It comes from the raw bits of Philox. NumPy may change its shuffling functions in
  any release, but not these bits.
  """
  bits = np.random.Philox(key=np.array([data_seed, epoch], np.uint64)).random_raw(count)
  order = np.argsort(bits, kind='stable')
  order.flags.writeable = False
  return order


def _read_windows(tokens, windows, length):
  return np.stack([tokens[window * length:(window + 1) * length + 1]
                   for window in windows]).astype(np.int32)
