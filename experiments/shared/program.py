"""From the command line to a program at work: its flags, --help, and one line for a mistake."""

import argparse
from collections.abc import Callable, Iterator
import difflib
import functools
import sys
from typing import Any, NamedTuple

from absl import app
from absl import flags as absl_flags

from bornbiased_jax import configs, files
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import Kind

from . import figures, session
from .results import Results
from .settings import (
  ProgramSettings,
  arguments_of,
  default_texts,
  kinds,
  name_flag,
  resolve,
  values_of,
)

# Where --help shows settings that are not technical and not what the program measures.
_GROUPS = {
    'model': ('config', 'init_from', 'resume', 'adapter', 'rank', 'alpha', 'tokenizer',
              'vocab_size', 'max_length', 'tied_head', 'init_scheme', 'dtype', 'embedding_seed',
              'width', 'widths', 'depth', 'depths'),
    'cost': ('scale', 'num_sequences', 'batch_size', 'chunk_size', 'accumulation', 'remat',
             'together', 'data_axis', 'fsdp_axis', 'tensor_axis', 'stream', 'references'),
    'output': ('output_dir', 'format', 'json', 'strict', 'keep_steps', 'save_every',
               'evaluate_every'),
    'several hosts': tuple(session.HOSTS),
}
_FIRST, _LAST = 'what it does', 'rarely needed'
# A longer default stands in the text.
_SHORT = 16
_FORMATTER = functools.partial(argparse.RawDescriptionHelpFormatter, width=100,
                               max_help_position=26)


class Flag(NamedTuple):
  """A flag and its default at each scale where it has one, as text."""

  kind: Kind
  defaults: dict[str, str] = {}


def run(main: Callable, name: str, of: type[ProgramSettings], doc: str, has_folder: bool = True,
        several_hosts: bool = False) -> None:
  """Runs `main(settings, output_dir)`, or `main(settings)`, with what the command line says.

  `doc` is the beginning of --help. A mistake in the input is one line on stderr and exit code 2.
  """
  flags = dict(flags_of(name, of, has_folder, several_hosts))
  parser = _parser(name, of, doc, flags)
  _show_help(parser, sys.argv[1:])
  given, words = _parse(parser, flags, sys.argv[1:])

  def work():
    if words and not arguments_of(of)[0]:
      is_model = words[0] in configs.PRESETS and 'config' in flags
      hint = f'did you mean --config={words[0]}?' if is_model else 'see --help'
      raise InputError(f'{words[0]!r} is not a flag; {hint}')
    settings = resolve(of, given.get('scale') or 'laptop', words,
                       **{flag: given[flag] for flag in kinds(of)})
    if not has_folder:
      return main(settings)
    figures.FORMAT.set(name_flag('format', figures.FORMAT_FLAG.parse, given['format'] or 'png'))
    session.connect(**{flag: given[flag] for flag in session.HOSTS if flag in flags})
    place = given['output_dir']
    usual = f'results/{folder_of(name)}_{settings.scale}/{settings.own_folder()}'
    output_dir = name_flag('output_dir', files.path_of, usual if place is None else place)
    with session.hold(output_dir):
      main(settings, output_dir)

  app.run(lambda _: session.run(work, flags=flags),
          flags_parser=lambda argv: absl_flags.FLAGS(argv[:1]))


def measure(main: Callable, name: str, of: type[ProgramSettings], doc: str,
            several_hosts: bool = False) -> None:
  """Runs `main(settings, results)`, as `run` does; what it measures are rows of `Results`."""
  run(lambda settings, output_dir: main(settings, Results(output_dir, name, settings)), name, of,
      doc, several_hosts=several_hosts)


