"""Which ids coincide in two sequences, with which the theory of random networks begins.

Random ids hardly ever coincide. Those of a text do: two of them are the same with probability
q = Σ p_v², its collision probability, so that a text acts like random ids of 1/q tokens. But q is a
mean. The ids of two windows coincide or do not, more often within a window than between windows,
and in some windows more than in others, which matters where kernels are curved, as those of gated
units. So of a text, theory takes the windows that networks read, pair by pair.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import OF_IDS, OF_TEXT, Probe, kind_of
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError

# Pairs of windows, of which fewer can be afforded where windows are long.
_NUM_PAIRS = 512
_LARGEST = 2**23


def kernels(config: ModelConfig, length: int, probe: str | Probe,
            collision: float | None = None) -> np.ndarray:
  """Whether ids at positions i and j coincide, or how probable it is, [P, 3, T, T].

  Of each of P pairs of sequences the first kernel is within one, the second within the other, the
  third between them. One pair speaks for all pairs of random sequences.
  """
  kind = kind_of(probe)
  if collision is not None and not (kind == 'tokens' and 0 <= collision <= 1):
    raise InputError(f'collision={collision} is a probability from 0 to 1 of random ids, in '
                     "probe='tokens'")
  if kind in OF_TEXT:
    return _of_windows(config, probe)
  q = 0.0
  if kind in OF_IDS:
    q = 1 / (getattr(probe, 'num_ids', None) or config.vocab_size)
    q = q if collision is None else collision
  within_TT = np.where(np.eye(length, dtype=bool), 1, q)
  between_TT = np.full((length, length), q)
  if getattr(probe, 'start_id', None) is not None:
    between_TT[0, 0] = 1
  return np.stack([within_TT, within_TT, between_TT])[None].astype(np.float32)


def _of_windows(config, probe):
  windows_NT, first_P, second_P = _pairs(config, probe)
  return np.stack([windows_NT[i_P][:, :, None] == windows_NT[j_P][:, None, :] for i_P, j_P in (
      (first_P, first_P), (second_P, second_P), (first_P, second_P))], axis=1).astype(np.float32)


def _pairs(config, probe):
  """Windows of a text, and pairs of them, of which each window is in as many as any other."""
  largest = max(2, min(_NUM_PAIRS, _LARGEST // probe.length**2))
  num_windows = largest if probe.of_each else min(largest, max(2, probe.num_sequences))
  steps = np.arange(1, 1 + min(largest // num_windows, num_windows - 1))
  first_P = np.tile(np.arange(num_windows), len(steps))
  windows = jax.jit(lambda index_B: probe.inputs(config, index_B))
  return (np.asarray(windows(jnp.arange(num_windows))), first_P,
          (first_P + steps.repeat(num_windows)) % num_windows)
