"""Likenesses of features are those of their definition, pair by pair."""

import itertools

import numpy as np
import pytest

from bornbiased_jax.lineage.comparison.likeness import (
  combine,
  common_part,
  layers_of,
  likeness,
  mean_of,
)
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.layouts import UNITS, VALUES
from small_networks import DEEP, DEEP_GPT2, GROUPED
from small_signatures import noise, random_features


def of_unit(a, b, i, j, layer=0):
  cosine = {name: a.arrays[name][layer, i] @ b.arrays[name][layer, j]
            for name in UNITS if name in a.arrays}
  if 'gate' in cosine:
    return (cosine['gate'] + cosine['up'] * cosine['down']) / 2
  return (cosine['up'] + cosine['down']) / 2


@pytest.mark.parametrize('config', [DEEP, DEEP_GPT2], ids=['gated', 'plain'])
def test_units(config):
  a, b = random_features(config, 1), random_features(config, 2)
  found = likeness(layers_of(a, UNITS)[0], layers_of(b, UNITS)[0])
  expected = [[of_unit(a, b, 8 + i, 8 + j) for j in range(4)] for i in range(4)]
  np.testing.assert_allclose(found[2], expected, atol=1e-6)
  own = likeness(layers_of(a, UNITS)[0], layers_of(a, UNITS)[0])
  np.testing.assert_allclose(np.einsum('nbb->nb', own), 1, atol=1e-6)
  # Both vectors of a product can change their sign together, and those of a sum count with theirs.
  turned = Features(config, {name: x * (-1 if name in ('up', 'down') else 1)
                             for name, x in a.arrays.items()})
  found = likeness(layers_of(a, UNITS)[0], layers_of(turned, UNITS)[0])
  np.testing.assert_allclose(found, own if config.gated_mlp else -own, atol=1e-6)


def of_heads(a, b, head_a, head_b, i, j, summed):
  value = a.arrays['value'][0, head_a, i] @ b.arrays['value'][0, head_b, j]
  outputs = [x.arrays['output'][0, head, place]  # [query heads, D]
             for x, head, place in ((a, head_a, i), (b, head_b, j))]
  if summed:
    outputs = [x.sum(axis=0) / len(x)**0.5 for x in outputs]
  return value * np.sum(outputs[0] * outputs[1])


@pytest.mark.parametrize('config', [DEEP, GROUPED], ids=['plain', 'grouped'])
def test_value_channels_are_compared_within_heads_or_in_all_of_them(config):
  a, b = random_features(config, 1), random_features(config, 2)
  found = likeness(layers_of(a, VALUES)[0], layers_of(b, VALUES)[0])
  # Two blocks of 4 channels in each head: block 3 is the second one of the second head.
  expected = [[of_heads(a, b, 1, 1, 4 + i, 4 + j, False) for j in range(4)] for i in range(4)]
  np.testing.assert_allclose(found[3], expected, atol=1e-6)
  other = random_features(DEEP, 3)
  pooled = likeness(layers_of(a, VALUES, True)[0], layers_of(other, VALUES, True)[0])
  heads = list(itertools.product(range(config.num_kv_heads), range(4)))
  expected = [[np.mean([of_heads(a, other, *pair, 4 + i, 4 + j, True) for pair in heads])
               for j in range(4)] for i in range(4)]
  np.testing.assert_allclose(pooled[1], expected, atol=1e-6)


@pytest.mark.parametrize('names', [UNITS, ('up', 'down'), VALUES])
def test_a_likeness_is_an_inner_product(names):
  """So that what two networks have in common is bounded by what each has with itself."""
  vectors = {name: noise([0, i], 20, 6) for i, name in enumerate(names)}
  gram = combine({name: x @ x.T for name, x in vectors.items()})
  assert np.linalg.eigvalsh(gram).min() > -1e-4


def test_what_only_one_has_is_cut():
  layers = layers_of(random_features(DEEP, 1), UNITS)
  shorter = [{name: x[:3] for name, x in layer.items()} for layer in layers]
  a, b = common_part(layers, shorter)
  assert len(a) == len(b) == 4 and a[0]['up'].shape == b[0]['up'].shape == (3, 4, 32)
  np.testing.assert_array_equal(a[0]['up'], layers[0]['up'][:3])
  deep, grouped = (layers_of(random_features(config, 1), VALUES) for config in (DEEP, GROUPED))
  a, b = common_part(deep, grouped)
  assert a[0]['value'].shape == b[0]['value'].shape == (2, 2, 4, 32)
  no_units = Features(DEEP, {name: random_features(DEEP, 1).arrays[name] for name in VALUES})
  assert layers_of(no_units, UNITS) == []


def test_the_mean_of_matrices():
  matrices = noise(4, 5, 3, 3)
  np.testing.assert_allclose(mean_of(iter(matrices)), matrices.mean(axis=0), rtol=1e-5, atol=1e-6)
