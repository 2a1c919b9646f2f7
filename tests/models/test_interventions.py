"""Interventions change the value aggregate and the attention weights as they say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis import attention_sink
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import transformer
from bornbiased_jax.models.attention_kernels import splash
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import checkpoint, huggingface
from small_networks import GROUPED, LLAMA, read, sharpened, tokens

EVERYWHERE = ('amplify', 'attenuate', 'rmsnorm', 'gain', 'damp')
AT_ONE = ('mask', 'variance', 'norm')


def positional_std(config, params, ids):
  return attention_sink.diagnostics(config, params, ids)['positional_std_LT']


def test_interventions_level_the_positional_variance_at_init():
  """Without intervention the std at position i follows 1/sqrt(i); with one it is flat within 5 %.

  The vocabulary is large, because the embeddings of few tokens have a mean that does not average
  away.
  """
  sizes = dict(num_layers=1, width=512, mlp_width=64, num_heads=4, vocab_size=30000, length=256,
               linear_std=0.005, norm_epsilon=1e-9)
  base = configs.get('tiny_llama2', **sizes)
  params = init_params(base, 1)
  ids = np.asarray(jax.random.randint(jax.random.key(0), (32, 256), 0, 30000))
  i = np.arange(1, 257)
  plain = positional_std(base, params, ids)[0]
  np.testing.assert_allclose(plain / plain[0], 1 / np.sqrt(i), rtol=0.05)
  for intervention, expected in (('amplify', plain[0]), ('attenuate', plain[0] / 16)):
    config = dataclasses.replace(base, intervention=intervention)
    np.testing.assert_allclose(positional_std(config, params, ids)[0], expected, rtol=0.05)
  config = dataclasses.replace(base, intervention='rmsnorm')
  params = init_params(config, 1)
  assert params['blocks']['value_norm']['scale'].shape == (1, 128)
  np.testing.assert_allclose(positional_std(config, params, ids)[0], 1, rtol=0.05)
  for intervention, factor in (('gain', np.sqrt(i).mean()), ('damp', np.sqrt(i / 256).mean())):
    config = dataclasses.replace(base, intervention=intervention)
    expected = plain * factor
    np.testing.assert_allclose(positional_std(config, params, ids)[0], expected, rtol=1e-4)


@pytest.mark.parametrize('config', [LLAMA, GROUPED], ids=['llama', 'grouped'])
def test_interventions_at_one_position(config):
  """They change the aggregate at that position as they say, and nothing before it."""
  params, ids = sharpened(config), tokens()
  plain = np.asarray(read(config, params, ids, 'value_aggregate')['value_aggregate'])[0, :, 7]
  centre = plain.mean(axis=-1, keepdims=True)
  expected = {'norm': 3 * plain, 'variance': centre + 3 * (plain - centre)}
  for name in AT_ONE:
    changed = dataclasses.replace(config, intervention=name, intervention_position=7,
                                  intervention_strength=3.0)
    made = read(changed, params, ids, 'value_aggregate', 'hidden')
    if name in expected:
      np.testing.assert_allclose(made['value_aggregate'][0, :, 7], expected[name], atol=1e-6)
    before = read(config, params, ids, 'hidden')['hidden']
    np.testing.assert_array_equal(made['hidden'][:, :7], before[:, :7])
    assert np.abs(made['hidden'][:, 7] - before[:, 7]).max() > 1e-4


@pytest.mark.parametrize('config', [LLAMA, GROUPED], ids=['llama', 'grouped'])
def test_a_masked_position_attends_to_itself_alone(config):
  params, ids = sharpened(config), tokens()
  changed = dataclasses.replace(config, intervention='mask', intervention_position=7)
  made = read(changed, params, ids, 'attention_weights', 'value_aggregate')
  itself = np.broadcast_to(np.eye(150)[7], (3, 6, 4, 150))
  np.testing.assert_array_equal(made['attention_weights'][:, :, :, 7], itself)
  # Behind a fused kernel the aggregate is replaced, which gives the same as masked weights.
  fused = read(changed, params, ids, 'value_aggregate')['value_aggregate']
  np.testing.assert_allclose(fused, made['value_aggregate'], atol=1e-5)
  weight = attention_sink.received(changed, params, ids)
  maps = np.moveaxis(np.asarray(made['attention_weights']), 1, 0)
  np.testing.assert_allclose(weight[..., 7], maps[..., 7:, 7].mean(axis=-1), atol=1e-6)


@pytest.mark.parametrize('name', [*EVERYWHERE, *AT_ONE])
def test_the_last_position_alone_is_the_last_of_all(name):
  config = dataclasses.replace(GROUPED, intervention=name, intervention_position=149)
  params, ids = init_params(config, 1), tokens()
  np.testing.assert_allclose(read(config, params, ids, 'hidden_last')['hidden_last'],
                             read(config, params, ids, 'hidden')['hidden'][:, -1], atol=2e-5)


@pytest.mark.parametrize('name', [*EVERYWHERE, *AT_ONE])
def test_interventions_work_with_other_kernels_and_survive_a_checkpoint(name, tmp_path):
  config = dataclasses.replace(GROUPED, intervention=name, intervention_position=3)
  params, ids = init_params(config, 1), tokens(2, 128)
  kernel = lambda *heads: splash(*heads, interpret=True)
  by_kernel = transformer.read(config, params, ids, ('hidden',), kernel)['hidden']
  np.testing.assert_allclose(by_kernel, read(config, params, ids, 'hidden')['hidden'], atol=2e-4)
  writer = checkpoint.Writer(tmp_path / 'run')
  writer.save(1, params, {'count': jnp.zeros(1)}, checkpoint.as_metadata(config=config))
  writer.close()
  restored_config, restored = checkpoint.load_params(tmp_path / 'run')
  assert restored_config == config
  jax.tree.map(np.testing.assert_array_equal, restored, params)
  with pytest.raises(InputError, match=f"intervention='{name}'"):
    huggingface.save(tmp_path / 'model', config, params)


@pytest.mark.parametrize('wrong, message', [
    (dict(intervention='double'), "intervention='double' is not one of none, amplify"),
    (dict(intervention_position=300), 'not a position from 0 to 299'),
    (dict(intervention_strength=0.0), 'intervention_strength=0.0 must be a positive number'),
])
def test_impossible_interventions(wrong, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(LLAMA, **wrong)
