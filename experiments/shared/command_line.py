"""Settings, scales and their errors: what every experiment's command line shares.

An experiment has a dictionary of settings for each scale. Each setting is also
a flag of the same name, whose text is parsed and takes the place of the
scale's value. A setting that is None is left to the program.
"""

from collections.abc import Callable
import copy
import itertools
import os
from pathlib import Path
import re
import signal
import sys
import textwrap
from types import SimpleNamespace
from typing import Any, NamedTuple

from absl import app, flags, logging
import jax

from bornbiased_jax import configs, files, hosts
from bornbiased_jax.analysis import probes
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.keys import pin_settings

from . import lock
from .parsing import choice, listed, optional, preset_name, seed_range, whole

FLAGS = flags.FLAGS


class Setting(NamedTuple):
  """What an experiment can be told.

  Attributes:
    parse: the flag's text → its value, which results.json can hold; raises
      InputError. None: a switch, --name or --noname.
    help: what it is, for --help.
    hint: what it may be, of a setting that has no default and must be given.
  """

  parse: Callable[[str], Any] | None
  help: str
  hint: str | None = None


Scales = dict[str, dict[str, Any]]
# Settings that many experiments have and few users change.
_TECHNICAL = ('probe', 'probe_seed', 'embedding_seed', 'dtype', 'batch_size', 'chunk_size')


# The settings that several experiments have.
SETTINGS = {
    'config': Setting(listed(preset_name), 'models, comma-separated, of those below'),
    'seeds': Setting(listed(seed_range), 'seeds, each of them a network, as 0-99 or 42,43'),
    'num_sequences': Setting(lambda text: whole(text, 2, 2**31 - 1),
                             'random sequences that each network reads, n'),
    'lengths': Setting(listed(lambda text: whole(text, 1, 2**20)),
                       'sequence lengths T in tokens, comma-separated'),
    'length': Setting(lambda text: whole(text, 1, 2**20), 'tokens per sequence'),
    'width': Setting(whole, 'channels of the simplified layers MLP0 and Attn0'),
    'depth': Setting(lambda text: whole(text, 1, 64), 'number of simplified layers'),
    'probe': Setting(choice(*probes.KINDS),
                     "what a network reads: 'tokens', random ids, 'gaussian', random vectors, or "
                     "'sphere', such vectors of one length"),
    'probe_seed': Setting(lambda text: whole(text, 0), 'seed of the random sequences'),
    'embedding_seed': Setting(optional(lambda text: whole(text, 0)),
                              'seed from which all networks take their embedding and head, so that '
                              "token ids mean the same in all; with 'none' each has its own"),
    'dtype': Setting(choice(*configs.DTYPES),
                     'number format of the forward pass: bfloat16, or float32, whose products are '
                     'exact on TPUs and GPUs too'),
    'remat': Setting(choice(*configs.REMATS),
                     'what the backward pass computes again instead of storing it: none, dots (all '
                     'but products with weights) or full (all)'),
    'batch_size': Setting(optional(whole),
                          'sequences per forward pass; if not given, what suits the device'),
    'chunk_size': Setting(optional(whole),
                          'networks at once; if not given, as many as memory holds'),
}


# What tells a process of its place among several hosts. A result does not depend on it, so that
# these are flags, but no settings of a run.
HOSTS = {
    'distributed': Setting(None, 'this is one of several hosts that run the same command, with one '
                                 '--output_dir that all of them see'),
    'coordinator': Setting(str, 'HOST:PORT of the first process, if JAX cannot find it out'),
    'num_processes': Setting(whole, 'number of processes, if JAX cannot find it out'),
    'process_id': Setting(lambda text: whole(text, 0),
                          'number of this process, from 0, if JAX cannot find it out'),
}


def resolve(scales: Scales, scale: str = 'laptop', kinds: dict[str, Setting] = SETTINGS,
            **given: str | bool | None) -> SimpleNamespace:
  """The settings of a scale; those that are given as a flag's text are parsed.

  Raises:
    InputError: names the flag and what would be right.
  """
  values = {'scale': flagged('scale', choice(*scales), scale)} | copy.deepcopy(scales[scale])
  for name, text in given.items():
    if text is not None:
      parse = kinds[name].parse
      values[name] = flagged(name, parse, text) if parse else text
  for name in scales[scale]:
    if values[name] is None and kinds[name].hint:
      raise InputError(f'--{name}: is missing: {kinds[name].hint}')
  return SimpleNamespace(**values)


def flagged(flag: str, call: Callable, *arguments):
  """`call(*arguments)`; an InputError from it names the flag."""
  try:
    return call(*arguments)
  except InputError as error:
    raise InputError(f'--{flag}: {error}') from None


