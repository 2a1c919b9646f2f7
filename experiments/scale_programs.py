"""The programs that experiments.scale_plan compiles for TPUs that are not there, and what compiling them measures.

Each is the package's own jitted function, lowered for shapes and places instead of arrays.
"""

from collections.abc import Callable
import dataclasses
import functools
import importlib.util
import math
import os
import re
from types import SimpleNamespace
from typing import NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.analysis import ensemble
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprints
from bornbiased_jax.models import attention, flops, initialization, sharding
from bornbiased_jax.training.step import Recipe, init_state, train_step
from experiments import seed_sweep
from experiments.hlo_traffic import Traffic, traffic

GIB = 2**30


class Chip(NamedTuple):
  """Published figures: bfloat16 FLOPs a second, bytes of HBM, bytes a second to and from it."""

  flops: float
  hbm: float
  bandwidth: float


# From cloud.google.com/tpu/docs, a page each.
CHIPS = {
    'v4': Chip(275e12, 32 * GIB, 1228e9),
    'v5e': Chip(197e12, 16 * GIB, 819e9),
    'v5p': Chip(459e12, 95 * GIB, 2765e9),
    'v6e': Chip(918e12, 32 * GIB, 1640e9),
}

# libtpu asks the machine which TPU it is on, and lets one process at a time use it: here is none to use.
LIBTPU = {'TPU_SKIP_MDS_QUERY': '1', 'TPU_ACCELERATOR_TYPE': 'v5litepod-8', 'TPU_WORKER_HOSTNAMES': 'localhost',
          'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}

# Products of bfloat16 that stand for one of float32 at the highest precision.
HIGHEST_PASSES = 6


class Program(NamedTuple):
  """What the devices of a topology would run.

  Attributes:
    settings: as given, with what was left to the program.
    mesh: the devices.
    model_flops: of one device in one run, a multiply and an add counted as two.
    passes: products of bfloat16 that the matrix unit computes for one product.
    lower: () → the package's jitted function, lowered for the mesh.
  """

  settings: dict
  mesh: Mesh
  model_flops: float
  passes: int
  lower: Callable[[], jax.stages.Lowered]


def slice_of(topology: str) -> tuple[Chip, list]:
  """The devices of a TPU slice that is not here, and the figures of one."""
  if importlib.util.find_spec('libtpu') is None:
    raise InputError("libtpu is missing, which compiles for TPUs on any machine; install that of this jax: "
                     "pip install -e '.[tpu]'")
  for name, value in LIBTPU.items():
    os.environ.setdefault(name, value)
  jax.config.update('jax_platforms', 'cpu')
  name, sides = topology.split(':')
  sides = [int(side) for side in sides.split('x')]
  # A host has 2 x 2 chips, unless there are fewer.
  host = [min(2, side) for side in sides[:2]] + [1]
  try:
    devices = topologies.get_topology_desc(platform='tpu', topology_name=topology, chips_per_host_bounds=host).devices
  except jax.errors.JaxRuntimeError as error:
    raise InputError(f'--topology: libtpu has no {topology}: {error}') from None
  # Each of v4's two cores is a device.
  cores = len(devices) // math.prod(sides)
  return Chip(*(figure / cores for figure in CHIPS[name])), devices


def train(settings: SimpleNamespace, chip: Chip, devices: list) -> Program:
  """An optimizer step (train_step), its state in float32."""
  if settings.batch_size is None:
    raise InputError("--batch_size: 'auto' is not for --program=train; give the sequences of a step")
  config = configs.get(settings.config, dtype=settings.dtype, remat=settings.remat)
  settings = _with_length(settings, config)
  # The number of steps only shapes the learning rate.
  recipe = Recipe(num_steps=200_000, batch_size=settings.batch_size, length=settings.length,
                           accumulation=settings.accumulation)
  state = jax.eval_shape(functools.partial(init_state, config, recipe), 0)
  mesh = _mesh(devices, mesh_shape(len(devices), _bytes(state) + _bytes(state.params), chip.hbm,
                                   settings.data, settings.fsdp, settings.tensor))
  _check_batch(settings, mesh, settings.accumulation)

  def lower():
    placed = sharding.shardings(mesh, state)
    attend = attention.choose(config, recipe.length, mesh, backend='tpu')
    step = jax.jit(functools.partial(train_step, config, recipe, attend=attend), donate_argnums=0,
                   in_shardings=(placed, NamedSharding(mesh, sharding.BATCH)), out_shardings=(placed, None))
    return step.lower(state, jax.ShapeDtypeStruct((recipe.batch_size, recipe.length + 1), 'int32'))

  model_flops = 3 * recipe.batch_size * flops.forward_flops(config, recipe.length, recipe.length) / len(devices)
  return Program(vars(settings), mesh, model_flops, 1, lower)


def sweep(settings: SimpleNamespace, chip: Chip, devices: list) -> Program:
  """A batch of every network of a chunk (ensemble.measure), with what experiments.seed_sweep reads."""
  del chip
  length = settings.length or configs.get(settings.config).length
  config = configs.get(settings.config, dtype=settings.dtype, length=length)
  settings = _with_length(settings, config)
  settings.num_seeds = settings.num_seeds or len(devices)
  if settings.num_seeds % len(devices):
    raise InputError(f'--num_seeds={settings.num_seeds} cannot be spread evenly over the {len(devices)} devices of '
                     f'--topology; choose a multiple of {len(devices)}')
  probe = Probe('tokens', settings.num_sequences, settings.length)
  settings.batch_size = min(settings.batch_size or ensemble.default_batch_size(
      probe.num_sequences, probe.length, 'tpu'), probe.num_sequences)
  mesh = Mesh(np.array(devices), ('seed',), axis_types=(AxisType.Auto,))

  def lower():
    spread = NamedSharding(mesh, PartitionSpec('seed'))
    place = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=spread))
    draw, step, _ = ensemble.programs(ensemble.transformer(config), seed_sweep.statistic(config), probe, mesh=mesh)
    with jax.default_matmul_precision('highest'):
      params, sums = place(jax.eval_shape(draw, place(jax.ShapeDtypeStruct((settings.num_seeds,), 'uint32'))))
      return step.lower(params, sums, 0, size=settings.batch_size)

  model_flops = settings.num_seeds * settings.batch_size * last_position_flops(config, probe.length, 1) / len(devices)
  return Program(vars(settings), mesh, model_flops, 1 if config.dtype == 'bfloat16' else HIGHEST_PASSES, lower)


