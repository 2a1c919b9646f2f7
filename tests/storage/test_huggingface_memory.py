"""Models in memory are what their saved folders are, and what `transformers` computes."""

import dataclasses
import functools

from flax import linen as nn
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_huggingface import made

from bornbiased_jax import configs, lineage, models, storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import by_weights
from bornbiased_jax.storage import huggingface
from directories import assert_close, assert_equal
import make_goldens
from small_networks import born, logits, tokens

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=16, mlp_width=24, vocab_size=70,
                     positions='learned', length=200)
NAMES = {
    'embedding': 'wte/embedding', 'position_embedding': 'wpe/embedding',
    'final_norm/scale': 'norm/scale', 'final_norm/bias': 'norm/bias'} | {
    f'blocks/{ours}/{leaf}': f'block_{{}}/{theirs}/{leaf}'
    for ours, theirs in dict(query='attention/query', key='attention/key', value='attention/value',
                             output='attention/out', up='up', down='down').items()
    for leaf in ('kernel', 'bias')} | {
    f'blocks/{ours}/{leaf}': f'block_{{}}/{theirs}/{leaf}'
    for ours, theirs in dict(attention_norm='norm_1', mlp_norm='norm_2').items()
    for leaf in ('scale', 'bias')}
# Of transformers


def test_token_ids_may_be_tensors_of_torch():
  torch = pytest.importorskip('torch')
  ids = tokens()
  theirs, params = torch.from_numpy(np.array(ids)), born(CONFIG, 1)
  for compute in (lambda x: models.read(CONFIG, params, x, ('logits',))['logits'],
                  lambda x: models.token_losses(CONFIG, params, x),
                  lambda x: models.next_token_loss(CONFIG, params, x)):
    both = (jax.jit(functools.partial(compute, x))() for x in (theirs, ids))
    np.testing.assert_array_equal(*both)
    with pytest.raises(InputError, match='on the device meta has no values'):
      compute(theirs.to('meta'))


def test_what_wraps_a_model_is_taken_off(transformers):
  import torch
  model = made(transformers, 'gpt2')
  wrapped = torch.nn.DataParallel(model)
  assert_equal(huggingface.from_transformers(wrapped), huggingface.from_transformers(model))


def test_prefixes_of_wrappers_are_taken_off_names(transformers):
  model = made(transformers, 'gpt2')
  tensors, wanted = model.state_dict(), huggingface.from_transformers(model)
  for prefix in ('module.', '_orig_mod.', '_orig_mod.module.'):
    named = {prefix + name: tensor for name, tensor in tensors.items()}
    assert_equal(huggingface.from_state_dict(model.config, named), wanted)
  inside = {name.replace('.0.attn', '.0._orig_mod.attn'): x for name, x in tensors.items()}
  assert_equal(huggingface.from_state_dict(model.config, inside), wanted)
  with pytest.raises(InputError, match="wte.weight' is a second 'transformer.wte.weight'"):
    huggingface.from_state_dict(model.config, tensors | {
        'module.transformer.wte.weight': tensors['transformer.wte.weight']})
  for given, advice in (({'model': {f'module.{name}': x for name, x in tensors.items()}},
                         r"pass checkpoint\['model'\]"),
                        ({f'net.{name}': x for name, x in tensors.items()}, "take 'net.' off")):
    with pytest.raises(InputError, match=f'has no transformer.ln_f.weight.*{advice}'):
      huggingface.from_state_dict(model.config, given)


def test_what_auto_model_saves_has_the_head_that_is_tied(transformers, tmp_path):
  model, ids = made(transformers, 'qwen3_tied'), np.arange(48).reshape(2, 24)
  model.base_model.save_pretrained(tmp_path / 'tied')
  assert_equal(huggingface.load(tmp_path / 'tied'), huggingface.from_transformers(model))
  assert_close(logits(*huggingface.from_transformers(model.base_model), ids),
               make_goldens.logits(tmp_path / 'tied', ids))
  made(transformers, 'qwen2_bf16').base_model.save_pretrained(tmp_path / 'untied')
  with pytest.raises(InputError, match=r"\['Qwen2Model'\] is not supported"):
    huggingface.load(tmp_path / 'untied')
  compared = lineage.look_up(str(tmp_path / 'untied'))
  assert isinstance(compared, by_weights.Weights) and compared.layout.layers


def test_a_network_in_memory_has_a_name_and_is_compared(transformers):
  pair = huggingface.from_transformers(made(transformers, 'gpt2'))
  model = storage.open(pair)
  assert_equal(model.load(), pair)
  changed = dataclasses.replace(pair[0], activation='relu'), pair[1]
  assert model == storage.open(pair) != storage.open(changed)


