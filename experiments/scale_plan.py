"""Does a program fit a TPU slice, and how fast can it be: compiled for it here, without a TPU.

    python -m experiments.scale_plan --config=nano_llama2 --topology=v5e:2x4 --batch_size=64
    python -m experiments.scale_plan --config=llama2_7b --topology=v5e:16x16 --batch_size=256
    python -m experiments.scale_plan --program=sweep --config=gpt2_1b2 --topology=v6e:2x4
    python -m experiments.scale_plan --program=fingerprint --config=llama2_7b --topology=v5e:2x4 --length=1024

Needs libtpu (pip install -e '.[tpu]'). On two CPU cores a program compiled in 20 s
to 17 min, hardly depending on the model: a step of nano_llama2 in 33 to 1,019 s, of
llama2_7b in 346 to 946 s. --program is 'train', a step of AdamW with its state in
float32; 'sweep', a batch of sequences through every network of an ensemble
(experiments.seed_sweep), whose seeds all chips share; or 'fingerprint', a batch
through one network spread over all chips. The package's own jitted function is
compiled by XLA for --topology: NAME:AxB (v5e, v6e) or NAME:AxBxC (v4, v5p), chips
along each side.

Prints, for each chip: memory; floating-point operations of the step or batch
(what is recomputed is not counted) and bytes through HBM, with the time of each
at the chip's published rate (float32 at the highest precision: six products of
bfloat16); bytes in collectives, whose time is not counted; and the roofline, the
larger of the two times, which the program does not beat. With --output_dir,
scale_plan.json has it all. Exit code 0: it fits; 1: it does not; 2: the input
is wrong.
"""

import math
from pathlib import Path
import re
import sys
import time
from types import SimpleNamespace

from absl import flags
import jax

from bornbiased_jax import configs
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from experiments import command_line, scale_programs
from experiments.command_line import KINDS, optional, preset_name, whole
from experiments.results import make_directory, table, write_json
from experiments.scale_programs import CHIPS, GIB


def topology_name(text):
  if not re.fullmatch(rf'({"|".join(CHIPS)}):[1-9]\d*(x[1-9]\d*){{1,2}}', text):
    raise InputError(f'{text!r} is not one of {", ".join(CHIPS)} and its sides in chips, as v5e:2x4 or v5p:2x2x1')
  return text


PLAN_KINDS = KINDS | {
    'config': (preset_name, f'model, of {", ".join(configs.PRESETS)}'),
    'topology': (topology_name, f'chips: {", ".join(CHIPS)}, and the sides, as v5e:2x4 or v5p:2x2x1'),
    'num_seeds': (optional(whole), "networks at once, over all chips, or 'auto': one a chip"),
    'batch_size': (optional(whole), "sequences a step or batch: of 'train' and 'fingerprint' over all chips, of "
                                    "'sweep' through every network; 'auto': as these two choose"),
    'length': (optional(whole), "tokens a sequence, or 'auto': the model's longest"),
    'accumulation': (whole, 'parts of a batch, one after another'),
    'data': (optional(whole), "chips that share a batch, each with the whole state, or 'auto'"),
    'fsdp': (optional(whole), "chips that share a batch and the state, or 'auto': all, unless 'train' leaves half of a "
                              'chip free beside state and gradient, and then none'),
    'tensor': (whole, 'chips that share each matrix product'),
}

_COMMON = dict(topology='v5e:2x4', length='auto')
_SHARDED = _COMMON | dict(data='auto', fsdp='auto', tensor='1')
PROGRAMS = {
    'train': _SHARDED | dict(config='nano_llama2', batch_size='64', accumulation='1', dtype='bfloat16', remat='full'),
    'sweep': _COMMON | dict(config='gpt2_1b2', num_seeds='auto', batch_size='auto', num_sequences='10000',
                            dtype='bfloat16'),
    'fingerprint': _SHARDED | dict(config='llama2_7b', batch_size='auto', num_sequences='2000'),
}
SETTINGS = tuple(name for name in PLAN_KINDS if any(name in defaults for defaults in PROGRAMS.values()))


def main():
  given = {name: flags.FLAGS[name].value for name in SETTINGS}
  plan = make_plan(resolve(flags.FLAGS.program, {name: text for name, text in given.items() if text is not None}))
  print(describe(plan))
  if flags.FLAGS.output_dir:
    directory = Path(flags.FLAGS.output_dir)
    make_directory(directory)
    write_json(directory / 'scale_plan.json', plan | {'environment': environment()})
    print(f'wrote {directory / "scale_plan.json"}')
  sys.exit(0 if plan['fits'] else 1)


def resolve(program: str, given: dict[str, str]) -> SimpleNamespace:
  """The settings of a program, of which some are given as text.

  Raises:
    InputError: an unknown program, a flag that is another's, or a wrong value.
  """
  if program not in PROGRAMS:
    raise InputError(f'--program: {program!r} is not one of {", ".join(PROGRAMS)}')
  for name in given:
    if name not in PROGRAMS[program]:
      others = ', '.join(other for other, defaults in PROGRAMS.items() if name in defaults)
      raise InputError(f'--{name}: not with --program={program}, but with {others}')
  settings = vars(command_line.resolve(PROGRAMS, program, PLAN_KINDS, **given))
  return SimpleNamespace(program=settings.pop('scale'), **settings)