def fingerprint(settings: SimpleNamespace, chip: Chip, devices: list) -> Program:
  """A batch of fingerprints.fingerprint in float32, parameters and batch spread as sources.fingerprint does."""
  config = fingerprints.exact(configs.get(settings.config))
  settings = _with_length(settings, config)
  probe = Probe('tokens', settings.num_sequences, settings.length)
  shape = mesh_shape(len(devices), math.inf, chip.hbm, settings.data, settings.fsdp, settings.tensor)
  mesh = _mesh(devices, shape)
  settings.batch_size = settings.batch_size or fingerprints.spread_batch_size(probe, mesh, backend='tpu')
  _check_batch(settings, mesh)

  def lower():
    params = jax.eval_shape(functools.partial(initialization.draw_params, config), 0)
    index_B = jax.ShapeDtypeStruct((settings.batch_size,), 'int32', sharding=NamedSharding(mesh, sharding.BATCH))
    return fingerprints.program(config, probe, mesh=mesh).lower(sharding.abstract(mesh, params), index_B)

  model_flops = settings.batch_size * last_position_flops(config, probe.length, 0) / len(devices)
  return Program(vars(settings), mesh, model_flops, HIGHEST_PASSES, lower)


def _with_length(settings, config):
  """A copy of the settings whose sequences are as long as asked, or as the model's longest."""
  if (settings.length or 0) > config.length:
    raise InputError(f'--length={settings.length} exceeds the {config.length} positions of the model')
  return SimpleNamespace(**vars(settings) | {'length': settings.length or config.length})


