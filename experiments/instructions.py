"""Turns Python source into instructions and answers, for networks to go on with.

    python -m experiments.instructions --input=python_train.jsonl.xz --output=instructions.jsonl

An instruction is the first paragraph of a function's docstring, and the answer is the function
without its docstring and comments. What Python cannot read or write as source is passed over.
--input is text as pretrain takes it for --data, with a module as each document. Writes JSON lines
with a pair under "text", whole or not at all.
"""

import ast
from collections.abc import Iterable, Iterator
import copy
import dataclasses
import itertools
import json
from pathlib import Path
import warnings

from bornbiased_jax.data import text
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import replacing

from .shared import command_line
from .shared.settings import ProgramSettings, name_flag, setting


@dataclasses.dataclass(frozen=True)
class Settings(ProgramSettings):
  input: str | None = setting(None, str, hint='Python source', help=(
      'Python source: a text file, a folder of them, or tfds:NAME[:split]'))
  output: str | None = setting(None, str, 'file .jsonl to write', hint='a file')


def main(settings):
  source, output = settings.input, settings.output
  if not output.endswith('.jsonl') or Path(output).exists():
    raise InputError(f'--output: {output} is there already, or does not end with .jsonl')
  modules = documents(text.fragments(name_flag('input', text.sources, [source])))
  count = 0
  try:
    with replacing(output) as file:
      for pair in itertools.chain.from_iterable(map(pairs, modules)):
        file.write(json.dumps({'text': pair}).encode() + b'\n')
        count += 1
      if not count:
        raise InputError(f'--input: {source} has no Python function with a docstring')
  except OSError as error:
    raise InputError(f'--output: cannot write {output}: {error.strerror}') from None
  print(f'{output}: {count:,} instructions and answers')


def documents(fragments: Iterable[text.Fragment]) -> Iterator[str]:
  """Each document as a whole."""
  parts = []
  for fragment in fragments:
    parts.append(fragment.text)
    if fragment.ends:
      yield ''.join(parts)
      parts = []


def pairs(module: str) -> Iterator[str]:
  """The instruction and answer that each function of a module makes, outer functions first.

  >>> print(next(pairs('def twice(x):\\n  "Doubles a number."\\n  return 2 * x')))
  Instruction: Doubles a number.
  <BLANKLINE>
  Answer:
  def twice(x):
      return 2 * x
  <BLANKLINE>
  <BLANKLINE>
  """
  for node in ast.walk(parse(module)):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.body[1:]:
      # JSON can hold half a surrogate pair, which an escape in a docstring makes, and text cannot.
      docstring = (ast.get_docstring(node) or '').encode(errors='replace').decode()
      instruction = ' '.join(docstring.split('\n\n')[0].split())
      if instruction and (answer := without_docstring(node)):
        yield f'Instruction: {instruction}\n\nAnswer:\n{answer}\n\n'


def parse(module: str) -> ast.Module:
  """The syntax tree of a module; an empty one of what is no Python."""
  try:
    with warnings.catch_warnings(action='ignore', category=SyntaxWarning):
      return ast.parse(module)
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return ast.Module([], [])


def without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
  """The source of a function that has a docstring; empty if `ast` cannot write it, or wrongly."""
  bare = copy.copy(function)
  bare.body = function.body[1:]
  try:
    answer = ast.unparse(bare)
  except (ValueError, RecursionError):
    return ''
  return answer if parse(answer).body else ''


if __name__ == '__main__':
  command_line.start(main, Settings, __doc__)
