"""Tensors are found in all files of a directory, and each has one place among our parameters."""

from collections import Counter
import json

from flax.traverse_util import flatten_dict
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.storage import huggingface, layers
from bornbiased_jax.storage.huggingface import weights
from bornbiased_jax.storage.huggingface.config import read_config
from bornbiased_jax.storage.huggingface.weights import (
  INDEX,
  find,
  groups,
  leaf_shapes,
  open_tensors,
  shard_names,
)
from make_goldens import GOLDENS, MODELS


@pytest.mark.parametrize('name', MODELS)
def test_tensors_are_those_of_safetensors(name):
  wanted = {}
  for file in (GOLDENS / name).glob('*.safetensors'):
    wanted |= load_file(file)
  found = {tensor.stored_name: tensor for tensor in open_tensors(GOLDENS / name)}
  assert found.keys() == wanted.keys()
  for key, tensor in found.items():
    assert tensor.shape == list(wanted[key].shape)
    np.testing.assert_array_equal(tensor.read(), wanted[key])
    np.testing.assert_array_equal(tensor.read(3, 7), wanted[key][3:7])


def test_a_file_that_is_cut_off_between_two_reads_is_named(tmp_path):
  file = tmp_path / weights.WHOLE
  save_file({'x': np.arange(100.0)}, file)
  tensor, = open_tensors(tmp_path)
  file.write_bytes(file.read_bytes()[:-1])
  with pytest.raises(InputError, match='model.safetensors is not a whole safetensors file'):
    tensor.read()
  save_file({'x': np.arange(1.0, 101.0)}, file)
  with pytest.raises(InputError, match='model.safetensors has changed while it was read'):
    tensor.read()


@pytest.mark.parametrize('shard', ['../x.safetensors', '/x.safetensors', 'a/x.safetensors', 'x.bin',
                                   3, None, '.safetensors\n'])
def test_an_index_leads_nowhere_else(shard, tmp_path):
  index = tmp_path / INDEX
  index.write_text(json.dumps({'weight_map': {'a': 'a.safetensors', 'b': shard}}))
  with pytest.raises(InputError, match=r'must be the name of a \.safetensors file beside it'):
    shard_names(index)


@pytest.mark.parametrize('name', MODELS)
def test_every_leaf_is_filled_once(name):
  config, family, _ = read_config(GOLDENS / name / 'config.json')
  shapes = leaf_shapes(config)
  wanted = list(groups(config, family, shapes))
  tensors = find(GOLDENS / name, config, family, wanted, open_tensors(GOLDENS / name))
  times = {leaf: np.zeros(shape) for leaf, shape in shapes.items()}
  for group in wanted:
    for stored, index in group.stored():
      ones = np.ones(tensors[stored].shape)
      for ours, theirs in group.aligned([times[leaf] for leaf in group.leaves], index, ones, config,
                                        family):
        ours += theirs
  assert all((count == 1).all() for count in times.values())


@pytest.mark.parametrize('name', MODELS)
def test_every_tensor_is_read_once(name):
  config, family, _ = read_config(GOLDENS / name / 'config.json')
  wanted = list(groups(config, family, leaf_shapes(config)))
  read = Counter(stored for group in wanted for stored, _ in group.stored())
  assert set(read.values()) == {1}
  found = find(GOLDENS / name, config, family, wanted, open_tensors(GOLDENS / name))
  left = found.keys() - read.keys()
  assert left <= {f'{family.head}.weight'}


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
