"""Presets have the paper's sizes, fields are derived as stated, and nonsense is refused."""

import dataclasses
import json
import math
from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest

from bornbiased_jax import configs, storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import architectures, huggingface

SMALL = dict(num_layers=2, num_heads=4, width=16, mlp_width=32, vocab_size=11)

# The sizes of the paper's models, and of the tiny ones that stand in for them here.
COLUMNS = ('num_layers', 'num_heads', 'width', 'mlp_width', 'vocab_size', 'length')
TABLE = {
    'nano_gpt2': (12, 12, 768, 3072, 50257, 1024),
    'nano_llama2': (12, 12, 768, 2048, 32000, 2048),
    'nano_qwen2': (12, 12, 768, 3072, 151936, 2048),
    'gpt2_1b2': (24, 32, 2048, 8192, 50257, 1024),
    'llama2_7b': (32, 32, 4096, 11008, 32000, 4096),
    'pythia_70m': (6, 8, 512, 2048, 50304, 2048),
    'tiny_gpt2': (4, 4, 128, 512, 2048, 1024),
    'tiny_llama2': (4, 4, 128, 344, 2048, 2048),
    'tiny_qwen2': (4, 4, 128, 344, 2048, 2048),
    'tiny_moe': (4, 4, 128, 172, 2048, 2048),
}
GPT2 = dict(norm='layernorm', activation='gelu_tanh', gated_mlp=False, tied_head=True,
            qkv_bias=True, output_bias=True, mlp_bias=True)
LLAMA2 = dict(norm='rmsnorm', activation='silu', gated_mlp=True, tied_head=False,
              qkv_bias=False, output_bias=False, mlp_bias=False)
SMALL_INIT_512 = math.sqrt(2 / 5 / 512)
PYTHIA = GPT2 | dict(activation='gelu', tied_head=False, parallel_residual=True, rotary_factor=0.25,
                     init_scheme='wang', linear_std=SMALL_INIT_512, embedding_std=SMALL_INIT_512,
                     residual_std=2 / 6 / math.sqrt(512))
FAMILY = {'gpt2': GPT2, 'llama2': LLAMA2, 'qwen2': LLAMA2 | dict(qkv_bias=True), 'pythia': PYTHIA,
          'moe': LLAMA2 | dict(num_experts=8, experts_per_token=2, renormalized_experts=True)}
EVERY_PRESET = dict(positions='rope', rope_theta=10000.0, qk_norm=False, sublayers='full',
                    init_scheme='gpt2', embedding_std=0.02, dtype='float32')
LLAMA3 = dict(kind='llama3', factor=8.0, original_length=8192, slow=1.0, fast=4.0)
YARN = LLAMA3 | dict(kind='yarn', attention_factor=1.2)


def small(**fields):
  return configs.ModelConfig(**SMALL | fields)


def test_every_preset_is_in_the_table():
  assert set(configs.PRESETS) == set(TABLE)


@pytest.mark.parametrize('name', TABLE)
def test_preset(name):
  config = configs.get(name)
  family = next(fields for key, fields in FAMILY.items() if key in name)
  expected = dict(zip(COLUMNS, TABLE[name], strict=True)) | EVERY_PRESET | family
  assert {field: getattr(config, field) for field in expected} == pytest.approx(expected)
  assert config.num_kv_heads == config.num_heads
  assert config.head_size * config.num_heads == config.width


@pytest.mark.parametrize('width, std', [
    (768, 0.02), (1024, 0.02), (4096, 0.02), (192, 0.04), (48, 0.08), (128, 0.02 * math.sqrt(6)),
])
def test_linear_std(width, std):
  assert math.isclose(small(width=width).linear_std, std, rel_tol=1e-15)


