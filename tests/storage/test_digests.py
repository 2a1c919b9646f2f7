"""Digests: no altered network passes for another, on any mesh."""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.models import sharding
from bornbiased_jax.storage import digests
from bornbiased_jax.storage.digests import digest, leaf_digests
from small_networks import DEEP, born
from tiny_steps import start


def small_tree():
  rng = np.random.default_rng(0)
  return {'a': np.float32(rng.normal(size=(32, 32))), 'b': {'c': np.float32(rng.normal(size=8))}}


def test_a_digest_is_sha256_of_names_shapes_types_and_bytes():
  leaves = leaf_digests(small_tree())
  c = small_tree()['b']['c']
  assert leaves['b/c'] == hashlib.sha256(b'["float32", [8]]' + c.tobytes()).hexdigest()
  assert digest(small_tree()) == hashlib.sha256(json.dumps(
      [['a', leaves['a']], ['b/c', leaves['b/c']]]).encode()).hexdigest()
  a = small_tree()['a']
  others = [{'a': a}, {'b': a}, {'a': a.reshape(16, 64)}, {'a': a.view(np.int32)}, {'a': {'a': a}},
            {'a': np.asfortranarray(a).T}]
  assert len({digest(other) for other in others}) == len(others)
  assert digest({'a': np.asfortranarray(a)}) == digest({'a': a}) == digest({'a': jnp.array(a)})
  assert digest({'a': a.astype('>f4')}) == digest({'a': a})
  state = start('llama2')
  assert len(leaf_digests(state)) == len(jax.tree.leaves(state))


def test_a_digest_is_the_same_on_any_mesh():
  params = born(DEEP, 1)
  mesh = sharding.make_mesh(1, 2, 2)
  spread = jax.device_put(params, sharding.shardings(mesh, params))
  assert digest(spread) == digest(params)


class Spread(np.ndarray):
  """An array of which other hosts have a part, as far as it says."""

  is_fully_addressable = False


def test_an_array_of_several_hosts_is_hashed_in_pieces(monkeypatch):
  monkeypatch.setattr(digests, '_PIECE', 100)
  for shape in ((7, 5), (3, 50), (), (40,)):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert digest({'x': array.view(Spread)}) == digest({'x': array})
