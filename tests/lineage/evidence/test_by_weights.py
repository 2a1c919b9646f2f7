"""Families without a forward pass here are compared by their weights, and never cleared."""

import dataclasses
import json
from pathlib import Path
import re
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax import lineage
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import by_weights, features
from bornbiased_jax.lineage.evidence import signature as signatures
import small_gguf
from small_signatures import noise

transformers = pytest.importorskip('transformers')
torch = pytest.importorskip('torch')

PROBE = Probe('tokens', 1000, 4)
SIZES = dict(vocab_size=300, hidden_size=64, num_attention_heads=4)
CONFIGS = {
    'deepseek_v3': dict(num_hidden_layers=5, intermediate_size=128, moe_intermediate_size=64,
                        n_routed_experts=4, n_shared_experts=1, kv_lora_rank=32, q_lora_rank=32,
                        qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, n_group=1,
                        topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1),
    'gpt_oss': dict(num_hidden_layers=4, intermediate_size=64, num_key_value_heads=2, head_dim=16,
                    num_local_experts=4),
    'bloom': dict(num_hidden_layers=4),
    'stablelm': dict(num_hidden_layers=4, intermediate_size=128, num_key_value_heads=4),
}


@pytest.fixture(scope='module', params=CONFIGS)
def folders(request, tmp_path_factory):
  """A random network, another one, and a copy of the first with noise of half its size."""
  config = transformers.AutoConfig.for_model(request.param, **SIZES | CONFIGS[request.param])
  place = tmp_path_factory.mktemp(request.param)
  for name, seed in (('other', 2), ('own', 1), ('copy', 1)):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    if name == 'copy':
      torch.manual_seed(3)
      with torch.no_grad():
        for each in model.parameters():
          if each.ndim > 1:
            each += 0.5 * each.std() * torch.randn_like(each)
    model.save_pretrained(place / name)
  return {name: str(place / name) for name in ('own', 'other', 'copy')}


of_one = pytest.mark.parametrize('folders', ['deepseek_v3'], indirect=True)


def test_a_copy_is_related_and_nobody_is_cleared(folders):
  report = lineage.compare_networks(folders['own'], folders['copy'], PROBE)
  assert report['verdict'] == 'related'
  assert any(by_weights.READ in caveat for caveat in report['caveats'])
  report = lineage.compare_networks(folders['other'], folders['copy'], PROBE)
  assert report['verdict'] == 'inconclusive'
  assert any('no forward pass' in reason for reason in report['reasons'])


@of_one
def test_layers_that_lost_their_experts_are_left_out(folders, tmp_path):
  """Cut to the units of an expert, those of dense layers and of shared experts would look alike."""
  shutil.copytree(folders['own'], tmp_path, dirs_exist_ok=True)
  weights = load_file(tmp_path / 'model.safetensors')
  save_file({name: x for name, x in weights.items() if not re.search('[34].mlp.experts', name)},
            tmp_path / 'model.safetensors')
  cut = lineage.signature(str(tmp_path), PROBE)
  assert cut.features.arrays['up'].shape == (2, 64, 4, 64)
  assert lineage.compare(cut, lineage.signature(folders['own'], PROBE))['verdict'] == 'related'


def test_a_gguf_file_has_the_features_of_its_folder(folders, tmp_path):
  small_gguf.write_of_any(tmp_path / 'a.gguf', Path(folders['own']))
  file, own = (lineage.signature(name, PROBE) for name in (f'{tmp_path}/a.gguf', folders['own']))
  assert {'up', 'down', 'value', 'output'} <= file.features.arrays.keys()
  jax.tree.map(np.testing.assert_array_equal, file.features.arrays, own.features.arrays)
  assert lineage.compare(file, own)['verdict'] == 'related'


