"""Does a program fit on a TPU slice? Needs no TPU.

On this machine XLA compiles the package's own jitted function for the chips of --topology:

  train         a step of AdamW, with its state in float32
  sweep         a batch of sequences through every network of an ensemble, like in
                experiments.seed_sweep; the seeds are spread over all chips
  fingerprint   a batch through one network that is spread over all chips

    python -m experiments.scale_plan --config=nano_llama2 --topology=v5e:2x4 --batch_size=64
    python -m experiments.scale_plan --program=sweep --config=gpt2_1b2 --topology=v6e:2x4

It needs libtpu (pip install -e '.[tpu]') and 20 s to 17 min on two CPU cores. Prints XLA's analysis
of memory and cost per chip, in which the body of a loop costs what it costs once; with --output_dir
also as scale_plan.json. The exit code is 0 if the program fits, 1 if it does not, and 2 if the
input is wrong.
"""

from collections.abc import Callable
import functools
import importlib.util
import os
import re
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.analysis import chunks, ensemble
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import choice, num_tokens, optional, whole
from bornbiased_jax.files import path_of
from bornbiased_jax.lineage.evidence import hidden_states
from bornbiased_jax.models import attention_kernels, initialization, sharding
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import abstract_state, sharded_step

from .shared import measurements, program, session
from .shared.results import make_directory, write_json
from .shared.settings import NAMED, ProgramSettings, name_flag, setting

LESS_MEMORY = ('--remat=full, more --accumulation, --fsdp instead of --data, more chips, or a '
               'smaller --batch_size, --num_seeds or --length')
CHIPS = ('v4', 'v5e', 'v5p', 'v6e')
# libtpu would ask the machine which TPU it is on, and would let only one process use it.
LIBTPU = {'TPU_SKIP_MDS_QUERY': '1', 'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
          'TPU_WORKER_HOSTNAMES': 'localhost', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}


def topology_name(text):
  if not re.fullmatch(rf'({"|".join(CHIPS)}):[1-9]\d*(x[1-9]\d*){{1,2}}', text):
    raise InputError(f'{text!r} is not one of {", ".join(CHIPS)} and its sides in chips, '
                     'as v5e:2x4 or v5p:2x2x1')
  return text


_COMMON = dict(topology='v5e:2x4', length=None)
_SHARDED = _COMMON | dict(data=None, fsdp=None, tensor=1)
# What each program has, unless a flag says another thing.
PROGRAMS = {
    'train': _SHARDED | dict(config='nano_llama2', batch_size=64, dtype='bfloat16',
                             accumulation=Recipe.accumulation, remat='full'),
    'sweep': _COMMON | dict(config='gpt2_1b2', num_seeds=None, batch_size=None,
                            num_sequences=10000, dtype='bfloat16'),
    'fingerprint': _SHARDED | dict(config='llama2_7b', batch_size=None, num_sequences=2000),
}


def of_program(name: str, parse: Callable | None = None, what: str = '') -> Any:
  """A setting with the program's default, of the kind that other settings of its name have."""
  what = what or NAMED[name].help
  defaults = {program: own[name] for program, own in PROGRAMS.items() if own.get(name)}
  text = ', '.join(f'{program}: {value}' for program, value in defaults.items())
  return setting(None, parse, f'{what} (default: {text})' if text else what)


class Settings(ProgramSettings):
  program: str = setting('train', choice(*PROGRAMS), f'what to compile, of {", ".join(PROGRAMS)}')
  config: str | None = of_program('config')
  topology: str | None = of_program(
      'topology', topology_name, f'kind of chip ({", ".join(CHIPS)}) and number of chips along '
      'each side, as v5e:2x4 or v5p:2x2x1')
  num_seeds: int | None = of_program(
      'num_seeds', optional(whole), 'networks at once, over all chips; if not given, one per chip')
  batch_size: int | None = of_program(
      'batch_size', optional(whole), "sequences per step ('train') or batch ('fingerprint') over "
      "all chips, or per batch of every network ('sweep'); if not given, what the package chooses "
      'on a TPU')
  length: int | None = of_program(
      'length', optional(num_tokens), 'tokens per sequence; if not given, as many as the model can '
      'read')
  accumulation: int | None = of_program('accumulation')
  data: int | None = of_program(
      'data', optional(whole), 'chips that share a batch, each with the whole state; if not given, '
      "those that --fsdp leaves, with 'train' all")
  fsdp: int | None = of_program(
      'fsdp', optional(whole), 'chips that share a batch and the state; if not given, those that '
      "--data leaves, with 'fingerprint' all")
  dtype: str | None = of_program('dtype')
  remat: str | None = of_program('remat')
  num_sequences: int | None = of_program('num_sequences', whole, 'sequences that networks read')
  tensor: int | None = of_program('tensor', whole, 'chips that share each matrix product')
  output_dir: str | None = setting(None, str, 'folder of scale_plan.json; if not given, none is '
                                              'written')


