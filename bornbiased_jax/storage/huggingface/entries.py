"""Entries of a stranger's JSON file, read one by one: each is what it must be, or is refused."""

from collections.abc import Callable
from typing import Any

from bornbiased_jax.errors import InputError, show

# What an entry must be, in words and as a test. The tests compare types, because in Python a bool
# is an int.
_is_count = lambda value: type(value) is int and 0 < value < 2**31
COUNT = ('a whole number from 1 to 2147483647', _is_count)
SEVERAL = ('a whole number from 2 to 2147483647', lambda value: _is_count(value) and value > 1)
COUNT_OR_NULL = (COUNT[0] + ' or null', lambda value: value is None or _is_count(value))
NUMBER = ('a positive number below 1e30',
           lambda value: type(value) in (int, float) and 0 < value < 1e30)
NUMBER_OR_NULL = (NUMBER[0] + ' or null', lambda value: value is None or NUMBER[1](value))
FLAG = ('true or false', lambda value: type(value) is bool)


def entry(stored: dict, name: str, words: str, is_right: Callable[[Any], bool]) -> Any:
  """The entry `name`, which must be there and be of a kind, such as *COUNT; else InputError."""
  if name not in stored:
    raise InputError(f'{name} is missing; it must be {words}')
  if not is_right(stored[name]):
    raise InputError(f'{name}={show(stored[name])} must be {words}')
  return stored[name]


def only(stored: dict, name: str, wanted: Any) -> None:
  """Raises InputError unless the entry `name` is the only one that we can compute."""
  if stored[name] != wanted:
    raise InputError(f'{name}={show(stored[name])} is not supported; {show(wanted)} is')


def of_type(stored: dict, name: str, kind: type) -> Any:
  """The dict or list under `name`, empty if it is missing or null; InputError if it is neither."""
  value = stored.get(name)
  if not isinstance(value, kind | None):
    raise InputError(f'{name}={show(value)} must be a JSON {"object" if kind is dict else "array"}')
  return value or kind()