@pytest.mark.parametrize('num_layers', [1, 2, 12])
def test_residual_std(num_layers):
  gpt2 = small(num_layers=num_layers, width=768)
  plain = small(num_layers=num_layers, width=768, init_scheme='plain')
  assert math.isclose(gpt2.residual_std ** 2 * 2 * num_layers, 0.02 ** 2, rel_tol=1e-14)
  assert plain.residual_std == 0.02


@pytest.mark.parametrize('fields, named', [
    (dict(num_heads=3), 'num_heads=3'),
    (dict(num_kv_heads=3), 'num_kv_heads=3'),
    (dict(num_kv_heads=8), 'num_kv_heads=8'),
    (dict(num_kv_heads=0), 'num_kv_heads=0'),
    (dict(head_size=5), 'head_size=5'),
    (dict(head_size=0), 'head_size=0'),
    (dict(rotary_factor=1.5), 'rotary_factor=1.5'),
    (dict(rotary_factor=0.75), 'head_size=4 times rotary_factor=0.75 is odd'),
    (dict(rotary_factor=0.1), 'rotary_factor=0.1'),
    (dict(positions='alibi', score_cap=3.0), "score_cap=3.0 has no meaning with positions='alibi'"),
    (dict(rope_scaling='yarn'), "rope_scaling='yarn' must be"),
    (dict(rope_scaling=LLAMA3 | dict(kind='yarn'), rope_theta=1.0), 'rope_theta=1.0'),
    (dict(windows=(3,)), 'windows=(3,) must have one entry for each of the 2 layers'),
    (dict(windows=5), 'windows=5 must have one entry'),
    (dict(windows='no'), "windows='no' must have one entry"),
    (dict(windows=(3, 0)), 'windows=0 must be a whole number'),
    (dict(windows=(3, 2.5)), 'windows=2.5 must be a whole number'),
    (dict(windows=(True, None)), 'windows=True must be a whole number'),
    *((dict(windows=(3, None), intervention=name), f'intervention={name!r} is for attention to all')
      for name in ('amplify', 'attenuate', 'gain', 'damp')),
    (dict(window_rope_theta=5.0), 'window_rope_theta=5.0 has no meaning without windows'),
    (dict(window_rope_theta=5.0, windows=(3, 3), positions='learned'),
     "has no meaning without windows and positions='rope'"),
    (dict(window_rope_theta=0.5, windows=(3, 3)), 'window_rope_theta=0.5 must be at least 1'),
    (dict(joint_qk_norm=True), 'joint_qk_norm=True needs qk_norm=True'),
    (dict(prefix_plus=True, sublayers='mlp_only'), 'prefix_plus=True has no meaning with'),
    (dict(init_scheme='centred', gated_mlp=True), "init_scheme='centred'"),
    (dict(init_scheme='centred', mlp_bias=False), "init_scheme='centred'"),
    (dict(num_heads=16), 'head_size=1'),
    *((dict([(name, value)]), f'{name}={value!r}')
      for name in ('num_layers', 'num_heads', 'width', 'mlp_width', 'vocab_size', 'length')
      for value in (0, -1, 2.0, True)),
    *((dict([(name, 'other')]), f"{name}='other'")
      for name in ('norm', 'norm_place', 'activation', 'positions', 'sublayers', 'init_scheme',
                   'dtype', 'remat')),
    *((dict([(name, value)]), f'{name}={value!r}')
      for name in ('gated_mlp', 'qkv_bias', 'output_bias', 'mlp_bias', 'qk_norm', 'joint_qk_norm',
                   'tied_head', 'scaled_embedding', 'parallel_residual')
      for value in (1, None, 'False')),
    *((dict([(name, value)]), f'{name}={value!r}')
      for name in ('norm_epsilon', 'rope_theta', 'linear_std', 'embedding_std', 'score_divisor',
                   'score_cap', 'logit_cap')
      for value in (0.0, -1.0, math.nan, math.inf, '1')),
])
def test_impossible(fields, named):
  with pytest.raises(InputError) as error:
    small(**fields)
  assert named in str(error.value)


