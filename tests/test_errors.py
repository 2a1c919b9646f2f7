"""Wrong input is told in one line."""

import ast
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[1] / 'bornbiased_jax'


def messages(path):
  """The string literals in every `raise InputError(…)` of a file."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
      if getattr(node.exc.func, 'id', None) == 'InputError':
        yield from (part.value for part in ast.walk(node.exc)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str))


@pytest.mark.parametrize('path', sorted(LIBRARY.rglob('[!_]*.py')),
                         ids=lambda path: str(path.relative_to(LIBRARY)))
def test_messages_are_written_in_one_line(path):
  assert not [message for message in messages(path) if '\n' in message]
