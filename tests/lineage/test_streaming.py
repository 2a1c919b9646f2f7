"""A network that is read layer by layer answers as the whole one does, to the bit."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import dossiers, features, inventory, networks, reading, streaming
from bornbiased_jax.storage import digests, huggingface
from make_goldens import GOLDENS, MODELS

TOKENS, VECTORS = Probe('tokens', 23, 5), Probe('sphere', 23, 1)


def both(name):
  return huggingface.load(GOLDENS / name), huggingface.open_layers(GOLDENS / name)


@pytest.mark.parametrize('name', MODELS)
def test_a_survey_is_what_the_whole_network_gives(name):
  (config, params), layers = both(name)
  surveyed = streaming.survey(layers)
  assert surveyed.digest == digests.digest(params)
  wanted = inventory.take(params)
  assert surveyed.tensors.keys() == wanted.keys()
  for key, tensor in surveyed.tensors.items():
    assert (tensor.digest, tensor.shape) == (wanted[key].digest, wanted[key].shape)
    np.testing.assert_array_equal(tensor.sample, wanted[key].sample)
  jax.tree.map(np.testing.assert_array_equal, surveyed.sketch, features.sketch(config, params))
  assert reading.with_size(config, surveyed.mean_square) == reading.sized(config, params)


@pytest.mark.usefixtures('unoptimized')
@pytest.mark.parametrize('name, probe', [
    *((name, TOKENS) for name in MODELS), ('gpt2', VECTORS), ('gemma2', VECTORS)],
    ids=lambda value: getattr(value, 'kind', value))
def test_answers_are_the_same_to_the_bit_unless_fused(name, probe):
  (config, params), layers = both(name)
  whole = reading.fingerprint(config, params, probe, batch_size=8)
  streamed = streaming.fingerprint(layers, probe, batch_size=8)
  np.testing.assert_array_equal(streamed.hidden_ND, whole.hidden_ND)
  np.testing.assert_array_equal(streamed.input_ND, whole.input_ND)
  assert streamed.metadata == whole.metadata


class Stopped(Exception):
  pass


@pytest.mark.parametrize('damaged', [False, True])
def test_stopped_at_any_layer_it_goes_on_from_there(damaged, tmp_path):
  _, layers = both('qwen3_tied')
  wanted, last = streaming.fingerprint(layers, TOKENS), layers.config.num_layers - 1

  def stopping(i):
    if i == last:
      raise Stopped
    return layers.read_block(i)

  with pytest.raises(Stopped):
    streaming.fingerprint(dataclasses.replace(layers, read_block=stopping), TOKENS, parts=tmp_path)
  kept, = tmp_path.iterdir()
  assert kept.name == f'layer_{last:04d}.npz'
  if damaged:
    kept.write_bytes(kept.read_bytes()[:-200])
  read, counted = [], []
  watched = dataclasses.replace(layers, read_block=lambda i: read.append(i) or layers.read_block(i))
  found = streaming.fingerprint(watched, TOKENS, parts=tmp_path, on_batch=counted.append)
  np.testing.assert_array_equal(found.hidden_ND, wanted.hidden_ND)
  np.testing.assert_array_equal(found.input_ND, wanted.input_ND)
  assert read == (list(range(last + 1)) if damaged else [last])
  assert sum(counted) == TOKENS.num_sequences


@pytest.fixture
def one_device(monkeypatch):
  """The machine without its other devices: a network that is spread over them rounds otherwise."""
  monkeypatch.setattr(networks.jax, 'device_count', lambda: 1)


@pytest.mark.usefixtures('one_device')
def test_what_fits_is_not_streamed_and_what_does_not_is(monkeypatch, tmp_path):
  name = str(GOLDENS / 'llama_tied_sharded')
  whole = networks.dossier(name, TOKENS)
  assert whole.about == {'name': name, 'digest': whole.about['digest']}
  monkeypatch.setattr(networks, 'free_memory', lambda: 1000)
  streamed = networks.dossier(name, TOKENS, tmp_path)
  assert streamed.about == whole.about | {'read': 'layer by layer'}
  for part in ('tokens', 'vectors'):
    np.testing.assert_array_equal(getattr(streamed, part).hidden_ND,
                                  getattr(whole, part).hidden_ND)
  # The file in the cache is the same, whoever made it.
  file, = tmp_path.glob('*.npz')
  again = networks.dossier(name, TOKENS, tmp_path, stream='never')
  assert again.about == whole.about and [file] == list(tmp_path.iterdir())
  with pytest.raises(InputError, match='is not one of auto, always, never'):
    networks.dossier(name, TOKENS, stream='sometimes')


@pytest.mark.usefixtures('one_device')
def test_a_verdict_without_both_networks_in_memory():
  name = str(GOLDENS / 'qwen3_tied')
  whole = networks.compare_networks(name, name, TOKENS, stream='never')
  streamed = networks.compare_networks(name, name, TOKENS, stream='always')
  kept = lambda report: [row for row in report['witnesses'] if 'aligned' not in row['witness']]
  assert kept(streamed) == kept(whole) and len(whole['witnesses']) > len(kept(whole))
  assert streamed['verdict'] == whole['verdict'] == 'related'
  assert streamed['base']['read'] == 'layer by layer'


def test_the_probe_of_vectors_goes_with_that_of_a_dossier():
  (config, params), layers = both('gpt2')
  whole = dossiers.take(config, params, TOKENS)
  streamed = streaming.dossier(layers, streaming.survey(layers), TOKENS)
  assert streamed.vectors.metadata == whole.vectors.metadata
  np.testing.assert_array_equal(streamed.vectors.hidden_ND, whole.vectors.hidden_ND)
