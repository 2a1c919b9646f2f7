"""Fields of dataclasses that are flags too: help, the parser of a text and the check of a value.

What a `Kind` says once is what --help shows, what the text of a flag is parsed by, and what refuses
a value that somebody gives in Python (`check`): a value must be what its own text says.
"""

from collections.abc import Callable
import dataclasses
import math
import re
from typing import Any, NamedTuple

from bornbiased_jax.errors import InputError

MAX_SEED = 2**32 - 1


class Kind(NamedTuple):
  """What a field may be: how its text is parsed, its help, and a hint if it must be given."""

  parse: Callable[[str], Any]
  help: str
  hint: str | None = None

  @property
  def is_switch(self) -> bool:
    return self.parse is switch


def field(parse: Callable, help: str, **default) -> Any:
  """A field of a dataclass that is a flag of the same name too; `default` as of `dataclasses`."""
  return dataclasses.field(metadata={'kind': Kind(parse, help)}, **default)


def kinds(of: type) -> dict[str, Kind]:
  """The kind of each field that `field` has made."""
  return {each.name: each.metadata['kind'] for each in dataclasses.fields(of)
          if 'kind' in each.metadata}


def check(instance: Any) -> None:
  """Raises InputError, which names the field, for a value that its flag could not have."""
  for name, kind in kinds(type(instance)).items():
    value = getattr(instance, name)
    try:
      meant = kind.parse(as_text(value))
    except InputError as error:
      raise InputError(f'{name}={value!r}: {error}', name) from None
    if isinstance(value, str) and isinstance(meant, int | float):
      raise InputError(f'{name}={value!r} is text; give {name}={meant}', name)


def as_text(value: Any) -> str:
  """A value as one would write it in a flag.

  >>> [as_text(value) for value in ([0, 1, 2, 3], (42, 43), 3e-4, False, None)]
  ['0-3', '42,43', '0.0003', 'false', 'none']
  """
  if isinstance(value, bool):
    return str(value).lower()
  if value is None or isinstance(value, list | tuple) and not value:
    return 'none'
  if isinstance(value, float):
    return f'{value:g}'
  if not isinstance(value, list | tuple):
    return str(value)
  numbers = len(value) > 2 and isinstance(value[0], int)
  is_range = numbers and list(value) == list(range(value[0], value[-1] + 1))
  return f'{value[0]}-{value[-1]}' if is_range else ','.join(map(str, value))


# Parsers. A mistake is an InputError.


def switch(given: bool) -> bool:
  """A flag without text: --name or --noname."""
  return given


def whole(text: str, lowest: int = 1, highest: int = MAX_SEED) -> int:
  """A whole number from `lowest` to `highest`."""
  if not text.isdecimal() or len(text) > 99 or not lowest <= int(text) <= highest:
    raise InputError(f'{text[:40]!r} is not a whole number from {lowest} to {highest}')
  return int(text)


def natural(text: str) -> int:
  """A whole number that may be 0, such as a seed or a position."""
  return whole(text, 0)


def num_tokens(text: str) -> int:
  """The length of a sequence."""
  return whole(text, 1, 2**20)


def number(text: str) -> float:
  """A finite number of at least 0."""
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 <= value < math.inf:
    raise InputError(f'{text!r} is not a number of at least 0')
  return value


def positive(text: str) -> float:
  """A number above 0."""
  if not (value := number(text)):
    raise InputError(f'{text!r} is not a number above 0')
  return value


def listed(parse: Callable[[str], list | str | int]):
  """The parser of comma-separated values, each given once; a part may be several of them.

  FIELD=VALUE belongs to the value before it, such as tiny_gpt2,num_layers=6,tiny_llama2.
  """

  def parse_list(text):
    values = []
    for part in re.split(r',(?![^,=]*=)', text):
      value = parse(part.strip())
      values.extend(value if isinstance(value, list) else [value])
    return _distinct(values, text)

  return parse_list


def _distinct(values, text):
  if len(set(values)) < len(values):
    raise InputError(f'{text!r} names one twice')
  return values


def seed_range(text: str) -> list[int]:
  """'42' → [42]; '0-3' → [0, 1, 2, 3]."""
  match = re.fullmatch(r'(\d+)(?:-(\d+))?', text)
  if not match:
    raise InputError(f'{text!r} is no seed, such as 42, and no range, such as 0-99')
  first, last = (whole(part, 0) for part in (match[1], match[2] or match[1]))
  if last < first:
    raise InputError(f'{text!r} runs downwards; give {last}-{first}')
  if last >= first + 10**6:
    raise InputError(f'{text!r} is more than a million seeds')
  return list(range(first, last + 1))


def choice(*choices: str):
  """The parser of one of a few words."""
  def parse(text):
    if text not in choices:
      raise InputError(f'{text!r} is not one of {", ".join(choices)}')
    return text
  return parse


def some_of(*choices: str):
  """The parser of comma-separated words, each of a few and given once, or of 'all', all of them.

  A word may have commas in it, as 'unit order, fitted basis'. The longest one counts.
  """
  in_parts = lambda text: tuple(part.strip() for part in text.split(','))
  one, known = choice(*choices, 'all'), {in_parts(word): word for word in choices}

  def parse_words(text):
    parts, values = in_parts(text), []
    while parts:
      count = next((count for count in range(len(parts), 0, -1) if parts[:count] in known), 1)
      word = one(known.get(parts[:count], parts[0]))
      values += choices if word == 'all' else [word]
      parts = parts[count:]
    return _distinct(values, text)

  return parse_words


def optional(parse):
  """The parser that also takes 'none': no value, which leaves the choice to the program."""
  def parsed(text):
    try:
      return None if text == 'none' else parse(text)
    except InputError as error:
      by_itself = ', but only by itself' if 'none' in text.split(',') else ''
      raise InputError(f"{error}; 'none' is possible too{by_itself}") from None

  return parsed


# Of networks, whatever is made of them.
SEEDS = Kind(listed(seed_range), 'seeds such as 0-99 or 42,43, each of them a network')