def main(settings):
  record, plan = session.begin(), make_plan(resolve(settings))
  print(describe(plan))
  if settings.output_dir:
    directory = name_flag('output_dir', path_of, settings.output_dir)
    make_directory(directory)
    write_json(directory / 'scale_plan.json',
               plan | {'environment': environment(), 'run': record()})
  sys.exit(0 if plan['fits'] else 1)


def resolve(settings: Settings) -> SimpleNamespace:
  """What is given, and what the program has for the rest."""
  program = settings.program
  given = {name: value for name, value in vars(settings).items()
           if value is not None and name not in ('scale', 'program', 'output_dir')}
  for name in given:
    if name not in PROGRAMS[program]:
      others = ', '.join(other for other, defaults in PROGRAMS.items() if name in defaults)
      raise InputError(f'--{name}: not with --program={program}, but with {others}')
  chosen = SimpleNamespace(program=program, **PROGRAMS[program] | given)
  longest = configs.get(chosen.config).length
  chosen.length = chosen.length or longest
  if chosen.length > longest:
    raise InputError(f'--length={chosen.length} exceeds the {longest} positions of the model')
  return chosen


def make_plan(settings: SimpleNamespace) -> dict:
  """What the program of `settings` takes on each chip, and whether it fits."""
  mesh, lower = BUILDERS[settings.program](settings, devices_of(settings.topology))
  plan = {'settings': vars(settings), 'mesh': dict(mesh.shape)}
  start = time.perf_counter()
  try:
    compiled = lower().compile()
  except jax.errors.JaxRuntimeError as error:
    if 'exceeds available HBM' not in str(error):
      raise InputError(f'XLA refuses the program: {str(error)[:300]}') from None
    return plan | {'fits': False, 'refusal': str(error).splitlines()[0]}
  sizes, cost = compiled.memory_analysis(), compiled.cost_analysis()
  memory = {'arguments': sizes.argument_size_in_bytes, 'temporaries': sizes.temp_size_in_bytes,
            'outputs': sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
            'program': sizes.generated_code_size_in_bytes}
  return plan | {'fits': True, 'compile_seconds': time.perf_counter() - start,
                 'memory': memory | {'total': sum(memory.values())},
                 'cost_loops_once': {name: cost[name] for name in ('flops', 'bytes accessed')}}


def describe(plan: dict) -> str:
  """The plan as text."""
  made = plan['settings'] | plan['mesh']
  lines = [', '.join(f'{name} {value}' for name, value in made.items())]
  if not plan['fits']:
    return '\n'.join([*lines, f'does not fit: {plan["refusal"]}', f'try {LESS_MEMORY}'])
  lines += [f'memory, {name}: {size / 2**30:.2f} GiB' for name, size in plan['memory'].items()]
  lines += [f'{name}, loops once: {value:.4g}' for name, value in plan['cost_loops_once'].items()]
  return '\n'.join([*lines, f'fits; compiled in {plan["compile_seconds"]:.0f} s'])


def devices_of(topology: str) -> list:
  """The devices of a TPU slice that is not here."""
  if importlib.util.find_spec('libtpu') is None:
    raise InputError('libtpu, which compiles for TPUs on any machine, is missing; install the one '
                     "of this jax: pip install -e '.[tpu]'")
  for name, value in LIBTPU.items():
    os.environ.setdefault(name, value)
  jax.config.update('jax_platforms', 'cpu')
  # A host has 2 x 2 chips, unless there are fewer.
  host = [min(2, int(side)) for side in topology.split(':')[1].split('x')[:2]] + [1]
  try:
    return topologies.get_topology_desc(
        platform='tpu', topology_name=topology, chips_per_host_bounds=host).devices
  except jax.errors.JaxRuntimeError as error:
    raise InputError(f'--topology: libtpu has no {topology}: {error}') from None


