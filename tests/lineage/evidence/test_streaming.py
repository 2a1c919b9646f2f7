"""A network that is read layer by layer gives what the whole one does, up to rounding."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage.evidence import hidden_states, signature, streaming
from bornbiased_jax.storage import digests, huggingface
from bornbiased_jax.storage.layers import in_memory
from make_goldens import GOLDENS

TOKENS, VECTORS = Probe('pairs', 23, 5), Probe('sphere', 23, 1)


def both(name):
  files = huggingface.open_files(GOLDENS / name)
  return files.load(), files.layers()


@pytest.mark.parametrize('name', ['gpt2', 'llama_tied_sharded', 'gemma3_bf16'])
def test_a_survey_is_what_the_whole_network_gives(name):
  (config, params), layers = both(name)
  surveyed, expected = (signature.survey(each) for each in (layers, in_memory(config, params)))
  assert surveyed.digest == expected.digest == digests.digest(params)
  jax.tree.map(np.testing.assert_array_equal, surveyed.features.arrays, expected.features.arrays)
  for key, tensor in expected.tensors.items():
    assert tensor.digest == surveyed.tensors[key].digest
    np.testing.assert_array_equal(tensor.sample, surveyed.tensors[key].sample)
  assert surveyed.features.config == config
  np.testing.assert_array_equal(surveyed.gain_D, params['final_norm']['scale'])


@pytest.mark.slow
@pytest.mark.parametrize('name, probe', [
    ('gpt2', VECTORS), ('gemma3_bf16', TOKENS)],
    ids=lambda value: getattr(value, 'kind', value))
def test_hidden_states_are_the_same_up_to_rounding(name, probe):
  (config, params), layers = both(name)
  whole = hidden_states.of_network(config, params, probe, batch_size=8)
  streamed = streaming.of_layers(layers, probe, batch_size=8)
  np.testing.assert_allclose(streamed.hidden_ND, whole.hidden_ND,
                             atol=1e-5 * np.abs(whole.hidden_ND).max())
  # A sum near zero has lost digits.
  np.testing.assert_allclose(streamed.input_ND, whole.input_ND, rtol=1e-6, atol=1e-8)
  assert streamed.metadata() == whole.metadata()


@pytest.mark.parametrize('damaged', [False, True])
def test_stopped_at_any_layer_it_goes_on_from_there(damaged, tmp_path):
  layers = huggingface.open_files(GOLDENS / 'gemma3_bf16').layers()
  run = functools.partial(streaming.of_layers, probe=TOKENS, batch_size=8)
  expected, last = run(layers), layers.config.num_layers - 1

  def stopping(i):
    if i == last:
      raise KeyboardInterrupt
    return layers.read_block(i)

  with pytest.raises(KeyboardInterrupt):
    run(dataclasses.replace(layers, read_block=stopping), parts=tmp_path)
  kept, = tmp_path.iterdir()
  assert kept.name == f'layer_{last:04d}.npz'
  if damaged:
    kept.write_bytes(kept.read_bytes()[:-200])
  read, counted = [], []
  watched = dataclasses.replace(layers, read_block=lambda i: read.append(i) or layers.read_block(i))
  found = run(watched, parts=tmp_path, on_batch=counted.append)
  np.testing.assert_array_equal(found.hidden_ND, expected.hidden_ND)
  np.testing.assert_array_equal(found.input_ND, expected.input_ND)
  assert read == (list(range(last + 1)) if damaged else [last])
  assert sum(counted) == TOKENS.num_sequences
