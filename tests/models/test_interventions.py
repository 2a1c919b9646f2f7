"""Interventions change the value aggregate and the attention weights as they say."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis import attention_sink
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import transformer
from bornbiased_jax.models.attention_kernels import splash
from bornbiased_jax.storage import checkpoint, huggingface
from small_networks import GROUPED, LLAMA, random_networks, read, sharpened, tokens

EVERYWHERE = ('amplify', 'attenuate', 'rmsnorm', 'sink_logit', 'gain', 'damp')
AT_ONE = ('mask', 'variance', 'norm')


def positional_std(config, params, ids):
  return attention_sink.diagnostics(config, params, ids)['positional_std_LT']


@pytest.mark.slow
def test_interventions_level_the_positional_variance_at_init():
  """Without intervention the std at position i follows 1/sqrt(i); with one it is flat within 5 %.

  The vocabulary is large, because the embeddings of few tokens have a mean that does not average
  away.
  """
  sizes = dict(num_layers=1, width=256, mlp_width=64, num_heads=4, vocab_size=8000, length=128,
               linear_std=0.005, norm_epsilon=1e-9, tied_head=True)
  base = configs.get('tiny_llama2', **sizes)
  params, = random_networks(base, 1)
  ids = np.random.default_rng(1).integers(8000, size=(48, 128), dtype=np.int32)
  i = np.arange(1, 129)
  plain = positional_std(base, params, ids)[0]
  np.testing.assert_allclose(plain / plain[0], 1 / np.sqrt(i), rtol=0.05)
  for intervention, expected in (('amplify', plain[0]), ('attenuate', plain[0] / 128**0.5)):
    config = dataclasses.replace(base, intervention=intervention)
    np.testing.assert_allclose(positional_std(config, params, ids)[0], expected, rtol=0.05)
  config = dataclasses.replace(base, intervention='rmsnorm')
  params, = random_networks(config, 1)
  assert params['blocks']['value_norm']['scale'].shape == (1, 64)
  np.testing.assert_allclose(positional_std(config, params, ids)[0], 1, rtol=0.05)
  for intervention, factor in (('gain', np.sqrt(i).mean()), ('damp', np.sqrt(i / 128).mean())):
    config = dataclasses.replace(base, intervention=intervention)
    expected = plain * factor
    np.testing.assert_allclose(positional_std(config, params, ids)[0], expected, rtol=1e-4)


@pytest.fixture(scope='module')
def network():
  """Parameters, token ids, and what the network computes without an intervention."""
  params, ids = sharpened(GROUPED), tokens()
  return params, ids, read(GROUPED, params, ids, 'value_aggregate', 'hidden')


@pytest.mark.parametrize('name', ['variance', 'norm'])
def test_interventions_at_one_position(network, name):
  """They change the aggregate at that position as they say, and nothing before it."""
  params, ids, before = network
  plain = np.asarray(before['value_aggregate'])[0, :, 7]
  centre = plain.mean(axis=-1, keepdims=True)
  expected = {'norm': 3 * plain, 'variance': centre + 3 * (plain - centre)}
  changed = dataclasses.replace(GROUPED, intervention=name, intervention_position=7,
                                intervention_strength=3.0)
  made = read(changed, params, ids, 'value_aggregate', 'hidden')
  np.testing.assert_allclose(made['value_aggregate'][0, :, 7], expected[name], atol=1e-6)
  np.testing.assert_array_equal(made['hidden'][:, :7], before['hidden'][:, :7])
  assert np.abs(made['hidden'][:, 7] - before['hidden'][:, 7]).max() > 1e-4


def test_a_masked_position_attends_to_itself_alone(network):
  params, ids, before = network
  changed = dataclasses.replace(GROUPED, intervention='mask', intervention_position=7)
  made = read(changed, params, ids, 'attention_weights', 'value', 'value_aggregate', 'hidden')
  # Two query heads read each value.
  own = np.repeat(made['value'][:, :, 7].reshape(3, 6, 2, 8), 2, axis=2).reshape(3, 6, 32)
  np.testing.assert_allclose(made['value_aggregate'][:, :, 7], own, atol=1e-6)
  np.testing.assert_allclose(made['hidden'][:, :7], before['hidden'][:, :7], atol=1e-5)
  assert np.abs(made['hidden'][:, 7] - before['hidden'][:, 7]).max() > 1e-4
  itself = np.broadcast_to(np.eye(150)[7], (3, 6, 4, 150))
  np.testing.assert_array_equal(made['attention_weights'][:, :, :, 7], itself)
  # Behind a fused kernel the aggregate is replaced, which gives the same as masked weights.
  fused = read(changed, params, ids, 'value_aggregate')['value_aggregate']
  np.testing.assert_allclose(fused, made['value_aggregate'], atol=1e-5)
  weight = attention_sink.received(changed, params, ids)
  maps = np.moveaxis(np.asarray(made['attention_weights']), 1, 0)
  np.testing.assert_allclose(weight[..., 7], maps[..., 7:, 7].mean(axis=-1), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['amplify', 'mask'])
def test_the_last_position_alone_and_another_kernel_compute_the_same(name):
  """One that depends on the position, and one at a position."""
  config = dataclasses.replace(GROUPED, intervention=name, intervention_position=127)
  (params,), ids = random_networks(config, 1), tokens(2, 128)
  whole = read(config, params, ids, 'hidden')['hidden']
  alone = read(config, params, ids, 'hidden_last')['hidden_last']
  np.testing.assert_allclose(alone, whole[:, -1], atol=2e-5)
  kernel = functools.partial(splash, interpret=True)
  by_kernel = jax.jit(functools.partial(
      transformer.read, config, names=('hidden',), attend=kernel))(params, ids)['hidden']
  np.testing.assert_allclose(by_kernel, whole, atol=2e-4)


def test_interventions_survive_metadata_and_are_not_saved_for_transformers(tmp_path):
  for name in EVERYWHERE + AT_ONE:
    config = dataclasses.replace(GROUPED, intervention=name, intervention_position=3)
    metadata = json.loads(json.dumps(checkpoint.as_metadata(config=config)))
    assert checkpoint.config_of(metadata) == config
    with pytest.raises(InputError, match=f"intervention='{name}'"):
      huggingface.save(tmp_path / 'model', config, {})


@pytest.mark.parametrize('wrong, message', [
    (dict(intervention='double'), "intervention='double' is not one of none, amplify"),
    (dict(intervention_position=300), 'not a position from 0 to 299'),
    (dict(intervention_strength=0.0), 'intervention_strength=0.0 must be a positive number'),
])
def test_impossible_interventions(wrong, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(LLAMA, **wrong)
