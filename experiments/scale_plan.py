"""Does a training step fit a TPU slice, and how fast can it be: compiled for it here, without a TPU.

    python -m experiments.scale_plan --config=nano_llama2 --topology=v5e:1x1 --batch_size=8
    python -m experiments.scale_plan --config=nano_llama2 --topology=v5e:2x4 --batch_size=64
    python -m experiments.scale_plan --config=llama2_7b --topology=v5e:16x16 --batch_size=256

Takes half a minute for nano models and two for llama2_7b on two CPU cores, and
needs libtpu (pip install -e '.[tpu]'). The step is training.train_step with AdamW,
its state in float32, compiled by XLA for the mesh --data x --fsdp x --tensor of
--topology: NAME:AxB (v5e, v6e) or NAME:AxBxC (v4, v5p), chips along each side.

Prints, for each chip: memory; the step's floating-point operations (forward and
backward; what is recomputed is not counted) and bytes through HBM, with the
time of each at the chip's published rate; bytes in collectives, whose time is
not counted; and the roofline, the larger of the two times, which this program
does not beat. With --output_dir, scale_plan.json has it all. Exit code 0: the
step fits; 1: it does not; 2: the input is wrong.
"""

import functools
import importlib.util
import math
import os
from pathlib import Path
import re
import sys
import time
from types import SimpleNamespace
from typing import NamedTuple

from absl import flags
import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
import numpy as np

from bornbiased_jax import attention, configs, flops, sharding, training
from bornbiased_jax.errors import InputError
from bornbiased_jax.scale import Traffic, traffic
from experiments import settings as command_line
from experiments.results import environment, make_directory, table, write_json
from experiments.settings import KINDS, choice, optional, preset_name, whole

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


def topology_name(text):
  if not re.fullmatch(rf'({"|".join(CHIPS)}):[1-9]\d*(x[1-9]\d*){{1,2}}', text):
    raise InputError(f'{text!r} is not one of {", ".join(CHIPS)} and its sides in chips, as v5e:2x4 or v5p:2x2x1')
  return text


# Each flag: its default, its parser and its help.
SETTINGS = {
    'config': ('nano_llama2', preset_name, f'model, of {", ".join(configs.PRESETS)}'),
    'topology': ('v5e:2x4', topology_name, f'chips: {", ".join(CHIPS)}, and the sides, as v5e:2x4 or v5p:2x2x1'),
    'batch_size': ('64', whole, 'sequences a step, over all chips'),
    'length': ('auto', optional(whole), "tokens a sequence, or 'auto': the model's longest"),
    'accumulation': ('1', whole, 'parts of a batch, one after another'),
    'data': ('auto', optional(whole), "chips that share a batch, each with the whole state, or 'auto'"),
    'fsdp': ('auto', optional(whole), "chips that share a batch and the state, or 'auto': all, unless the state and "
                                      'its gradient leave half of a chip free, and then none'),
    'tensor': ('1', whole, 'chips that share each matrix product'),
    'dtype': ('bfloat16', *KINDS['dtype']),
    'remat': ('full', choice(*configs.REMATS), 'what the backward pass recomputes of a block: '
                                               f'{", ".join(configs.REMATS)}'),
}


def main(arguments):
  if arguments:
    raise InputError(f'{arguments[0]!r} is not a flag; see --help')
  kinds = {name: kind for name, (_, *kind) in SETTINGS.items()}
  settings = command_line.resolve({'plan': {name: default for name, (default, *_) in SETTINGS.items()}}, 'plan', kinds,
                                  **{name: flags.FLAGS[name].value for name in SETTINGS})
  plan = make_plan(settings)
  print(describe(plan))
  if flags.FLAGS.output_dir:
    directory = Path(flags.FLAGS.output_dir)
    make_directory(directory)
    write_json(directory / 'scale_plan.json', plan | {'environment': environment()})
    print(f'wrote {directory / "scale_plan.json"}')
  sys.exit(0 if plan['fits'] else 1)


def make_plan(settings) -> dict:
  """What the step of `settings` takes on each chip, and whether that fits.

  Raises:
    InputError: settings that cannot go together, or no libtpu.
  """
  config = configs.get(settings.config, dtype=settings.dtype, remat=settings.remat)
  settings.length = settings.length or config.length
  # The number of steps only shapes the learning rate.
  recipe = training.Recipe(num_steps=200_000, batch_size=settings.batch_size, length=settings.length,
                           accumulation=settings.accumulation)
  chip, devices = slice_of(settings.topology)
  state = jax.eval_shape(functools.partial(training.init_state, config, recipe), 0)
  size_of = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
  shape = mesh_shape(len(devices), size_of(state) + size_of(state.params), chip.hbm,
                     settings.data, settings.fsdp, settings.tensor)
  check(config, recipe, shape)
  mesh = Mesh(np.array(devices).reshape(shape), sharding.AXES, axis_types=(AxisType.Auto,) * 3)
  model_flops = 3 * recipe.batch_size * flops.forward_flops(config, recipe.length, recipe.length) / len(devices)
  plan = {'settings': vars(settings), 'mesh': dict(mesh.shape), 'chip': chip._asdict(), 'model_flops': model_flops}
  start = time.perf_counter()
  try:
    compiled = compile_step(config, recipe, mesh, state)
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    plan['memory'] = refusal(str(error))
  else:
    plan |= measured(compiled, chip, model_flops)
  plan['compile_seconds'] = time.perf_counter() - start
  plan['fits'] = plan['memory']['total'] <= plan['memory']['available']
  return plan


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


