"""From the command line to a program's settings: flags, --help, and one line for a mistake."""

from collections.abc import Callable
import errno
import os
from pathlib import Path
import signal
import sys
import textwrap
from typing import Any

from absl import app, flags, logging
import jax

from bornbiased_jax import configs, files, hosts
from bornbiased_jax.environment import unusable_platform
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.keys import pin_settings

from . import lock
from .parsing import natural, switch, whole
from .settings import Kind, ProgramSettings, default_text, kinds, name_flag, resolve, values_of

FLAGS = flags.FLAGS
_NO_ROOM = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS
# What tells a process of its place among several hosts. A result does not depend on it, so that
# these are flags, but no settings of a run.
HOSTS = {
    'distributed': Kind(switch, 'this is one of several hosts that run the same command, with one '
                        '--output_dir that all of them see'),
    'coordinator': Kind(str, 'HOST:PORT of the first process, if JAX cannot find it out'),
    'num_processes': Kind(whole, 'number of processes, if JAX cannot find it out'),
    'process_id': Kind(natural, 'number of this process, from 0, if JAX cannot find it out'),
}


def run(main: Callable[[Any, Path], None], name: str, kind: type[ProgramSettings], doc: str,
        several_hosts: bool = False) -> None:
  """Runs `main(settings, output_dir)` with what the command line says.

  With `several_hosts` the program has the flags HOSTS.
  """
  flags.DEFINE_string('output_dir', None, 'folder of the results, local or gs://BUCKET/FOLDER '
                      f'(default: results/{name}_SCALE)')
  host_flags = HOSTS if several_hosts else {}
  for flag, of_flag in host_flags.items():
    define(flag, of_flag)

  def in_folder(settings):
    connect(**{flag: FLAGS[flag].value for flag in host_flags})
    place = FLAGS.output_dir
    if place is None:
      place = f'results/{name}_{FLAGS.scale}'
    output_dir = name_flag('output_dir', files.path_of, place)
    with lock.hold(output_dir):
      main(settings, output_dir)

  drawn = ('format',) if 'format' in FLAGS else ()
  start(in_folder, kind, doc, before=('output_dir',), after=(*drawn, *host_flags))


def start(main: Callable[[Any], None], kind: type[ProgramSettings], doc: str,
          before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> None:
  """Runs `main(settings)` with the flags of a dataclass; --help has others before and after."""
  known = kinds(kind)
  scale = ('scale',) if len(kind.SCALES) > 1 else ()
  if scale:
    flags.DEFINE_string('scale', 'laptop', f'size of the run: {", ".join(kind.SCALES)}')
  for flag, of_flag in known.items():
    define(flag, of_flag, default_text(values_of(kind, flag), of_flag.help))

  def resolved(*words):
    given = {flag: FLAGS[flag].value for flag in known}
    main(resolve(kind, FLAGS.scale if scale else 'laptop', words, **given))

  launch(resolved, doc, (*scale, *before, *known, *after), takes_words=bool(kind.WORDS))


def define(flag: str, kind: Kind, default: str = '') -> None:
  """Makes a flag whose help ends with a text about its default."""
  make = flags.DEFINE_boolean if kind.is_switch else flags.DEFINE_string
  make(flag, None, kind.help + default)


def connect(distributed: bool | None = None, **given: str | None) -> None:
  """Joins the other hosts, before anything asks for a device. The first host alone prints.

  Args:
    distributed: whether there are others.
    given: the texts of the other flags of HOSTS, None for those that are not given.

  Raises:
    InputError: a wrong value, or the hosts cannot be found.
  """
  values = {name: name_flag(name, HOSTS[name].parse, text)
            for name, text in given.items() if text is not None}
  if not distributed:
    for name in values:
      raise InputError(f'--{name}: only with --distributed')
    return
  try:
    jax.distributed.initialize(values.get('coordinator'), values.get('num_processes'),
                               values.get('process_id'))
  except (ValueError, RuntimeError) as error:
    raise InputError(f'--distributed: {error}; give --coordinator, --num_processes and '
                     '--process_id') from None
  if not hosts.is_first():
    sys.stdout = open(os.devnull, 'w')  # noqa: SIM115


def launch(main: Callable, doc: str, names: tuple[str, ...], takes_words: bool = False) -> None:
  """Parses the flags `names` and runs `main(*words)` with the words that are no flags.

  Unless `takes_words` is true, such a word is a mistake. A mistake in the input
  is one line on stderr and exit code 2. Settings of JAX with which seeds would be other
  networks, such as JAX_ENABLE_X64, have no effect on a program.
  """

  def parse(argv):
    if {'--help', '-help', '-h'} & set(argv):
      if hasattr(signal, 'SIGPIPE'):  # What reads it, such as head, may stop at any line.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
      print(doc.strip(), '\nFlags:', *map(_flag_help, names), sep='\n')
      if 'config' in names:
        print('\nModels (nano and larger: of the paper; tiny: for a CPU):')
        print(*map(_model_help, configs.PRESETS), sep='\n')
        print('Fields of ModelConfig may follow, as in tiny_gpt2,num_layers=6,width=192. A JSON',
              "file of them or a directory of transformers may stand in a model's place.", sep='\n')
      sys.exit(0)
    try:
      return FLAGS(argv)
    except flags.Error as error:
      fail(f'{error}; see --help')

  def guarded(argv):
    logging.set_verbosity(logging.WARNING)
    pin_settings()
    words = argv[1:]
    try:
      if words and not takes_words:
        known = words[0] in configs.PRESETS and 'config' in names
        hint = f'did you mean --config={words[0]}?' if known else 'see --help'
        raise InputError(f'{words[0]!r} is not a flag; {hint}')
      main(*words)
    except InputError as error:
      fail(f'--{error.field}: {error}' if error.field in FLAGS else str(error))
    except OSError as error:
      if error.errno not in _NO_ROOM:
        raise
      fail(f'{error.filename} cannot be written: {error.strerror}')
    except (RuntimeError, AssertionError) as error:
      if advice := unusable_platform():
        fail(advice)
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      fail('out of memory; choose a smaller model, shorter sequences, or a smaller --batch_size or '
           '--chunk_size')
    except KeyboardInterrupt:
      print('\ninterrupted; the same command continues from here', file=sys.stderr)
      sys.exit(130)

  app.run(guarded, flags_parser=parse)


def _flag_help(name):
  return textwrap.fill(f'--{name}: {FLAGS[name].help}', width=100,
                       initial_indent='  ', subsequent_indent='      ')


def _model_help(name):
  config = configs.get(name)
  return (f'  {name}: {config.num_layers} layers of width {config.width:,}, {config.num_heads} '
          f'heads, {config.vocab_size:,} token ids')


def fail(message: str) -> None:
  """One line on stderr, exit code 2."""
  print(f'error: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(2)
