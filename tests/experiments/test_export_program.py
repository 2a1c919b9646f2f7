"""Any network becomes a folder that `transformers` loads: also a random one of any config.json."""

import jax
import numpy as np
import pytest

from bornbiased_jax import storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from directories import minimal_config, quiet_transformers, write_config
from experiments.export import Settings, main
from experiments.shared.settings import resolve
from small_networks import logits


def test_a_random_network_of_a_config(tmp_path):
  transformers = quiet_transformers()
  write_config(tmp_path, minimal_config('qwen2', initializer_range=0.2))
  name = f'{tmp_path}/config.json:7'
  main(resolve(Settings, words=[name, str(tmp_path / 'out')], tokenizer=None))
  config, params = huggingface.load(tmp_path / 'out')
  jax.tree.map(np.testing.assert_array_equal, params, storage.open(name).load()[1])
  assert params['blocks']['up']['kernel'].std() == pytest.approx(0.2, rel=0.03)
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  assert model.config.initializer_range == 0.2
  import torch
  ids = np.arange(40).reshape(2, 20)
  with torch.no_grad():
    expected = model(torch.from_numpy(ids)).logits.numpy()
  np.testing.assert_allclose(logits(config, params, ids), expected, rtol=0, atol=1e-4)


def test_what_is_missing_is_named():
  with pytest.raises(InputError, match='give a model and a new folder'):
    main(resolve(Settings, words=['tiny_gpt2:1']))
