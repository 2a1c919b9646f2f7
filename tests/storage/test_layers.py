"""A network that is read piece by piece is the network that is read at once."""

from flax.traverse_util import flatten_dict
import jax
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.storage import huggingface, layers
from make_goldens import GOLDENS, MODELS


@pytest.mark.parametrize('name', MODELS)
def test_all_pieces_are_the_network(name, monkeypatch):
  monkeypatch.setattr(layers, 'ROWS', 7)
  path = GOLDENS / name
  config, params = huggingface.load(path)
  found = huggingface.open_layers(path)
  assert found.config == config
  leaves = flatten_dict(params, sep='/')
  assert found.shapes == {name: leaf.shape for name, leaf in leaves.items()}
  assert 4 * num_parameters(config) == sum(leaf.nbytes for leaf in leaves.values())
  for i in range(config.num_layers):
    jax.tree.map(np.testing.assert_array_equal, found.read_block(i),
                 jax.tree.map(lambda leaf, i=i: leaf[i], params['blocks']))
  for name in found.outside_blocks():
    np.testing.assert_array_equal(np.concatenate(list(found.pieces(name))), leaves[name])
  index_N = np.array([0, 6, 7, config.vocab_size - 1])
  np.testing.assert_array_equal(found.rows('embedding', index_N), params['embedding'][index_N])


def test_a_file_that_vanishes_is_named(copy):
  path = copy('gpt2')
  found = huggingface.open_layers(path)
  (path / 'model.safetensors').unlink()
  with pytest.raises(InputError, match='model.safetensors is not a whole'):
    found.read_block(0)