def _bytes(tree):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _mesh(devices, shape):
  return Mesh(np.array(devices).reshape(shape), sharding.AXES, axis_types=(AxisType.Auto,) * 3)


def mesh_shape(num_devices: int, state_bytes: float, hbm: float,
               data: int | None, fsdp: int | None, tensor: int) -> tuple[int, int, int]:
  """(data, fsdp, tensor) where None takes the devices left: data if half of a chip holds the state, else fsdp.

  Raises:
    InputError: the sizes do not multiply to the number of devices.
  """
  if data is None and fsdp is None:
    data, fsdp = (None, 1) if state_bytes / tensor <= hbm / 2 else (1, None)
  if data is None:
    data = max(1, num_devices // (fsdp * tensor))
  if fsdp is None:
    fsdp = max(1, num_devices // (data * tensor))
  if data * fsdp * tensor != num_devices:
    raise InputError(f'--data={data} --fsdp={fsdp} --tensor={tensor} is not the {num_devices} devices of --topology')
  return data, fsdp, tensor


def _check_batch(settings, mesh, parts=1):
  """Raises InputError for a batch that the mesh does not divide."""
  sharers = mesh.shape['data'] * mesh.shape['fsdp']
  if settings.batch_size % (parts * sharers):
    in_parts = f' in --accumulation={parts} parts' if parts > 1 else ''
    raise InputError(f'--batch_size={settings.batch_size}{in_parts} cannot be spread over data x fsdp = {sharers} '
                     f'chips; choose a multiple of {parts * sharers}')


def last_position_flops(config: configs.ModelConfig, length: int, num_logits: int) -> int:
  """Least FLOPs of one sequence read at its last position: of the others the last block needs keys and values alone."""
  before = flops.forward_flops(dataclasses.replace(config, num_layers=config.num_layers - 1), length, num_logits)
  return before + 4 * length * config.width * config.num_kv_heads * config.head_size


def measured(compiled: jax.stages.Compiled, chip: Chip, num_flops: float) -> dict:
  """Memory, traffic and roofline of a compiled program, each of one chip, which computes `num_flops`."""
  sizes = compiled.memory_analysis()
  memory = {'arguments': sizes.argument_size_in_bytes, 'temporaries': sizes.temp_size_in_bytes,
            'outputs': sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
            'program': sizes.generated_code_size_in_bytes}
  try:
    moved = traffic(compiled.as_text())
  except (ValueError, jax.errors.JaxRuntimeError):  # A loop without a count, or libtpu newer than jaxlib's reader.
    moved = Traffic(math.nan, {})
  return {
      'memory': {**memory, 'total': sum(memory.values()), 'available': chip.hbm},
      'compiler_flops_loops_once': compiled.cost_analysis()['flops'],
      'hbm_bytes': moved.hbm,
      'collective_bytes': moved.collectives,
      'seconds': roofline(num_flops, moved.hbm, chip),
  }


def roofline(num_flops: float, hbm_bytes: float, chip: Chip) -> dict[str, float]:
  """Seconds that computing and that moving bytes take at least, and the program hence."""
  compute, memory = num_flops / chip.flops, hbm_bytes / chip.bandwidth
  return {'compute': compute, 'memory': memory, 'roofline': max(compute, memory)}


def refusal(message: str) -> dict[str, float]:
  """Bytes of HBM that a program takes and bytes that it may, from the compiler's refusal.

  Raises:
    InputError: it refuses for want of something else.
  """
  match = re.search(r'\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)', message)
  if not match:
    raise InputError(f'XLA refuses the program: {message[:300]}')
  total, available = (float(number) * 2**(10 * ' KMGT'.index(unit)) for number, unit in (match.groups()[:2],
                                                                                         match.groups()[2:]))
  return {'total': total, 'available': available}
