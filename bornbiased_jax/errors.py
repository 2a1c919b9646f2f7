"""The one exception for input that a user can correct."""


class InputError(ValueError):
  """The input is wrong. The message is one line that names it and says what would be right.

  Programs print the message and exit with code 2. Any other exception is a bug.
  """