def test_what_is_no_model_is_named(transformers):
  import torch
  with pytest.raises(InputError, match='Linear is no model of transformers'):
    huggingface.from_transformers(torch.nn.Linear(2, 3))
  model = made(transformers, 'gpt2')
  with pytest.raises(InputError, match='is no dict of arrays by name.*from_transformers'):
    huggingface.from_state_dict(model.config, model)
  with pytest.raises(InputError, match=r'has no transformer.ln_f.weight.*say with names='):
    huggingface.from_state_dict(model.config, {'mine.weight': torch.ones(3)})
  for read in configs.get, huggingface.load_config:
    with pytest.raises(InputError, match=r'GPT2Config is not.*from_transformers\(model\)'):
      read(model.config)
  for change, message in (
      (dict(more=torch.ones(3)), "the state dict: tensor 'more' has no place"),
      ({'transformer.wpe.weight': torch.ones(3, 32)}, r'wpe.weight is \[3, 32\]; config'),
      ({'transformer.wpe.weight': torch.ones(256, 32, dtype=torch.float64)},
       r'is float64, .* give model.float\(\)'),
      ({'transformer.wpe.weight': torch.ones(256, 32, device='meta')}, 'on the device meta'),
      ({'transformer.wpe.weight': torch.full((256, 32), torch.nan)}, 'has NaN')):
    with pytest.raises(InputError, match=message):
      huggingface.from_state_dict(model.config, model.state_dict() | change)


# By names of one's own


class Block(nn.Module):

  @nn.compact
  def __call__(self, x):
    mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
    x += nn.MultiHeadDotProductAttention(2, name='attention')(
        nn.LayerNorm(1e-5, name='norm_1')(x), mask=mask)
    hidden = nn.gelu(nn.Dense(24, name='up')(nn.LayerNorm(1e-5, name='norm_2')(x)))
    return x + nn.Dense(16, name='down')(hidden)


class Elsewhere(nn.Module):
  """GPT-2 as somebody writes it with Flax's own attention, whose kernels have an axis of heads."""

  @nn.compact
  def __call__(self, ids):
    embed = nn.Embed(70, 16, name='wte')
    x = embed(ids) + nn.Embed(200, 16, name='wpe')(jnp.arange(ids.shape[1]))[None]
    for i in range(2):
      x = Block(name=f'block_{i}')(x)
    return embed.attend(nn.LayerNorm(1e-5, name='norm')(x))


@pytest.fixture(scope='module')
def theirs():
  shapes = jax.eval_shape(Elsewhere().init, jax.random.key(0), tokens())['params']
  noise = lambda x: 0.3 * np.random.default_rng(x.size).standard_normal(x.shape, np.float32)
  return jax.tree.map(noise, shapes)


def test_a_network_of_another_program_computes_the_same(theirs):
  ids, wte = tokens(), theirs['wte']['embedding']
  expected = jax.jit(Elsewhere().apply)({'params': theirs}, ids)
  pair = huggingface.from_state_dict(CONFIG, theirs, NAMES)
  np.testing.assert_allclose(logits(*pair, ids), expected, atol=2e-5)
  for prefix in 'module.', '_orig_mod.', 'module._orig_mod.', '_orig_mod.module.':
    wrapped = {prefix + name: tree for name, tree in theirs.items()}
    assert_equal(huggingface.from_state_dict(CONFIG, wrapped, NAMES), pair)
    names = {ours: prefix + name for ours, name in NAMES.items()}
    assert_equal(huggingface.from_state_dict(CONFIG, wrapped, names), pair)
  # PyTorch's state_dict has a tied head too. Another one unties it, as in files.
  for own, head in ((CONFIG, wte), (dataclasses.replace(CONFIG, tied_head=False), 2 * wte)):
    found = huggingface.from_state_dict(CONFIG, theirs | {'out': head}, NAMES | {'head': 'out'})
    assert_equal(found, (own, pair[1] if own == CONFIG else pair[1] | {'head': head}))


def without(names, *dropped):
  return {name: place for name, place in names.items() if name not in dropped}


@pytest.mark.parametrize('change, message', [
    (lambda tree: (tree, without(NAMES, 'embedding') | {'embeding': 'x'}),
     'names lack embedding; unknown in this architecture: embeding'),
    (lambda tree: (tree, NAMES | {'head': 'x'}), 'unknown in this architecture: head'),
    (lambda tree: (tree, NAMES | {'embedding': 'wte/table'}), r'has no tensor wte/table \[70, 16'),
    (lambda tree: (tree, NAMES | {'embedding': 'wpe/embedding'}), r'is \[200, 16\]; .* \[70, 16\]'),
    (lambda tree: (tree | {'more': {'x': np.ones(3)}}, NAMES),
     "'more/x' has no place.*the head, name it.*a mask, leave it out of the dict"),
    (lambda tree: (tree, NAMES | {'blocks/up/kernel': NAMES['blocks/query/kernel']}),
     r'blocks/query/kernel, blocks/up/kernel share it and need \[16, 40\]'),
    (lambda tree: (tree, NAMES | {'blocks/up/kernel': 'block_0/up/kernel'}),
     "'block_0/up/kernel' is of one layer; write 'block_{}/up/kernel'"),
    (lambda tree: ({'model': tree, 'step': 5}, NAMES), r"; pass checkpoint\['model'\]"),
    (lambda tree: ({f'net.{name}': x for name, x in tree.items()}, NAMES), "take 'net.' off"),
    (lambda tree: (tree | {'module.wte': tree['wte']}, NAMES), 'two tensors of a name without'),
])
def test_what_does_not_fit_is_named(theirs, change, message):
  with pytest.raises(InputError, match=message):
    huggingface.from_state_dict(CONFIG, *change(theirs))


