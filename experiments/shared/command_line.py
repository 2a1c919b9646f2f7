"""From the command line to a program's settings: flags, --help, and one line for a mistake.

Nothing here needs JAX until a program begins, in `session`.
"""

from collections.abc import Callable
from pathlib import Path
import re
import signal
import sys
import textwrap
from typing import Any, NoReturn

from absl import app, flags

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError

from .settings import Kind, ProgramSettings, default_text, kinds, resolve, values_of
from .settings.parsing import natural, switch, whole

FLAGS = flags.FLAGS
# What tells a process of its place among several hosts. A result does not depend on it, so that
# these are flags, but no settings of a run.
HOSTS = {
    'distributed': Kind(switch, 'this is one of several hosts that run the same command, with one '
                        '--output_dir that all of them see'),
    'coordinator': Kind(str, 'HOST:PORT of the first process, if JAX cannot find it out'),
    'num_processes': Kind(whole, 'number of processes, if JAX cannot find it out'),
    'process_id': Kind(natural, 'number of this process, from 0, if JAX cannot find it out'),
}


def run(main: Callable[[Any, Path], None] | None, name: str, kind: type[ProgramSettings],
        doc: str, several_hosts: bool = False) -> None:
  """Runs `main(settings, output_dir)` with what the command line says; without `main` checks it."""
  from . import figures
  define('output_dir', Kind(str, 'folder of the results, local or gs://BUCKET/FOLDER, where the '
                            'same command continues what was stopped '
                            f'(default: results/{name}_SCALE)'))
  host_flags = HOSTS if several_hosts else {}
  for flag, of_flag in host_flags.items():
    define(flag, of_flag)

  def in_folder(settings):
    from . import session
    session.connect(**{flag: FLAGS[flag].value for flag in host_flags})
    place = FLAGS.output_dir
    session.run_in(f'results/{name}_{settings.scale}' if place is None else place, main, settings)

  start(main and in_folder, kind, doc, before=('output_dir',), after=(figures.FLAG, *host_flags))


def start(main: Callable[[Any], None] | None, kind: type[ProgramSettings], doc: str,
          before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> None:
  """Runs `main(settings)` with the flags of a dataclass; --help has others before and after.

  A mistake in the input is one line on stderr and exit code 2.
  """
  known = kinds(kind)
  scale = ('scale',) if len(kind.SCALES) > 1 else ()
  if scale:
    define('scale', Kind(str, f'size of the run: {", ".join(kind.SCALES)}'))
  for flag, of_flag in known.items():
    define(flag, of_flag, default_text(values_of(kind, flag), of_flag.help))
  words = parse(sys.argv, doc, (*scale, *before, *known, *after))
  given = {flag: FLAGS[flag].value for flag in (*scale, *known)}
  size = given.pop('scale', None)
  try:
    if words and not kind.WORDS:
      is_model = words[0] in configs.PRESETS and 'config' in known
      hint = f'did you mean --config={words[0]}?' if is_model else 'see --help'
      raise InputError(f'{words[0]!r} is not a flag; {hint}')
    settings = resolve(kind, 'laptop' if size is None else size, words, **given)
  except InputError as error:
    fail_of(error)
  if main:
    from . import session
    app.run(lambda _: session.run(main, settings), flags_parser=lambda argv: argv)


def define(flag: str, kind: Kind, default: str = '') -> None:
  """Makes a flag whose help ends with a text about its default, unless the check has made it."""
  if flag not in FLAGS:
    make = flags.DEFINE_boolean if kind.is_switch else flags.DEFINE_string
    make(flag, None, kind.help + default)


def parse(argv: list[str], doc: str, names: tuple[str, ...]) -> list[str]:
  """Parses flags, and returns the words that are none; prints --help, and ends the process then."""
  if {'--help', '-help', '-h'} & set(argv):
    if hasattr(signal, 'SIGPIPE'):  # What reads it, such as head, may stop at any line.
      signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    shown = ['\nFlags:', *map(_flag_help, names)] if names else []
    if not __package__.startswith('experiments.'):  # It is installed, not a checkout.
      doc = doc.replace('python -m experiments.', 'bornbiased ')
    print(doc.strip(), *shown, sep='\n')
    if 'config' in names:
      print('\nModels (nano and larger: of the paper; tiny: for a CPU):')
      print(*map(_model_help, configs.PRESETS), sep='\n')
      print('Fields of ModelConfig may follow, as tiny_gpt2,num_layers=6,width=96,mlp_width=384;',
            'those that are not named stay. A JSON file of them, or a directory of transformers of',
            "which the shape alone is read, may stand in a model's place.", sep='\n')
    sys.exit(0)
  try:
    return FLAGS(argv)[1:]
  except flags.Error as error:
    text = re.sub(r'\. Did you mean: (.*?) ?\?$', r' (did you mean --\1?)', str(error))
    fail(f'{text}; see --help')


def _flag_help(name):
  return textwrap.fill(f'--{name}: {FLAGS[name].help}', width=100,
                       initial_indent='  ', subsequent_indent='      ')


def _model_help(name):
  config = configs.get(name)
  return (f'  {name}: {config.num_layers} layers of width {config.width:,}, {config.num_heads} '
          f'heads, {config.vocab_size:,} token ids')


def fail_of(error: InputError) -> NoReturn:
  """One line that names the flag, if an error names its field."""
  fail(f'--{error.field}: {error}' if error.field in FLAGS else str(error))


def fail(message: str) -> NoReturn:
  """One line on stderr, exit code 2."""
  print(f'error: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(2)
