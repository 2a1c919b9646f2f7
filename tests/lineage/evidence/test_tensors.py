"""The tensors that two networks share are named, and no others."""

from flax.traverse_util import flatten_dict
import numpy as np
import pytest

from bornbiased_jax.lineage.evidence import tensors
from bornbiased_jax.storage import digests
from small_signatures import noise

EMBEDDING, OTHER = noise(0, 2, 40, 8)
TREE = {'embedding': EMBEDDING, 'blocks': {'up': {'kernel': noise(1, 2, 8, 16)}},
        'final_norm': {'scale': np.full(8, 1.1, np.float32)}}


def take(params):
  """The tensors of a network, each seen whole."""
  return {name: tensors.take(name, leaf.shape, [leaf])
          for name, leaf in flatten_dict(params, sep='/').items()}


@pytest.mark.parametrize('embedding, how', [
    (EMBEDDING, 'equal'), (EMBEDDING + 1e-3 * OTHER, 'nearly equal'),
    (3 * EMBEDDING, 'equal up to scale'), (-EMBEDDING, 'equal up to scale'),
    (np.concatenate((EMBEDDING[:20], OTHER[20:])), 'partly equal'), (OTHER, None),
    (EMBEDDING[:30], 'partly equal'),
])
def test_how_two_embeddings_are_alike(embedding, how):
  found = {each['tensor']: each['how'] for each in tensors.shared(
      take(TREE), take(TREE | {'embedding': embedding}))}
  # The gains are constant in both, which says nothing.
  assert found == {'blocks/up/kernel': 'equal'} | ({'embedding': how} if how else {})


def test_zeros_in_common_are_no_equal_entries():
  a, b = (take({'x': np.maximum(x, 0)}) for x in noise(3, 2, 64, 32))
  assert tensors.shared(a, b) == []


def test_equal_matrices_are_found_layer_by_layer():
  own, other = noise(2, 2, 3, 32, 64)
  mixed = np.stack((own[0], other[1], own[2]))
  few = np.sign(own)  # As a rule makes them: two values.
  tree = lambda x: {'blocks': {'up': {'kernel': x}, 'key': {'kernel': few}, 'norm': {'scale': own}}}
  found = tensors.equal_matrices(take(tree(own)), take(tree(mixed)))
  assert found == {'blocks/up/kernel': [0, 2]}


def test_a_matrix_of_which_entries_became_zero_is_not_equal():
  own = noise(2, 3, 32, 64)
  trees = ({'blocks': {'up': {'kernel': x}}} for x in (own, own * (noise(3, *own.shape) > 0)))
  assert tensors.equal_matrices(*map(take, trees)) == {}


def test_numbers_may_be_so_small_that_their_squares_are_zero():
  a, b = (take({'x': np.float32(1e-25) * x}) for x in (EMBEDDING, EMBEDDING + 1e-3 * OTHER))
  assert [each['how'] for each in tensors.shared(a, b)] == ['nearly equal']


def test_tensors_of_other_shapes_are_not_compared():
  a, b = ({'x': tensors.TensorSample(str(size), (size,), np.arange(1024.0))} for size in (4, 5))
  assert tensors.shared(a, b) == []


@pytest.mark.parametrize('name', ['x', 'embedding'])
def test_a_tensor_in_pieces_is_the_whole_one(name):
  """Its digest is that of checkpoints, and of a table only the first rows are sampled."""
  whole = noise(2, 3000, 4)
  taken = take({name: whole})[name]
  assert taken.digest == digests.leaf_digests({name: whole})[name]
  in_pieces = tensors.take(name, whole.shape, np.split(whole, [5, 1100, 2999]))
  np.testing.assert_array_equal(in_pieces.sample, taken.sample)
  assert in_pieces.digest == taken.digest
  assert np.isin(taken.sample, whole[:1024]).all() == (name == 'embedding')
