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
