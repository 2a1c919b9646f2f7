"""Settings: a frozen dataclass per program, from which come its flags, --help and results.json.

    @dataclasses.dataclass(frozen=True)
    class Settings(Transformers):
      seeds: Seeds = setting(range(100), smoke=range(4))
      steps: int = setting(1000, whole, 'optimizer steps', smoke=3)

A field is a flag of the same name. Its text is parsed and takes the place of the scale's value.
"""

from collections.abc import Callable, Sequence
import copy
import dataclasses
import inspect
import re
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.names import PROBES

from .parsing import choice, listed, natural, optional, preset_name, seed_range, switch, whole


class Kind(NamedTuple):
  """What a setting may be: how its text is parsed, its help, and a hint if it must be given."""

  parse: Callable[[str], Any]
  help: str
  hint: str | None = None

  @property
  def is_switch(self) -> bool:
    return self.parse is switch


def setting(default: Any, parse: Callable | None = None, help: str | None = None,
            hint: str | None = None, **of_scale) -> Any:
  """A field of settings: its value at the scale laptop, and at others if they differ.

  `parse`, `help` and `hint` take the place of those that the field's type is annotated with. The
  name of a scale that is a word of Python ends with _.
  """
  values = {scale.rstrip('_'): list(value) if isinstance(value, range) else value
            for scale, value in ({'laptop': default} | of_scale).items()}
  own = {name: value for name, value in (('parse', parse), ('help', help), ('hint', hint)) if value}
  return dataclasses.field(default_factory=lambda: copy.deepcopy(values['laptop']),
                           metadata={'values': values, 'kind': own})


# Settings that several programs have.
Model = Annotated[str, Kind(preset_name, 'model, one of those below')]
Seeds = Annotated[list[int], Kind(listed(seed_range),
                                  'seeds, each of them a network, as 0-99 or 42,43')]
NumSequences = Annotated[int, Kind(lambda text: whole(text, 2, 2**31 - 1),
                                   'random sequences that each network reads, n')]
Length = Annotated[int, Kind(lambda text: whole(text, 1, 2**20), 'tokens per sequence')]
Lengths = Annotated[list[int], Kind(listed(lambda text: whole(text, 1, 2**20)),
                                    'sequence lengths T in tokens, comma-separated')]
Width = Annotated[int, Kind(whole, 'channels of the simplified layers MLP0 and Attn0')]
Depth = Annotated[int, Kind(lambda text: whole(text, 1, 64), 'number of simplified layers')]
ProbeKind = Annotated[str, Kind(
    choice(*PROBES), "what a network reads: 'tokens', random ids, 'gaussian', random "
    "vectors, 'sphere', such vectors of one length, 'text', windows of --data, or 'shuffled', its "
    'ids in no order')]
ProbeData = Annotated[str | None, Kind(
    optional(str), 'text of --probe=text and shuffled: a file, a folder of them or of '
    "tokenize_text, or 'tinyshakespeare'")]
Tokenizer = Annotated[str, Kind(
    str, "'bytes', a tokenizer.json, a SentencePiece .model file, or a folder with one or with "
    "GPT-2's encoder.json and vocab.bpe")]
ProbeSeed = Annotated[int, Kind(natural, 'seed of the random sequences')]
Dtype = Annotated[str, Kind(
    choice(*configs.DTYPES), 'number format of the forward pass: bfloat16, or float32, whose '
    'products are exact on TPUs and GPUs too')]


@dataclasses.dataclass(frozen=True)
class ProgramSettings:
  """The settings of a program.

  `TECHNICAL` are those that few users change, which --help shows last. `WORDS` is the field, a
  list, that takes the words of the command line that are no flags.
  """

  scale: str

  SCALES: ClassVar[tuple[str, ...]] = ('laptop',)
  TECHNICAL: ClassVar[tuple[str, ...]] = ()
  WORDS: ClassVar[str | None] = None


@dataclasses.dataclass(frozen=True)
class ExperimentSettings(ProgramSettings):
  """The settings of a program that has several scales."""

  SCALES: ClassVar = ('smoke', 'laptop', 'paper')


