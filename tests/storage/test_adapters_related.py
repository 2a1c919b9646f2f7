"""What LoRA makes of a trained network is related to it, and to no other, by the verdict."""

import jax
import numpy as np
import pytest

from bornbiased_jax import lineage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.data.corpus import Corpus
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training import export_adapter, loop
from experiments.shared import small_training
from experiments.shared.small_training import LLAMA
import tiny_runs


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A folder with trained networks a and b, and of a the run of LoRA and its adapter."""
  folder = tmp_path_factory.mktemp('made')
  bases = small_training.train(LLAMA, small_training.from_seeds(LLAMA, [1, 2]), 300)
  for name, params in zip('ab', bases, strict=True):
    huggingface.save(folder / name, LLAMA, params)
  ids = small_training.text(LLAMA.vocab_size, 300, data_seed=1).ravel()
  text = Corpus(ids, LLAMA.vocab_size, 'text', 'none', 'digest')
  recipe = dict(num_steps=300, batch_size=8, length=32, peak_lr=3e-3, adapter='lora')
  loop.train(tiny_runs.run(folder / 'run', config=LLAMA, recipe=recipe, save_every=300,
                           init_from=folder / 'a', data=text, validation=text))
  export_adapter(folder / 'run' / 'seed_3', folder / 'adapter')
  return folder


def test_the_adapter_is_what_was_trained(made):
  _, loaded = huggingface.load(made / 'a', adapter=made / 'adapter')
  _, merged = checkpoint.load_params(made / 'run' / 'seed_3')
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6), loaded, merged)
  _, base = huggingface.load(made / 'a')
  change = [np.linalg.norm(x - y) / np.linalg.norm(y)
            for x, y in zip(*map(jax.tree.leaves, (loaded, base)), strict=True)]
  assert max(change) > 0.1


@pytest.mark.parametrize('base, expected', [('a', 'related'), ('b', 'unrelated')])
@pytest.mark.parametrize('descendant', ['adapter', 'run/seed_3'])
def test_the_verdict(base, expected, descendant, made):
  report = lineage.compare_networks(str(made / base), str(made / descendant),
                                    Probe('tokens', 1000, 8))
  assert report['verdict'] == expected, report['reasons']
  assert not report['identical']
