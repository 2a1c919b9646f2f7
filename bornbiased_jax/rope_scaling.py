"""RoPE of models that were taught to read longer sequences than before."""

import dataclasses
from typing import Any

from bornbiased_jax.errors import InputError, check_count, check_positive

ROPE_SCALINGS = ('linear', 'llama3', 'yarn')
# The default of a field which has no meaning without others.
_UNUSED: Any = None


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How the frequencies of RoPE were lowered, so that a model reads longer sequences.

  A channel pair's frequency is divided by `factor`, or stays, or is between both. It depends on
  how often the pair turns within the length that the model read before.

  Args:
    kind: 'linear' divides all frequencies. 'llama3' (Llama 3.1) interpolates linearly in the
      turns, 'yarn' (Peng et al. 2023, arXiv 2309.00071) in the number of the pair.
    factor: what the lowest frequencies are divided by.
    original_length: the positions that the model read before; not of 'linear'.
    slow: pairs that turn less often in them get the whole factor; not of 'linear'.
    fast: pairs that turn more often keep their frequency; not of 'linear'.
    attention_factor: what queries and keys are multiplied by, in the channels that turn; of
      'yarn' alone.
  """

  kind: str
  factor: float
  original_length: int = _UNUSED
  slow: float = _UNUSED
  fast: float = _UNUSED
  attention_factor: float = 1.0

  def __post_init__(self):
    if self.kind not in ROPE_SCALINGS:
      raise InputError(f'kind={self.kind!r} is not one of {", ".join(ROPE_SCALINGS)}')
    for name in ('factor', 'attention_factor'):
      check_positive(name, getattr(self, name))
    if self.factor < 1:
      raise InputError(f'factor={self.factor!r} must be at least 1')
    idle = {} if self.kind == 'yarn' else {'attention_factor': 1}
    if self.kind == 'linear':
      idle = dict.fromkeys(('original_length', 'slow', 'fast'), _UNUSED) | idle
    else:
      self._check_ramp()
    for name, default in idle.items():
      if getattr(self, name) != default:
        raise InputError(f'{name}={getattr(self, name)!r} has no meaning with kind={self.kind!r}')

  def _check_ramp(self):
    check_count('original_length', self.original_length)
    for name in ('original_length', 'slow', 'fast'):
      check_positive(name, getattr(self, name))
    if self.slow >= self.fast:
      raise InputError(f'slow={self.slow} must be below fast={self.fast}')
