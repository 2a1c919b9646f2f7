"""Damaged adapters are refused in one line that names the file."""

import functools
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from directories import line_of
from small_adapters import BASE, QUERY, edit

ONES, SQUARE = np.ones((2, 32), np.float32), np.eye(32, dtype=np.float32)
NAN, INFINITY = float('nan'), float('inf')
WRONG = {
    'peft_type': (..., None, 'lora', 'IA3', 'LOHA', 'PREFIX_TUNING', 'ADALORA', 7, ['LORA'],
                  'x' * 10**6),
    'r': (..., None, 0, -1, NAN, INFINITY, 1.5, 2.0, '2', True, [2], {}, 3, 2**31, 10**400),
    'lora_alpha': (..., None, 0, -1, NAN, INFINITY, -INFINITY, '6', True, [6], {}, 10**400, 1e31),
    'use_rslora': (None, 1, 'yes', [], NAN), 'use_dora': (None, 1, 'yes', [], True),
    'rank_pattern': ([], 'x', 7, {'q_proj': 3}, {'q_proj': NAN}, {'q_proj': 0}, {'(': 2}, {'[': 2},
                     {'*': 2}, {'q_proj': '2'}, {'q_proj': None}, {'(a+)+': 2}, {'.*' * 9: 2},
                     {'a{99999999999}': 2}, {'q' * 10**5 + '(': 2}, {'(?P<': 2}, {'\\': 2}),
    'alpha_pattern': ([], 'x', 7, {'q_proj': NAN}, {'q_proj': -1}, {'q_proj': '1'}, {'[': 1},
                      {'q_proj': True}, {'(.*)*': 1}, {'q_proj': {}}),
    'target_modules': (7, {}, [7], ['k_proj'], [[]], True, ['proj', 'lm_head', 'embed_tokens'], []),
    'modules_to_save': (7, {}, [7], True), 'layers_to_transform': ('1', [0], 0, 7, [None], {}, 1.0),
    'init_lora_weights': ('pissa', 'pissa_niter_4', 'olora', 'loftq', 'corda', 'lora_ga', None,
                          1, []),
    'an_entry_of_tomorrow': (True, 'x', {'a': 1}),
    'lora_bias': (True,), 'use_qalora': (True,),
    'trainable_token_indices': ([1], {'embed_tokens': [1]}), 'layer_replication': ([[0, 1]],),
    'target_parameters': (['x'],), 'alora_invocation_tokens': ([1],),
    'ensure_weight_tying': (True,),
    'megatron_shards': (2,), 'arrow_config': ({'top_k': 3},), 'use_bdlora': ({'nblocks': 2},),
}
BAD_TENSORS = {
    'no_a': dict(lora_A__weight=None), 'no_b': dict(lora_B__weight=None),
    'rank': dict(lora_A__weight=ONES[:1]),
    'ranks': dict(lora_A__weight=ONES[:1], lora_B__weight=ONES[:1].T),
    'transposed': dict(lora_A__weight=ONES.T), 'width': dict(lora_A__weight=ONES[:, :31]),
    'one_axis': dict(lora_A__weight=ONES[0]), 'three_axes': dict(lora_A__weight=ONES[None]),
    'no_axis': dict(lora_B__weight=np.array(1, np.float32)),
    'no_rows': dict(lora_A__weight=ONES[:0]),
    'huge_rank': dict(lora_A__weight=np.ones((4096, 32), np.float32)),
    'nan': dict(lora_A__weight=ONES * np.float32(NAN)),
    'inf': dict(lora_B__weight=ONES.T * np.float32('inf')),
    'overflow': dict(lora_A__weight=ONES * np.float32(1e38), lora_B__weight=ONES.T * 9),
    'whole_numbers': dict(lora_A__weight=ONES.astype(np.int32)),
    'f64': dict(lora_A__weight=ONES.astype(float)),
    'magnitude': dict(lora_magnitude_vector=ONES[0]), 'embedding': dict(lora_embedding_A=ONES),
    'bias_of_b': dict(lora_B__bias=ONES[0]), 'bias': dict(bias=ONES[0]), 'saved': dict(weight=ONES),
    'twice': dict(weight=SQUARE, base_layer__weight=SQUARE),
    'other': dict(hada_w1_a=ONES),
    'elsewhere': dict(x__lora_A__weight=ONES, x__lora_B__weight=ONES.T),
}


def edit_weights(path, **changes):
  """Changes tensors of the module QUERY; None takes one away."""
  name = lambda part: f'base_model.model.{QUERY}.{part.replace("__", ".")}'
  tensors = load_file(path / 'adapter_model.safetensors')
  tensors |= {name(part): value for part, value in changes.items()}
  save_file({name: value for name, value in tensors.items() if value is not None},
            path / 'adapter_model.safetensors')


def _without(name):
  return lambda path: (path / name).unlink()


def _bytes(name, content):
  return lambda path: (path / name).write_bytes(content)


def _cut(length):
  return lambda path: os.truncate(path / 'adapter_model.safetensors', length)


def _renamed(path):
  (path / 'adapter_model.safetensors').rename(path / 'adapter_model.bin')


DAMAGES = {
    **{f'{name}={value!r:.40}': functools.partial(edit, **{name: value})
       for name, values in WRONG.items() for value in values},
    **{name: functools.partial(edit_weights, **changes) for name, changes in BAD_TENSORS.items()},
    **{f'cut at {length}': _cut(length) for length in (0, 1, 7, 8, 9, 100, 500, 1000, 5000)},
    'dora_without_magnitudes': functools.partial(edit, use_dora=True),
    'name_of_two_lines': functools.partial(edit, **{'a\nb': True}),
    'not_json': _bytes('adapter_config.json', b'{'), 'list': _bytes('adapter_config.json', b'[]'),
    'not_text': _bytes('adapter_config.json', b'\xff\xfe'),
    'nothing': _bytes('adapter_config.json', b''),
    'deep': _bytes('adapter_config.json', b'[' * 100_000),
    'no_weights': _without('adapter_model.safetensors'),
    'no_config': _without('adapter_config.json'),
    'pickle': _renamed, 'text': _bytes('adapter_model.safetensors', b'x' * 99),
    'no_tensors': lambda path: save_file({}, path / 'adapter_model.safetensors'),
}


def test_what_is_whole_is_read_and_there_are_many_damages(adapter):
  huggingface.load(BASE, adapter=adapter)
  assert len(DAMAGES) >= 150


@pytest.mark.parametrize('damage', DAMAGES)
def test_damages_are_refused_in_one_line(damage, adapter):
  DAMAGES[damage](adapter)
  with pytest.raises(InputError) as error:
    huggingface.load(BASE, adapter=adapter)
  message = line_of(error.value, adapter)
  if damage.partition('=')[0] in WRONG:
    words = damage.partition('=')[0], 'pattern', 'adapter_model.safetensors'
    assert any(word in message for word in words)
