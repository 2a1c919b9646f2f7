"""What reading and comparing networks costs, said before it begins."""

import sys

from bornbiased_jax import hosts
from bornbiased_jax.analysis import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models import flops
from bornbiased_jax.models.initialization import num_parameters

# A comparison takes some decompositions of width x width matrices, and what does not depend on it.
_PAIR_FLOPS_PER_CUBE, _PAIR_SECONDS = 3600, 1
# Reading and hashing parameters, seconds per byte.
_SECONDS_PER_BYTE = 2e-9


def reading_seconds(config: ModelConfig, probe: Probe, rate: float) -> float:
  """About how long a network is read, at so many FLOPs per second."""
  forward = probe.num_sequences * flops.forward_flops(config, probe.length, 0)
  return forward / rate + 4 * _SECONDS_PER_BYTE * num_parameters(config)


def pair_seconds(base: ModelConfig, suspect: ModelConfig, rate: float) -> float:
  """About how long two signatures are compared."""
  return _PAIR_SECONDS + _PAIR_FLOPS_PER_CUBE * max(base.width, suspect.width)**3 / rate


def tell(reads: list[tuple[ModelConfig, list[Probe]]],
         pairs: list[tuple[ModelConfig, ModelConfig]]) -> None:
  """Says what each network reads, what is compared, and how long that takes at the rate of now."""
  if not hosts.is_first():
    return
  rate = flops.matmul_rate('float32', rounds=1)
  seconds = (sum(reading_seconds(config, probe, rate) for config, own in reads for probe in own)
             + sum(pair_seconds(*pair, rate) for pair in pairs))
  parameters = sum(num_parameters(config) for config, _ in reads)
  minutes = f'{max(1, seconds / 60):,.0f} min'
  print(f'{counted(len(reads), "network")} to read, {parameters / 1e6:,.1f} M parameters, and '
        f'{counted(len(pairs), "pair")} to compare: about {minutes} at the {rate / 1e9:,.0f} '
        'GFLOP/s that this machine has now; less if an earlier run has read them', file=sys.stderr)


def counted(number: int, noun: str) -> str:
  """
  >>> counted(1, 'pair'), counted(1200, 'pair')
  ('1 pair', '1,200 pairs')
  """
  return f'{number:,} {noun}{"" if number == 1 else "s"}'
