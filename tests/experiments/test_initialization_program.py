"""A network that is initialized otherwise than its configuration says is found, a sound one not."""

import dataclasses

from flax.traverse_util import flatten_dict, unflatten_dict
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import huggingface
from experiments.initialization import Settings, main, tensors
from experiments.shared.settings import resolve
from small_networks import born

SMALL = dict(num_layers=2, num_heads=2, width=64, mlp_width=64, vocab_size=300)


def wrong_of(config, params):
  return [row['tensor'] for row in tensors(config, params) if row['is_off']]


@pytest.mark.parametrize('preset, changes', [
    ('tiny_gpt2', dict(positions='learned', init_scheme='centred', length=50)),
    ('tiny_llama2', dict(init_scheme='truncated')), ('tiny_llama2', dict(init_scheme='orthogonal')),
    ('tiny_moe', dict(init_scheme='deepnorm', shared_mlp_width=32))], ids=str)
def test_sound_networks_are_right(preset, changes):
  config = configs.get(preset, **SMALL | changes)
  for seed in range(3):
    assert not wrong_of(config, init_params(config, seed))


def test_each_tensor_that_is_otherwise_is_named():
  config = configs.get('tiny_moe', **SMALL)
  params = init_params(config, 0)
  names = [row['tensor'].split('/')[-2:][0] for row in tensors(config, params)]
  assert names[:3] == ['embedding', 'attention_norm', 'query'] and names[-1] == 'head'
  plain = dataclasses.replace(config, init_scheme='plain')
  assert wrong_of(plain, params) == ['blocks/output/kernel', 'blocks/experts/down/kernel']
  for name, leaf in flatten_dict(params, sep='/').items():
    changed = np.array(leaf)
    changed[-1] *= 1.3  # In one layer alone, but for embeddings.
    changed = changed if leaf.ndim > 2 or name.endswith('scale') else 1.3 * np.asarray(leaf)
    flat = flatten_dict(params, sep='/') | {name: changed}
    wrong, = (row for row in tensors(config, unflatten_dict(flat, sep='/')) if row['is_off'])
    assert wrong['tensor'] == name and wrong['layer'] == (1 if 'blocks' in name else None)
  assert wrong_of(config, params | {'embedding': np.full((300, 64), np.nan)}) == ['embedding']


def test_the_command_shows_theory_beside_it_and_its_exit_code_says_what_it_found(tmp_path, capsys):
  config = configs.get('tiny_moe', **SMALL, init_scheme='plain', linear_std=0.05,
                       embedding_std=0.05)
  params = born(config, 1)
  for name, factor, code in (('sound', 1, 0), ('wrong', 1.2, 1)):
    head = factor * np.asarray(params['head'])
    huggingface.save(tmp_path / name, config, params | {'head': head})
    with pytest.raises(SystemExit) as ended:
      main(resolve(Settings, words=[str(tmp_path / name)], num_sequences='30', length='8'))
    shown = capsys.readouterr().out
    assert ended.value.code == code and ('says: head' in shown) == bool(code)
    assert shown.count('highest expert load') == 2 and 'side' in shown
  for step in ('checkpoint-100', 'checkpoint-20'):
    (tmp_path / 'trained' / step).mkdir(parents=True)
  for words, advice in (([], 'give one model'),
                        ([str(tmp_path / 'trained')], 'holds 2 checkpoints.*first, .*point-20$')):
    with pytest.raises(InputError, match=advice):
      main(resolve(Settings, words=words))