@pytest.mark.parametrize('preset', ['tiny_gpt2', 'tiny_moe'])
def test_arrays_may_have_all_layers_and_experts_or_one(preset):
  config = configs.get(preset, num_layers=2, width=16, num_heads=2, mlp_width=8, vocab_size=30)
  params = born(config, 3)
  flat = flatten_dict(params, sep='/')
  same = {name: name for name in flat}
  assert_equal(huggingface.from_state_dict(config, params, same), (config, params))
  each = {name: name.replace('blocks', '{}').replace('experts', '{}') for name in flat}
  parts = {}
  for name, leaf in flat.items():
    counts = leaf.shape[:each[name].count('{}')]
    parts |= {each[name].format(*index): leaf[index] for index in np.ndindex(counts)}
  assert_equal(huggingface.from_state_dict(config, parts, each), (config, params))


@pytest.mark.parametrize('mlp_width', [24, 16])
def test_kernels_of_torch_are_turned(mlp_width):
  """Also the square ones. If all are, nothing shows how they lie."""
  config = dataclasses.replace(CONFIG, mlp_width=mlp_width)
  params = born(config, 3)
  flat = flatten_dict(params, sep='/')
  same = {name: name for name in flat}
  theirs = {name: leaf.swapaxes(-1, -2) if name.endswith('/kernel') else leaf
            for name, leaf in flat.items()}
  if mlp_width == 24:
    assert_equal(huggingface.from_state_dict(config, theirs, same), (config, params))
    mixed = theirs | {'blocks/up/kernel': flat['blocks/up/kernel']}
    with pytest.raises(InputError, match="'blocks/up/kernel' is .in, out., and .*down/kernel' is"):
      huggingface.from_state_dict(config, mixed, same)
  else:
    with pytest.raises(InputError, match="say kernels='in_out'"):
      huggingface.from_state_dict(config, theirs, same)
    with pytest.raises(InputError, match="kernels='torch': give 'in_out'"):
      huggingface.from_state_dict(config, theirs, same, kernels='torch')
    assert_equal(huggingface.from_state_dict(config, theirs, same, kernels='out_in'),
                (config, params))


def test_parameters_of_one_name_are_fused_there(transformers):
  """A module of one's own, as most have GPT-2: three projections are one Linear."""
  model = made(transformers, 'gpt2')
  config, params = huggingface.from_transformers(model)
  mine = {name: tensor.T if name.split('.')[-2] in ('c_attn', 'c_proj', 'c_fc') and tensor.ndim == 2
          else tensor for name, tensor in model.state_dict().items()}
  names = {ours: f'transformer.{theirs}' for ours, theirs in {
      'embedding': 'wte.weight', 'position_embedding': 'wpe.weight',
      'final_norm/scale': 'ln_f.weight', 'final_norm/bias': 'ln_f.bias'}.items()}
  for ours, theirs in dict(attention_norm='ln_1', query='attn.c_attn', key='attn.c_attn',
                           value='attn.c_attn', output='attn.c_proj', mlp_norm='ln_2',
                           up='mlp.c_fc', down='mlp.c_proj').items():
    gain = 'scale' if ours.endswith('norm') else 'kernel'
    names[f'blocks/{ours}/{gain}'] = f'transformer.h.{{}}.{theirs}.weight'
    names[f'blocks/{ours}/bias'] = f'transformer.h.{{}}.{theirs}.bias'
  mine.pop('lm_head.weight', None)
  assert_equal(huggingface.from_state_dict(config, mine, names), (config, params))
  attention = 'transformer.h.0.attn.c_attn.weight'
  with pytest.raises(InputError, match=r'c_attn.weight is \[3, 32, 32\]; blocks/query'):
    huggingface.from_state_dict(config, mine | {
        attention: mine[attention].reshape(3, 32, 32)}, names, kernels='out_in')
  with pytest.raises(InputError, match='up/kernel, blocks/down/kernel, which cannot be fused'):
    huggingface.from_state_dict(config, mine, names | {
        'blocks/down/kernel': names['blocks/up/kernel']})


def test_axes_in_another_order_are_refused():
  """MaxText has layers on the second axis."""
  params = flatten_dict(born(CONFIG, 3), sep='/')
  same = {name: name for name in params}
  params['blocks/up/kernel'] = params['blocks/up/kernel'].swapaxes(0, 1)
  with pytest.raises(InputError, match=r'up/kernel is \[16, 2, 24\]; .* \[2, 16, 24\]'):
    huggingface.from_state_dict(CONFIG, params, same)
