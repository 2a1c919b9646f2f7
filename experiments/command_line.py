"""Flags, scales and their errors: what every experiment's command line shares.

An experiment declares its settings at each scale as text. Each setting is a
flag of the same name that overrides the scale, and one parser a setting turns
the text into a value that results.json can hold.
"""

from collections.abc import Callable
import math
from pathlib import Path
import re
import sys
import textwrap
from types import SimpleNamespace

from absl import app, flags, logging
import jax

from bornbiased_jax import configs
from bornbiased_jax.analysis import probes
from bornbiased_jax.errors import InputError

FLAGS = flags.FLAGS
MAX_SEED = 2**32 - 1


def whole(text: str, lowest: int = 1, highest: int = MAX_SEED) -> int:
  if not text.isdecimal() or not lowest <= int(text) <= highest:
    raise InputError(f'{text!r} is not a whole number from {lowest} to {highest}')
  return int(text)


def number(text: str) -> float:
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 <= value < math.inf:
    raise InputError(f'{text!r} is not a number of at least 0')
  return value


def positive(text: str) -> float:
  if not (value := number(text)):
    raise InputError(f'{text!r} is not a number above 0')
  return value


def listed(parse: Callable[[str], list | str | int]):
  """Comma-separated values, each of them once."""

  def parse_list(text):
    values = []
    for part in text.split(','):
      value = parse(part.strip())
      values.extend(value if isinstance(value, list) else [value])
    if len(set(values)) < len(values):
      raise InputError(f'{text!r} names one twice')
    return values

  return parse_list


def seed_range(text: str) -> list[int]:
  """'42' → [42]; '0-3' → [0, 1, 2, 3]."""
  match = re.fullmatch(r'(\d+)(?:-(\d+))?', text)
  if not match:
    raise InputError(f'{text!r} is neither a seed, as 42, nor a range, as 0-99')
  first, last = (whole(part, 0) for part in (match[1], match[2] or match[1]))
  if not first <= last < first + 10**6:
    raise InputError(f'{text!r} must run upwards, over a million seeds at most')
  return list(range(first, last + 1))


def preset_name(text: str) -> str:
  configs.get(text)
  return text


def choice(*choices: str):
  def parse(text):
    if text not in choices:
      raise InputError(f'{text!r} is not one of {", ".join(choices)}')
    return text
  return parse


def switch(text: str) -> bool:
  """A flag that is given or not: --name, --noname."""
  return choice('true', 'false')(text.lower()) == 'true'


def required(hint: str):
  """Text that has no default; `hint` says what it may be."""
  def parse(text):
    if text == 'none':
      raise InputError(f'is missing: {hint}')
    return text
  return parse


def automatic(parse):
  """'auto' leaves the value to the program, and 'none' is one."""
  return lambda text: None if text == 'auto' else parse(text)


def optional(parse):
  """'auto' and 'none' leave the value to the program."""
  def parsed(text):
    try:
      return None if text in ('auto', 'none') else parse(text)
    except InputError as error:
      raise InputError(f"{error}, nor 'auto' or 'none'") from None

  return parsed


# Every setting that an experiment can have: its parser and its help.
KINDS = {
    'config': (listed(preset_name), f'models, comma-separated, of {", ".join(configs.PRESETS)}'),
    'seeds': (listed(seed_range), 'seeds, each of them a network, as 0-99 or 42,43'),
    'num_sequences': (lambda text: whole(text, 2, 2**31 - 1), 'random sequences that each network reads, n'),
    'lengths': (listed(lambda text: whole(text, 1, 2**20)),
                'sequence lengths T in tokens, comma-separated'),
    'length': (lambda text: whole(text, 1, 2**20), 'tokens a sequence'),
    'width': (whole, 'channels of the simplified layers MLP0 and Attn0'),
    'depth': (lambda text: whole(text, 1, 64), 'simplified layers, one after another'),
    'probe': (choice(*probes.KINDS), "what a network reads: 'tokens', random ids, or 'gaussian', random vectors"),
    'probe_seed': (lambda text: whole(text, 0), 'seed of the random sequences'),
    'embedding_seed': (optional(lambda text: whole(text, 0)),
                       "take the embedding and head of every network from this seed, so that token ids mean the same "
                       "in all; 'none': each from its own"),
    'dtype': (choice(*configs.DTYPES), f'what a forward pass computes in, {" or ".join(configs.DTYPES)}'),
    'remat': (choice(*configs.REMATS), 'what the backward pass computes again of a block, to save memory: none, dots '
                                       '(all but products with weights) or full (all)'),
    'batch_size': (optional(whole), "sequences a forward pass, or 'auto'"),
    'chunk_size': (optional(whole), "networks at once, or 'auto': by memory"),
}


