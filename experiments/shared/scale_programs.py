"""The programs that experiments.scale_plan compiles for TPUs.

Each program is the package's own jitted function. It is lowered for the shapes
of arrays and their places on devices, so that neither the arrays nor the devices
need to exist.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from types import SimpleNamespace
from typing import NamedTuple

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.analysis import ensemble, sizes
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import hidden_states
from bornbiased_jax.models import attention_kernels, flops, initialization, sharding
from bornbiased_jax.training.step import Recipe, abstract_state, sharded_step

from . import measurements
from .chips import Chip

# A float32 product at the highest precision takes this many products of bfloat16.
HIGHEST_PASSES = 6


class Program(NamedTuple):
  """What the devices of a topology would run.

  Attributes:
    settings: the given settings, with those filled in that were left to the program.
    mesh: the devices.
    model_flops: operations per device and run; a multiply and an add count as two.
    passes: how many products of bfloat16 the matrix unit computes per product.
    lower: function without arguments that returns the package's jitted
      function, lowered for the mesh.
  """

  settings: dict
  mesh: Mesh
  model_flops: float
  passes: int
  lower: Callable[[], jax.stages.Lowered]


def train(settings: SimpleNamespace, chip: Chip, devices: list) -> Program:
  """An optimizer step (`step.sharded_step`), with its state in float32."""
  if settings.batch_size is None:
    raise InputError('--batch_size: is missing: --program=train needs the sequences per step')
  config = configs.get(settings.config, dtype=settings.dtype, remat=settings.remat)
  settings = _with_length(settings, config)
  # The number of steps shapes nothing but the learning rate.
  recipe = Recipe(num_steps=200_000, batch_size=settings.batch_size, length=settings.length,
                  accumulation=settings.accumulation)
  state = abstract_state(config, recipe, mesh=None)
  state_and_gradient = _bytes(state) + _bytes(state.params)
  mesh = _mesh(devices, mesh_shape(len(devices), state_and_gradient, chip.hbm, settings.data,
                                   settings.fsdp, settings.tensor))
  _check_batch(settings, mesh, settings.accumulation)

  def lower():
    attend = attention_kernels.choose(config, recipe.length, mesh, backend='tpu')
    tokens_BT = jax.ShapeDtypeStruct((recipe.batch_size, recipe.length + 1), 'int32',
                                     sharding=NamedSharding(mesh, sharding.BATCH))
    step = sharded_step(config, recipe, mesh, attend)
    return step.lower(abstract_state(config, recipe, mesh), tokens_BT)

  forward = recipe.batch_size * flops.forward_flops(config, recipe.length, recipe.length)
  return Program(vars(settings), mesh, 3 * forward / len(devices), 1, lower)


def sweep(settings: SimpleNamespace, chip: Chip, devices: list) -> Program:
  """A batch of every network of a chunk (`ensemble.programs`), as in experiments.seed_sweep."""
  del chip
  length = settings.length or configs.get(settings.config).length
  config = configs.get(settings.config, dtype=settings.dtype, length=length)
  settings = _with_length(settings, config)
  settings.num_seeds = settings.num_seeds or len(devices)
  if settings.num_seeds % len(devices):
    raise InputError(
        f'--num_seeds={settings.num_seeds} cannot be spread evenly over the {len(devices)} devices '
        f'of --topology; choose a multiple of {len(devices)}')
  probe = Probe('tokens', settings.num_sequences, settings.length)
  batch_size = settings.batch_size or sizes.batch_size_of(config, probe, 'tpu')
  settings.batch_size = min(batch_size, probe.num_sequences)
  mesh = Mesh(np.array(devices), ('seed',), axis_types=(AxisType.Auto,))

  def lower():
    spread = NamedSharding(mesh, PartitionSpec('seed'))
    place = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=spread))
    draw, step, _ = ensemble.programs(
        ensemble.transformer(config), measurements.preference(config), probe, mesh=mesh)
    seeds = place(jax.ShapeDtypeStruct((settings.num_seeds,), 'uint32'))
    with jax.default_matmul_precision('highest'):
      params, sums = place(jax.eval_shape(draw, seeds))
      return step.lower(params, sums, 0, size=settings.batch_size)

  sequences = settings.num_seeds * settings.batch_size
  model_flops = sequences * last_position_flops(config, probe.length, 1) / len(devices)
  passes = 1 if config.dtype == 'bfloat16' else HIGHEST_PASSES
  return Program(vars(settings), mesh, model_flops, passes, lower)


def fingerprint(settings: SimpleNamespace, chip: Chip, devices: list) -> Program:
  """A batch of `hidden_states.of_network` in float32, whose parameters and batch are spread."""
  config = hidden_states.exact(configs.get(settings.config))
  settings = _with_length(settings, config)
  probe = Probe('tokens', settings.num_sequences, settings.length)
  mesh = _mesh(devices, mesh_shape(len(devices), math.inf, chip.hbm, settings.data, settings.fsdp,
                                   settings.tensor))
  settings.batch_size = settings.batch_size or hidden_states.spread_batch_size(
      config, probe, mesh, backend='tpu')
  _check_batch(settings, mesh)

  def lower():
    params = jax.eval_shape(functools.partial(initialization.draw_params, config), 0)
    index_B = jax.ShapeDtypeStruct((settings.batch_size,), 'int32',
                                   sharding=NamedSharding(mesh, sharding.BATCH))
    states = hidden_states.program(config, probe, mesh=mesh)
    return states.lower(sharding.abstract(mesh, params), index_B)

  total_flops = settings.batch_size * last_position_flops(config, probe.length, 0)
  return Program(vars(settings), mesh, total_flops / len(devices), HIGHEST_PASSES, lower)


def _with_length(settings, config):
  """A copy of the settings with the length that was given, or else the model's longest."""
  if (settings.length or 0) > config.length:
    raise InputError(
        f'--length={settings.length} exceeds the {config.length} positions of the model')
  return SimpleNamespace(**vars(settings) | {'length': settings.length or config.length})


