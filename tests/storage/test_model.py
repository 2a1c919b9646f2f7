"""Every name of a network gives the same network, and names of none are refused."""

import sys

import jax
import numpy as np
import pytest

from bornbiased_jax import configs, lineage, storage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.digests import digest
from small_networks import DEEP, born, save_run

OPENED: list[str] = []
sys.addaudithook(lambda event, given: event == 'open' and str(given[0]).endswith('config.json')
                 and OPENED.append(str(given[0])))
CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)
PROBE = Probe('tokens', 1000, 4)


def test_every_source_gives_the_same_network(tmp_path):
  params = born(CONFIG, 5)
  save_run(tmp_path / 'run', 7, CONFIG, params)
  llama = configs.get('tiny_llama2')
  huggingface.save(tmp_path / 'a.gguf', llama, born(llama, 1))  # A folder has any name.
  # A model inside of a run does not hide it.
  huggingface.save(tmp_path / 'run' / 'best', llama, born(llama, 1))
  for name in (f'{tmp_path}/run', f'{tmp_path}/run@7'):
    config, loaded = storage.open(name).load()
    assert config == CONFIG and digest(loaded) == digest(params)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
  save_run(tmp_path / 'run', 9, DEEP, born(DEEP, 5))
  for name, expected in ((f'{tmp_path}/run', DEEP), (f'{tmp_path}/run@7', CONFIG)):
    assert storage.open(name).config == storage.open(name).load()[0] == expected
  config, loaded = storage.open(f'{tmp_path}/a.gguf').load(sharding.make_mesh(1, 4))
  shard = loaded['head'].addressable_shards[0].data
  assert shard.shape == (config.vocab_size, config.width // 4)
  assert digest(loaded) == digest(born(config, 1))
  preset = storage.open('tiny_llama2:3').load()
  jax.tree.map(np.testing.assert_array_equal, preset[1], init_params(configs.get('tiny_llama2'), 3))


def test_a_random_network_of_any_architecture(tmp_path):
  name, file = 'tiny_gpt2,num_layers=2,width=32', tmp_path / 'own.json'
  file.write_text('{"preset": "tiny_gpt2", "num_layers": 2, "width": 32}')
  expected = digest(init_params(configs.get(name), 5))
  for own in (f'{name}:5', f'{file}:5', f'{file},num_heads=4:5'):
    assert digest(storage.open(own).load()[1]) == expected
    # It is known by what the file says, and not by its name.
    assert storage.open(own).about == {'name': f'{name}:5'}
  assert storage.open(f'{name},activation=relu:5').config.activation == 'relu'


@pytest.mark.parametrize('read', [
    lambda names: lineage.compare_networks(*names, PROBE),
    lambda names: lineage.compare_networks(*names, PROBE, stream='always'),
    lambda names: [storage.canonical(name) for name in names]],
    ids=['verdict', 'verdict, layer by layer', 'architecture'])
def test_config_json_is_read_once(read, tmp_path):
  names = [str(tmp_path / name) for name in 'ab']
  for seed, name in enumerate(names):
    huggingface.save(name, DEEP, born(DEEP, seed))
  OPENED.clear()
  read(names)
  for name in names:  # It is opened once more to see whether Git LFS has fetched it.
    assert OPENED.count(f'{name}/config.json') == 2


def test_a_network_that_was_looked_up_is_not_read_again(tmp_path):
  name = str(tmp_path / 'a')
  huggingface.save(name, DEEP, born(DEEP, 1))
  model = lineage.look_up(name)
  OPENED.clear()
  report = lineage.compare_networks(model, lineage.look_up(model), PROBE)
  assert report['identical'] and not OPENED


def test_weights_without_a_configuration_are_named(tmp_path):
  (tmp_path / 'model.safetensors').touch()
  with pytest.raises(InputError, match='config.json is missing'):
    storage.open(str(tmp_path)).load()


def test_a_typo_in_any_part_of_a_path_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'mine' / 'checkpoint-20').mkdir(parents=True)
  for name in ('mine/chekpoint-20', 'mine/checkpoint-2O/', 'mien/checkpoint-20',
               'mien/chekpoint-20'):
    with pytest.raises(InputError, match=r'\(did you mean mine/checkpoint-20\?\)'):
      storage.open(name)
  for name in ('other/checkpoint-20', 'mine/else'):
    with pytest.raises(InputError, match=f'^{name}: (?!.*did you mean)'):
      storage.open(name)


def test_files_of_weights_alone_are_named_with_what_to_give(tmp_path):
  huggingface.save(tmp_path / 'saved', DEEP, born(DEEP, 3))
  huggingface.save(tmp_path / 'models' / 'saved', DEEP, born(DEEP, 3))
  (tmp_path / 'model.pt').write_bytes(b'PK')
  weights = str(tmp_path / 'saved' / 'model.safetensors')
  models = tmp_path / 'models'
  (models / 'nano.pt').write_bytes(b'PK')
  message = f'holds models: saved; give one of them, such as {models / "saved"}'
  with pytest.raises(InputError, match=message):
    storage.open(str(models))
  for read in (lambda name: storage.open(name).load(), huggingface.load):
    with pytest.raises(InputError, match=f'give its folder {tmp_path / "saved"}'):
      read(weights)
    with pytest.raises(InputError, match=r'pickle.*torch.load\(.*weights_only=True\).*save\('):
      read(str(tmp_path / 'model.pt'))
  for given, named in (({}, 'from_state_dict'), (DEEP, 'analysis.transformer'), (3, 'int is')):
    with pytest.raises(InputError, match=named):
      storage.open(given)
  with pytest.raises(InputError, match='int is not an analysis.Probe'):
    lineage.compare_networks('tiny_gpt2:1', 'tiny_gpt2:2', 1000)
  with pytest.raises(InputError, match="'bytes' is no tokenizer; data.load_tokenizer"):
    huggingface.save(tmp_path / 'x', DEEP, born(DEEP, 3), 'bytes')


@pytest.mark.parametrize('name, message', [
    ('nowhere', 'no such model; give RUN'), ('tiny_lama2:4', r'\(did you mean tiny_llama2:4\?\)'),
    ('tiny_gpt2', r'\(did you mean tiny_gpt2:42\? A random model has a seed\)'),
    (__file__, 'is a file; give RUN'), ('tiny_gpt2:x', "'x' is not a seed"),
    ('tiny_gpt2,widht=32:4', 'did you mean width'),
])
def test_names_that_are_no_network(name, message):
  with pytest.raises(InputError, match=message):
    storage.open(name).load()
