"""Does a program fit on a TPU slice, and how fast can it be? Needs no TPU.

On this machine XLA compiles the package's own jitted function for the chips of
--topology, which is NAME:AxB (v5e, v6e) or NAME:AxBxC (v4, v5p) with the number
of chips along each side. --program chooses the function:

  train         a step of AdamW, with its state in float32
  sweep         a batch of sequences through every network of an ensemble, as in
                experiments.seed_sweep; the seeds are spread over all chips
  fingerprint   a batch through one network that is spread over all chips

    python -m experiments.scale_plan --config=nano_llama2 --topology=v5e:2x4 --batch_size=64
    python -m experiments.scale_plan --config=llama2_7b --topology=v5e:16x16 --batch_size=256
    python -m experiments.scale_plan --program=sweep --config=gpt2_1b2 --topology=v6e:2x4
    python -m experiments.scale_plan --program=fingerprint --config=llama2_7b --topology=v5e:2x4 \\
        --length=1024

It needs libtpu (pip install -e '.[tpu]'). On two CPU cores a program compiles in
20 s to 17 min. The time hardly depends on the model: a step of nano_llama2 took
33 to 1,019 s, and a step of llama2_7b 346 to 946 s.

Prints, per chip: the memory; the floating-point operations of the step or batch
(without what is computed again in the backward pass) and the bytes through HBM,
each with its time at the chip's published rate; the bytes in collectives, whose
time is not counted; and the roofline, which is the larger of the two times. The
program cannot be faster than the roofline. A product of float32 at the highest
precision counts as six products of bfloat16.

With --output_dir, writes all of this to scale_plan.json. The exit code is 0 if
the program fits, 1 if it does not, and 2 if the input is wrong.
"""

import math
import re
import sys
import time
from types import SimpleNamespace

from absl import flags
import jax

from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of

from .shared import chips, command_line, provenance, scale_programs
from .shared.chips import CHIPS, GIB
from .shared.parsing import optional, preset_name, whole
from .shared.results import make_directory, write_json
from .shared.settings import Dtype, Kind, NumSequences, default_text, kind_of, name_flag
from .shared.tables import table
from .shared.training_settings import Remat


def topology_name(text):
  if not re.fullmatch(rf'({"|".join(CHIPS)}):[1-9]\d*(x[1-9]\d*){{1,2}}', text):
    raise InputError(f'{text!r} is not one of {", ".join(CHIPS)} and its sides in chips, '
                     'as v5e:2x4 or v5p:2x2x1')
  return text


SETTINGS = {
    'config': Kind(preset_name, 'model, one of those below'),
    'topology': Kind(topology_name, f'kind of chip ({", ".join(CHIPS)}) and number of chips '
                                       'along each side, as v5e:2x4 or v5p:2x2x1'),
    'num_seeds': Kind(optional(whole),
                         'networks at once, over all chips; if not given, one per chip'),
    'batch_size': Kind(optional(whole),
                          "sequences per step ('train') or batch ('fingerprint') over all chips, "
                          "or per batch of every network ('sweep'); if not given, the number "
                          'that the package chooses on a TPU'),
    'length': Kind(optional(whole),
                      'tokens per sequence; if not given, as many as the model can read'),
    'accumulation': Kind(whole, 'parts of a batch, computed one after another'),
    'data': Kind(optional(whole), 'chips that share a batch, each with the whole state; '
                                     'if not given, see --fsdp'),
    'fsdp': Kind(optional(whole),
                    'chips that share a batch and the state. If only one of --data and --fsdp is '
                    'given, the other takes the chips that are left. If neither is given, --fsdp '
                    "takes them; with 'train' --data takes them instead if the state and the "
                    'gradient fill at most half of a chip'),
    'dtype': kind_of(Dtype), 'remat': kind_of(Remat), 'num_sequences': kind_of(NumSequences),
    'tensor': Kind(whole, 'chips that share each matrix product'),
}

