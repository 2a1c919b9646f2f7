"""Signatures are saved and loaded as they are, and files from others are not trusted."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import array_file, features, signature, tensors
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.storage import digests
from small_networks import DEEP, trained
import small_signatures

PROBE = Probe('pairs', 30, 5)


@pytest.fixture(scope='module')
def made():
  made = small_signatures.of_seed(DEEP, 1, PROBE)
  return dataclasses.replace(made, states=made.states.named({'name': 'a'}))


def test_it_is_read_from_the_network(made):
  params = trained(DEEP, 1)
  assert made.digest == digests.digest(params) and made.config == DEEP
  np.testing.assert_array_equal(made.gain_D, params['final_norm']['scale'])
  # Sequences 2 i and 2 i + 1 end in one token.
  np.testing.assert_array_equal(made.states.input_ND[::2], made.states.input_ND[1::2])
  np.testing.assert_allclose(made.normalized_ND * made.gain_D, made.states.hidden_ND, rtol=1e-5)
  dead = dataclasses.replace(made, gain_D=0 * made.gain_D)
  assert not dead.normalized_ND.any()


def test_a_saved_signature_is_the_same(made, tmp_path):
  path = tmp_path / 'a.safetensors'
  made.save(path)
  loaded = signature.load(path)
  assert loaded.states.metadata() == made.states.metadata() and loaded.about == {'name': 'a'}
  arrays = lambda x: [x.states.hidden_ND, x.states.input_ND, x.gain_D, x.features.arrays]
  jax.tree.map(np.testing.assert_array_equal, arrays(loaded), arrays(made))
  assert loaded.tensors.keys() == made.tensors.keys() and loaded.digest == made.digest
  for name, tensor in made.tensors.items():
    assert loaded.tensors[name].shape == tensor.shape
    np.testing.assert_array_equal(loaded.tensors[name].sample, tensor.sample)
  assert path.stat().st_size < num_bytes(DEEP, 30) + 10_000


def num_bytes(config, num_sequences):
  """Of the arrays in a file: features of 2 bytes, all else of 4."""
  leaves = jax.tree.leaves(param_shapes(config))
  stored = sum(np.prod(shape) for shape in features.shapes(config).values())
  numbers = len(features.INVARIANTS) * config.num_layers * len(features.QUANTILES)
  return 2 * stored + 4 * (config.width * (2 * num_sequences + 1) + numbers
                           + tensors.SAMPLE_SIZE * len(leaves))


def test_at_the_shapes_of_a_large_model_it_has_the_size_that_is_said():
  assert num_bytes(configs.get('llama2_7b'), 2000) == pytest.approx(130e6, rel=0.05)


@pytest.mark.parametrize('damage', [
    lambda arrays, metadata: arrays.pop('input_ND'),
    lambda arrays, metadata: arrays.update(hidden_ND=arrays['hidden_ND'][:, :-1]),
    lambda arrays, metadata: arrays.update(hidden_ND=np.float64(arrays['hidden_ND'])),
    lambda arrays, metadata: metadata.update(about=3),
    lambda arrays, metadata: metadata['config'].update(width=10**12),
    lambda arrays, metadata: metadata['probe'].pop('seed'),
    lambda arrays, metadata: metadata['probe'].update(length=7),
    lambda arrays, metadata: metadata['probe'].update(hash=7),
    lambda arrays, metadata: metadata['probe'].update(more=7),
    lambda arrays, metadata: arrays.pop('samples'),
    lambda arrays, metadata: arrays.pop('feature up'),
    lambda arrays, metadata: arrays.update({'feature up': arrays['feature up'][:, :3]}),
    lambda arrays, metadata: arrays.update({'feature up': np.float32(arrays['feature up'])}),
    lambda arrays, metadata: arrays.update({'feature more': arrays['feature up']}),
    lambda arrays, metadata: arrays.update(gain_D=arrays['gain_D'][:3]),
    lambda arrays, metadata: metadata['config'].update(mlp_width=10**12),
    lambda arrays, metadata: metadata['config'].update(num_layers=3),
    lambda arrays, metadata: metadata['tensors'].update(head=7),
    lambda arrays, metadata: metadata['tensors']['head'].update(shape=[float('inf')]),
    lambda arrays, metadata: metadata['about'].update(name='a' * 10_000),
    lambda arrays, metadata: metadata['about'].update(name='\u202ea'),
    lambda arrays, metadata: metadata['about'].update(name={'a': 'b'}),
    lambda arrays, metadata: metadata['about'].update(base={'name': ['a']}),
])
def test_parts_of_a_signature_that_do_not_fit_are_refused(made, damage, tmp_path):
  path = tmp_path / 'a.safetensors'
  made.save(path)
  arrays, metadata = array_file.read(path, lambda *parts: parts)
  damage(arrays, metadata)
  array_file.write(path, arrays, metadata)
  with pytest.raises(InputError, match=f'^{path}'):
    signature.load(path)


@pytest.mark.parametrize('missing', ['down', 'up', 'value'])
def test_by_names_too_features_are_whole(made, missing, tmp_path):
  states = dataclasses.replace(made.states, hidden_ND=np.zeros((0, 32), np.float32),
                               input_ND=np.zeros((0, 32), np.float32))
  arrays = {name: x for name, x in made.features.arrays.items() if name != missing}
  own = dataclasses.replace(made, states=states, features=dataclasses.replace(
      made.features, arrays=arrays))
  own.save(tmp_path / 'a.safetensors')
  with pytest.raises(InputError, match='do not fit'):
    signature.load(tmp_path / 'a.safetensors')


def test_a_signature_reads_pairs_of_tokens():
  assert signature.pairs_probe(Probe('tokens', 6, 4, seed=3)) == Probe('pairs', 6, 4, seed=3)
  with pytest.raises(InputError, match="not a probe of kind 'sphere'"):
    signature.pairs_probe(Probe('sphere', 6, 4))
