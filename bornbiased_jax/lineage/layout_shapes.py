"""Which rows of which tensors hold the features of one layer, by names and shapes."""

from collections.abc import Iterable, Mapping
import dataclasses

import numpy as np

from bornbiased_jax.lineage import layout_names as names

_LARGEST = 2**24  # No matrix of a layer has as many rows; a file may claim it.


@dataclasses.dataclass(frozen=True, eq=False)
class Role:
  """Where the vectors of one role lie.

  Attributes:
    tensors: names of the matrices: one, or one for each expert; none if there is only a bias.
    biases: names of their biases along the same rows, if they have them, or of gains.
    rows: which rows of a matrix, as integers: units [U] (experts in one matrix [E, U]), of keys
      and values [G, K], of queries and outputs [G, H, K].
    flipped: whether these rows are the last axis of the matrix and not the one before it.
    stacked: whether the first axis of the matrix is for experts.
    apart: whether each expert has a matrix of its own.
    through: of latent attention, the matrix that is read first and the gain between them.
    first: how many entries of the first axis are needed; None: all.
  """

  tensors: tuple[str, ...]
  biases: tuple[str, ...]
  rows: np.ndarray
  flipped: bool = False
  stacked: bool = False
  apart: bool = False
  through: tuple[str, str] | None = None
  first: int | None = None

  def get(self, tensor: np.ndarray) -> np.ndarray:
    """The rows of one of the matrices [*rows, D] (with an axis for experts first, if it has it)."""
    return (tensor.swapaxes(-1, -2) if self.flipped else tensor)[..., self.rows, :]

  def put(self, tensor: np.ndarray, vectors: np.ndarray) -> None:
    """Writes into a matrix what `get` reads from it."""
    (tensor.swapaxes(-1, -2) if self.flipped else tensor)[..., self.rows, :] = vectors

  def begin(self, rows: np.ndarray, num_experts: int) -> 'Role':
    """The same with only these rows, which are its first ones, and the first experts."""
    first = num_experts if self.stacked else None if self.flipped else int(rows.max()) + 1
    return dataclasses.replace(self, tensors=self.tensors[:num_experts], rows=rows, first=first)


@dataclasses.dataclass(frozen=True)
class Sublayer:
  """An MLP (roles gate, up, down) or attention (query, key, value, output; gate, gain).

  Attributes:
    path: its name within the layer.
    roles: where the vectors of each role lie.
    before: the name of the norm that it reads through, if there is one.
    behind: the name of the norm of what it writes, if there is one.
  """

  path: str
  roles: dict[str, Role]
  before: str | None
  behind: str | None


def number(settings: Mapping, keys: tuple[str, ...], default: int = 0) -> int:
  """The first whole number above 0 that the settings have under one of these names."""
  return next((settings[key] for key in keys
               if type(settings.get(key)) is int and settings[key] > 0), default)


def match(layer: Mapping, shapes: Mapping) -> Iterable[tuple[str, str, dict]]:
  """Yields kind, path and the names of the tensors of each role, where a table's names fit."""
  used: set[str] = set()
  convolutions = [name for name in layer if 'conv' in name]
  tables: list[tuple[str, tuple[str, ...], tuple[str | None, ...]]]
  tables = [('units', ('gate', 'up', 'down'), x) for x in names.UNITS]
  tables += [('heads', ('query', 'key', 'value', 'output'), x) for x in names.HEADS]
  tables += [('fused', ('fused', 'output'), x) for x in names.FUSED_HEADS]
  tables += [('latent', ('first', 'gain', 'value', 'output'), x) for x in names.LATENT_HEADS]
  for kind, roles, leaves in tables:
    last = str(leaves[-1])
    for key in list(layer):
      if key != last and not key.endswith('.' + last):
        continue
      path = key[:len(key) - len(last)]
      keys = {role: path + leaf for role, leaf in zip(roles, leaves, strict=True) if leaf}
      attention = kind != 'units'
      if (all(x in layer and (role == 'gain' or _is_matrix(shapes[layer[x][0]]))
              for role, x in keys.items()) and not used & set(keys.values())
          and not names.NOT_READ.search(path)
          and not (attention and path and any(x.startswith(path) for x in convolutions))):
        used |= set(keys.values())
        yield kind, path.rstrip('.'), {role: layer[x] for role, x in keys.items()}


def _is_matrix(shape):
  """Whether it is of a matrix, or of one for each expert."""
  return 2 <= len(shape) <= 3 and 0 not in shape and max(shape) < _LARGEST


