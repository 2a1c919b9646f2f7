"""Instructions are docstrings, and answers what Python makes of the functions without them."""

import ast
import json
import lzma
import subprocess
import sys

import pytest

from bornbiased_jax.data import corpus, text
from experiments import instructions

MODULE = '''
"""A module's docstring is no instruction."""
import math

class Circle:
  """Nor is a class's."""

  def area(self):
    """The area,
    in square metres.

    More about it.
    """
    def square(x):
      'Squares a number.'
      return x * x
    return math.pi * square(self.radius)

  async def draw(self):
    "Draws it."
    await self.canvas.ready()

  def nothing(self):
    """Says what it would do."""

  def silent(self):
    return 1
'''


def test_a_pair_for_each_function_with_a_docstring():
  found = [pair.removeprefix('Instruction: ').split('\n\nAnswer:\n')
           for pair in instructions.pairs(MODULE)]
  assert [instruction for instruction, _ in found] == [
      'The area, in square metres.', 'Draws it.', 'Squares a number.']
  for (instruction, answer), name in zip(found, ('area', 'draw', 'square'), strict=True):
    function, = ast.parse(answer).body
    assert function.name == name and ast.get_docstring(function) is None
    assert instruction not in answer and answer.endswith('\n\n')


def test_an_answer_computes_what_the_function_did():
  names = {}
  exec(next(instructions.pairs('def f(x, *, y=2):\n  """Adds."""\n  return x + y')).partition(
      'Answer:\n')[2], names)
  assert names['f'](1) == 3 and names['f'].__doc__ is None


@pytest.mark.parametrize('module', [
    'print "Python 2"', 'def f(:', 'x = 1\0', '(' * 10**5, '', 'def f():\n  "Only this."',
    'def f():\n  "Deep."\n  return ' + ' + '.join(['x'] * 2000),
])
def test_what_is_no_answer_is_passed_over(module):
  assert list(instructions.pairs(module)) == []


@pytest.mark.parametrize('returned', [
    # Python 3.11 can write neither of the first two as source, and writes the third wrongly.
    """f"{'\u3000'.join(cols)}\"""", '0x' + 'f' * 20_000,
    r'''f"""{cols['a']} \'\'\' {cols["b"]}\"\"\" """''',
])
def test_what_python_cannot_write_does_not_cost_the_rest(returned):
  odd = f'def odd(cols):\n  "Odd."\n  return {returned}\n'
  assert ast.parse(odd)
  answers = [pair.partition('Answer:\n')[2]
             for pair in instructions.pairs(odd + 'def f():\n  "Is one."\n  return 1')]
  assert answers[-1] == 'def f():\n    return 1\n\n'
  assert all(map(ast.parse, answers))


def test_half_a_character_does_not_spoil_the_text():
  pair = next(instructions.pairs(r"""def f():
    '\ud800 half of a pair'
    return '\ud800'"""))
  assert pair.startswith('Instruction: ? half of a pair') and pair.encode()


def command(*arguments):
  return subprocess.run([sys.executable, '-m', 'experiments.instructions', *arguments],
                        capture_output=True, text=True)


def test_the_command_writes_what_pretrain_reads(tmp_path):
  modules = [MODULE, 'no Python at all', '# Of several fragments.\n' + '#\n' * 40_000 + MODULE]
  with lzma.open(tmp_path / 'python.jsonl.xz', 'wt') as file:
    file.writelines(json.dumps({'text': module}) + '\n' for module in modules)
  out = tmp_path / 'instructions.jsonl'
  done = command(f'--input={tmp_path}/python.jsonl.xz', f'--output={out}')
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout == f'{out}: 6 instructions and answers\n'
  written = [fragment.text for fragment in text.fragments(text.sources([out]))]
  assert written == 2 * list(instructions.pairs(MODULE))
  ids = corpus.load(out).tokens[:len(written[0])]
  assert bytes(ids.tolist()).decode() == written[0]


def test_a_mistaken_command_is_one_line_and_what_is_there_is_kept(tmp_path):
  out = tmp_path / 'out.jsonl'
  for output, message in ((out, '--input: tinyshakespeare has no Python function'),
                          (tmp_path / 'out.txt', 'does not end with .jsonl')):
    done = command('--input=tinyshakespeare', f'--output={output}')
    assert done.returncode == 2 and message in done.stderr and done.stderr.count('\n') == 1
    assert not list(tmp_path.iterdir())
  out.write_text('precious')
  assert 'is there already' in command('--input=tinyshakespeare', f'--output={out}').stderr
  assert out.read_text() == 'precious'