def _bytes(tree):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _mesh(devices, shape):
  return Mesh(np.array(devices).reshape(shape), sharding.AXES, axis_types=(AxisType.Auto,) * 3)


def mesh_shape(num_devices: int, state_bytes: float, hbm: float,
               data: int | None, fsdp: int | None, tensor: int) -> tuple[int, int, int]:
  """The sizes (data, fsdp, tensor) of a mesh, of which data and fsdp need not be given.

  If one of them is None, it becomes the number of devices that are left. If both
  are None, data becomes that number if the share of the state that `tensor`
  leaves to a chip fits into half of its memory, and otherwise fsdp does.

  Args:
    num_devices: the number of devices.
    state_bytes: bytes of the whole state, including the gradient.
    hbm: bytes of memory per chip.
    data, fsdp, tensor: the sizes as given.

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
    raise InputError(f'--data={data} --fsdp={fsdp} --tensor={tensor} is not the {num_devices} '
                     'devices of --topology')
  return data, fsdp, tensor


def _check_batch(settings, mesh, parts=1):
  """Raises InputError for a batch that cannot be divided evenly over the mesh."""
  sharers = sharding.batch_shards(mesh)
  if settings.batch_size % (parts * sharers):
    in_parts = f' in --accumulation={parts} parts' if parts > 1 else ''
    raise InputError(
        f'--batch_size={settings.batch_size}{in_parts} cannot be spread over '
        f'data x fsdp = {sharers} chips; choose a multiple of {parts * sharers}')


def last_position_flops(config: configs.ModelConfig, length: int, num_logits: int) -> int:
  """The fewest operations for one sequence that is read at its last position only.

  Of the other positions the last block needs nothing but keys and values. The
  work of the last block at the last position itself is left out.
  """
  all_but_last = dataclasses.replace(config, num_layers=config.num_layers - 1)
  before = flops.forward_flops(all_but_last, length, num_logits)
  return before + 4 * length * config.width * config.num_kv_heads * config.head_size
