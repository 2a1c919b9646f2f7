"""Tensors are found in all files of a directory, and each has one place among our parameters."""

import json
import os

from flax.traverse_util import flatten_dict
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.storage import huggingface, layers
from bornbiased_jax.storage.huggingface import tensors
from bornbiased_jax.storage.huggingface.tensors import INDEX, open_tensors, read_index
from directories import assert_close, edit_tensors
import make_goldens
from make_goldens import GOLDENS, MODELS
from small_networks import logits


def test_a_file_that_changes_between_two_reads_is_named(tmp_path):
  file = tmp_path / tensors.WHOLE
  save_file({'x': np.arange(100.0)}, file)
  tensor, = open_tensors(tmp_path)
  file.write_bytes(file.read_bytes()[:-1])
  with pytest.raises(InputError, match='model.safetensors is not a whole safetensors file'):
    tensor.read()
  save_file({'x': np.arange(1.0, 101.0)}, file)
  with pytest.raises(InputError, match='model.safetensors has changed while it was read'):
    tensor.read()
  tensor, = open_tensors(tmp_path)
  file.write_bytes(file.read_bytes())  # In place, and of one size.
  os.utime(file, (1, 1))
  with pytest.raises(InputError, match='model.safetensors has changed while it was read'):
    tensor.read()
  file.unlink()
  with pytest.raises(InputError, match='model.safetensors is not a whole'):
    tensor.read()


@pytest.fixture
def overlaid(copy):
  """A model with a newer tensor in a file of its own, as its index says; and the older values."""
  path, laid = copy('llama_tied_sharded'), 'model.layers.1.mlp.down_proj.weight'
  index = json.loads((path / INDEX).read_text())
  old = load_file(path / index['weight_map'][laid])[laid]
  # transformers takes the tensor of the file that comes last.
  index['weight_map'][laid] = 'model-overlay.safetensors'
  save_file({laid: np.roll(old, 1)}, path / 'model-overlay.safetensors', dict(format='pt'))
  (path / INDEX).write_text(json.dumps(index))
  return path, laid, old


def test_live_the_index_says_from_which_file_a_tensor_is(overlaid, transformers):
  path, ids = overlaid[0], np.arange(48).reshape(2, 24)
  assert_close(logits(*huggingface.load(path), ids), make_goldens.logits(path, ids))


def test_tensors_that_an_index_lacks_are_of_no_model(overlaid):
  path, laid, old = overlaid
  wanted = huggingface.open_files(path).layers().digest()
  file = path / 'model-overlay.safetensors'
  save_file(load_file(file) | {'draft.weight': old, 'model.norm.weight': old}, file)
  assert huggingface.open_files(path).layers().digest() == wanted
  index = json.loads((path / INDEX).read_text())
  index['weight_map']['draft.weight'] = file.name
  (path / INDEX).write_text(json.dumps(index))
  with pytest.raises(InputError, match="tensor 'draft.weight' has no place in this model"):
    huggingface.load(path)
  index['weight_map'] |= {laid: 'model-00001-of-00002.safetensors', 'draft.weight': file.name}
  (path / INDEX).write_text(json.dumps(index))
  with pytest.raises(InputError, match=f'has no tensor {laid}'):
    huggingface.load(path)


def test_live_a_whole_file_goes_before_an_index(overlaid, transformers):
  path, ids = overlaid[0], np.arange(48).reshape(2, 24)
  whole = {tensor.stored_name: 0.9 * tensor.read() for tensor in open_tensors(path)}
  save_file(whole, path / tensors.WHOLE, dict(format='pt'))
  assert_close(logits(*huggingface.load(path), ids), make_goldens.logits(path, ids))
  assert {tensor.file.name for tensor in open_tensors(path)} == {tensors.WHOLE}


@pytest.mark.parametrize('name', ['mtp.fc.weight', 'mtp.layers.0.mlp.up_proj.weight',
                                  'model.mtp_layers.0.norm.weight', 'model.mtp.norm.weight'])
def test_live_heads_that_draft_tokens_are_left_out(name, copy, transformers):
  import torch
  path, ids = copy('qwen3_tied'), np.arange(48).reshape(2, 24)
  edit_tensors(path, lambda tensors: tensors.update({name: np.ones((3, 3), np.float32)}))
  model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation='eager')
  wanted = model(torch.from_numpy(ids)).logits.detach().float().numpy()
  assert_close(logits(*huggingface.load(path), ids), wanted)


@pytest.mark.parametrize('shard', ['../x.safetensors', '/x.safetensors', 'a/x.safetensors', 'x.bin',
                                   3, None, '.safetensors\n'])
def test_an_index_leads_nowhere_else(shard, tmp_path):
  index = tmp_path / INDEX
  index.write_text(json.dumps({'weight_map': {'a': 'a.safetensors', 'b': shard}}))
  with pytest.raises(InputError, match=r'must be the name of a \.safetensors file in its folder'):
    read_index(index)


@pytest.mark.parametrize('name', MODELS)
def test_all_pieces_are_the_network(name, monkeypatch):
  monkeypatch.setattr(layers, 'ROWS', 7)
  path = GOLDENS / name
  config, params = huggingface.load(path)
  found = huggingface.open_files(path).layers()
  assert found.config == config
  leaves = flatten_dict(params, sep='/')
  assert found.shapes == {name: leaf.shape for name, leaf in leaves.items()}
  assert 4 * num_parameters(config) == sum(leaf.nbytes for leaf in leaves.values())
  for i in range(config.num_layers):
    jax.tree.map(np.testing.assert_array_equal, found.read_block(i),
                 jax.tree.map(lambda leaf, i=i: leaf[i], params['blocks']))
  pieces = {}
  for name, piece in found.leaves():
    pieces.setdefault(name, []).append(piece)
  jax.tree.map(np.testing.assert_array_equal,
               {name: np.concatenate(of_leaf) for name, of_leaf in pieces.items()}, leaves)
  index_N = np.array([0, 6, 7, config.vocab_size - 1])
  np.testing.assert_array_equal(found.rows('embedding', index_N), params['embedding'][index_N])
