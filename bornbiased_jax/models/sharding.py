"""Where a model lives: a mesh of devices and rules from parameter names to its axes.

The model itself carries no annotations; `jax.jit` with these shardings does
the rest, collectives included.
"""

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from bornbiased_jax.errors import InputError

AXES = ('data', 'fsdp', 'tensor')
BATCH = PartitionSpec(('data', 'fsdp'))

# Axes of a leaf's last two dimensions, by the name of its module or, at the top, its own.
_RULES = {
    'embedding': ('tensor', 'fsdp'),
    'position_embedding': (None, 'fsdp'),
    'head': ('tensor', 'fsdp'),
    'query': ('fsdp', 'tensor'),
    'key': ('fsdp', 'tensor'),
    'value': ('fsdp', 'tensor'),
    'up': ('fsdp', 'tensor'),
    'gate': ('fsdp', 'tensor'),
    'output': ('tensor', 'fsdp'),
    'down': ('tensor', 'fsdp'),
}


def make_mesh(data: int = 0, fsdp: int = 1, tensor: int = 1, *, devices: list[jax.Device] | None = None) -> Mesh:
  """A mesh over `devices` (None: all); data=0 takes those that fsdp and tensor leave.

  Raises:
    InputError: the sizes do not multiply to the number of devices.
  """
  num_devices = len(devices) if devices else jax.device_count()
  data = data or max(1, num_devices // (fsdp * tensor))
  if data * fsdp * tensor != num_devices:
    raise InputError(f'mesh data={data} x fsdp={fsdp} x tensor={tensor} is not the {num_devices} devices at hand')
  return jax.make_mesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def shardings(mesh: Mesh | None, tree) -> dict:
  """A Sharding for each leaf of a tree that has the parameters' names in its paths, such as optimizer state.

  A dimension that an axis does not divide stays whole; without a mesh all are on this host's first device.
  """
  if mesh is None:
    here = SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda leaf: here, tree)

  def shard(path, leaf):
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    rule = next((_RULES[name] for name in reversed(names) if name in _RULES), ())
    matrix = names and names[-1] in ('kernel', *_RULES)
    axes = (None,) * (len(leaf.shape) - len(rule)) + rule if matrix else ()
    spec = [axis if axis and size % mesh.shape[axis] == 0 else None
            for axis, size in zip(axes, leaf.shape, strict=False)]
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree_util.tree_map_with_path(shard, tree)


def abstract(mesh: Mesh | None, tree):
  """Shape, type and place of each leaf (`shardings`), as jax.ShapeDtypeStruct."""
  return jax.tree.map(lambda leaf, placed: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed),
                      tree, shardings(mesh, tree))
