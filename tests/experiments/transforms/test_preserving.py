"""Changes that hide where a network comes from keep its logits."""

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from experiments.transforms import preserving
from small_networks import GEMMA2, OLMO3, SMALL, logits, trained

CONFIGS = {
    'grouped with biases': configs.get('tiny_llama2', **SMALL, num_kv_heads=2, qkv_bias=True,
                                       mlp_bias=True, tied_head=True),
    'learned positions': configs.get('tiny_gpt2', **SMALL, positions='learned'),
    'qwen3': configs.get('tiny_llama2', **SMALL, qk_norm=True),
    'alibi': configs.get('tiny_gpt2', **SMALL, positions='alibi'),
    'olmo3': OLMO3,
    'gemma2': GEMMA2,
    'layernorm behind': configs.get('tiny_gpt2', **SMALL, norm_place='after'),
}
IMPOSSIBLE = {('turn queries', 'qwen3'), ('turn queries', 'olmo3'), ('permute heads', 'alibi'),
              ('rotate channels', 'olmo3'),
              ('rotate channels', 'gemma2'), ('rotate channels', 'layernorm behind')}


@pytest.mark.parametrize('name', CONFIGS)
@pytest.mark.parametrize('change', preserving.PRESERVING)
def test_a_preserving_change_keeps_the_logits(name, change):
  config, params = CONFIGS[name], trained(CONFIGS[name])
  if (change, name) in IMPOSSIBLE:
    with pytest.raises(InputError):
      preserving.PRESERVING[change](config, params, jax.random.key(0))
    return
  if change == 'scale channels' and name == 'layernorm behind':
    return  # There is nothing that could be scaled.
  changed_config, changed = preserving.PRESERVING[change](config, params, jax.random.key(0))
  before, after = logits(config, params), logits(changed_config, changed)
  assert np.abs(after - before).max() < 1e-4 * np.abs(before).max()
  moved = [not np.array_equal(leaf, changed['blocks'][name][kind])
           for name, leaves in params['blocks'].items() for kind, leaf in leaves.items()]
  assert any(moved)
