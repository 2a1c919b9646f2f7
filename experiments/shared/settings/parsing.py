"""From the text of a flag to its value, which results.json can hold; a mistake is an InputError."""

from collections.abc import Callable
import math
import re

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError

MAX_SEED = 2**32 - 1


def switch(given: bool) -> bool:
  """A flag without text: --name or --noname."""
  return given


def whole(text: str, lowest: int = 1, highest: int = MAX_SEED) -> int:
  if not text.isdecimal() or len(text) > 99 or not lowest <= int(text) <= highest:
    raise InputError(f'{text[:40]!r} is not a whole number from {lowest} to {highest}')
  return int(text)


def natural(text: str) -> int:
  """A whole number that may be 0, such as a seed or a position."""
  return whole(text, 0)


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
  """The parser of comma-separated values, each given once; a part may be several of them.

  FIELD=VALUE belongs to the value before it, as in tiny_gpt2,num_layers=6,tiny_llama2.
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
    raise InputError(f'{text!r} is neither a seed, as 42, nor a range, as 0-99')
  first, last = (whole(part, 0) for part in (match[1], match[2] or match[1]))
  if last < first:
    raise InputError(f'{text!r} runs downwards; give {last}-{first}')
  if last >= first + 10**6:
    raise InputError(f'{text!r} is more than a million seeds')
  return list(range(first, last + 1))


def preset_name(text: str) -> str:
  """The name of an architecture, which says what a file says (`configs.canonical`)."""
  return configs.canonical(text)


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
      raise InputError(f"{error}, nor 'none'") from None

  return parsed
