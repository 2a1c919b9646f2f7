"""What an unknown family's config.json and tensors say is read or refused, whatever it is."""

import contextlib
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from bornbiased_jax import lineage
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError

D, U, V = 32, 64, 50
ENTRIES = dict(model_type='someone', vocab_size=V, hidden_size=D, num_attention_heads=4)
SHAPES = [(), (0,), (1,), (D,), (D, D, D), (2, D, U), (0, D), (D, 0), (2, 2, 2, 2), (U, 2 * D),
          (D, D), (2 * U, D), (V, D), (U, 1)]


def survey(folder, tensors, **entries):
  (folder / 'config.json').write_text(json.dumps(ENTRIES | entries))
  save_file(tensors, folder / 'model.safetensors')
  return lineage.signature(str(folder), Probe('tokens', 1000, 4)).features.arrays


def drawn(random):
  shapes = {'mlp.gate_proj': (U, D), 'mlp.up_proj': (U, D), 'mlp.down_proj': (D, U),
            'input_layernorm': (D,)} | {f'self_attn.{x}_proj': (D, D) for x in 'qkvo'}
  shapes = {f'model.layers.{i}.{name}.weight': shape
            for i in range(4) for name, shape in shapes.items()}
  return {name: random.standard_normal(shape, np.float32)
          for name, shape in (shapes | {'model.embed_tokens.weight': (V, D)}).items()}


@pytest.mark.parametrize('name', [f'layers.{"1" * 5000}.x', 'a' * 50_000 + '.0.x', 'a.' * 9999])
def test_names_of_any_length(name, tmp_path):
  assert survey(tmp_path, drawn(np.random.default_rng(0)) | {name: np.ones((2, 2), np.float32)})


@pytest.mark.parametrize('value', [-4, -1, 0, 3, 2**70, True, None, '4', [4], {}], ids=str)
@pytest.mark.parametrize('name', ['num_attention_heads', 'hidden_size', 'vocab_size',
                                  'num_experts'])
def test_sizes_of_any_kind(name, value, tmp_path):
  """A width that no layer has is no model's; what cannot be a width says nothing."""
  is_wrong = name == 'hidden_size' and value in (3, 2**70)
  with pytest.raises(InputError, match='no layers') if is_wrong else contextlib.nullcontext():
    assert survey(tmp_path, drawn(np.random.default_rng(0)), **{name: value})['up'].shape[-1] == D


@pytest.mark.parametrize('seed', range(40))
def test_tensors_of_any_shape(seed, tmp_path):
  random = np.random.default_rng(seed)
  tensors = drawn(random)
  for name in random.choice(sorted(tensors), random.integers(1, 4)):
    strange = np.ones(SHAPES[random.integers(len(SHAPES))], np.float32)
    tensors |= [{name: strange}, {name.replace('weight', 'bias'): strange},
                {name.replace('mlp.', 'mlp.experts.1.'): tensors[name]}][random.integers(3)]
  with contextlib.suppress(InputError):
    assert survey(tmp_path, tensors)


def test_a_type_that_is_not_read_is_named(tmp_path):
  survey(tmp_path, drawn(np.random.default_rng(0)))
  file = tmp_path / 'model.safetensors'
  length = int.from_bytes(file.read_bytes()[:8], 'little')
  header, rest = file.read_bytes()[8:8 + length], file.read_bytes()[8 + length:]
  # Numbers of 4 bits take an eighth of the bytes, so that there are eight times as many.
  header = header.replace(b'"F32","shape":[32,64]', b'"F4","shape":[256,64]', 1)
  file.write_bytes(len(header).to_bytes(8, 'little') + header + rest)
  with pytest.raises(InputError) as error:
    lineage.signature(str(tmp_path), Probe('tokens', 1000, 4))
  assert "a tensor of type 'F4', which is not read" in str(error.value)
  assert 'whole' not in str(error.value)
