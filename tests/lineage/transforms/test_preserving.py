"""Alterations that hide where a network comes from keep its logits."""

import functools

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.transforms import preserving as alterations
from bornbiased_jax.models.transformer import Transformer
from small_networks import GEMMA2, OLMO3, SMALL, trained

CONFIGS = {
    'llama': configs.get('tiny_llama2', **SMALL),
    'grouped with biases': configs.get('tiny_llama2', **SMALL, num_kv_heads=2, qkv_bias=True,
                                       mlp_bias=True, tied_head=True),
    'gpt2': configs.get('tiny_gpt2', **SMALL),
    'learned positions': configs.get('tiny_gpt2', **SMALL, positions='learned'),
    'qwen3': configs.get('tiny_llama2', **SMALL, qk_norm=True),
    'olmo3': OLMO3,
    'gemma2': GEMMA2,
    'layernorm behind': configs.get('tiny_gpt2', **SMALL, norm_place='after'),
}
IMPOSSIBLE = {('turn queries', 'qwen3'), ('turn queries', 'olmo3'), ('rotate channels', 'olmo3'),
              ('rotate channels', 'gemma2'), ('rotate channels', 'layernorm behind')}


@functools.partial(jax.jit, static_argnums=0)
def logits_of(config, params):
  tokens = jax.random.randint(jax.random.key(5), (4, 20), 0, config.vocab_size)
  with jax.default_matmul_precision('highest'):
    return Transformer(config).apply({'params': params}, tokens)


def logits(config, params):
  return np.asarray(logits_of(config, params))


@pytest.mark.parametrize('name', CONFIGS)
@pytest.mark.parametrize('alteration', alterations.PRESERVING)
def test_a_preserving_alteration_keeps_the_logits(name, alteration):
  config, params = CONFIGS[name], trained(CONFIGS[name])
  if (alteration, name) in IMPOSSIBLE:
    with pytest.raises(InputError):
      alterations.PRESERVING[alteration](config, params, jax.random.key(0))
    return
  if alteration == 'scale channels' and name == 'layernorm behind':
    return  # There is nothing that could be scaled.
  changed_config, changed = alterations.PRESERVING[alteration](config, params, jax.random.key(0))
  before, after = logits(config, params), logits(changed_config, changed)
  assert np.abs(after - before).max() < 1e-4 * np.abs(before).max()
  moved = [not np.array_equal(leaf, changed['blocks'][name][kind])
           for name, leaves in params['blocks'].items() for kind, leaf in leaves.items()]
  assert any(moved)
