"""What is trained as LoRA leaves as an adapter that PEFT and our own reader read alike."""

import jax
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import huggingface
from make_goldens import GOLDENS
from small_networks import logits

pytestmark = pytest.mark.filterwarnings('ignore:.*:UserWarning', 'ignore:.*:FutureWarning',
                                        'ignore:.*:DeprecationWarning')
RANK, SCALE = 3, 0.5


def factors_of(config):
  random = np.random.default_rng(0)
  blocks = jax.eval_shape(lambda: init_params(config, 0))['blocks']
  shapes = {name: module['kernel'].shape for name, module in blocks.items() if 'kernel' in module}
  draw = lambda *shape: random.normal(size=shape).astype(np.float32)
  return {name: {'A': draw(layers, ins, RANK), 'B': draw(layers, RANK, outs)}
          for name, (layers, ins, outs) in shapes.items()}


def merge(params, factors):
  blocks = dict(params['blocks'])
  for name, own in factors.items():
    kernel = blocks[name]['kernel'] + SCALE * np.einsum('lir,lro->lio', own['A'], own['B'])
    blocks[name] = blocks[name] | {'kernel': kernel}
  return params | {'blocks': blocks}


@pytest.mark.parametrize('golden', ['llama_linear', 'gpt2', 'phi3', 'pythia', 'qwen3_tied'])
def test_adapters_are_read_as_they_were_saved(golden, tmp_path):
  config, params = huggingface.load(GOLDENS / golden)
  factors = factors_of(config)
  huggingface.save_adapter(tmp_path / 'adapter', config, factors, SCALE, 'org/base')
  same, loaded = huggingface.load(GOLDENS / golden, adapter=tmp_path / 'adapter')
  assert same == config
  near = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)
  jax.tree.map(near, loaded, merge(params, factors))
  peft, torch = pytest.importorskip('peft'), pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  base = transformers.AutoModelForCausalLM.from_pretrained(GOLDENS / golden)
  model = peft.PeftModel.from_pretrained(base, tmp_path / 'adapter').eval()
  ids = np.arange(12)[None]
  with torch.inference_mode():
    wanted = model(torch.tensor(ids)).logits.numpy()
  ours = logits(config, loaded, ids)
  assert np.abs(ours - wanted).max() < 2e-5 * max(1, np.abs(wanted).max())
  assert np.abs(ours - logits(config, params, ids)).max() > 0.1


def test_only_what_transformers_has_and_only_in_a_new_folder(tmp_path):
  config, _ = huggingface.load(GOLDENS / 'llama_linear')
  (tmp_path / 'full').mkdir()
  (tmp_path / 'full' / 'notes').touch()
  with pytest.raises(InputError, match='full exists and is not an empty directory'):
    huggingface.save_adapter(tmp_path / 'full', config, factors_of(config), 1, 'base')
  assert [file.name for file in tmp_path.rglob('*')] == ['full', 'notes']
