"""Prefix-Tuning+ is computed as its definition says, and transforms that would change it refuse."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from directories import quiet_transformers
from experiments.transforms.preserving import PRESERVING
from small_networks import logits, trained

CONFIG = configs.get('tiny_llama2', num_layers=2, num_heads=4, num_kv_heads=2, width=32,
                     mlp_width=48, vocab_size=70)


def test_it_is_what_torch_computes(tmp_path):
  """Hooks add elu(q) M, of the queries that transformers turns, to what o_proj reads."""
  transformers = quiet_transformers()
  torch = pytest.importorskip('torch')
  from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
  params = trained(CONFIG)
  huggingface.save(tmp_path / 'base', CONFIG, params)
  peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'base')
  memory_LHKJ = np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)
  added = {}

  def take_query(i, module, hidden, position_embeddings, **others):
    query = module.q_proj(hidden).view(*hidden.shape[:2], 4, 8).transpose(1, 2)
    query, _ = apply_rotary_pos_emb(query, query, *position_embeddings)
    mapped = torch.nn.functional.elu(query)
    added[i] = torch.einsum('bhtk,hkj->bthj', mapped, torch.tensor(memory_LHKJ[i])).flatten(2)

  for i, layer in enumerate(peer.model.layers):
    layer.self_attn.register_forward_pre_hook(
        lambda module, args, kwargs, i=i: take_query(
            i, module, kwargs['hidden_states'], kwargs['position_embeddings']), with_kwargs=True)
    layer.self_attn.o_proj.register_forward_pre_hook(
        lambda module, args, i=i: (args[0] + added[i],))
  ids = np.arange(20)[None]
  with torch.inference_mode():
    wanted = peer(torch.tensor(ids)).logits.numpy()
  config = dataclasses.replace(CONFIG, prefix_plus=True)
  with_memory = lambda memory_LHKJ: params | {
      'blocks': params['blocks'] | {'prefix': {'memory': memory_LHKJ}}}
  ours = logits(config, with_memory(memory_LHKJ), ids)
  np.testing.assert_allclose(ours, wanted, rtol=0, atol=2e-5)
  assert np.abs(ours - logits(config, with_memory(0 * memory_LHKJ), ids)).max() > 0.1
  with pytest.raises(InputError, match='prefix_plus=True'):
    huggingface.save(tmp_path / 'saved', config, with_memory(memory_LHKJ))


@pytest.mark.parametrize('name', PRESERVING)
def test_transforms_preserve_it_or_refuse(name):
  config = dataclasses.replace(CONFIG, prefix_plus=True)
  memory_LHKJ = np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)
  params = trained(CONFIG)
  params['blocks']['prefix'] = {'memory': memory_LHKJ}
  ids, key = np.arange(20)[None], jax.random.key(1)
  if name in ('permute heads', 'mix values', 'turn queries'):
    with pytest.raises(InputError, match='prefix_plus=True tells heads'):
      PRESERVING[name](config, params, key)
  else:
    changed = PRESERVING[name](config, params, key)
    np.testing.assert_allclose(logits(*changed, ids), logits(config, params, ids), atol=2e-5)
