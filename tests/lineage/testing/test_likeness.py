"""Likeness in blocks is the cosine of vectors."""

import numpy as np

from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.evidence.features import UNITS, VALUES
from bornbiased_jax.lineage.testing.likeness import common_part, layers_of, likeness
from bornbiased_jax.models.initialization import init_params
from small_networks import DEEP


def taken(seed):
  return features.of_network(DEEP, init_params(DEEP, seed))


def test_units_are_compared_by_their_cosines():
  a, b = taken(1), taken(2)
  found = likeness(layers_of(a, UNITS)[0], layers_of(b, UNITS)[0])
  cosine = {name: a.arrays[name][0].astype(float) @ b.arrays[name][0].astype(float).T
            for name in a.arrays if name in UNITS}
  expected = (cosine['gate'] + cosine['up'] * cosine['down']) / 2
  np.testing.assert_allclose(found[1], expected[4:8, 4:8], atol=1e-3)


def test_copies_have_likeness_one_and_pooled_heads_too():
  a = taken(1)
  for pooled in (False, True):
    layer = layers_of(a, VALUES, pooled)[0]
    diagonal = np.einsum('nbb->nb', likeness(layer, layer))
    heads = DEEP.num_kv_heads if pooled else 1
    assert abs(diagonal.mean() * heads - 1) < 0.3


def test_common_part_cuts_what_one_lacks():
  layers = layers_of(taken(1), UNITS)
  shorter = [{name: x[:3] for name, x in layer.items()} for layer in layers]
  a, b = common_part(layers, shorter)
  assert a[0]['up'].shape == b[0]['up'].shape and len(b[0]['up']) == 3