def test_what_follows_from_fields_that_are_given():
  assert (small(linear_std=0.5).linear_std, small(linear_std=0.5).embedding_std) == (0.5, 0.02)
  assert small().head_size == 4 and small(head_size=5, positions='learned').head_size == 5
  config = small(num_heads=3, head_size=6)
  assert (config.head_size, config.num_kv_heads) == (6, 3)
  assert small(windows=(None, None)) == small(windows=[]) == small()
  assert small().embedding_factor == 1 and small(scaled_embedding=True).embedding_factor == 4
  config = configs.get('tiny_gpt2', width=64, sublayers='mlp_only')
  assert (config.width, config.head_size, config.sublayers) == (64, 16, 'mlp_only')
  assert math.isclose(config.linear_std, 0.02 * math.sqrt(12), rel_tol=1e-15)


TRANSFORMERS = Path(__file__).parent / 'goldens'
OWN = dict(preset='tiny_gpt2', num_layers=6, width=192, rope_scaling=dict(LLAMA3),
           windows=[8, None] * 3)


@pytest.mark.parametrize('text, fields', [
    ('tiny_gpt2', {}),
    ('tiny_gpt2, num_layers=6 ,width=192', dict(num_layers=6, width=192)),
    ('tiny_gpt2,activation=relu,qkv_bias=false,tied_head=True,linear_std=.03,logit_cap=2e1',
     dict(activation='relu', qkv_bias=False, linear_std=0.03, logit_cap=20.0)),
    ('tiny_gpt2,intervention=none,num_kv_heads=none,windows=none:7:8:none,score_cap=none',
     dict(windows=(None, 7, 8, None))),
    ('tiny_gpt2,rope_scaling=linear:2', dict(rope_scaling=configs.RopeScaling('linear', 2.0))),
])
def test_fields_behind_a_name(text, fields):
  assert configs.get(text) == configs.get('tiny_gpt2', **fields)
  assert configs.get(configs.name_of(configs.get(text))) == configs.get(text)
  assert storage.canonical(text) == configs.name_of(configs.get(text))


def test_a_file_of_fields(tmp_path):
  file = tmp_path / 'own.json'
  file.write_text(json.dumps(OWN))
  config = configs.get(storage.canonical(f'{file},width=96'))
  changed = {name: value for name, value in OWN.items() if name != 'preset'}
  assert config == configs.get('tiny_gpt2', **changed | dict(width=96))
  file.write_text(json.dumps(dataclasses.asdict(config)))
  name = storage.canonical(str(file))
  assert name.startswith('tiny_gpt2,num_layers=6,width=96,') and '/' not in name
  assert configs.get(name) == config


@pytest.mark.parametrize('folder', sorted(TRANSFORMERS.iterdir()), ids=lambda path: path.name)
def test_a_directory_of_transformers_without_weights(folder, tmp_path):
  (tmp_path / 'config.json').write_bytes((folder / 'config.json').read_bytes())
  config = huggingface.load_config(folder)
  name = storage.canonical(str(tmp_path))
  assert storage.canonical(str(tmp_path / 'config.json')) == name and configs.get(name) == config
  assert huggingface.load_config(folder / 'config.json') == config
  # A changed width leaves the std that the file says, or transformers for it.
  wide = configs.get(storage.canonical(
      f'{tmp_path},width={4 * config.width},num_heads={config.num_heads}'))
  assert wide.linear_std == config.linear_std == 0.02


