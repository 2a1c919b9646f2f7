"""The bytes that a compiled TPU program moves through memory and between chips.

They are read from the text of the program. XLA's own cost analysis counts the
body of a loop once. Here it counts as often as it runs, because most of the
program is such a body if the layers are under a scan.
"""

from collections import Counter
from collections.abc import Iterator
import math
import re
from typing import NamedTuple

COLLECTIVES = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute')

_ITEM_BYTES = {'pred': 1, 's8': 1, 'u8': 1, 'bf16': 2, 'f16': 2, 's16': 2, 'u16': 2, 'f32': 4,
               's32': 4, 'u32': 4, 's64': 8, 'u64': 8, 'f64': 8, 'token': 0}
_ARRAY = re.compile(r'\b([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?')
_COMPUTATION = re.compile(r'(ENTRY )?(%\S+) \(.*\{$')
_INSTRUCTION = re.compile(r'\s+(ROOT )?(%\S+) = (.*?) ([a-z][a-z0-9-]*)\(([^)]*)\)(.*)')
# These move nothing: they name memory, or their work is counted in the computations they call.
_FREE = ('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'while', 'call')
_FREE_CALLS = ('ConcatBitcast', 'AllocateBuffer', 'AssumeGatherIndicesInBound')


class Traffic(NamedTuple):
  """Bytes per device and run: through HBM, and in collectives by kind."""

  hbm: int
  collectives: dict[str, int]


def traffic(text: str) -> Traffic:
  """Traffic of a compiled program.

  In HBM, each instruction reads those of its operands that live there, and
  writes its result if that lives there. If it only slices an array or updates
  it in place, the slice is counted instead of the array.

  A collective counts once the bytes of its result, or of what it reduces. Of
  these bytes each chip of a ring of n sends the share (n - 1)/n, and twice as
  much for an all-reduce.

  Args:
    text: from `compiled.as_text()`.

  Raises:
    ValueError: an array of an unknown type, or a loop that does not count from
      0 by 1 to a constant, as the loops of lax.scan do.
  """
  computations, entry = _parse(text)
  hbm, collectives, channels = 0, Counter(), set()
  for name, times, is_fused in _runs(computations, entry):
    for instruction in computations[name].values():
      if not is_fused:
        hbm += times * _hbm_bytes(instruction, computations[name], computations)
      kind = instruction.opcode.removesuffix('-start')
      channel = instruction.match(r'channel_id=(\d+)')
      # A collective that runs beside computation is spread over several fusions,
      # which share its channel.
      if kind in COLLECTIVES and (channel is None or channel not in channels):
        channels.add(channel)
        kind = 'reduce-scatter' if name.startswith('%all-reduce-scatter') else kind
        collectives[kind] += times * _moved(kind, instruction, computations[name])
  return Traffic(hbm, dict(collectives))


def _moved(kind, instruction, computation):
  """The bytes that a collective counts: of its result, or of what it reduces."""
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
  """Instructions by computation and name, and the name of the computation that runs first."""
  computations, entry = {}, None
  for line in text.splitlines():
    if match := _COMPUTATION.match(line):
      instructions = computations[match[2]] = {}
      entry = match[2] if match[1] else entry
    elif match := _INSTRUCTION.match(line):
      instructions[match[2]] = _Instruction(*match.groups()[2:], is_root=bool(match[1]))
  return computations, entry


def _runs(computations, name, times=1, is_fused=False) -> Iterator[tuple[str, int, bool]]:
  """The computations that `name` runs, itself included.

  Yields:
    A name for each place that runs it, how often it runs from there, and whether
    it is fused into a single instruction of its caller.
  """
  yield name, times, is_fused
  for instruction in computations[name].values():
    if instruction.opcode == 'while':
      trips = _trips(computations[instruction.called('condition')])
      yield from _runs(computations, instruction.called('body'), times * trips)
    elif called := instruction.called('calls') or instruction.called('to_apply'):
      yield from _runs(computations, called, times, is_fused or instruction.opcode != 'call')


def _trips(condition):
  constants = [part for part in condition.values() if part.opcode == 'constant']
  _, root = _root(condition)
  if len(constants) != 1 or root.opcode != 'compare' or 'direction=LT' not in root.attributes:
    raise ValueError('a loop whose number of rounds its condition does not say')
  return int(constants[0].arguments)


def _arrays(type_text):
  """(bytes, whether in HBM) of each array of a type."""
  for name, shape, layout in _ARRAY.findall(type_text):
    if name not in _ITEM_BYTES:
      raise ValueError(f'an array of {name}, whose size is not known here')
    num_items = math.prod(int(size) for size in shape.split(',') if size)
    yield num_items * _ITEM_BYTES[name], 'S(' not in layout


def _size(type_text, only_hbm=False):
  return sum(size for size, in_hbm in _arrays(type_text) if in_hbm or not only_hbm)


def _hbm_bytes(instruction, computation, computations):
  in_hbm = lambda name: _size(computation[name].type, only_hbm=True)
  opcode = instruction.opcode
  first, *rest = [*_arrays(instruction.type)] or [(0, False)]
  call_target = instruction.match('custom_call_target="(.*?)"')
  if opcode in _FREE or opcode.endswith('-done') or call_target in _FREE_CALLS:
    return 0
  if opcode.endswith('-start'):  # Its type is (source, target, …), and it moves the target.
    return rest[0][0] * (first[1] + rest[0][1])
  if opcode == 'dynamic-update-slice':
    return 2 * in_hbm(instruction.operands[1])
  if opcode in ('dynamic-slice', 'gather', 'slice'):
    return 2 * _size(instruction.type, only_hbm=True)
  if opcode == 'fusion':
    operand_sizes = [in_hbm(name) for name in instruction.operands]
    return _fusion_bytes(instruction, operand_sizes, computations)
  return _size(instruction.type, only_hbm=True) + sum(map(in_hbm, instruction.operands))


def _fusion_bytes(instruction, operand_sizes, computations):
  """The bytes that a fusion reads and writes, where a result that aliases an operand is neither."""
  aliasing = instruction.match('output_to_operand_aliasing={(.*?)}, calls') or ''
  aliases = re.findall(r'\{(\d*)\}: \((\d+), \{\}\)', aliasing)
  passed_in, passed_out = ({int(pair[i] or 0) for pair in aliases} for i in (1, 0))
  fused = computations[instruction.called('calls')]
  parameters = _parameters(fused)
  read = sum(min(size, _read_of(parameters[i], fused, computations))
             for i, size in enumerate(operand_sizes) if size and i not in passed_in)
  arrays, (root_name, root) = [*_arrays(instruction.type)], _root(fused)
  results = root.operands if root.opcode == 'tuple' else [root_name] * len(arrays)
  written = sum(min(size, _written_of(name, fused, computations))
                for i, ((size, in_hbm), name) in enumerate(zip(arrays, results, strict=True))
                if in_hbm and i not in passed_out)
  return read + written


def _read_of(name, fused, computations):
  """The bytes of an array that a fusion reads.

  These are all of it (infinity here), unless the fusion only takes slices of the
  array or updates it in place.
  """
  total = 0
  for user, part in fused.items():
    if name not in part.operands:
      continue
    if part.opcode == 'bitcast':
      total += _read_of(user, fused, computations)
    elif part.opcode == 'fusion':
      inner = computations[part.called('calls')]
      total += sum(_read_of(parameter, inner, computations)
                   for i, parameter in _parameters(inner).items() if part.operands[i] == name)
    elif part.opcode in ('dynamic-slice', 'slice', 'gather') and part.operands[0] == name:
      total += _size(part.type)
    elif part.opcode != 'dynamic-update-slice' or part.operands[0] != name:
      return math.inf
  return total


def _written_of(name, fused, computations):
  """The bytes of a result that a fusion writes: all (infinity), or those it updates in place."""
  part = fused[name]
  if part.opcode == 'bitcast':
    return _written_of(part.operands[0], fused, computations)
  if part.opcode == 'fusion':
    inner = computations[part.called('calls')]
    return _written_of(_root(inner)[0], inner, computations)
  if part.opcode == 'dynamic-update-slice':
    return _size(fused[part.operands[1]].type)
  return math.inf


def _parameters(computation):
  return {int(part.arguments): name
          for name, part in computation.items() if part.opcode == 'parameter'}


def _root(computation):
  return next((name, part) for name, part in computation.items() if part.is_root)