@pytest.mark.filterwarnings('ignore::FutureWarning')  # PEFT calls old names.
@pytest.mark.parametrize('folders', ['bloom', 'stablelm'], indirect=True)
def test_an_adapter_is_merged_as_peft_does(folders, tmp_path):
  peft = pytest.importorskip('peft')
  model = transformers.AutoModelForCausalLM.from_pretrained(folders['own'])
  torch.manual_seed(0)
  adapted = peft.get_peft_model(model, peft.LoraConfig(
      r=2, use_dora=True, init_lora_weights=False, target_modules='all-linear'))
  adapted.save_pretrained(tmp_path / 'adapter')
  adapted.merge_and_unload().save_pretrained(tmp_path / 'merged')
  names = [folders['own'], f'{folders["own"]}+{tmp_path / "adapter"}', str(tmp_path / 'merged')]
  own, named, merged = (lineage.signature(name, PROBE) for name in names)
  assert own.tensors.keys() == named.tensors.keys() == merged.tensors.keys()
  for name, tensor in named.tensors.items():
    np.testing.assert_allclose(tensor.sample, merged.tensors[name].sample, rtol=1e-5, atol=1e-6)
  assert np.abs(named.features.arrays['up'] - own.features.arrays['up']).max() > 0.1
  assert named.about['base']['digest'] == own.digest != named.digest
  # Some files lack the prefix of all modules.
  bare = shutil.copytree(folders['own'], tmp_path / 'bare')
  stored = load_file(bare / 'model.safetensors')
  save_file({name.partition('.')[2]: x for name, x in stored.items()}, bare / 'model.safetensors')
  found = lineage.signature(f'{bare}+{tmp_path / "adapter"}', PROBE)
  jax.tree.map(np.testing.assert_array_equal, found.features.arrays, named.features.arrays)


@of_one
def test_a_signature_is_kept(folders, tmp_path):
  made = lineage.signature(folders['own'], PROBE)
  made.save(tmp_path / 'a.safetensors')
  loaded = signatures.load(tmp_path / 'a.safetensors')
  assert loaded.about == made.about and loaded.digest == made.digest
  assert all(np.array_equal(x, loaded.features.arrays[name])
             for name, x in made.features.arrays.items())
  model = transformers.AutoModelForCausalLM.from_pretrained(folders['own'])
  stored = {x.data_ptr(): x.numel() for x in model.state_dict().values()}
  assert loaded.num_parameters == pytest.approx(sum(stored.values()), rel=0.02)
  assert lineage.compare_networks(loaded, folders['own'], PROBE)['identical']


@of_one
def test_a_matrix_in_common_is_named_first(folders):
  own, other = (lineage.signature(folders[name], PROBE) for name in ('own', 'other'))
  stack = own.about['stack']
  name = next(name for name, x in own.tensors.items()
              if name.startswith(f'{stack}.2.') and np.prod(x.shape) > 1024)
  mixed = dataclasses.replace(other, tensors=other.tensors | {name: own.tensors[name]})
  report = lineage.compare(own, mixed)
  assert report['verdict'] == 'inconclusive'
  assert name.removeprefix(f'{stack}.2.') + ' of layer 2' in report['reasons'][0]


@of_one
def test_experts_are_experts_if_only_one_is_stored(folders, tmp_path, monkeypatch):
  """As of models so large that no more is kept."""
  whole = lineage.signature(folders['own'], PROBE).features.arrays
  monkeypatch.setattr(features, 'MOST_NUMBERS', 20_000)
  own, copy = (lineage.signature(folders[name], PROBE) for name in ('own', 'copy'))
  U = own.features.arrays['up'].shape[1]
  np.testing.assert_allclose(own.features.arrays['up'], (whole['up'] * 2)[:, :U, :1], rtol=2e-3)
  own.save(tmp_path / 'a.safetensors')
  assert lineage.compare(signatures.load(tmp_path / 'a.safetensors'), copy)['agree']


@of_one
@pytest.mark.parametrize('change, message', [
    (lambda folder: (folder / 'adapter_config.json').write_text('{}'), 'holds an adapter'),
    (lambda folder: split(folder, 'model.layers.2.mlp.gate.weight'), 'lacks .*gate.weight'),
], ids=['adapter', 'index'])
def test_a_folder_with_less_or_more_than_a_model_is_refused(folders, change, message, tmp_path):
  folder = shutil.copytree(folders['own'], tmp_path / 'own')
  change(folder)
  with pytest.raises(InputError, match=message):
    lineage.signature(str(folder), PROBE)