def required(*names: str) -> list[str]:
  """The texts of flags that must be given; raises InputError for one that is missing."""
  for name in names:
    if not FLAGS[name].value:
      raise InputError(f'--{name} is missing; see --help')
  return [FLAGS[name].value for name in names]


def name_flags(make: Callable, **fields):
  """`make(**fields)`; an InputError from it that says field=value says --field=value."""
  try:
    return make(**fields)
  except InputError as error:
    raise InputError(re.sub(r'\b(?=\w+=)', '--', str(error))) from None


def default_text(scales: Scales, setting: str, help_text: str = '') -> str:
  """The default of a setting in brackets, and other scales' if they differ; '' if none has one.

  A list that `help_text` has already is 'all', unless more follows there.
  """
  names_all = lambda value: isinstance(value, list) and len(value) > 1 and re.search(
      re.escape(', '.join(map(str, value))) + '(?!, )', help_text)
  shown = lambda value: 'all' if names_all(value) else as_text(value)
  texts = {scale: shown(values[setting]) for scale, values in scales.items()
           if values.get(setting) is not None}
  scales_of = {texts['laptop']: ['default']} if 'laptop' in texts else {}
  for scale, text in texts.items():
    if text != texts.get('laptop'):
      scales_of.setdefault(text, []).append(scale)
  parts = [f'{", ".join(names)}: {text}' for text, names in scales_of.items()]
  return f' ({"; ".join(parts)})' if parts else ''


def as_text(value: Any) -> str:
  """A value as one would write it in a flag, for --help."""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, float):
    return f'{value:g}'
  if not isinstance(value, list):
    return str(value)
  numbers = len(value) > 2 and isinstance(value[0], int)
  is_range = numbers and value == list(range(value[0], value[-1] + 1))
  return f'{value[0]}-{value[-1]}' if is_range else ','.join(map(str, value))


def in_order(defaults: dict[str, Any], kinds: dict[str, Setting]) -> list[str]:
  """The settings as --help shows them: what must be given first, what few change last."""
  required = [name for name in defaults if defaults[name] is None and kinds[name].hint]
  technical = list(itertools.takewhile(lambda name: name in _TECHNICAL, defaults))
  rest = [name for name in defaults if name not in required + technical]
  return required + rest + technical


def run(main: Callable[[SimpleNamespace, Path], None], name: str, scales: Scales, doc: str,
        kinds: dict[str, Setting] = SETTINGS, positional: str | None = None,
        several_hosts: bool = False) -> None:
  """Runs `main(settings, output_dir)` with what the command line says.

  Words that are no flags become the setting `positional`, a list; None: words are refused.
  With `several_hosts` the program has the flags HOSTS.
  """
  names = in_order(scales['laptop'], kinds)
  flags.DEFINE_string('scale', 'laptop', f'size of the run: {", ".join(scales)}')
  flags.DEFINE_string('output_dir', None, 'folder of the results, local or gs://BUCKET/FOLDER '
                      f'(default: results/{name}_SCALE)')
  for setting in names:
    define = flags.DEFINE_string if kinds[setting].parse else flags.DEFINE_boolean
    define(setting, None, kinds[setting].help + default_text(scales, setting, kinds[setting].help))
  host_flags = HOSTS if several_hosts else {}
  for host_flag, kind in host_flags.items():
    (flags.DEFINE_string if kind.parse else flags.DEFINE_boolean)(host_flag, None, kind.help)

  def resolved(*words):
    connect(**{host_flag: FLAGS[host_flag].value for host_flag in host_flags})
    given = {setting: FLAGS[setting].value for setting in names}
    settings = resolve(scales, FLAGS.scale, kinds, **given)
    if positional:
      setattr(settings, positional, list(words))
    place = FLAGS.output_dir
    if place is None:
      place = f'results/{name}_{FLAGS.scale}'
    output_dir = flagged('output_dir', files.path_of, place)
    with lock.hold(output_dir):
      main(settings, output_dir)

  drawn = ('format',) if 'format' in FLAGS else ()
  launch(resolved, doc, ('scale', 'output_dir', *names, *drawn, *host_flags),
         takes_words=bool(positional))


def connect(distributed: bool | None = None, **given: str | None) -> None:
  """Joins the other hosts, before anything asks for a device. The first host alone prints.

  Args:
    distributed: whether there are others.
    given: the texts of the other flags of HOSTS, None for those that are not given.

  Raises:
    InputError: a wrong value, or the hosts cannot be found.
  """
  values = {name: flagged(name, HOSTS[name].parse, text)
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
      fail(str(error))
    except jax.errors.JaxRuntimeError as error:
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
