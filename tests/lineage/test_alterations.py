"""Preserving alterations keep the logits, and damage does what it says."""

import functools

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alterations
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import Transformer
from small_networks import SMALL, trained

CONFIGS = {
    'llama': configs.get('tiny_llama2', **SMALL),
    'grouped with biases': configs.get('tiny_llama2', **SMALL, num_kv_heads=2, qkv_bias=True,
                                       mlp_bias=True, tied_head=True),
    'gpt2': configs.get('tiny_gpt2', **SMALL),
    'learned positions': configs.get('tiny_gpt2', **SMALL, positions='learned'),
    'qwen3': configs.get('tiny_llama2', **SMALL, qk_norm=True),
}
IMPOSSIBLE = {('rotate channels', 'gpt2'), ('rotate channels', 'learned positions'),
              ('turn queries', 'qwen3')}


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
  changed_config, changed = alterations.PRESERVING[alteration](config, params, jax.random.key(0))
  before, after = logits(config, params), logits(changed_config, changed)
  assert np.abs(after - before).max() < 1e-4 * np.abs(before).max()
  moved = [not np.array_equal(leaf, changed['blocks'][name][kind])
           for name, leaves in params['blocks'].items() for kind, leaf in leaves.items()]
  assert any(moved)


@pytest.mark.parametrize('alteration', alterations.DAMAGING)
def test_damage_grows_with_its_strength(alteration):
  change, strengths = alterations.DAMAGING[alteration]
  config, params = CONFIGS['llama'], init_params(CONFIGS['llama'], 1)
  before = logits(config, params)
  damaged = [change(config, params, jax.random.key(0), strength)[1] for strength in strengths]
  hurt = [np.abs(logits(config, each) - before).mean() for each in damaged]
  assert hurt == sorted(hurt) and hurt[0] > 0


def test_damage_is_what_it_says():
  config, key = CONFIGS['llama'], functools.partial(jax.random.key, 0)
  params = init_params(config, 1)
  up = lambda altered: np.asarray(altered[1]['blocks']['up']['kernel'])
  before = up((config, params))
  pruned = up(alterations.prune(config, params, key(), 0.3))
  assert np.mean(pruned == 0) == pytest.approx(0.3, abs=0.01)
  quantized = up(alterations.quantize(config, params, key(), 4))
  assert np.unique(np.round(quantized[0, :, 0], 9)).size <= 15
  noise = up(alterations.add_noise(config, params, key(), 0.5)) - before
  assert np.std(noise) == pytest.approx(0.5 * before.std(), rel=0.05)
  added = up(alterations.add_low_rank(config, params, key(), 0.5, rank=3)) - before
  assert np.linalg.matrix_rank(added[0], tol=1e-4) == 3
  assert np.linalg.norm(added[0]) == pytest.approx(0.5 * np.linalg.norm(before[0]), rel=1e-4)
  redrawn = up(alterations.redraw_layers(config, params, key(), 1 / 3))
  assert np.array_equal(redrawn[:2], before[:2])
  assert not np.isclose(redrawn[2], before[2]).any(axis=0).all()
  other = 2 * up(alterations.average(config, params, key(), 0.5)) - before
  assert abs(np.corrcoef(other.ravel(), before.ravel())[0, 1]) < 0.05
