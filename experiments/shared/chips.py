"""The TPU chips that experiments.scale_plan compiles for, and what a program takes of one."""

import importlib.util
import math
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies

from bornbiased_jax.errors import InputError

from .hlo_traffic import Traffic, traffic

GIB = 2**30


class Chip(NamedTuple):
  """Published figures of a chip.

  Attributes:
    flops: bfloat16 operations per second.
    hbm: bytes of memory.
    bandwidth: bytes per second to and from that memory.
  """

  flops: float
  hbm: float
  bandwidth: float


# From the page of each chip in cloud.google.com/tpu/docs.
CHIPS = {
    'v4': Chip(275e12, 32 * GIB, 1228e9),
    'v5e': Chip(197e12, 16 * GIB, 819e9),
    'v5p': Chip(459e12, 95 * GIB, 2765e9),
    'v6e': Chip(918e12, 32 * GIB, 1640e9),
}

# libtpu would ask the machine which TPU it is on, and would let only one process
# at a time use it. There is no TPU here to ask or to use.
LIBTPU = {'TPU_SKIP_MDS_QUERY': '1', 'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
          'TPU_WORKER_HOSTNAMES': 'localhost', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}


def slice_of(topology: str) -> tuple[Chip, list]:
  """The figures of one device of a TPU slice, and all its devices, none of which is here.

  Raises:
    InputError: libtpu is missing or does not know the topology.
  """
  if importlib.util.find_spec('libtpu') is None:
    raise InputError('libtpu, which compiles for TPUs on any machine, is missing; install the one '
                     "of this jax: pip install -e '.[tpu]'")
  for name, value in LIBTPU.items():
    os.environ.setdefault(name, value)
  jax.config.update('jax_platforms', 'cpu')
  name, sides = topology.split(':')
  sides = [int(side) for side in sides.split('x')]
  # A host has 2 x 2 chips, unless there are fewer.
  host = [min(2, side) for side in sides[:2]] + [1]
  try:
    devices = topologies.get_topology_desc(
        platform='tpu', topology_name=topology, chips_per_host_bounds=host).devices
  except jax.errors.JaxRuntimeError as error:
    raise InputError(f'--topology: libtpu has no {topology}: {error}') from None
  # Each of v4's two cores is a device.
  cores = len(devices) // math.prod(sides)
  return Chip(*(figure / cores for figure in CHIPS[name])), devices


def measured(compiled: jax.stages.Compiled, chip: Chip, num_flops: float) -> dict:
  """Memory, traffic and roofline per chip of a compiled program that computes `num_flops`."""
  sizes = compiled.memory_analysis()
  memory = {'arguments': sizes.argument_size_in_bytes, 'temporaries': sizes.temp_size_in_bytes,
            'outputs': sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
            'program': sizes.generated_code_size_in_bytes}
  try:
    moved = traffic(compiled.as_text())
  except (ValueError, jax.errors.JaxRuntimeError):
    # The rounds of a loop are unknown, or libtpu is too new for jaxlib to read its program.
    moved = Traffic(math.nan, {})
  return {
      'memory': {**memory, 'total': sum(memory.values()), 'available': chip.hbm},
      'compiler_flops_loops_once': compiled.cost_analysis()['flops'],
      'hbm_bytes': moved.hbm,
      'collective_bytes': moved.collectives,
      'seconds': roofline(num_flops, moved.hbm, chip),
  }


def roofline(num_flops: float, hbm_bytes: float, chip: Chip) -> dict[str, float]:
  """The least seconds for computing, for moving bytes, and hence for the program."""
  compute, memory = num_flops / chip.flops, hbm_bytes / chip.bandwidth
  return {'compute': compute, 'memory': memory, 'roofline': max(compute, memory)}


def refusal(message: str) -> dict[str, float]:
  """The bytes of HBM that a program needs and may use, from the compiler's refusal.

  Raises:
    InputError: the compiler refused because something else than HBM is too small.
  """
  size = r'\(([\d.]+)([KMGT])\)'
  match = re.search(f'{size} exceeds available HBM {size}', message)
  if not match:
    raise InputError(f'XLA refuses the program: {message[:300]}')
  in_bytes = lambda number, unit: float(number) * 2**(10 * ' KMGT'.index(unit))
  return {'total': in_bytes(*match.groups()[:2]), 'available': in_bytes(*match.groups()[2:])}
