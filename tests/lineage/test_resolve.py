"""Every name of a network gives the same network, and names of none are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import resolve
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.storage.digests import digest

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)


def test_every_source_gives_the_same_network(tmp_path):
  params = init_params(CONFIG, 5)
  writer = checkpoint.Writer(tmp_path / 'run')
  writer.save(7, params, {'count': jnp.zeros(3)}, checkpoint.as_metadata(config=CONFIG))
  writer.close()
  llama = configs.get('tiny_llama2')
  huggingface.save(tmp_path / 'exported', llama, init_params(llama, 1))
  for name in (f'{tmp_path}/run', f'{tmp_path}/run@7'):
    config, loaded = resolve.load(name)
    assert config == CONFIG and digest(loaded) == digest(params)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
  config, loaded = resolve.load(f'{tmp_path}/exported', sharding.make_mesh(1, 4))
  shard = loaded['head'].addressable_shards[0].data
  assert shard.shape == (config.vocab_size, config.width // 4)
  assert digest(loaded) == digest(init_params(config, 1))
  preset = resolve.load('tiny_llama2:3')
  jax.tree.map(np.testing.assert_array_equal, preset[1], init_params(configs.get('tiny_llama2'), 3))


def test_a_random_network_of_any_architecture(tmp_path):
  name, file = 'tiny_gpt2,num_layers=2,width=32', tmp_path / 'own.json'
  file.write_text('{"preset": "tiny_gpt2", "num_layers": 2, "width": 32}')
  expected = digest(init_params(configs.get(name), 5))
  for own in (f'{name}:5', f'{file}:5', f'{file},num_heads=4:5'):
    assert digest(resolve.load(own)[1]) == expected
    # It is known by what the file says, and not by its name.
    assert resolve.resolve(own).about == {'name': f'{name}:5'}
  assert resolve.load_config(f'{name},activation=relu:5').activation == 'relu'


def test_weights_without_a_configuration_are_named(tmp_path):
  (tmp_path / 'model.safetensors').touch()
  with pytest.raises(InputError, match='config.json is missing'):
    resolve.load(str(tmp_path))


@pytest.mark.parametrize('name, message', [
    ('nowhere', 'no such network; give RUN'), ('tiny_lama2:4', r'\(did you mean tiny_llama2:4\?\)'),
    ('tiny_gpt2', r'\(did you mean tiny_gpt2:42\? A random network has a seed\)'),
    (__file__, 'is a file; give RUN'), ('tiny_gpt2:x', "'x' is not a seed"),
    ('tiny_gpt2,widht=32:4', 'did you mean width'),
    ('tests', 'no checkpoint'),
])
def test_names_that_are_no_network(name, message):
  with pytest.raises(InputError, match=message):
    resolve.load(name)