@dataclasses.dataclass(frozen=True)
class Stacks(ExperimentSettings):
  """Ensembles of simplified layers."""

  seeds: Seeds = setting(range(10), smoke=range(3), paper=range(20))
  num_sequences: NumSequences = setting(1000, smoke=60, paper=10_000)
  probe_seed: ProbeSeed = setting(0)
  batch_size: int | None = setting(None, optional(whole), 'sequences per forward pass; if not '
                                   'given, what suits the device')
  chunk_size: int | None = setting(None, optional(whole), 'networks at once; if not given, as many '
                                   'as memory holds')

  TECHNICAL: ClassVar = ('probe_seed', 'batch_size', 'chunk_size')


@dataclasses.dataclass(frozen=True)
class Transformers(Stacks):
  """Ensembles of transformers."""

  config: list[str] = setting(['tiny_gpt2'], listed(preset_name),
                              'models, comma-separated, of those below')
  probe: ProbeKind = setting('tokens')
  data: ProbeData = setting(None)
  tokenizer: Tokenizer = setting('bytes')
  embedding_seed: int | None = setting(
      None, optional(natural), 'seed from which all networks take their embedding and head, so '
      "that token ids mean the same in all; with 'none' each has its own")
  dtype: Dtype = setting('float32')

  TECHNICAL: ClassVar = ('probe', 'data', 'tokenizer', 'embedding_seed', 'dtype', *Stacks.TECHNICAL)


S = TypeVar('S', bound=ProgramSettings)


def kinds(of: type[ProgramSettings]) -> dict[str, Kind]:
  """What can be given as a flag, in the order of --help: what must be given comes first.

  What a field's class does not say of it is that of the class from which it inherits.
  """
  parts: dict[str, dict] = {}
  for owner in reversed(of.__mro__):
    for name, annotation in inspect.get_annotations(owner).items():
      annotated = [each._asdict() for each in getattr(annotation, '__metadata__', ())]
      field = owner.__dataclass_fields__[name]
      if 'kind' in field.metadata:
        for each in (*annotated, field.metadata['kind']):
          parts.setdefault(name, {}).update(each)
  found = {name: Kind(**part) for name, part in parts.items()}
  place = lambda name: 0 if found[name].hint else 2 if name in of.TECHNICAL else 1
  return {name: found[name] for name in sorted(found, key=place)}


def values_of(of: type[ProgramSettings], name: str) -> dict[str, Any]:
  """The value of a setting at each scale."""
  of_scale, = (field.metadata['values'] for field in dataclasses.fields(of) if field.name == name)
  return {scale: of_scale.get(scale, of_scale['laptop']) for scale in of.SCALES}


def defaults_of(settings: Any) -> dict[str, Any]:
  """What a program's settings are at their scale if nothing is given; nothing for other objects."""
  if not isinstance(settings, ProgramSettings):
    return {}
  return {name: values_of(type(settings), name)[settings.scale] for name in kinds(type(settings))}


def at_scale(of: type[S], scale: str, /, **values) -> S:
  """The settings of a scale, with some `values` in place of the scale's."""
  of_scale = {name: copy.deepcopy(values_of(of, name)[scale]) for name in kinds(of)}
  return of(**of_scale | values | {'scale': scale})


def resolve(of: type[S], scale: str = 'laptop', words: Sequence[str] = (),
            **texts: str | bool | None) -> S:
  """The settings of a scale; those that are given as a flag's text are parsed.

  `words` are those of the command line that are no flags. An InputError names the flag.
  """
  known = kinds(of)
  name_flag('scale', choice(*of.SCALES), scale)
  given = {name: name_flag(name, known[name].parse, text)
           for name, text in texts.items() if text is not None}
  if of.WORDS:
    given[of.WORDS] = list(words)
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


def default_text(values: dict[str, Any], help: str = '') -> str:
  """A setting's default in brackets, and other scales' if they differ; '' if none has one.

  A list that `help` has already is 'all', unless more follows there.
  """
  names_all = lambda value: isinstance(value, list) and len(value) > 1 and re.search(
      re.escape(', '.join(map(str, value))) + '(?!, )', help)
  texts = {scale: 'all' if names_all(value) else as_text(value)
           for scale, value in values.items() if value not in (None, '', [])}
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


def pick(of: type, settings: Any) -> dict[str, Any]:
  """Those settings that are fields of another dataclass, such as Recipe."""
  names = [field.name for field in dataclasses.fields(of)]
  return {name: getattr(settings, name) for name in names if hasattr(settings, name)}