@pytest.mark.parametrize('content, named', [
    ('{', 'is not JSON'), ('[1]', 'must hold a JSON object'),
    ('{"preset": "tiny_gpt2", "activaton": "relu"}', "'activaton'.*did you mean activation"),
    ('{"preset": "tiny"}', "preset='tiny' is not one of"), ('{"preset": [1]}', 'is not one of'),
    ('{"num_layers": 3}', 'lacks num_heads, width, mlp_width, vocab_size; give a "preset"'),
    ('{"preset": "tiny_gpt2", "num_layers": "6"}', "num_layers='6' must be a whole number"),
    ('{"preset": "tiny_gpt2", "activation": [1]}', 'activation'),
    ('{"preset": "tiny_gpt2", "rope_scaling": {"scale": 2}}', 'scale'),
    ('{"preset": "tiny_gpt2", "linear_std": NaN}', 'linear_std=nan'),
    ('{"model_type": "bloom"}', "model_type='bloom' is not supported"),
])
def test_a_file_that_is_wrong(content, named, tmp_path):
  file = tmp_path / 'own.json'
  file.write_text(content)
  with pytest.raises(InputError, match=named) as error:
    storage.canonical(str(file))
  assert str(error.value).startswith(str(file))


@pytest.mark.parametrize('text, named', [
    ('tiny_gpt3', r'did you mean tiny_gpt2\?'), ('missing.json', 'missing.json is missing'),
    ('.', 'has no config.json'),
    ('tiny_gpt2,activaton=relu', r'did you mean activation\?'),
    ('tiny_gpt2,layers=3', r'did you mean num_layers\?'),
    ('tiny_gpt2,relu', "'relu' must be FIELD=VALUE"), ('tiny_gpt2,', "'' must be FIELD=VALUE"),
    ('tiny_gpt2,width=64,width=96', 'sets width twice'),
    ('tiny_gpt2,width=6.5', "width='6.5' must be a whole number"),
    ('tiny_gpt2,width=none', 'width=None must be a whole number'),
    ('tiny_gpt2,linear_std=big', "linear_std='big' must be a number"),
    ('tiny_gpt2,linear_std=nan', 'linear_std=nan'),
    ('tiny_gpt2,tied_head=1', "tied_head='1' must be true or false"),
    ('tiny_gpt2,windows=8', 'must have one entry for each of the 4 layers'),
    ('tiny_gpt2,rope_scaling=yarn:2:8:1:2:1:1', 'must be kind:factor:original_length:'),
    ('tiny_gpt2,activation=sin', "activation='sin'.*ACTIVATIONS"),
    (3, 'int is not the name'),
])
def test_a_name_that_is_wrong(text, named):
  with pytest.raises(InputError, match=named):
    storage.canonical(text)


def test_no_name_is_none_of_the_working_directory(tmp_path, monkeypatch):
  (tmp_path / 'config.json').touch()
  monkeypatch.chdir(tmp_path)
  assert not architectures.is_name('') and architectures.is_name('.')


def test_configurations_do_without_jax():
  code = ("import sys; from bornbiased_jax import configs; configs.get('tiny_gpt2,width=64'); "
          "sys.exit('jax' in sys.modules)")
  assert subprocess.run([sys.executable, '-c', code]).returncode == 0


def test_a_field_is_set_once():
  assert configs.get('tiny_gpt2,length=7', length=9).length == 9
  assert configs.get('tiny_gpt2,width=64', width=64).width == 64
  with pytest.raises(InputError, match="'tiny_gpt2,width=64' sets width, which is 96 here"):
    configs.get('tiny_gpt2,width=64', width=96)
  with pytest.raises(InputError, match="'depth'.*num_layers"):
    configs.get('tiny_gpt2', depth=3)


def test_an_activation_of_ones_own(monkeypatch):
  own = abs
  monkeypatch.setitem(configs.ACTIVATIONS, 'own', own)
  configs.ACTIVATIONS['own'] = own
  stored = dataclasses.asdict(configs.get('tiny_gpt2,activation=own'))
  for name, function in (('own', min), ('relu', abs)):
    with pytest.raises(InputError, match='is another function already'):
      configs.ACTIVATIONS[name] = function
  with pytest.raises(InputError, match='must be a word'):
    configs.ACTIVATIONS['a,b'] = abs
  monkeypatch.undo()
  with pytest.raises(InputError, match=r"activation='own'.*ACTIVATIONS\['own'\] = function"):
    configs.from_dict(stored, 'a checkpoint')