_COMMON = dict(topology='v5e:2x4', length=None)
_SHARDED = _COMMON | dict(data=None, fsdp=None, tensor=1)
PROGRAMS = {
    'train': _SHARDED | dict(config='nano_llama2', batch_size=64, accumulation=1,
                             dtype='bfloat16', remat='full'),
    'sweep': _COMMON | dict(config='gpt2_1b2', num_seeds=None, batch_size=None,
                            num_sequences=10000, dtype='bfloat16'),
    'fingerprint': _SHARDED | dict(config='llama2_7b', batch_size=None, num_sequences=2000),
}
NAMES = tuple(name for name in SETTINGS
              if any(name in defaults for defaults in PROGRAMS.values()))


def main():
  record, given = provenance.begin(), {name: flags.FLAGS[name].value for name in NAMES}
  plan = make_plan(resolve(flags.FLAGS.program, given))
  print(describe(plan))
  if flags.FLAGS.output_dir:
    directory = name_flag('output_dir', path_of, flags.FLAGS.output_dir)
    make_directory(directory)
    write_json(directory / 'scale_plan.json',
               plan | {'environment': environment(), 'run': record()})
    print(f'wrote {directory / "scale_plan.json"}')
  sys.exit(0 if plan['fits'] else 1)


def resolve(program: str, given: dict[str, str | None]) -> SimpleNamespace:
  """The settings of a program; those that are given as a flag's text are parsed.

  Raises:
    InputError: an unknown program, a flag of another program, or a wrong value.
  """
  if program not in PROGRAMS:
    raise InputError(f'--program: {program!r} is not one of {", ".join(PROGRAMS)}')
  for name, text in given.items():
    if text is not None and name not in PROGRAMS[program]:
      others = ', '.join(other for other, defaults in PROGRAMS.items() if name in defaults)
      raise InputError(f'--{name}: not with --program={program}, but with {others}')
  parsed = {name: name_flag(name, SETTINGS[name].parse, text)
            for name, text in given.items() if text is not None}
  return SimpleNamespace(program=program, **PROGRAMS[program] | parsed)


def make_plan(settings: SimpleNamespace) -> dict:
  """What the program of `settings` takes on each chip, and whether it fits.

  Cost: one compilation, of seconds to minutes.

  Raises:
    InputError: settings that cannot go together, or no libtpu.
  """
  chip, devices = chips.slice_of(settings.topology)
  program = getattr(scale_programs, settings.program)(settings, chip, devices)
  plan = {'settings': program.settings, 'mesh': dict(program.mesh.shape), 'chip': chip._asdict(),
          'model_flops': program.model_flops, 'passes': program.passes}
  start = time.perf_counter()
  try:
    compiled = program.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    plan['memory'] = chips.refusal(str(error))
  else:
    plan |= chips.measured(compiled, chip, program.passes * program.model_flops)
  plan['compile_seconds'] = time.perf_counter() - start
  plan['fits'] = plan['memory']['total'] <= plan['memory']['available']
  return plan


def describe(plan: dict) -> str:
  """The plan as text."""
  axes = ' x '.join(f'{name} {size}' for name, size in plan['mesh'].items())
  devices = plural(math.prod(plan['mesh'].values()), 'device')
  place = (f'{plan["settings"]["topology"]}, {devices}: {axes}; '
           f'compiled in {plan["compile_seconds"]:.0f} s')
  return '\n'.join([work(SimpleNamespace(**plan['settings'])), place, '', table(rows(plan)), '',
                    verdict(plan)])


def work(settings: SimpleNamespace) -> str:
  """What a run of the program computes, in words."""
  sequences = f'{plural(settings.batch_size, "sequence")} of {settings.length} tokens'
  if settings.program == 'train':
    return (f'{settings.config}, {settings.dtype}, remat {settings.remat}; '
            f'{sequences} per step, in {plural(settings.accumulation, "part")}')
  if settings.program == 'sweep':
    networks = plural(settings.num_seeds, 'network')
    return f'{networks} of {settings.config}, {settings.dtype}; {sequences} per batch'
  return f'fingerprint of {settings.config}, float32; {sequences} per batch'


