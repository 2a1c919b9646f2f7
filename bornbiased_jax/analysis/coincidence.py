"""How often the ids at two positions coincide, with which the theory of random networks begins.

Random ids hardly ever coincide. Those of a text do: two of them are the same with probability
q = Σ p_v², its collision probability, so that a text acts like random ids of 1/q tokens. Within a
window they coincide a little more often, the nearer the more. And while q is a mean, the ids of two
windows coincide or do not, which matters where kernels are curved, as those of gated units. So for
a text pairs of windows are sampled, each with a kernel of zeros and ones.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import OF_IDS, OF_TEXT, Probe, kind_of
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError

# Pairs of windows, of which fewer can be afforded where windows are long.
_NUM_PAIRS = 256
_LARGEST = 2**22


def kernels(config: ModelConfig, length: int, probe: str | Probe,
            collision: float | None = None) -> np.ndarray:
  """Probabilities that ids at positions i and j coincide, [K, T, T].

  The first is within a sequence, the others are between two: one, or one for each pair of windows.
  """
  kind = kind_of(probe)
  if collision is not None and not (kind == 'tokens' and 0 <= collision <= 1):
    raise InputError(f'collision={collision} is a probability from 0 to 1 of random ids, in '
                     "probe='tokens'")
  if kind in OF_TEXT:
    return _of_text(config, probe)
  q = 0.0
  if kind in OF_IDS:
    q = 1 / (getattr(probe, 'num_ids', None) or config.vocab_size)
    q = q if collision is None else collision
  start_id = getattr(probe, 'start_id', None)
  return _begin(_by_lag(np.full(length, q)), np.full((1, length, length), q), start_id, q)


def _by_lag(profile_T):
  lag_TT = np.abs(np.subtract.outer(np.arange(len(profile_T)), np.arange(len(profile_T))))
  return np.where(lag_TT == 0, 1.0, np.asarray(profile_T)[lag_TT])[None]


def _begin(within_1TT, between_NTT, start_id, share):
  """The kernels, if sequences begin with an id that has this share of the others."""
  joined_KTT = np.concatenate([within_1TT, between_NTT]).astype(np.float32)
  if start_id is not None:
    joined_KTT[:, 0, 1:] = joined_KTT[:, 1:, 0] = share
    joined_KTT[:, 0, 0] = 1
  return joined_KTT


def _of_text(config, probe):
  ids, T = np.asarray(probe.text.tokens), probe.length
  share_V = np.bincount(ids) / len(ids)
  q = share_V @ share_V
  profile_T = np.full(T, q)
  if probe.kind == 'text':
    profile_T[1:] = [np.mean(ids[lag:] == ids[:-lag]) for lag in range(1, T)]
  pairs_NTT = _pairs(config, probe)
  # Their mean is known better than from the sample.
  between_NTT = q + pairs_NTT - pairs_NTT.mean(axis=0)
  start = probe.start_id
  share = 0.0 if start is None or start >= len(share_V) else share_V[start]
  return _begin(_by_lag(profile_T), between_NTT, start, share)


def _pairs(config, probe):
  """Which ids coincide between the first window and the second, the third and the fourth, …"""
  count = max(2, min(_NUM_PAIRS, _LARGEST // probe.length**2))
  windows = jax.jit(lambda index_B: probe.inputs(config, index_B))
  first, second = np.asarray(windows(jnp.arange(2 * count))).reshape(2, count, probe.length)
  return (first[:, :, None] == second[:, None, :]).astype(np.float32)