def check(config, recipe, shape):
  """Raises InputError for what training would refuse as well."""
  sharers = shape[0] * shape[1]
  if recipe.batch_size // recipe.accumulation % sharers:
    raise InputError(f'--batch_size={recipe.batch_size} in --accumulation={recipe.accumulation} parts cannot be spread '
                     f'over data x fsdp = {sharers} chips; choose a multiple of {recipe.accumulation * sharers}')
  if recipe.length > config.length:
    raise InputError(f'--length={recipe.length} exceeds the {config.length} positions of the model')


def compile_step(config, recipe, mesh, state):
  placed = sharding.shardings(mesh, state)
  attend = attention.choose(config, recipe.length, mesh, backend='tpu')
  step = jax.jit(functools.partial(training.train_step, config, recipe, attend=attend), donate_argnums=0,
                 in_shardings=(placed, NamedSharding(mesh, sharding.BATCH)), out_shardings=(placed, None))
  tokens_BT = jax.ShapeDtypeStruct((recipe.batch_size, recipe.length + 1), 'int32')
  return step.lower(state, tokens_BT).compile()


def measured(compiled, chip: Chip, model_flops: float) -> dict:
  """Memory, traffic and roofline of a compiled step, each of one chip."""
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
      'seconds': roofline(model_flops, moved.hbm, chip),
  }


def roofline(model_flops: float, hbm_bytes: float, chip: Chip) -> dict[str, float]:
  """Seconds that computing and that moving bytes take at least, and the step hence."""
  compute, memory = model_flops / chip.flops, hbm_bytes / chip.bandwidth
  return {'compute': compute, 'memory': memory, 'roofline': max(compute, memory)}


def refusal(message: str) -> dict[str, float]:
  """Bytes of HBM that a program takes and bytes that it may, from the compiler's refusal.

  Raises:
    InputError: it refuses for want of something else.
  """
  match = re.search(r'\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)', message)
  if not match:
    raise InputError(f'XLA refuses the step: {message[:300]}')
  total, available = (float(number) * 2**(10 * ' KMGT'.index(unit)) for number, unit in (match.groups()[:2],
                                                                                         match.groups()[2:]))
  return {'total': total, 'available': available}


def describe(plan: dict) -> str:
  """The plan for eyes."""
  settings, mesh = SimpleNamespace(**plan['settings']), plan['mesh']
  plural = lambda count, name: f'{count} {name}{"s" * (count > 1)}'
  step = (f'{settings.config}, {settings.dtype}, remat {settings.remat}; {plural(settings.batch_size, "sequence")} of '
          f'{settings.length} tokens a step, in {plural(settings.accumulation, "part")}')
  axes = ' x '.join(f'{name} {size}' for name, size in mesh.items())
  place = f'{settings.topology}, {plural(math.prod(mesh.values()), "device")}: {axes}'
  return '\n'.join([step, f'{place}; compiled in {plan["compile_seconds"]:.0f} s', '', table(rows(plan)), '',
                    verdict(plan)])


def rows(plan: dict) -> list[dict[str, str]]:
  rows = [(f'memory: {name}', f'{size / GIB:.2f} GiB', '') for name, size in plan['memory'].items()
          if name != 'available']
  rows += [('model FLOPs', engineering(plan['model_flops']), time_of(plan['model_flops'] / plan['chip']['flops']))]
  if 'seconds' in plan:
    moved, seconds = plan['hbm_bytes'], plan['seconds']
    rows += [('FLOPs as compiled, each loop once', engineering(plan['compiler_flops_loops_once']), ''),
             ('bytes through HBM', *(('unreadable', '') if math.isnan(moved) else
                                     (engineering(moved) + 'B', time_of(seconds['memory'])))),
             *((f'bytes in {kind}', engineering(size) + 'B', '') for kind, size in plan['collective_bytes'].items()),
             ('roofline', '', time_of(seconds['roofline']))]
  return [dict(zip(('each chip, a step', 'amount', 'at least'), row, strict=True)) for row in rows]


def engineering(value: float) -> str:
  """12345678 → '12.35 M'."""
  power = min(5, int(math.log10(max(1, value)) // 3))
  return f'{value / 1000**power:.4g} {" kMGTP"[power].strip()}'


def time_of(seconds: float) -> str:
  return f'{1e3 * seconds:.4g} ms'


def verdict(plan: dict) -> str:
  total, available = plan['memory']['total'], plan['memory']['available']
  taken = f'{total / GIB:.1f} GiB of {available / GIB:.1f} GiB a chip'
  if plan['fits']:
    tokens = plan['settings']['batch_size'] * plan['settings']['length'] / plan['seconds']['roofline']
    return f'fits: {taken}; at best {tokens:,.0f} tokens a second'
  return f'does not fit: {taken}; try {advice(plan["settings"], plan["mesh"])}'


def advice(settings: dict, mesh: dict[str, int]) -> str:
  """What would take less memory, the cheapest first."""
  part = settings['batch_size'] // settings['accumulation'] // (mesh['data'] * mesh['fsdp'])
  ways = []
  if settings['remat'] != 'full':
    ways.append('--remat=full')
  if part > 1:
    ways.append(f'--accumulation={settings["accumulation"] * next(n for n in range(2, part + 1) if part % n == 0)}')
  if mesh['data'] > 1:
    ways.append(f'--fsdp={mesh["data"] * mesh["fsdp"]}')
  return ', '.join([*ways, 'more chips']) + ' or a smaller --length'


if __name__ == '__main__':
  for flag, (default, _, description) in SETTINGS.items():
    flags.DEFINE_string(flag, None, f'{description} (default: {default})')
  flags.DEFINE_string('output_dir', None, 'folder of scale_plan.json (default: none is written)')
  command_line.launch(main, __doc__, (*SETTINGS, 'output_dir'))
