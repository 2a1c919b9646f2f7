"""Adapters are merged as PEFT computes them, and what is wrong with one is said in one line."""

import numpy as np
import pytest

from bornbiased_jax.storage import huggingface
from directories import logits
from make_goldens import GOLDENS

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
    'gains': ('gemma2', dict(target_modules=['k_proj'], modules_to_save=['norm'])),
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
      parameter.data += 0.3 * torch.randn_like(parameter) * parameter.std(correction=0).clamp(0.1)
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
  print(case, np.abs(given - wanted).max(), np.abs(plain - wanted).max())
  assert np.abs(plain - wanted).max() > 0.1 and wanted.std() > 1
  np.testing.assert_allclose(given, wanted, rtol=0, atol=TOLERANCE)