def flags_of(name: str, of: type[ProgramSettings], has_folder: bool = True,
             several_hosts: bool = False) -> Iterator[tuple[str, Flag]]:
  """The flags of a program, settings and others."""
  for flag, kind in kinds(of).items():
    yield flag, Flag(kind, default_texts(values_of(of, flag), kind.help))
  if len(of.SCALES) > 1:
    yield 'scale', Flag(Kind(str, f'size of the run: {", ".join(of.SCALES)}'),
                        {'laptop': 'laptop'})
  if has_folder:
    yield 'output_dir', Flag(Kind(
        str, 'folder of the results, local or gs://BUCKET/FOLDER, where the same command continues '
        'what was stopped'), {'laptop': f'results/{folder_of(name)}_SCALE'})
    yield 'format', Flag(figures.FORMAT_FLAG, {'laptop': 'png'})
  if several_hosts:
    yield from ((flag, Flag(kind)) for flag, kind in session.HOSTS.items())


def folder_of(name: str) -> str:
  """The name of a program's folder, without the scale."""
  return name.replace('.', '_')


class _Parser(argparse.ArgumentParser):

  def error(self, message):
    session.fail(f'{message.removeprefix("argument ")}; see --help')


def _parser(name, of, doc, flags):
  doc = doc.replace('python -m experiments.', session.start())
  usage = f'{session.start()}{name} {arguments_of(of)[1]} [--FLAG=VALUE ...]'.replace('  ', ' ')
  models = ', and --help=models lists the models' if 'config' in flags else ''
  parser = _Parser(usage=usage, description=doc.strip(), add_help=False, allow_abbrev=False,
                   epilog=f'After a flag is its default, ... if it has none{models}.',
                   formatter_class=_FORMATTER)
  parser.add_argument('words', nargs='*', help=argparse.SUPPRESS)
  for title in (_FIRST, *_GROUPS, _LAST):
    group = parser.add_argument_group(title)
    for flag in flags:
      if _group(of, flag) == title:
        _add(group, flag, *flags[flag])
  return parser


def _group(of, flag):
  if flag in of.TECHNICAL:
    return _LAST
  return next((title for title, names in _GROUPS.items() if flag in names), _FIRST)


def _add(group, flag, kind, defaults):
  if kind.is_switch:
    group.add_argument(f'--{flag}', action='store_true', default=None, help=kind.help)
    group.add_argument(f'--no{flag}', action='store_false', dest=flag, help=argparse.SUPPRESS)
    return
  default = defaults.get('laptop', '')
  is_short = 0 < len(default) <= _SHORT
  others = {scale: text for scale, text in defaults.items() if scale != 'laptop' or not is_short}
  said = '; '.join(f'{scale}: {text}' for scale, text in others.items())
  help = kind.help + (f' ({said.replace("laptop:", "default:")})' if said else '')
  group.add_argument(f'--{flag}', metavar=default if is_short else '...',
                     help=help.replace('%', '%%'))


def _show_help(parser, argv):
  """Prints --help and ends the process, if it is asked for."""
  asked = {word for word in argv if word in ('-h', '-help') or word.startswith('--help')}
  if not asked:
    return
  session.outlive_reader()  # Such as head, which may stop at any line.
  if '--help=models' in asked:
    print(*map(_model, configs.PRESETS), sep='\n')
    print('Fields of ModelConfig may follow, such as tiny_gpt2,num_layers=6,width=96. A JSON file '
          'of fields is a\nmodel too, and so is a Hugging Face model folder: its shape and '
          'initialization are read, and no weights.')
  else:
    parser.print_help()
  sys.exit(0)


def _model(name):
  config = configs.get(name)
  return (f'{name}: {config.num_layers} layers of width {config.width:,}, {config.num_heads} '
          f'heads, {config.vocab_size:,} token ids')


def _parse(parser, flags, argv) -> tuple[dict[str, Any], list[str]]:
  """The texts of flags, None for those that are not given, and the words that are no flags."""
  given, unknown = parser.parse_known_intermixed_args(argv)
  for word in unknown:
    name = word.lstrip('-').partition('=')[0]
    near = difflib.get_close_matches(name, flags, n=1)
    hint = f' (did you mean --{near[0]}?)' if near else ''
    session.fail(f'{word.partition("=")[0]} is no flag{hint}; see --help')
  given = vars(given)
  return given, given.pop('words')