def test_an_activation_that_jax_cannot_compute_is_refused():
  torch = pytest.importorskip('torch')
  for function in (np.tanh, lambda x: np.maximum(x, 0), torch.tanh, torch.nn.GELU(), sum,
                   lambda x: x.clamp(0), 3):
    with pytest.raises(InputError, match="'mine' must be an elementwise function of JAX arrays"):
      configs.ACTIVATIONS['mine'] = function
  assert 'mine' not in configs.ACTIVATIONS


@pytest.mark.parametrize('theirs, ours', [('relu2', 'squared_relu'), ('gelu_new', 'gelu_tanh'),
                                          ('swish', 'silu'), ('gelu_tahn', 'gelu_tanh')])
def test_activations_by_the_names_of_others(theirs, ours):
  with pytest.raises(InputError, match=rf'did you mean {ours}\?'):
    configs.get('tiny_gpt2', activation=theirs)


LOCAL = dict(windows=(None, 8), window_rope_theta=50.0, rope_theta=700.0)


def test_a_layer_has_its_own_window_and_rope():
  config = small(**LOCAL, rope_scaling=configs.RopeScaling(**LLAMA3), linear_std=0.3, score_cap=7.0)
  one = dict(num_layers=1, linear_std=0.3, score_cap=7.0)
  assert config.layer(0) == small(**one, rope_theta=700.0, rope_scaling=config.rope_scaling)
  assert config.layer(1) == small(**one, rope_theta=50.0, windows=(8,))
  assert config.layer(1).layer(0) == config.layer(1)
  alike = small(windows=(8, 4), rope_scaling=configs.RopeScaling(**LLAMA3))
  assert alike.layer(1) == dataclasses.replace(alike, num_layers=1, windows=(4,))
  assert configs.get('tiny_gpt2').layer(3) == configs.get('tiny_gpt2', num_layers=1)


def test_a_configuration_comes_back_from_json():
  config = small(rope_scaling=configs.RopeScaling(**LLAMA3), rotary_factor=0.5, **LOCAL)
  stored = json.loads(json.dumps(dataclasses.asdict(config)))
  assert configs.from_dict(stored, 'a checkpoint') == config
  with pytest.raises(InputError, match='a checkpoint whose configuration'):
    configs.from_dict(stored | dict(rope_scaling=dict(scale=2)), 'a checkpoint')


def test_hashable_and_frozen():
  config = configs.get('tiny_gpt2')
  assert {config: 1}[configs.get('tiny_gpt2')] == 1
  assert configs.get('tiny_gpt2', length=7) not in {config: 1}
  with pytest.raises(dataclasses.FrozenInstanceError):
    config.width = 3


# Scaled RoPE


@pytest.mark.parametrize('fields, named', [
    (dict(kind='ntk', factor=2.0), "kind='ntk' is not one of linear"),
    (dict(kind='linear', factor=-2.0), 'factor=-2.0 must be'),
    (dict(kind='linear', factor=0.5), 'factor=0.5 must be at least 1'),
    (dict(kind='linear', factor=True), 'factor=True must be'),
    (dict(kind='linear', factor=2.0, slow=1.0), "slow=1.0 has no meaning with kind='linear'"),
    (dict(kind='llama3', factor=2.0, slow=1.0, fast=2.0), 'original_length=None'),
    (LLAMA3 | dict(fast=1.0), 'slow=1.0 must be below fast=1.0'),
    (LLAMA3 | dict(original_length=8.5), 'original_length=8.5 must be a whole number'),
    (LLAMA3 | dict(attention_factor=1.2), 'attention_factor=1.2'),
    (YARN | dict(attention_factor=float('nan')), 'attention_factor=nan must be'),
])
def test_impossible_scaling(fields, named):
  with pytest.raises(InputError) as error:
    configs.RopeScaling(**fields)
  assert named in str(error.value)
