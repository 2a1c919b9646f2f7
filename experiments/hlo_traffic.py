"""What a compiled TPU program moves: bytes through memory and between chips, read from its text.

XLA's own cost analysis counts the body of a loop once. Here it counts as often
as it runs, which for layers under a scan is most of the program.
"""

from collections import Counter
from collections.abc import Iterator
import math
import re
from typing import NamedTuple

COLLECTIVES = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute')

_ITEM_BYTES = {'pred': 1, 's8': 1, 'u8': 1, 'bf16': 2, 'f16': 2, 's16': 2, 'u16': 2, 'f32': 4, 's32': 4, 'u32': 4,
               's64': 8, 'u64': 8, 'f64': 8, 'token': 0}
_ARRAY = re.compile(r'\b([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?')
_COMPUTATION = re.compile(r'(ENTRY )?(%\S+) \(.*\{$')
_INSTRUCTION = re.compile(r'\s+(ROOT )?(%\S+) = (.*?) ([a-z][a-z0-9-]*)\(([^)]*)\)(.*)')
# What moves nothing: names for memory, and loops beside their bodies.
_FREE = ('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'while', 'call')
_FREE_CALLS = ('ConcatBitcast', 'AllocateBuffer', 'AssumeGatherIndicesInBound')


class Traffic(NamedTuple):
  """Bytes a device in one run: through HBM, and in collectives by their kind."""

  hbm: int
  collectives: dict[str, int]


def traffic(text: str) -> Traffic:
  """Traffic of a compiled program, from `compiled.as_text()`.

  HBM: each instruction reads its operands and writes its result, where they
  live in HBM; of an array that it only slices or updates in place, the slice.
  A collective counts its result, or what it reduces, once: of that a ring of n
  chips sends (n - 1)/n from each, and twice as much for an all-reduce.

  Raises:
    ValueError: an array of an unknown type, or a loop that does not count from 0 by 1 to a constant, as lax.scan does.
  """
  computations, entry = _parse(text)
  hbm, collectives, channels = 0, Counter(), set()
  for name, times, is_fused in _runs(computations, entry):
    for instruction in computations[name].values():
      if not is_fused:
        hbm += times * _hbm_bytes(instruction, computations[name], computations)
      kind, channel = instruction.opcode.removesuffix('-start'), instruction.match(r'channel_id=(\d+)')
      # A collective beside computation is spread over several fusions, which share its channel.
      if kind in COLLECTIVES and (channel is None or channel not in channels):
        channels.add(channel)
        kind = 'reduce-scatter' if name.startswith('%all-reduce-scatter') else kind
        collectives[kind] += times * _moved(kind, instruction, computations[name])
  return Traffic(hbm, dict(collectives))


def _moved(kind, instruction, computation):
  if instruction.opcode.endswith('-start'):  # Its type is (operand, result, …).
    return max(size for size, _ in _arrays(instruction.type))
  reduced = [computation[name].type for name in instruction.operands]
  return sum(map(_size, reduced if kind == 'reduce-scatter' else [instruction.type]))


class _Instruction(NamedTuple):
  type: str
  opcode: str
  arguments: str
  attributes: str
  is_root: bool

  @property
  def operands(self):
    return re.findall(r'%[\w.-]+', self.arguments)

  def match(self, pattern):
    match = re.search(pattern, self.attributes)
    return match and match[1]

  def called(self, attribute):
    return self.match(rf'\b{attribute}=(%[\w.-]+)')


def _parse(text):
  """{computation: {name: instruction}}, and the name of the first computation that runs."""
  computations, entry = {}, None
  for line in text.splitlines():
    if match := _COMPUTATION.match(line):
      instructions = computations[match[2]] = {}
      entry = match[2] if match[1] else entry
    elif match := _INSTRUCTION.match(line):
      instructions[match[2]] = _Instruction(*match.groups()[2:], is_root=bool(match[1]))
  return computations, entry


def _runs(computations, name, times=1, is_fused=False) -> Iterator[tuple[str, int, bool]]:
  """Each computation, how often it runs from one place, and whether as one instruction of its caller."""
  yield name, times, is_fused
  for instruction in computations[name].values():
    if instruction.opcode == 'while':
      trips = _trips(computations[instruction.called('condition')])
      yield from _runs(computations, instruction.called('body'), times * trips)
    elif called := instruction.called('calls') or instruction.called('to_apply'):
      yield from _runs(computations, called, times, is_fused or instruction.opcode != 'call')


def _trips(condition):
  constants = [instruction for instruction in condition.values() if instruction.opcode == 'constant']
  _, root = _root(condition)
  if len(constants) != 1 or root.opcode != 'compare' or 'direction=LT' not in root.attributes:
    raise ValueError('a loop whose number of rounds its condition does not say')
  return int(constants[0].arguments)


def _arrays(type_text):
  """(bytes, whether in HBM) of each array of a type."""
  for name, shape, layout in _ARRAY.findall(type_text):
    if name not in _ITEM_BYTES:
      raise ValueError(f'an array of {name}, whose size is not known here')
    yield math.prod(int(size) for size in shape.split(',') if size) * _ITEM_BYTES[name], 'S(' not in layout


def _size(type_text, only_hbm=False):
  return sum(size for size, in_hbm in _arrays(type_text) if in_hbm or not only_hbm)


def _hbm_bytes(instruction, computation, computations):
  in_hbm = lambda name: _size(computation[name].type, only_hbm=True)
  opcode, (first, *rest) = instruction.opcode, [*_arrays(instruction.type)] or [(0, False)]
  if opcode in _FREE or opcode.endswith('-done') or instruction.match('custom_call_target="(.*?)"') in _FREE_CALLS:
    return 0
  if opcode.endswith('-start'):  # Its type is (source, target, …), and what it moves is the target.
    return rest[0][0] * (first[1] + rest[0][1])
  if opcode == 'dynamic-update-slice':
    return 2 * in_hbm(instruction.operands[1])
  if opcode in ('dynamic-slice', 'gather', 'slice'):
    return 2 * _size(instruction.type, only_hbm=True)
  if opcode == 'fusion':
    return _fusion_bytes(instruction, [in_hbm(name) for name in instruction.operands], computations)
  return _size(instruction.type, only_hbm=True) + sum(map(in_hbm, instruction.operands))


def _fusion_bytes(instruction, operand_sizes, computations):
  """What a fusion reads and writes; results that alias an operand only pass through."""
  aliasing = instruction.match('output_to_operand_aliasing={(.*?)}, calls') or ''
  aliases = re.findall(r'\{(\d*)\}: \((\d+), \{\}\)', aliasing)
  passed_in, passed_out = ({int(pair[i] or 0) for pair in aliases} for i in (1, 0))
  fused = computations[instruction.called('calls')]
  parameters = _parameters(fused)
  read = sum(min(size, _read_of(parameters[i], fused, computations)) for i, size in enumerate(operand_sizes)
             if size and i not in passed_in)
  arrays, (root_name, root) = [*_arrays(instruction.type)], _root(fused)
  results = root.operands if root.opcode == 'tuple' else [root_name] * len(arrays)
  written = sum(min(size, _written_of(name, fused, computations)) for i, ((size, in_hbm), name)
                in enumerate(zip(arrays, results, strict=True)) if in_hbm and i not in passed_out)
  return read + written


def _read_of(name, fused, computations):
  """Bytes of an array that a fusion reads: all, unless it only takes slices of it or updates it in place."""
  total = 0
  for user, part in fused.items():
    if name not in part.operands:
      continue
    if part.opcode == 'bitcast':
      total += _read_of(user, fused, computations)
    elif part.opcode == 'fusion':
      inner = computations[part.called('calls')]
      total += sum(_read_of(parameter, inner, computations) for i, parameter in _parameters(inner).items()
                   if part.operands[i] == name)
    elif part.opcode in ('dynamic-slice', 'slice', 'gather') and part.operands[0] == name:
      total += _size(part.type)
    elif part.opcode != 'dynamic-update-slice' or part.operands[0] != name:
      return math.inf
  return total


def _written_of(name, fused, computations):
  """Bytes of a result that a fusion writes: all, unless it updates an array in place."""
  part = fused[name]
  if part.opcode == 'bitcast':
    return _written_of(part.operands[0], fused, computations)
  if part.opcode == 'fusion':
    inner = computations[part.called('calls')]
    return _written_of(_root(inner)[0], inner, computations)
  return _size(fused[part.operands[1]].type) if part.opcode == 'dynamic-update-slice' else math.inf


def _parameters(computation):
  return {int(part.arguments): name for name, part in computation.items() if part.opcode == 'parameter'}


def _root(computation):
  return next((name, part) for name, part in computation.items() if part.is_root)