def make_plan(settings: SimpleNamespace) -> dict:
  """What the program of `settings` takes on each chip, and whether that fits.

  Raises:
    InputError: settings that cannot go together, or no libtpu.
  """
  chip, devices = scale_programs.slice_of(settings.topology)
  program = getattr(scale_programs, settings.program)(settings, chip, devices)
  plan = {'settings': program.settings, 'mesh': dict(program.mesh.shape), 'chip': chip._asdict(),
          'model_flops': program.model_flops, 'passes': program.passes}
  start = time.perf_counter()
  try:
    compiled = program.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    plan['memory'] = scale_programs.refusal(str(error))
  else:
    plan |= scale_programs.measured(compiled, chip, program.passes * program.model_flops)
  plan['compile_seconds'] = time.perf_counter() - start
  plan['fits'] = plan['memory']['total'] <= plan['memory']['available']
  return plan


def describe(plan: dict) -> str:
  """The plan for eyes."""
  axes = ' x '.join(f'{name} {size}' for name, size in plan['mesh'].items())
  place = f'{plan["settings"]["topology"]}, {plural(math.prod(plan["mesh"].values()), "device")}: {axes}'
  return '\n'.join([work(SimpleNamespace(**plan['settings'])), f'{place}; compiled in {plan["compile_seconds"]:.0f} s',
                    '', table(rows(plan)), '', verdict(plan)])


def work(settings: SimpleNamespace) -> str:
  """What is computed in a run of the program."""
  sequences = f'{plural(settings.batch_size, "sequence")} of {settings.length} tokens'
  if settings.program == 'train':
    return (f'{settings.config}, {settings.dtype}, remat {settings.remat}; {sequences} a step, in '
            f'{plural(settings.accumulation, "part")}')
  if settings.program == 'sweep':
    return f'{plural(settings.num_seeds, "network")} of {settings.config}, {settings.dtype}; {sequences} a batch'
  return f'fingerprint of {settings.config}, float32; {sequences} a batch'


def plural(count: int, name: str) -> str:
  return f'{count} {name}{"s" * (count > 1)}'


def rows(plan: dict) -> list[dict[str, str]]:
  rows = [(f'memory: {name}', f'{size / GIB:.2f} GiB', '') for name, size in plan['memory'].items()
          if name != 'available']
  compute = plan['passes'] * plan['model_flops'] / plan['chip']['flops']
  rows += [('model FLOPs', engineering(plan['model_flops']), time_of(compute))]
  if 'seconds' in plan:
    moved, seconds = plan['hbm_bytes'], plan['seconds']
    rows += [('FLOPs as compiled, each loop once', engineering(plan['compiler_flops_loops_once']), ''),
             ('bytes through HBM', *(('unreadable', '') if math.isnan(moved) else
                                     (engineering(moved) + 'B', time_of(seconds['memory'])))),
             *((f'bytes in {kind}', engineering(size) + 'B', '') for kind, size in plan['collective_bytes'].items()),
             ('roofline', '', time_of(seconds['roofline']))]
  run = 'step' if plan['settings']['program'] == 'train' else 'batch'
  return [dict(zip((f'each chip, a {run}', 'amount', 'at least'), row, strict=True)) for row in rows]


def engineering(value: float) -> str:
  """12345678 → '12.35 M'."""
  power = min(5, int(math.log10(max(1, value)) // 3))
  return f'{value / 1000**power:.4g} {" kMGTP"[power].strip()}'


def time_of(seconds: float) -> str:
  return f'{1e3 * seconds:.4g} ms'


def verdict(plan: dict) -> str:
  total, available = plan['memory']['total'], plan['memory']['available']
  taken = f'{total / GIB:.1f} GiB of {available / GIB:.1f} GiB a chip'
  if not plan['fits']:
    return f'does not fit: {taken}; try {advice(plan["settings"], plan["mesh"])}'
  settings = plan['settings']
  rate = settings['batch_size'] * settings['length'] * settings.get('num_seeds', 1) / plan['seconds']['roofline']
  return f'fits: {taken}; at best {rate:,.0f} tokens a second'


def advice(settings: dict, mesh: dict[str, int]) -> str:
  """What would take less memory, the cheapest first."""
  sharers = mesh.get('data', 1) * mesh.get('fsdp', 1)
  part = settings['batch_size'] // settings.get('accumulation', 1) // sharers
  ways = []
  if settings.get('remat', 'full') != 'full':
    ways.append('--remat=full')
  if part > 1 and settings['program'] == 'train':
    ways.append(f'--accumulation={settings["accumulation"] * next(n for n in range(2, part + 1) if part % n == 0)}')
  elif part > 1:
    ways.append(f'--batch_size={part // 2 * sharers}')
  if mesh.get('data', 1) > 1:
    ways.append(f'--fsdp={sharers}')
  if settings.get('num_seeds', 1) > math.prod(mesh.values()):
    ways.append(f'--num_seeds={math.prod(mesh.values())}')
  chips = [] if settings['program'] == 'sweep' else ['more chips']
  return ' or '.join(filter(None, [', '.join([*ways, *chips]), 'a smaller --length']))


if __name__ == '__main__':
  flags.DEFINE_string('program', 'train', f'what to compile, of {", ".join(PROGRAMS)} (default: train)')
  for flag in SETTINGS:
    flags.DEFINE_string(flag, None, f'{PLAN_KINDS[flag][1]} ({command_line.default_text(PROGRAMS, flag)})')
  flags.DEFINE_string('output_dir', None, 'folder of scale_plan.json (default: none is written)')
  command_line.launch(main, __doc__, ('program', *SETTINGS, 'output_dir'))