def train(settings, devices):
  """An optimizer step (`step.sharded_step`): its mesh, and what lowers it."""
  config = configs.get(settings.config, dtype=settings.dtype, remat=settings.remat)
  # The number of steps shapes nothing but the learning rate.
  recipe = Recipe(num_steps=200_000, batch_size=settings.batch_size, length=settings.length,
                  accumulation=settings.accumulation)
  mesh = make_mesh(settings, devices)

  def lower():
    attend = attention_kernels.choose(config, recipe.length, mesh, backend='tpu')
    tokens_BT = jax.ShapeDtypeStruct((recipe.batch_size, recipe.length + 1), 'int32',
                                     sharding=NamedSharding(mesh, sharding.BATCH))
    step = sharded_step(config, recipe, mesh, attend)
    return step.lower(abstract_state(config, recipe, mesh), tokens_BT)

  return mesh, lower


def sweep(settings, devices):
  """A batch of every network of a chunk (`chunks.programs`), like in experiments.seed_sweep."""
  config = configs.get(settings.config, dtype=settings.dtype, length=settings.length)
  settings.num_seeds = settings.num_seeds or len(devices)
  if settings.num_seeds % len(devices):
    raise InputError(f'--num_seeds={settings.num_seeds} cannot be spread evenly over the '
                     f'{len(devices)} devices of --topology')
  probe = Probe('tokens', settings.num_sequences, settings.length)
  batch_size = settings.batch_size or chunks.batch_size_of(config, probe, 'tpu')
  settings.batch_size = min(batch_size, probe.num_sequences)
  mesh = Mesh(np.array(devices), ('seed',), axis_types=(AxisType.Auto,))

  def lower():
    place = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec('seed'))))
    draw, shapes, step, _ = chunks.programs(
        ensemble.transformer(config), measurements.preference(config), probe, mesh=mesh)
    seeds = place(jax.ShapeDtypeStruct((settings.num_seeds,), 'uint32'))
    with jax.default_matmul_precision('highest'):
      networks = place(jax.eval_shape(draw, seeds))
      sums = place(shapes(networks, settings.batch_size))
      return step.lower(networks, sums, 0, size=settings.batch_size)

  return mesh, lower


def fingerprint(settings, devices):
  """A batch of `hidden_states.of_network` in float32, whose parameters and batch are spread."""
  config = hidden_states.exact(configs.get(settings.config))
  probe = Probe('tokens', settings.num_sequences, settings.length)
  mesh = make_mesh(settings, devices)
  settings.batch_size = settings.batch_size or hidden_states.spread_batch_size(
      config, probe, mesh, backend='tpu')

  def lower():
    params = initialization.param_shapes(config)
    index_B = jax.ShapeDtypeStruct((settings.batch_size,), 'int32',
                                   sharding=NamedSharding(mesh, sharding.BATCH))
    states = hidden_states.program(config, probe, mesh=mesh)
    return states.lower(sharding.abstract(mesh, params), index_B)

  return mesh, lower


BUILDERS = {'train': train, 'sweep': sweep, 'fingerprint': fingerprint}


def make_mesh(settings, devices):
  """A mesh over all devices, whose axes data and fsdp divide the batch."""
  data, fsdp, tensor = settings.data, settings.fsdp, settings.tensor
  if data is None and fsdp is None:
    data, fsdp = (None, 1) if settings.program == 'train' else (1, None)
  data = data or max(1, len(devices) // (fsdp * tensor))
  fsdp = fsdp or max(1, len(devices) // (data * tensor))
  if data * fsdp * tensor != len(devices):
    raise InputError(f'--data={data} --fsdp={fsdp} --tensor={tensor} is not the {len(devices)} '
                     'devices of --topology')
  multiple = getattr(settings, 'accumulation', 1) * data * fsdp
  if (settings.batch_size or 0) % multiple:
    raise InputError(f'--batch_size={settings.batch_size} is not a multiple of --accumulation x '
                     f'data x fsdp = {multiple}')
  return Mesh(np.array(devices).reshape(data, fsdp, tensor), sharding.AXES,
              axis_types=(AxisType.Auto,) * 3)


if __name__ == '__main__':
  program.run(main, 'scale_plan', Settings, __doc__, has_folder=False)
