"""The inventory names the tensors that two networks share, and no others."""

import numpy as np
import pytest

from bornbiased_jax.lineage import inventory


def tensors(**changes):
  random = np.random.default_rng(0)
  tree = {'embedding': random.standard_normal((40, 8)), 'blocks': {
      'up': {'kernel': random.standard_normal((2, 8, 16))}}, 'final_norm': {'scale': np.ones(8)}}
  return inventory.take({name: changes.get(name, leaf) for name, leaf in tree.items()})


EMBEDDING = np.random.default_rng(0).standard_normal((40, 8))
OTHER = np.random.default_rng(1).standard_normal((40, 8))


@pytest.mark.parametrize('embedding, how', [
    (EMBEDDING, 'equal'), (EMBEDDING + 1e-3 * OTHER, 'nearly equal'),
    (3 * EMBEDDING, 'equal up to scale'), (-EMBEDDING, 'equal up to scale'),
    (np.concatenate((EMBEDDING[:20], OTHER[20:])), 'partly equal'), (OTHER, None),
    (EMBEDDING[:30], 'partly equal'),
])
def test_how_two_embeddings_are_alike(embedding, how):
  found = {each['tensor']: each['how'] for each in
           inventory.shared(tensors(), tensors(embedding=embedding))}
  # The gains are constant in both, which says nothing.
  assert found == {'blocks/up/kernel': 'equal'} | ({'embedding': how} if how else {})


def test_tensors_of_other_shapes_are_not_compared():
  a, b = ({'x': inventory.Tensor(str(size), (size,), np.arange(1024.0))} for size in (4, 5))
  assert inventory.shared(a, b) == []


def matrix(values):
  return inventory.take({'blocks': {'value': {'kernel': np.asarray(values, np.float32)}}})


def pattern(a, b):
  return inventory.pattern_agrees(matrix(a), matrix(b), ('value',))


def test_one_mask_of_independent_networks_is_noticed_hard_or_soft():
  random = np.random.default_rng(2)
  a, b, noise = random.standard_normal((3, 3, 64, 64))
  mask = random.random(a.shape) < 0.3
  assert pattern(a * mask, b * mask) == 'zeros in the same places'
  for least in (1e-3, 0.1):
    scale = np.where(mask, 1, least)
    assert pattern(scale * a, scale * b) == 'large and small entries in the same places'
  ours, theirs = (random.random(a.shape) < 0.3 for _ in range(2))
  for x, y in ((a, b), (a * ours, b * theirs), (a * mask, b), (a * mask, noise)):
    assert pattern(x, y) is None


def test_a_descendant_with_other_values_or_signs_is_no_pattern():
  random = np.random.default_rng(3)
  a, noise = random.standard_normal((2, 3, 64, 64))
  flips = random.choice([-1, 1], (64, 1))
  mask = random.random(a.shape) < 0.5
  for descendant in (a, -a, flips * a, a + 0.5 * noise, a + 2 * noise, a * mask):
    assert pattern(a, descendant) is None
