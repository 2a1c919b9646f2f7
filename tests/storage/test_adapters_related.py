"""What an adapter makes of a trained network is related to it, and to no other, by the verdict."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax import lineage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.data.corpus import Corpus
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training import export_adapter, loop
from bornbiased_jax.training.adapters import ADAPTERS
from experiments.small_networks import training as small_training
from experiments.small_networks.training import LLAMA
from small_networks import logits
import tiny_runs

pytestmark = pytest.mark.slow
STEPS = 150  # Of training the networks, and then their adapters.


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A folder with trained networks a and b, runs of a's adapters, and that of LoRA exported."""
  folder = tmp_path_factory.mktemp('made')
  bases = small_training.train(LLAMA, small_training.from_seeds(LLAMA, [1, 2]), STEPS)
  for name, params in zip('ab', bases, strict=True):
    huggingface.save(folder / name, LLAMA, params)
  ids = small_training.text(LLAMA.vocab_size, STEPS, data_seed=1).ravel()
  text = Corpus(ids, LLAMA.vocab_size, 'text', 'none', 'digest')
  for adapter in ADAPTERS:
    config = dataclasses.replace(LLAMA, prefix_plus=adapter == 'prefix_plus')
    recipe = dict(num_steps=STEPS, batch_size=8, length=32, peak_lr=1e-2,
                  adapter=adapter)
    loop.train(tiny_runs.run(folder / adapter, config=config, recipe=recipe, save_every=STEPS,
                             evaluate_every=STEPS, init_from=folder / 'a', data=text,
                             validation=text))
  export_adapter(folder / 'lora' / 'seed_3', folder / 'adapter')
  return folder


def test_the_adapter_is_what_was_trained(made):
  _, loaded = huggingface.load(made / 'a', adapter=made / 'adapter')
  _, merged = checkpoint.load_params(made / 'lora' / 'seed_3')
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6), loaded, merged)
  _, base = huggingface.load(made / 'a')
  change = [np.linalg.norm(x - y) / np.linalg.norm(y)
            for x, y in zip(*map(jax.tree.leaves, (loaded, base)), strict=True)]
  assert max(change) > 0.1


@pytest.mark.parametrize('base, expected', [('a', 'related'), ('b', 'unrelated')])
@pytest.mark.parametrize('descendant', ['adapter', 'prefix_plus/seed_3'])
def test_the_verdict(base, expected, descendant, made):
  report = lineage.compare_networks(str(made / base), str(made / descendant),
                                    Probe('tokens', 1000, 8))
  assert report['verdict'] == expected, report['reasons']
  assert not report['identical']


def test_of_prefix_plus_the_report_names_what_is_equal_and_not_identity(made):
  """All matrices are the base's, but what is computed with them is not."""
  report = lineage.compare_networks(str(made / 'a'), str(made / 'prefix_plus' / 'seed_3'),
                                    Probe('tokens', 1000, 8))
  equal = {each['tensor'] for each in report['shared_tensors'] if each['how'] == 'equal'}
  assert {'embedding', 'blocks/query/kernel', 'blocks/down/kernel'} <= equal
  ids = np.arange(40)[None]
  a, b = (logits(*lineage.load(str(made / name)), ids) for name in ('a', 'prefix_plus/seed_3'))
  assert np.abs(a - b).max() > 0.1 and not report['identical']