def is_flipped(shape: tuple[int, ...], writes: bool, width: int) -> bool | None:
  """Whether a matrix is stored [inputs, outputs], or None if its shape does not tell.

  The rows of a role are then its last axis, or its last but one if it writes.
  """
  outputs, inputs = (x == width for x in shape[-2:])
  if outputs == inputs:
    return None
  return outputs != writes


class Builder:
  """Builds the sublayers of one layer."""

  def __init__(self, layer, width, settings, shapes, votes):
    self.layer, self.width, self.settings = layer, width, settings
    self.shapes, self.votes = shapes, votes
    self.kind = str(settings.get('model_type', ''))
    self.has_kernels = any(name.endswith('kernel') for each in layer.values() for name in each)
    self.biases = {tuple(layer[key[:-5]]): tuple(each) for key, each in layer.items()
                   if key.endswith(':bias') and key[:-5] in layer}

  def sublayer(self, kind: str, path: str, tensors: dict) -> Sublayer | None:
    """The sublayer of these tensors, or None if their shapes do not fit together."""
    self.path = path + '.' if path else ''
    shape = {role: self.shapes[x[0]] for role, x in tensors.items()}
    sizes = {role: self._rows(x, role) for role, x in shape.items() if role not in ('first', 'gain')
             and not (kind == 'latent' and role == 'value')}
    if (None in sizes.values() or len(set(map(len, tensors.values()))) > 1
        or any(self.shapes[x] != shape[role] for role, each in tensors.items() for x in each)):
      return None
    build = {'units': self._units, 'heads': self._heads, 'fused': self._fused,
             'latent': self._latent}[kind]
    roles = build(tensors, sizes)
    if not roles or kind != 'units' and number(self.settings, names.SHARED_VALUES, 0):
      return None
    before, behind = self._norms(kind)
    return Sublayer(path, roles, before, behind)

  def _rows(self, shape, role):
    """How many rows a matrix has besides the axis of the residual stream; None if it has none."""
    if not _is_matrix(shape) or self.width not in shape[-2:]:
      return None
    return shape[-2] if self._is_last(shape, role) else shape[-1]

  def _is_last(self, shape, role):
    """Whether the residual stream is the last axis."""
    flipped = is_flipped(shape, role in ('down', 'output'), self.width)
    if flipped is None:
      flipped = self.votes.get(len(shape), {self.has_kernels}) == {True}  # JAX's are.
    return flipped == (role in ('down', 'output'))

  def _role(self, tensors, role, rows):
    biases = self.biases.get(tuple(tensors), ()) if role not in ('down', 'output') else ()
    shape = self.shapes[tensors[0]]
    return Role(tuple(tensors), biases, rows, not self._is_last(shape, role), len(shape) == 3,
                len(tensors) > 1)

  def _units(self, tensors, sizes):
    U, parts = sizes['down'], dict(tensors)
    rows = np.arange(U)
    experts = number(self.settings, names.NUM_EXPERTS, 1)
    stored = len(self.shapes[tensors['down'][0]]) == 2 and 'v1' in tensors['up'][0]
    if stored and U % experts == 0:
      rows = rows.reshape(experts, -1)
    indices = {role: rows for role in parts}
    if 'gate' not in parts and sizes['up'] == 2 * U:
      parts['gate'] = parts['up']
      order = np.arange(2 * U).reshape(2, U)
      if self.kind in names.INTERLEAVED_TYPES:
        order = np.arange(2 * U).reshape(U, 2).T
      indices |= {'gate': order[0], 'up': order[1]}
    elif sizes['up'] != U or sizes.get('gate', U) != U:
      return None
    roles = {role: self._role(parts[role], role, indices[role])
             for role in ('gate', 'up', 'down') if role in parts}
    return roles | self._gain(rows)

  def _gain(self, rows):
    for name in names.GAINS:
      each = self.layer.get(self.path + name)
      if each and self.shapes[each[0]] == (rows.size,):
        return {'gain': Role((), (each[0],), rows)}
    return {}

  def _sizes(self, output):
    """The number H of query heads and the size K of one, or None."""
    heads = number(self.settings, names.NUM_HEADS)
    return (heads, output // heads) if heads and output % heads == 0 else None

  def _heads(self, tensors, sizes):
    if not (known := self._sizes(sizes['output'])):
      return None
    H, K = known
    if sizes['value'] % K or not sizes['value'] or H % (G := sizes['value'] // K):
      return None
    rows_GHK = np.arange(H * K).reshape(G, H // G, K)
    if self.kind in names.PAIRED_TYPES:
      rows_GHK = rows_GHK.reshape(H // 2, 2, K).swapaxes(0, 1).reshape(G, H // G, K)
    indices = {'value': np.arange(G * K).reshape(G, K), 'output': rows_GHK}
    if 'key' in sizes and sizes['key'] % G == 0:
      indices['key'] = np.arange(sizes['key']).reshape(G, -1)
    if sizes['query'] == 2 * H * K == 2 * H // G * sizes.get('key', 0):
      doubled = np.arange(2 * H * K).reshape(G, H // G, 2, K)
      indices |= {'query': doubled[:, :, 0], 'gate': doubled[:, :, 1]}
      tensors = tensors | {'gate': tensors['query']}
    elif sizes['query'] % H == 0:
      indices['query'] = np.arange(sizes['query']).reshape(G, H // G, -1)
    roles = {role: self._role(tensors[role], role, rows) for role, rows in indices.items()}
    return self._gates(rows_GHK) | roles | self._gain(rows_GHK)

  def _gates(self, rows):
    for name in names.GATES:
      each = self.layer.get(self.path + name)
      if each and self._rows(self.shapes[each[0]], 'gate') == rows.size:
        return {'gate': self._role(each, 'gate', rows)}
    return {}

  def _fused(self, tensors, sizes):
    if not (known := self._sizes(sizes['output'])):
      return None
    H, K = known
    name, fused = tensors['fused'][0], sizes['fused']
    first = H * K if 'gqkv' in name else 0  # Gates come first.
    G, rest = divmod(fused - first - H * K, 2 * K)
    if rest or G < 1 or H % G:
      return None
    rows, rows_GHK = np.arange(fused), np.arange(H * K).reshape(G, H // G, K)
    if self.kind in names.PARALLEL_TYPES:
      query, value, key = rows.reshape(4, 3, H // 4, K).swapaxes(0, 1).reshape(3, H, K)
    elif (self.kind in names.BY_HEAD_TYPES or any(x in name for x in names.BY_HEAD)
          and self.kind not in names.BLOCK_TYPES):
      by_head = rows.reshape(G, H // G + 2, K)
      query, key, value = by_head[:, :-2], by_head[:, -2], by_head[:, -1]
    else:
      query, key, value = np.split(rows[first:].reshape(-1, K), [H, H + G])
    indices = {'query': query.reshape(G, H // G, K), 'key': key, 'value': value}
    if first:
      indices['gate'] = rows_GHK
    roles = {role: self._role(tensors['fused'], role, x) for role, x in indices.items()}
    roles['output'] = self._role(tensors['output'], 'output', rows_GHK)
    return self._gates(rows_GHK) | roles | self._gain(rows_GHK)

  def _latent(self, tensors, sizes):
    (rows, rank), known = self.shapes[tensors['value'][0]][-2:], self._sizes(sizes['output'])
    first, width = self.shapes[tensors['first'][0]][-2:]
    if (not known or rows % known[0] or rows // known[0] < known[1] or first < rank
        or (width, self.shapes[tensors['gain'][0]]) != (self.width, (rank,))):
      return None
    H, K = known
    value_GK = np.arange(rows).reshape(H, -1)[:, -K:]
    output_GHK = np.arange(H * K).reshape(H, 1, K)
    # A query of all channels of a key, those without a position and those with one, and a gate.
    queries = self.layer.get(self.path + 'q_b_proj')
    gated = rows // H + first - rank
    gates = {}
    if queries and self.shapes[queries[0]][0] == H * gated:
      rows_GHK = np.arange(H * gated).reshape(H, 1, -1)[..., -K:]
      gates['gate'] = Role(tuple(queries), (), rows_GHK)
    value = Role(tuple(tensors['value']), (), value_GK,
                 through=(tensors['first'][0], tensors['gain'][0]))
    output = self._role(tensors['output'], 'output', output_GHK)
    return self._gates(output_GHK) | gates | {'value': value, 'output': output}

  def _norms(self, kind):
    if names.NORM_OF_STREAM.match(self.kind):
      return None, None
    has = lambda keys: next((self.layer[x][0] for x in keys if x in self.layer
                             and self.shapes[self.layer[x][0]] == (self.width,)), None)
    before, middle, after = has(names.BEFORE_HEADS), has(names.BETWEEN), has(names.BEFORE_UNITS)
    if kind == 'units':
      own = after or (middle if before else None)
      return own or before, has(names.BEHIND_UNITS)
    behind = middle if after or not before else None
    return before, has(names.BEHIND_HEADS) or behind
