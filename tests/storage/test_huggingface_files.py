"""Tensors are found in all files of a directory, and read row by row as safetensors has them."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface_files
from bornbiased_jax.storage.huggingface_files import INDEX, open_tensors, shard_names
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
  file = tmp_path / huggingface_files.WHOLE
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
