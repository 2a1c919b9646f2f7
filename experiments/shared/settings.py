"""Settings: a frozen dataclass per program, from which come its flags, --help and results.json.

    class Settings(Transformers):
      seeds: list[int] = setting(range(100), smoke=range(4))
      steps: int = setting(1000, whole, 'optimizer steps', smoke=3)

A field is a flag of the same name. Its text is parsed and takes the place of the scale's value.
"""

from collections.abc import Callable, Collection, Sequence
import copy
import dataclasses
import re
from typing import Any, ClassVar, TypeVar

from bornbiased_jax import configs, fields, storage
from bornbiased_jax.analysis import probes
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import (
  Kind,
  as_text,
  choice,
  listed,
  natural,
  num_tokens,
  optional,
  positive,
  some_of,
  switch,
  whole,
)
from bornbiased_jax.lineage import METHODS
from bornbiased_jax.lineage.networks import STREAM
from bornbiased_jax.training import Recipe, Run


class Architecture(str):
  """The name of an architecture that is from a file or folder, its `source`."""

  source: str


def preset_name(text: str) -> str:
  """The name of an architecture, which says what a file says (`storage.canonical`)."""
  name, base = Architecture(storage.canonical(text)), text.partition(',')[0].strip()
  name.source = base
  return str(name) if base in configs.PRESETS else name


def some(names: Collection[str], what: str, or_none: bool = False) -> Kind:
  """Some of a few words, which the help lists after `what`."""
  parse = some_of(*names)
  return Kind(optional(parse) if or_none else parse, f'{what}, of {", ".join(names)}')


A_TEXT = 'text files, a data set as tfds:NAME, or a folder of experiments.tokenize_text'
TO_TRAIN_ON = ('what to train on: text files, folders of them, tfds:NAME, a folder of '
               "experiments.tokenize_text, or 'tinyshakespeare'")
PROBE_DATA = Kind(optional(str), 'text of --probe=text and shuffled: a file, a folder of them or '
                                 "of tokenize_text, or 'tinyshakespeare'")
MODELS = Kind(listed(preset_name), 'models, comma-separated (see --help=models)')
# Interventions that can be made after training.
AFTERWARDS = [name for name in configs.INTERVENTIONS if name not in ('none', *configs.LEARNED)]
SINK_LENGTHS = Kind(lambda text: sorted(NAMED['lengths'].parse(text)),
                    'sequence lengths at which to measure sinks, comma-separated')
# What a setting is, by its name, unless a program says another thing of its own.
NAMED = fields.kinds(Recipe) | fields.kinds(Run) | {
    'config': Kind(preset_name, 'model (see --help=models)'),
    'dtype': Kind(choice(*configs.DTYPES), 'number format of the forward pass: bfloat16, or '
                  'float32, whose products are exact on TPUs and GPUs too'),
    'remat': Kind(choice(*configs.REMATS), 'what the backward pass computes again instead of '
                  'storing it: none, dots (all but products with weights) or full (all)'),
    'tied_head': Kind(switch, 'the LM head is the embedding (--notied_head: it is a matrix of its '
                              'own); if not given, as --config says'),
    'init_scheme': Kind(optional(choice(*configs.INIT_SCHEMES)),
                        'how parameters are drawn; if not given, as --config says'),
    'intervention': Kind(choice(*configs.INTERVENTIONS), "change of each position's weighted "
                         f'mean of values, one of {", ".join(configs.INTERVENTIONS)} (see '
                         'text_sinks --help); if not given, none, or what the parent has'),
    'intervention_position': Kind(optional(natural), "position, from 0, at which 'mask', "
                                                     "'variance' and 'norm' act"),
    'intervention_strength': Kind(optional(positive), "factor of 'variance' and 'norm'"),
    'data': Kind(str, TO_TRAIN_ON, A_TEXT),
    'valid': Kind(optional(str), 'what to evaluate on, in the same forms; if not given, the last '
                                 'twentieth of --data is held out'),
    'tokenizer': Kind(str, "'bytes', a tokenizer.json, a SentencePiece .model file, or a folder "
                           "with one or with GPT-2's encoder.json and vocab.bpe"),
    'num_sequences': Kind(lambda text: whole(text, 2, 2**31 - 1),
                          'random sequences to read, n'),
    'lengths': Kind(listed(num_tokens), 'sequence lengths T in tokens, comma-separated'),
    'width': Kind(whole, 'channels of the simplified layers MLP0 and Attn0'),
    'depth': Kind(lambda text: whole(text, 1, 64), 'number of simplified layers'),
    'probe': Kind(choice(*probes.KINDS), "what to read: 'tokens', random ids, 'gaussian', "
                  "random vectors, 'sphere', such vectors of one length, 'text', windows of "
                  "--data, or 'shuffled', its ids in no order"),
    'probe_seed': Kind(natural, 'seed of the random sequences'),
    'study': Kind(str, 'folder of experiments.training_study, whose checkpoints to compare',
                  'a folder of experiments.training_study'),
    'afterwards': some(AFTERWARDS, 'changes to make to networks trained without an intervention',
                       or_none=True),
    'methods': some(METHODS, 'fingerprints to compare, comma-separated'),
    'stream': Kind(choice(*STREAM), 'read Hugging Face model folders layer by layer, with one '
                   'layer in memory: auto, if they do not fit, always or never'),
}


