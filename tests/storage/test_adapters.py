"""Adapters are merged as PEFT computes them, under all their names."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bornbiased_jax import lineage, storage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.digests import digest
from make_goldens import GOLDENS
from small_adapters import BASE, SHAPES, edit, write_adapter
import small_hub
from small_networks import logits

# PEFT warns of what it does by itself, such as of saving an embedding, and calls old names.
pytestmark = pytest.mark.filterwarnings('ignore:.*:UserWarning', 'ignore:.*:FutureWarning',
                                        'ignore:.*:DeprecationWarning')
TOLERANCE = 2e-5  # of logits whose standard deviation is above 1
PROJECTIONS = ['q_proj', 'v_proj', 'down_proj']
# Name: the golden directory that is the base, and the arguments of `peft.LoraConfig`.
CASES = {
    'llama': ('llama_linear', dict(target_modules=PROJECTIONS)),
    'gpt2': ('gpt2', dict(target_modules=['c_attn', 'mlp.c_proj'], fan_in_fan_out=True)),
    'fused': ('phi3', dict(target_modules='all-linear')),
    'heads': ('pythia', dict(target_modules=['query_key_value', 'dense'])),
    'patterns': ('llama_linear', dict(
        target_modules=PROJECTIONS, rank_pattern={'v_proj': 3, r'^model\.layers\.1.*down_proj': 1},
        alpha_pattern={r'0\.self_attn.q_proj': 5, 'down_proj': 0.5})),
    'rslora': ('llama_linear', dict(target_modules=PROJECTIONS, use_rslora=True)),
    'dora': ('llama_linear', dict(target_modules=[*PROJECTIONS, 'lm_head'], use_dora=True)),
    'dora_gpt2': ('gpt2', dict(target_modules=['c_attn', 'c_fc'], use_dora=True)),
    'saved': ('llama_linear', dict(target_modules=['o_proj'],
                                   modules_to_save=['embed_tokens', 'lm_head', 'norm'])),
    'saved_tied': ('qwen3_tied', dict(target_modules=['o_proj'], modules_to_save=['embed_tokens'])),
    'head_tied': ('qwen3_tied', dict(target_modules=['o_proj', 'lm_head'])),
    'embedding': ('gpt2', dict(target_modules=['wte', 'c_fc'])),
    'dora_embedding': ('llama_linear', dict(target_modules=['embed_tokens'], use_dora=True)),
    'bias': ('gpt2', dict(target_modules=['c_attn'], bias='all')),
    'bias_of_lora': ('llama_tied_sharded', dict(target_modules=['q_proj'], bias='lora_only')),
    'regex': ('llama_linear', dict(target_modules=r'.*\.(q|up)_proj', exclude_modules=['up_proj'])),
    'one_layer': ('llama_linear', dict(target_modules=['q_proj'], layers_to_transform=[1])),
    'gains': ('gemma3_bf16', dict(target_modules=['k_proj'], modules_to_save=['norm'])),
    'half': ('qwen2_bf16', dict(target_modules=PROJECTIONS)),
}


@pytest.fixture(scope='module')
def peft():
  torch = pytest.importorskip('torch')
  pytest.importorskip('transformers')
  library = pytest.importorskip('peft')
  torch.manual_seed(0)
  return library


def save_adapter(peft, path, golden, arguments):
  """Saves an adapter of random weights, and returns the logits that PEFT computes with it."""
  import torch
  import transformers
  base = transformers.AutoModelForCausalLM.from_pretrained(GOLDENS / golden, dtype='float32')
  model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=12, **arguments)).eval()
  for parameter in model.parameters():
    if parameter.requires_grad:
      parameter.data += 0.2 * torch.randn_like(parameter) * parameter.std(correction=0).clamp(0.1)
  model.save_pretrained(path)
  tokens = np.load(GOLDENS / golden / 'logits.npz')['tokens']
  with torch.no_grad():
    loaded = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(GOLDENS / golden, dtype='float32'), path)
    return tokens, loaded.eval()(torch.from_numpy(tokens).long()).logits.numpy()


@pytest.mark.parametrize('case', CASES)
def test_logits_are_those_of_peft(case, peft, tmp_path):
  golden, arguments = CASES[case]
  tokens, wanted = save_adapter(peft, tmp_path, golden, arguments)
  config, params = huggingface.load(GOLDENS / golden, adapter=tmp_path)
  given = logits(config, params, tokens)
  plain = logits(*huggingface.load(GOLDENS / golden), tokens)
  assert np.abs(plain - wanted).max() > 0.1 and wanted.std() > 1
  np.testing.assert_allclose(given, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize('golden', ['llama_tied_sharded', 'llama_linear'])
def test_layer_by_layer_it_is_the_same(golden, tmp_path):
  """Also where the adapter parts a head from the embedding."""
  write_adapter(tmp_path, SHAPES)
  config, params = huggingface.load(GOLDENS / golden, adapter=tmp_path)
  assert config == huggingface.load_config(GOLDENS / golden, tmp_path) and not config.tied_head
  assert huggingface.open_files(GOLDENS / golden, tmp_path).layers().digest() == digest(params)
  assert huggingface.open_files(GOLDENS / golden).layers().digest() == digest(
      huggingface.load(GOLDENS / golden)[1]) != digest(params)


def test_names_of_a_base_with_an_adapter(adapter, tmp_path, monkeypatch):
  wanted = digest(huggingface.load(BASE, adapter=adapter)[1])
  (tmp_path / 'my+base').symlink_to(BASE)
  (tmp_path / 'my+adapter').symlink_to(adapter)
  monkeypatch.chdir(tmp_path)
  for name in (f'{BASE}+{adapter}', str(adapter), 'my+base+my+adapter'):
    assert digest(storage.open(name).load()[1]) == wanted
    assert storage.open(name).config == huggingface.load_config(BASE)
  assert storage.open('my+base+adapter').place == 'my+base'


def test_an_adapter_of_a_model_of_the_hub(adapter, tmp_path, monkeypatch):
  pytest.importorskip('huggingface_hub')
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  small_hub.lay(tmp_path / 'cache', 'org/base', BASE)
  small_hub.lay(tmp_path / 'cache', 'org/adapter', adapter)
  wanted = digest(huggingface.load(BASE, adapter=adapter)[1])
  for name in (f'org/base+{adapter}', 'org/base+org/adapter', f'{BASE}+org/adapter'):
    assert digest(storage.open(name).load()[1]) == wanted
  assert storage.open(f'org/base+{adapter}').revision == small_hub.COMMIT
  edit(adapter, base_model_name_or_path='org/base')
  assert digest(storage.open(str(adapter)).load()[1]) == wanted
  small_hub.lay(tmp_path / 'cache', 'org/tagged', BASE, branch='v1')  # There is no other revision.
  edit(adapter, base_model_name_or_path='org/tagged', revision='v1')
  assert digest(storage.open(str(adapter)).load()[1]) == wanted
  edit(adapter, base_model_name_or_path='org/base', revision=None)
  for name, words in (
      ('org/adapter', 'org/adapter on the Hugging Face Hub is an adapter; give BASE'),
      ('org/base+org/base', 'has no adapter_config.json, so that it is no adapter')):
    with pytest.raises(InputError, match=words):
      storage.open(name).load()


def test_a_report_has_the_digests_of_base_and_adapter(adapter):
  name = f'{BASE}+{adapter}'
  report = lineage.compare_networks(str(BASE), name, Probe('tokens', 40, 4))
  tensors = load_file(adapter / 'adapter_model.safetensors')
  assert report['suspect'] == {
      'name': name, 'digest': digest(huggingface.load(BASE, adapter=adapter)[1]),
      'base': {'name': str(BASE), 'digest': report['base']['digest']},
      'adapter': {'name': str(adapter), 'digest': digest(tensors)}}


@pytest.mark.parametrize('base', [None, '', 7, [], 'nowhere', '/nowhere', '../x', 'gs://x/y',
                                  'a\0b', '.', '~nobody/x', 'org/absent'])
def test_a_base_that_is_not_found(base, adapter, monkeypatch):
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  monkeypatch.chdir(adapter)
  edit(adapter, base_model_name_or_path=base)
  with pytest.raises(InputError) as error:
    storage.open(str(adapter)).load()
  message = str(error.value)
  assert str(adapter) in message
  assert f'BASE+{adapter}' in message or 'no Hugging Face model folder' in message


def test_a_model_with_an_adapter_beside_it_is_not_read_without_it(adapter, copy):
  path = copy('llama_linear')
  (path / 'adapter_config.json').write_bytes((adapter / 'adapter_config.json').read_bytes())
  with pytest.raises(InputError, match='move the adapter to a folder of its own'):
    storage.open(str(path)).load()
  with pytest.raises(InputError, match='holds an adapter .* BASE[+]ADAPTER'):
    huggingface.load(adapter)


# What is trained as LoRA leaves as an adapter that PEFT and our own reader read alike.


RANK, SCALE = 3, 0.5


def factors_of(config):
  random = np.random.default_rng(0)
  blocks = param_shapes(config)['blocks']
  shapes = {name: module['kernel'].shape for name, module in blocks.items() if 'kernel' in module}
  draw = lambda *shape: random.normal(size=shape).astype(np.float32)
  return {name: {'A': draw(layers, ins, RANK), 'B': draw(layers, RANK, outs)}
          for name, (layers, ins, outs) in shapes.items()}


def merge(params, factors):
  blocks = dict(params['blocks'])
  for name, own in factors.items():
    kernel = blocks[name]['kernel'] + SCALE * np.einsum('lir,lro->lio', own['A'], own['B'])
    blocks[name] = blocks[name] | {'kernel': kernel}
  return params | {'blocks': blocks}


@pytest.mark.parametrize('golden', ['llama_linear', 'gpt2', 'phi3', 'pythia', 'qwen3_tied'])
def test_adapters_are_read_as_they_were_saved(golden, tmp_path):
  config, params = huggingface.load(GOLDENS / golden)
  factors = factors_of(config)
  huggingface.save_adapter(tmp_path / 'adapter', config, factors, SCALE, 'org/base')
  same, loaded = huggingface.load(GOLDENS / golden, adapter=tmp_path / 'adapter')
  assert same == config
  near = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)
  jax.tree.map(near, loaded, merge(params, factors))
  peft, torch = pytest.importorskip('peft'), pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  base = transformers.AutoModelForCausalLM.from_pretrained(GOLDENS / golden)
  model = peft.PeftModel.from_pretrained(base, tmp_path / 'adapter').eval()
  ids = np.arange(48).reshape(2, 24)
  with torch.inference_mode():
    wanted = model(torch.tensor(ids)).logits.numpy()
  ours = logits(config, loaded, ids)
  assert np.abs(ours - wanted).max() < 2e-5 * max(1, np.abs(wanted).max())
  assert np.abs(ours - logits(config, params, ids)).max() > 0.1
