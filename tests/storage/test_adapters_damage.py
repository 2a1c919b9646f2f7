"""Damaged adapters are refused in one line that names the file."""

import functools
import random

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_huggingface_damage import damaged

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from directories import line_of
from small_adapters import BASE, QUERY, edit

ONES, SQUARE = np.ones((2, 32), np.float32), np.eye(32, dtype=np.float32)
NAN = float('nan')
CONFIG, WEIGHTS = 'adapter_config.json', 'adapter_model.safetensors'
# Of each kind of check one value that it refuses, or two.
WRONG = {
    'peft_type': (..., 'IA3', ['LORA']), 'r': (..., 0, 1.5, True, 3, 10**400),
    'lora_alpha': (..., NAN, '6', 1e31), 'use_rslora': ('yes',), 'use_dora': ('yes', True),
    'rank_pattern': ([], {'q_proj': 3}, {'q_proj': NAN}, {'(': 2}, {'(a+)+': 2}, {'.*' * 9: 2},
                     {'a{99999999999}': 2}),
    'alpha_pattern': ('x', {'q_proj': -1}, {'q_proj': True}),
    'target_modules': (7, ['k_proj'], ['proj', 'lm_head', 'embed_tokens']),
    'modules_to_save': ([7],), 'layers_to_transform': ('1', [0], 0),
    'init_lora_weights': ('pissa', 'loftq', None, 1),
}
# What changes weights in ways that are not merged here, or may.
UNKNOWN = {
    'an_entry_of_tomorrow': 'x', 'lora_bias': True, 'use_qalora': True,
    'trainable_token_indices': [1], 'layer_replication': [[0, 1]], 'target_parameters': ['x'],
    'alora_invocation_tokens': [1], 'ensure_weight_tying': True, 'megatron_shards': 2,
    'arrow_config': {'top_k': 3}, 'use_bdlora': {'nblocks': 2},
}
BAD_TENSORS = {
    'no_a': dict(lora_A__weight=None), 'no_b': dict(lora_B__weight=None),
    'ranks': dict(lora_A__weight=ONES[:1], lora_B__weight=ONES[:1].T),
    'transposed': dict(lora_A__weight=ONES.T), 'three_axes': dict(lora_A__weight=ONES[None]),
    'no_axis': dict(lora_B__weight=np.array(1, np.float32)),
    'huge_rank': dict(lora_A__weight=np.ones((4096, 32), np.float32)),
    'nan': dict(lora_A__weight=ONES * np.float32(NAN)),
    'overflow': dict(lora_A__weight=ONES * np.float32(1e38), lora_B__weight=ONES.T * 9),
    'whole_numbers': dict(lora_A__weight=ONES.astype(np.int32)),
    'magnitude': dict(lora_magnitude_vector=ONES[0]), 'embedding': dict(lora_embedding_A=ONES),
    'bias': dict(bias=ONES[0]), 'saved': dict(weight=ONES),
    'twice': dict(weight=SQUARE, base_layer__weight=SQUARE), 'other': dict(hada_w1_a=ONES),
    'elsewhere': dict(x__lora_A__weight=ONES, x__lora_B__weight=ONES.T),
}


def edit_weights(path, **changes):
  """Changes tensors of the module QUERY; None takes one away."""
  name = lambda part: f'base_model.model.{QUERY}.{part.replace("__", ".")}'
  tensors = load_file(path / WEIGHTS)
  tensors |= {name(part): value for part, value in changes.items()}
  save_file({name: value for name, value in tensors.items() if value is not None},
            path / WEIGHTS)


def _renamed(path):
  (path / WEIGHTS).rename(path / 'adapter_model.bin')


DAMAGES = {
    **{f'{name}={value!r:.40}': functools.partial(edit, **{name: value})
       for name, values in WRONG.items() for value in values},
    **{name: functools.partial(edit, **{name: value}) for name, value in UNKNOWN.items()},
    **{name: functools.partial(edit_weights, **changes) for name, changes in BAD_TENSORS.items()},
    'name_of_two_lines': functools.partial(edit, **{'a\nb': True}), 'pickle': _renamed,
    'no_weights': lambda path: (path / WEIGHTS).unlink(),
    'no_config': lambda path: (path / CONFIG).unlink(),
    'no_tensors': lambda path: save_file({}, path / WEIGHTS),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_damages_are_refused_in_one_line(damage, adapter):
  DAMAGES[damage](adapter)
  with pytest.raises(InputError) as error:
    huggingface.load(BASE, adapter=adapter)
  message = line_of(error.value, adapter)
  if (entry := damage.partition('=')[0]) in WRONG | UNKNOWN:
    assert any(word in message for word in (entry, 'pattern', WEIGHTS))


@pytest.mark.parametrize('file', [CONFIG, WEIGHTS])
def test_damage_that_nobody_thought_of(file, adapter):
  """As of a folder of a model; what is refused is refused in one line."""
  rng, whole, loaded = random.Random(file), (adapter / file).read_bytes(), 0
  huggingface.load(BASE, adapter=adapter)
  for _ in range(60):
    (adapter / file).write_bytes(damaged(rng, whole, file == CONFIG))
    try:
      huggingface.load(BASE, adapter=adapter)
      loaded += 1
    except InputError as error:
      line_of(error, adapter)
  assert 0 < loaded < 60
