"""The one exception for input that a user can correct, and the checks that many modules make."""

from collections.abc import Mapping
import reprlib
from typing import Any
import unicodedata

import numpy as np

# What stops a program; all else, with panics of libraries in Rust, may come from a file.
STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 200


class InputError(ValueError):
  """The input is wrong. The message is one line that names it and says what would be right.

  Programs print the message and exit with code 2. Any other exception is a bug.

  Attributes:
    field: the argument or field that is wrong, if it is one; programs have a flag of its name.
  """

  def __init__(self, message: str, field: str | None = None):
    super().__init__(plain(message))
    self.field = field


def is_plain(text: str) -> bool:
  """Whether a text has one line and no invisible characters, which could reorder what is near."""
  return all(unicodedata.category(letter) not in ('Cc', 'Cf', 'Zl', 'Zp') for letter in text)


def plain(text: str) -> str:
  """A text in which all characters that are not plain are escaped."""
  return text if is_plain(text) else ''.join(
      letter if is_plain(letter) else ascii(letter)[1:-1] for letter in text)


def show(value: Any) -> str:
  """A value from somebody's file, shortened and escaped so that it fits on one line."""
  return _REPR.repr(str(value) if isinstance(value, Exception) else value)


def unlike(given: Any, wanted: str) -> InputError:
  """The error for an object of the wrong kind; it says what makes the right kind from it."""
  made_by = 'give one'
  if hasattr(given, 'state_dict'):
    made_by = 'of a PyTorch module storage.huggingface.from_transformers makes (config, params)'
  elif isinstance(given, Mapping):
    made_by = 'of a state dict storage.huggingface.from_state_dict makes (config, params)'
  elif hasattr(given, 'to_json_string'):
    made_by = ('of a model that has it storage.huggingface.from_transformers(model) makes (config, '
               'params), and of its config.json storage.huggingface.load_config a configuration')
  elif hasattr(given, 'init_scheme'):
    made_by = 'of a configuration analysis.transformer makes the family of its random networks'
  elif isinstance(given, tuple) and given and hasattr(given[0], 'init_scheme'):
    made_by = 'of (config, params) give the one that is wanted'
  elif 'onfig' in wanted and (isinstance(given, str) or hasattr(given, 'load')):
    made_by = ('of a name storage.open(name).load() makes (config, params), and of a preset '
               'configs.get(name) a configuration')
  kind = 'function' if hasattr(given, '__wrapped__') else type(given).__name__  # Cached or jitted.
  return InputError(f'{kind} is not {wanted}; {made_by}')


def check_kind(given: Any, kind: type, wanted: str) -> None:
  """Raises the error that `unlike` makes, unless an object is of a kind."""
  if not isinstance(given, kind):
    raise unlike(given, wanted)


def check_count(name: str, value: int) -> None:
  """Raises InputError unless `value` is a whole number of at least 1."""
  if not isinstance(value, int) or isinstance(value, bool) or value < 1:
    raise InputError(f'{name}={value!r} must be a whole number of at least 1', name)


def check_positive(name: str, value: float) -> None:
  """Raises InputError unless `value` is a positive number that float32 can hold."""
  # The exact type, because True is an int too. NaN fails the comparison.
  if type(value) not in (int, float) or not 1.2e-38 < value < 3.4e38:
    raise InputError(f'{name}={reprlib.repr(value)} must be a positive number, from 1.2e-38 to '
                     '3.4e38', name)


def check_id(name: str, value: int | None, vocab_size: int) -> None:
  """Raises InputError unless `value` is a token id, or None for none."""
  if value is not None and not 0 <= value < vocab_size:
    raise InputError(f'{name}={value} is not one of the {vocab_size} token ids', name)


def check_ids(tokens: np.ndarray, vocab_size: int) -> None:
  """Raises InputError unless these are token ids [batch, length], with a length of at least 1."""
  if tokens.ndim != 2 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
    raise InputError(f'tokens of {tokens.dtype}{list(tokens.shape)} are not token ids '
                     '[batch, length] with a length of at least 1')
  for id_ in tokens[(tokens < 0) | (tokens >= vocab_size)][:1]:
    raise InputError(f'id {id_} is not of this model, whose ids are 0 to {vocab_size - 1}')