Scales = dict[str, dict[str, str]]


def resolve(scales: Scales, scale: str = 'laptop', kinds: dict[str, tuple] = KINDS,
            **overrides: str | None) -> SimpleNamespace:
  """The values of all settings of a scale, with overrides as text, each parsed as its kind says.

  Raises:
    InputError: names the flag and what would be right.
  """
  values = {'scale': flagged('scale', choice(*scales), scale)}
  for name, default in scales[scale].items():
    text = overrides.get(name)
    values[name] = flagged(name, kinds[name][0], default if text is None else text)
  return SimpleNamespace(**values)


def flagged(flag: str, call: Callable, *arguments):
  """`call(*arguments)`, which blames a flag for what it refuses."""
  try:
    return call(*arguments)
  except InputError as error:
    raise InputError(f'--{flag}: {error}') from None


def default_text(scales: Scales, setting: str) -> str:
  """The default of a setting, or that of each scale which has it."""
  defaults = {scale: values[setting] for scale, values in scales.items() if setting in values}
  if len(defaults) == len(scales) and len(set(defaults.values())) == 1:
    return f'default: {next(iter(defaults.values()))}'
  return ', '.join(f'{scale}: {text}' for scale, text in defaults.items())


def run(main: Callable[[SimpleNamespace, Path], None], name: str, scales: Scales, doc: str,
        kinds: dict[str, tuple] = KINDS, positional: str | None = None) -> None:
  """Runs `main(settings, output_dir)` with what the command line says.

  Words that are no flags are the setting `positional`, a list; None: there are none.
  """
  names = list(scales['laptop'])
  flags.DEFINE_string('scale', 'laptop', f'size of the run: {", ".join(scales)}')
  flags.DEFINE_string('output_dir', None, f'folder of the results (default: results/{name}_SCALE)')
  for setting in names:
    parse, description = kinds[setting]
    define = flags.DEFINE_boolean if parse is switch else flags.DEFINE_string
    define(setting, None, f'{description} ({default_text(scales, setting)})')

  def resolved(*words):
    given = {setting: FLAGS[setting].value for setting in names if FLAGS[setting].value is not None}
    settings = resolve(scales, FLAGS.scale, kinds, **{setting: str(value) for setting, value in given.items()})
    if positional:
      setattr(settings, positional, list(words))
    main(settings, Path(FLAGS.output_dir or f'results/{name}_{FLAGS.scale}'))

  launch(resolved, doc, ('scale', 'output_dir', *names), takes_words=bool(positional))


def launch(main: Callable, doc: str, names: tuple[str, ...], takes_words: bool = False) -> None:
  """Parses the flags `names` and runs `main(*words)`; without `takes_words` a word that is no flag is a mistake.

  A mistake in the input is one line on stderr and exit code 2.
  """

  def parse(argv):
    if {'--help', '-help', '-h'} & set(argv):
      print(doc.strip(), '\nFlags:', *map(_flag_help, names), sep='\n')
      sys.exit(0)
    try:
      return FLAGS(argv)
    except flags.Error as error:
      fail(f'{error}; see --help')

  def guarded(argv):
    logging.set_verbosity(logging.WARNING)
    words = argv[1:]
    try:
      if words and not takes_words:
        raise InputError(f'{words[0]!r} is not a flag; see --help')
      main(*words)
    except InputError as error:
      fail(str(error))
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      fail('out of memory; choose a smaller model, shorter sequences, or a smaller --batch_size or --chunk_size')
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