def setting(default: Any, parse: Callable | None = None, help: str | None = None,
            hint: str | None = None, **of_scale) -> Any:
  """A field of settings: its value at the scale laptop, and at others if they differ.

  `parse` makes it a kind of its own; without it, what is said here takes the place of what a class
  that it inherits from, or NAMED, says. The name of a scale that is a word of Python ends with _.
  """
  values = {scale.rstrip('_'): list(value) if isinstance(value, range) else value
            for scale, value in ({'laptop': default} | of_scale).items()}
  own = {name: value for name, value in (('parse', parse), ('help', help), ('hint', hint)) if value}
  return dataclasses.field(default_factory=lambda: copy.deepcopy(values['laptop']),
                           metadata={'values': values, 'kind': own})


def arguments(usage: str) -> Any:
  """The field, a list, of the words of the command line that are no flags."""
  return dataclasses.field(default_factory=list, metadata={'usage': usage})


@dataclasses.dataclass(frozen=True)
class ProgramSettings:
  """The settings of a program. Its subclasses are frozen dataclasses without a decorator.

  `TECHNICAL` are those that few users change, which --help shows last. `FITTED` makes the scale's
  value of a setting that is not given fit to the values of others.
  """

  scale: str

  SCALES: ClassVar[tuple[str, ...]] = ('laptop',)
  TECHNICAL: ClassVar[tuple[str, ...]] = ()
  FITTED: ClassVar[dict[str, Callable[[Any, dict[str, Any]], Any]]] = {}

  def __init_subclass__(cls):
    dataclasses.dataclass(frozen=True)(cls)

  def own_folder(self) -> str:
    """Where in the program's default folder the results of these settings go."""
    return ''


S = TypeVar('S', bound=ProgramSettings)


def kinds(of: type[ProgramSettings]) -> dict[str, Kind]:
  """What can be given as a flag, in the order of --help: what must be given comes first."""
  parts: dict[str, dict] = {}
  for owner in reversed(of.__mro__):
    for name, field in getattr(owner, '__dataclass_fields__', {}).items():
      if 'values' in field.metadata:
        own = field.metadata['kind']
        parts[name] = own if 'parse' in own else (parts.get(name) or NAMED[name]._asdict()) | own
  found = {name: Kind(**part) for name, part in parts.items()}
  place = lambda name: 0 if found[name].hint else 2 if name in of.TECHNICAL else 1
  return {name: found[name] for name in sorted(found, key=place)}


def arguments_of(of: type[ProgramSettings]) -> tuple[str | None, str]:
  """The field of `arguments`, None if there is none, and how a usage line writes it."""
  return next(((name, field.metadata['usage']) for name, field in of.__dataclass_fields__.items()
               if 'usage' in field.metadata), (None, ''))


def values_of(of: type[ProgramSettings], name: str) -> dict[str, Any]:
  """The value of a setting at each scale."""
  values = of.__dataclass_fields__[name].metadata['values']
  return {scale: values.get(scale, values['laptop']) for scale in of.SCALES}


def defaults_of(settings: Any) -> dict[str, Any]:
  """What a program's settings are at their scale if nothing is given; nothing for other objects."""
  if not isinstance(settings, ProgramSettings):
    return {}
  return {name: values_of(type(settings), name)[settings.scale] for name in kinds(type(settings))}


def at_scale(of: type[S], scale: str, /, **values) -> S:
  """The settings of a scale, with some `values` instead of the scale's."""
  of_scale = {name: copy.deepcopy(values_of(of, name)[scale]) for name in kinds(of)}
  fitted = {name: fit(of_scale[name], of_scale | values) for name, fit in of.FITTED.items()
            if name in of_scale}
  return of(**of_scale | fitted | values | {'scale': scale})


def resolve(of: type[S], scale: str = 'laptop', words: Sequence[str] = (),
            **texts: str | bool | None) -> S:
  """The settings of a scale; those that are given as a flag's text are parsed.

  `words` are those of the command line that are no flags. An InputError names the flag.
  """
  known = kinds(of)
  name_flag('scale', choice(*of.SCALES), scale)
  given = {name: name_flag(name, known[name].parse, text)
           for name, text in texts.items() if text is not None}
  if name := arguments_of(of)[0]:
    given[name] = list(words)
  settings = at_scale(of, scale, **given)
  for name, kind in known.items():
    if kind.hint and getattr(settings, name) is None:
      raise InputError(f'--{name}: is missing: {kind.hint}')
  return settings


def name_flag(flag: str, call: Callable, *arguments):
  """`call(*arguments)`; an InputError from it names the flag."""
  try:
    return call(*arguments)
  except InputError as error:
    raise InputError(f'--{flag}: {error}') from None


def refuse(settings: ProgramSettings, names: Collection[str], why: str) -> None:
  """Raises InputError for a setting, of `names`, that would have no effect and is not the scale's.
  """
  for name, usual in defaults_of(settings).items():
    if name in names and getattr(settings, name) != usual:
      raise InputError(f'--{name}: {why}')


def default_texts(values: dict[str, Any], help: str = '') -> dict[str, str]:
  """How --help writes a setting's default at the scale laptop, and at others if they differ.

  A list that `help` has already is 'all', unless more follows there. What is empty has no text.
  """
  names_all = lambda value: isinstance(value, list) and len(value) > 1 and re.search(
      re.escape(', '.join(map(str, value))) + '(?!, )', help)
  texts = {scale: 'all' if names_all(value) else as_text(value)
           for scale, value in values.items() if value not in (None, '', [])}
  return {scale: text for scale, text in texts.items()
          if scale == 'laptop' or text != texts.get('laptop')}


def pick(of: type, settings: Any) -> dict[str, Any]:
  """Those settings that are fields of another dataclass, such as Recipe."""
  names = [field.name for field in dataclasses.fields(of)]
  return {name: getattr(settings, name) for name in names if hasattr(settings, name)}
