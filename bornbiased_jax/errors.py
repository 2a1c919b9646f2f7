"""The one exception for input that a user can mend."""


class InputError(ValueError):
  """What was given is wrong: one line that names it and says what would be right.

  Programs print it and exit with code 2; any other exception is a bug.
  """