def split(folder, lacking):
  """Makes the file of a model a shard, which lacks a tensor."""
  stored = load_file(folder / 'model.safetensors')
  (folder / 'model.safetensors').unlink()
  index = {'weight_map': dict.fromkeys(stored, 'model-1.safetensors')}
  (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
  stored.pop(lacking)
  save_file(stored, folder / 'model-1.safetensors')


@of_one
def test_what_no_feature_reads_may_be_anything(folders, tmp_path):
  folder = shutil.copytree(folders['own'], tmp_path / 'own')
  stored = load_file(folder / 'model.safetensors') | {
      'mask': np.tri(9, dtype=bool), 'bias': np.array(-np.inf, np.float16)}
  save_file(stored, folder / 'model.safetensors')
  made = lineage.signature(str(folder), PROBE)
  assert {'mask', 'bias'} <= made.tensors.keys()
  made.save(tmp_path / 'a.safetensors')
  assert signatures.load(tmp_path / 'a.safetensors').digest == made.digest


@of_one
def test_a_number_is_a_tensor_too(folders, tmp_path):
  digests = set()
  for value in (1.0, 2.0):
    folder = shutil.copytree(folders['own'], tmp_path / str(value))
    stored = load_file(folder / 'model.safetensors') | {'model.scale': np.float32(value)}
    save_file({name: np.asarray(x) for name, x in stored.items()}, folder / 'model.safetensors')
    made = lineage.signature(str(folder), PROBE)
    assert made.tensors['model.scale'].sample.tolist() == [value] * 1024
    digests.add(made.digest)
  assert len(digests) == 2


def test_a_vision_tower_in_common_decides_nothing(tmp_path):
  config = transformers.LlavaConfig(
      vision_config=transformers.CLIPVisionConfig(
          hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
          image_size=32, patch_size=8),
      text_config=transformers.LlamaConfig(
          vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
          num_attention_heads=4, num_key_value_heads=2), image_token_index=299)
  towers = None
  for seed in (1, 2):
    torch.manual_seed(seed)
    model = transformers.LlavaForConditionalGeneration(config)
    towers = towers or model.model.vision_tower.state_dict()
    model.model.vision_tower.load_state_dict(towers)
    model.save_pretrained(tmp_path / str(seed))
  report = lineage.compare_networks(str(tmp_path / '1'), str(tmp_path / '2'), PROBE)
  assert report['verdict'] == 'inconclusive' and not report['agree']
  assert 'vision_tower' in report['base']['left_out'] and report['shared_tensors']


def test_names_that_do_not_fit_are_refused_in_one_line(tmp_path):
  from safetensors.numpy import save_file
  save_file({'layers.0.thing.weight': np.ones((4, 4), np.float32)}, tmp_path / 'model.safetensors')
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'nobody', 'vocab_size': 4}))
  with pytest.raises(InputError, match='names and shapes'):
    lineage.signature(str(tmp_path), PROBE)


def test_experts_that_stand_below_each_other_are_told_apart(tmp_path, monkeypatch):
  """DBRX stores the rows of all experts in one matrix. Of many units parts are read."""
  experts, units, width = 4, 48, 32
  weights = {f'blocks.{i}.ffn.experts.mlp.{name}': noise([i, j], experts * units, width)
             for i in range(3) for j, name in enumerate(('w1', 'v1', 'w2'))}
  save_file(weights | {'wte.weight': noise(0, 300, width)}, tmp_path / 'model.safetensors')
  (tmp_path / 'config.json').write_text(json.dumps({
      'model_type': 'dbrx', 'd_model': width, 'vocab_size': 300,
      'ffn_config': {'moe_num_experts': experts}}))
  whole = lineage.signature(str(tmp_path), PROBE)
  assert whole.config.num_experts == experts
  assert whole.features.arrays['up'].shape == (3, units, experts, width)
  monkeypatch.setattr(features, '_NUMBERS_AT_ONCE', 5 * experts * width)
  in_parts = lineage.signature(str(tmp_path), PROBE).invariants
  for name, numbers in whole.invariants.items():
    np.testing.assert_allclose(in_parts[name], numbers, rtol=1e-5, atol=1e-6)
