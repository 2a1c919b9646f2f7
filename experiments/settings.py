"""Flags, scales and their errors: what every experiment's command line shares.

An experiment declares its settings at each scale as text. Each setting is a
flag of the same name that overrides the scale, and one parser a setting turns
the text into a value that results.json can hold.
"""

from collections.abc import Callable
from pathlib import Path
import sys
import textwrap
from types import SimpleNamespace

from absl import app, flags, logging
import jax

from bornbiased_jax import configs, probes
from bornbiased_jax.errors import InputError

FLAGS = flags.FLAGS
MAX_SEED = 2**32 - 1


def whole(text: str, lowest: int = 1, highest: int = MAX_SEED) -> int:
  if not text.isdecimal() or not lowest <= int(text) <= highest:
    raise InputError(f'{text!r} is not a whole number from {lowest} to {highest}')
  return int(text)


def seeds(text: str) -> list[int]:
  """'0-3,42' → [0, 1, 2, 3, 42]."""
  values = []
  for part in text.split(','):
    first, dash, last = part.strip().partition('-')
    first = whole(first, 0)
    last = whole(last, first) if dash else first
    if last - first >= 10**6:
      raise InputError(f'{part!r} is more than a million seeds')
    values.extend(range(first, last + 1))
  if len(set(values)) < len(values):
    raise InputError(f'{text!r} names a seed twice')
  return values


def preset_names(text: str) -> list[str]:
  names = [name.strip() for name in text.split(',')]
  for name in names:
    configs.get(name)
  return names


def choice(*choices: str):
  def parse(text):
    if text not in choices:
      raise InputError(f'{text!r} is not one of {", ".join(choices)}')
    return text
  return parse


def optional(parse):
  """'auto' and 'none' leave the value to the program."""
  return lambda text: None if text in ('', 'auto', 'none') else parse(text)


# Every setting that an experiment can have: its parser and its help.
KINDS = {
    'config': (preset_names, f'models, comma-separated, of {", ".join(configs.PRESETS)}'),
    'seeds': (seeds, 'random networks, as 0-99 or 42,43'),
    'num_sequences': (lambda text: whole(text, 1, 2**31 - 1), 'random sequences each network reads'),
    'lengths': (lambda text: [whole(part.strip(), 1, 2**20) for part in text.split(',')],
                'sequence lengths T in tokens, comma-separated'),
    'probe': (choice(*probes.KINDS), "what a network reads: 'tokens', random ids, or 'gaussian', random vectors"),
    'probe_seed': (lambda text: whole(text, 0), 'seed of the random sequences'),
    'embedding_seed': (optional(lambda text: whole(text, 0)),
                       "take every network's embedding and head from this seed, or 'none': from its own"),
    'dtype': (choice(*configs.DTYPES), f'what a forward pass computes in, {" or ".join(configs.DTYPES)}'),
    'batch_size': (optional(whole), "sequences a forward pass, or 'auto'"),
    'chunk_size': (optional(whole), "networks at once, or 'auto': by memory"),
}


Scales = dict[str, dict[str, str]]


def resolve(scales: Scales, scale: str = 'laptop', **overrides: str | None) -> SimpleNamespace:
  """The values of all settings of a scale, with overrides as text.

  Raises:
    InputError: names the flag and what would be right.
  """
  values = {'scale': _parse('scale', choice(*scales), scale)}
  for name, default in scales[scale].items():
    text = overrides.get(name)
    values[name] = _parse(name, KINDS[name][0], default if text is None else text)
  return SimpleNamespace(**values)


def _parse(name, parse, text):
  try:
    return parse(text)
  except InputError as error:
    raise InputError(f'--{name}: {error}') from None


def run(main: Callable[[SimpleNamespace, Path], None], name: str, scales: Scales, doc: str) -> None:
  """Runs `main(settings, output_dir)` with what the command line says.

  A mistake in the input is one line on stderr and exit code 2.
  """
  names = list(scales['laptop'])
  flags.DEFINE_string('scale', 'laptop', f'size of the run: {", ".join(scales)}')
  flags.DEFINE_string('output_dir', None, f'folder of the results (default: results/{name}_SCALE)')
  for setting in names:
    defaults = {scale: values[setting] for scale, values in scales.items()}
    shown = ', '.join(f'{scale}: {text}' for scale, text in defaults.items())
    if len(set(defaults.values())) == 1:
      shown = f'default: {defaults["laptop"]}'
    flags.DEFINE_string(setting, None, f'{KINDS[setting][1]} ({shown})')

  def parse(argv):
    if {'--help', '-help', '-h'} & set(argv):
      print(doc.strip(), '\n\nFlags:', *(_flag_help(flag) for flag in ('scale', 'output_dir', *names)), sep='\n')
      sys.exit(0)
    try:
      unknown = FLAGS(argv)[1:]
    except flags.Error as error:
      fail(f'{error}; see --help')
    if unknown:
      fail(f'{unknown[0]!r} is not a flag; see --help')

  def guarded(argv):
    del argv
    logging.set_verbosity(logging.WARNING)
    try:
      settings = resolve(scales, FLAGS.scale, **{setting: FLAGS[setting].value for setting in names})
      main(settings, Path(FLAGS.output_dir or f'results/{name}_{FLAGS.scale}'))
    except InputError as error:
      fail(str(error))
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      fail('out of memory; choose a smaller --batch_size or --chunk_size')
    except KeyboardInterrupt:
      print('\ninterrupted; the same command goes on from here', file=sys.stderr)
      sys.exit(130)

  app.run(guarded, flags_parser=parse)


def _flag_help(name):
  return textwrap.fill(f'--{name}: {FLAGS[name].help}', width=100, initial_indent='  ', subsequent_indent='      ')


def fail(message: str) -> None:
  """One line on stderr, exit code 2."""
  print(f'error: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(2)
