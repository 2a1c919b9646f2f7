"""What an adapter makes of a network is related to it, and to no other, by the verdict."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bornbiased_jax import lineage, storage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.data.corpus import Corpus
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training import export_adapter, loop
from experiments.small_networks import training as small_training
from experiments.small_networks.training import LLAMA
from small_networks import logits, save_run, trained
from small_signatures import noise
import tiny_runs

pytestmark = pytest.mark.slow
STEPS = 30  # Of training the adapter.


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A folder with networks a and b, LoRA's run on a, exported, and a with a prefix."""
  folder = tmp_path_factory.mktemp('made')
  bases = [trained(LLAMA, seed) for seed in (1, 2)]
  for name, params in zip('ab', bases, strict=True):
    huggingface.save(folder / name, LLAMA, params)
  ids = small_training.text(LLAMA.vocab_size, STEPS, data_seed=1).ravel()
  text = Corpus(ids, LLAMA.vocab_size, 'text', 'none', 'digest')
  recipe = dict(num_steps=STEPS, batch_size=8, length=32, peak_lr=1e-2, adapter='lora')
  loop.train(tiny_runs.run(folder / 'lora', config=LLAMA, recipe=recipe, save_every=STEPS,
                           evaluate_every=STEPS, init_from=folder / 'a', data=text,
                           validation=text))
  export_adapter(folder / 'lora' / 'seed_3', folder / 'adapter')
  save_with_prefix(folder / 'prefix_plus', bases[0])
  return folder


def save_with_prefix(directory, params):
  """Saves what Prefix-Tuning+ makes of a network, of which it changes the memories alone."""
  L, H, K = LLAMA.num_layers, LLAMA.num_heads, LLAMA.head_size
  prefix = {'prefix': {'memory': noise(0, L, H, K, K)}}
  save_run(directory, 1, dataclasses.replace(LLAMA, prefix_plus=True),
           params | {'blocks': params['blocks'] | prefix})


def test_the_adapter_is_what_was_trained(made):
  _, loaded = huggingface.load(made / 'a', adapter=made / 'adapter')
  _, merged = checkpoint.load_params(made / 'lora' / 'seed_3')
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6), loaded, merged)
  _, base = huggingface.load(made / 'a')
  change = [np.linalg.norm(x - y) / np.linalg.norm(y)
            for x, y in zip(*map(jax.tree.leaves, (loaded, base)), strict=True)]
  assert max(change) > 0.1


@pytest.fixture(scope='module')
def report_of(made):
  signature_of = functools.cache(
      lambda name: lineage.signature(str(made / name), Probe('tokens', 1000, 8)))
  return lambda *names: lineage.compare(*map(signature_of, names))


@pytest.mark.parametrize('base, expected', [('a', 'related'), ('b', 'unrelated')])
@pytest.mark.parametrize('descendant', ['adapter', 'prefix_plus'])
def test_the_verdict(base, expected, descendant, report_of):
  report = report_of(base, descendant)
  assert report['verdict'] == expected, report['reasons']
  assert not report['identical']


def test_of_prefix_plus_the_report_names_what_is_equal_and_not_identity(made, report_of):
  """All matrices are the base's, but what is computed with them is not."""
  report = report_of('a', 'prefix_plus')
  equal = {each['tensor'] for each in report['shared_tensors'] if each['how'] == 'equal'}
  assert {'embedding', 'blocks/query/kernel', 'blocks/down/kernel'} <= equal
  ids = np.arange(40)[None]
  a, b = (logits(*storage.open(str(made / name)).load(), ids) for name in ('a', 'prefix_plus'))
  assert np.abs(a - b).max() > 0.1 and not report['identical']