def plural(count: int, name: str) -> str:
  return f'{count} {name}{"s" * (count > 1)}'


def rows(plan: dict) -> list[dict[str, str]]:
  rows = [(f'memory: {name}', f'{size / GIB:.2f} GiB', '')
          for name, size in plan['memory'].items() if name != 'available']
  compute = plan['passes'] * plan['model_flops'] / plan['chip']['flops']
  rows += [('model FLOPs', engineering(plan['model_flops']), time_of(compute))]
  if 'seconds' in plan:
    moved, seconds = plan['hbm_bytes'], plan['seconds']
    hbm = (('unreadable', '') if math.isnan(moved) else
           (engineering(moved) + 'B', time_of(seconds['memory'])))
    once = engineering(plan['compiler_flops_loops_once'])
    rows += [('FLOPs as compiled, each loop once', once, ''),
             ('bytes through HBM', *hbm),
             *((f'bytes in {kind}', engineering(size) + 'B', '')
               for kind, size in plan['collective_bytes'].items()),
             ('roofline', '', time_of(seconds['roofline']))]
  run = 'step' if plan['settings']['program'] == 'train' else 'batch'
  columns = (f'per chip and {run}', 'amount', 'at least')
  return [dict(zip(columns, row, strict=True)) for row in rows]


def engineering(value: float) -> str:
  """12345678 → '12.35 M'."""
  power = min(5, int(math.log10(max(1, value)) // 3))
  return f'{value / 1000**power:.4g} {" kMGTP"[power].strip()}'


def time_of(seconds: float) -> str:
  return f'{1e3 * seconds:.4g} ms'


def verdict(plan: dict) -> str:
  total, available = plan['memory']['total'], plan['memory']['available']
  taken = f'{total / GIB:.1f} GiB of {available / GIB:.1f} GiB per chip'
  settings = plan['settings']
  if not plan['fits']:
    return f'does not fit: {taken}; try {advice(settings, plan["mesh"])}'
  tokens = settings['batch_size'] * settings['length'] * settings.get('num_seeds', 1)
  rate = tokens / plan['seconds']['roofline']
  return f'fits: {taken}; at best {rate:,.0f} tokens per second'


def advice(settings: dict, mesh: dict[str, int]) -> str:
  """What would take less memory, in words, with the cheapest first."""
  sharers = mesh.get('data', 1) * mesh.get('fsdp', 1)
  part = settings['batch_size'] // settings.get('accumulation', 1) // sharers
  ways = []
  if settings.get('remat', 'full') != 'full':
    ways.append('--remat=full')
  if part > 1 and settings['program'] == 'train':
    smallest_divisor = next(n for n in range(2, part + 1) if part % n == 0)
    ways.append(f'--accumulation={settings["accumulation"] * smallest_divisor}')
  elif part > 1:
    ways.append(f'--batch_size={part // 2 * sharers}')
  if mesh.get('data', 1) > 1:
    ways.append(f'--fsdp={sharers}')
  if settings.get('num_seeds', 1) > math.prod(mesh.values()):
    ways.append(f'--num_seeds={math.prod(mesh.values())}')
  if settings['program'] != 'sweep':
    ways.append('more chips')
  return ' or '.join(filter(None, [', '.join(ways), 'a smaller --length']))


if __name__ == '__main__':
  flags.DEFINE_string(
      'program', 'train', f'what to compile, of {", ".join(PROGRAMS)} (default: train)')
  for flag in NAMES:
    default = default_text({program: defaults.get(flag) for program, defaults in PROGRAMS.items()})
    command_line.define(flag, SETTINGS[flag], default)
  flags.DEFINE_string('output_dir', None, 'folder of scale_plan.json (default: none is written)')
  command_line.launch(main, __doc__, ('program', *NAMES, 'output_dir'))
