"""Parameters are split over the axes of the mesh that their names ask for."""

import jax
from jax.sharding import PartitionSpec
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from tiny_steps import start


def test_matrices_and_their_moments_are_sharded():
  mesh = sharding.make_mesh(1, 2, 2)
  placed = sharding.shardings(mesh, jax.eval_shape(lambda: start('llama2')))
  adam = placed.opt_state[1][0]
  for tree in (placed.params, adam.mu, adam.nu):
    assert tree['blocks']['query']['kernel'].spec == PartitionSpec(None, 'fsdp', 'tensor')
    assert tree['blocks']['down']['kernel'].spec == PartitionSpec(None, 'tensor', 'fsdp')
    assert tree['embedding'].spec == PartitionSpec('tensor', 'fsdp')
    assert not any(tree['blocks']['mlp_norm']['scale'].spec)


def test_a_mesh_that_is_not_the_devices_is_refused():
  with pytest.raises(InputError, match='data=3 x .* needs 3 devices, and the number at hand is 4'):
    sharding.make_mesh(3)
