"""What LoRA makes of a trained network is related to it, and to no other, by the verdict."""

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from bornbiased_jax import lineage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.storage import huggingface
from experiments.shared import small_training
from experiments.shared.small_training import LLAMA
from small_adapters import edit, write_adapter

pytestmark = pytest.mark.slow

PLACES = {name: f'self_attn.{name[0]}_proj' for name in ('query', 'key', 'value', 'output')} | {
    name: f'mlp.{name}_proj' for name in ('gate', 'up', 'down')}


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A folder with trained networks a, b and an adapter of a; parameters of a without, and with."""
  folder = tmp_path_factory.mktemp('made')
  bases = small_training.train(LLAMA, small_training.from_seeds(LLAMA, [1, 2]), 300)
  for name, params in zip('ab', bases, strict=True):
    huggingface.save(folder / name, LLAMA, params)
  adapted, = small_training.fine_tune_lora(LLAMA, bases[:1], 300, data_seed=1)
  write_adapter(folder / 'adapter', {})
  edit(folder / 'adapter', r=8, lora_alpha=8, base_model_name_or_path=str(folder / 'a'))
  save_file({f'base_model.model.model.layers.{i}.{PLACES[name]}.lora_{letter}.weight':
             np.ascontiguousarray(factor[i].T)
             for name, factors in adapted['lora'].items()
             for letter, factor in zip('AB', factors, strict=True) for i in range(len(factor))},
            folder / 'adapter' / 'adapter_model.safetensors')
  return folder, bases[0], small_training.merge_lora(adapted)


def test_the_adapter_is_what_was_trained(made):
  folder, base, merged = made
  _, loaded = huggingface.load(folder / 'a', adapter=folder / 'adapter')
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6), loaded, merged)
  change = [np.linalg.norm(x - y) / np.linalg.norm(y)
            for x, y in zip(*map(jax.tree.leaves, (loaded, base)), strict=True)]
  assert max(change) > 0.1


@pytest.mark.parametrize('base, expected', [('a', 'related'), ('b', 'unrelated')])
def test_the_verdict(base, expected, made):
  folder, *_ = made
  report = lineage.compare_networks(str(folder / base), str(folder / 'adapter'),
                                    Probe('tokens', 1000, 8))
  assert report['verdict'] == expected, report['reasons']
  assert not report['identical']
