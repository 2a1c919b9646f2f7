"""Where a model lives: a mesh of devices, and rules from the names of parameters to its axes.

The model's code says nothing about devices. `jax.jit` with these shardings does the
rest, communication between devices included.
"""

from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from bornbiased_jax.errors import InputError

# 'data' shares the batch; 'fsdp' shares the batch, parameters and optimizer state; 'tensor'
# shares the matrix products.
AXES = ('data', 'fsdp', 'tensor')
BATCH = PartitionSpec(('data', 'fsdp'))

# The mesh axes of a matrix's two dimensions. Linear layers go by the name of their
# module, embeddings and head by their own. Of experts 'tensor' shares out whole ones.
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


def make_mesh(data: int = 0, fsdp: int = 1, tensor: int = 1, *,
              devices: list[jax.Device] | None = None) -> Mesh:
  """A mesh of devices with the axes AXES.

  Args:
    data: size of the axis 'data'. 0 means all devices that the other two axes leave.
    fsdp: size of the axis 'fsdp'.
    tensor: size of the axis 'tensor'.
    devices: the devices; None means all.

  Raises:
    InputError: the product of the sizes is not the number of devices.

  Example:
    >>> from bornbiased_jax import models
    >>> dict(models.make_mesh(devices=jax.devices()[:1]).shape)
    {'data': 1, 'fsdp': 1, 'tensor': 1}
  """
  num_devices = len(devices) if devices else jax.device_count()
  data = data or max(1, num_devices // (fsdp * tensor))
  if data * fsdp * tensor != num_devices:
    raise InputError(f'a mesh of data={data} x fsdp={fsdp} x tensor={tensor} needs '
                     f'{data * fsdp * tensor} devices, and the number at hand is {num_devices}; '
                     'choose other sizes')
  return jax.make_mesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def batch_shards(mesh: Mesh | None) -> int:
  """The number of parts into which a mesh divides a batch: data x fsdp, or 1 without a mesh."""
  return mesh.shape['data'] * mesh.shape['fsdp'] if mesh else 1


def shardings(mesh: Mesh | None, tree: Any) -> Any:
  """The sharding of every leaf of a tree: parameters, or what is named like them.

  A dimension that its mesh axis does not divide is not sharded. Without a mesh every leaf is on
  the first device of this host.
  """
  if mesh is None:
    here = SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda leaf: here, tree)

  def shard(path, leaf):
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    rule = next((_RULES[name] for name in reversed(names) if name in _RULES), ())
    is_matrix = names and names[-1] in ('kernel', *_RULES)
    # Dimensions before the matrix's own, such as that of the layers, are not sharded.
    if 'experts' in names:
      rule = ('tensor', *(axis if axis == 'fsdp' else None for axis in rule))
    axes = (None,) * (len(leaf.shape) - len(rule)) + rule if is_matrix else ()
    spec = [axis if axis and size % mesh.shape[axis] == 0 else None
            for axis, size in zip(axes, leaf.shape, strict=False)]
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree_util.tree_map_with_path(shard, tree)


def abstract(mesh: Mesh | None, tree: Any) -> Any:
  """Each leaf as a jax.ShapeDtypeStruct with its shape, type and sharding (`shardings`)."""
  describe = lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
  return jax.tree.map(describe, tree, shardings(mesh, tree))
