"""A training step against PyTorch's, and against itself in parts, in ensembles and on several devices."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import optax
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.loss import next_token_loss
from bornbiased_jax.models.transformer import Transformer
from bornbiased_jax.storage import huggingface
from bornbiased_jax.training.step import Recipe, ensemble_step, init_state, train_step

CONFIGS = {
    'gpt2': configs.get('tiny_gpt2', num_layers=2, width=32, mlp_width=64, vocab_size=50, positions='learned'),
    'llama2': configs.get('tiny_llama2', num_layers=2, width=32, mlp_width=64, vocab_size=50),
}
RECIPE = Recipe(num_steps=100, batch_size=8, length=12, peak_lr=1e-3, min_lr=1e-4, warmup_steps=2)
every_config = pytest.mark.parametrize('name', CONFIGS)


def tokens(seed=0, length=RECIPE.length):
  return jax.random.randint(jax.random.key(seed), (RECIPE.batch_size, length + 1), 0, 50)


def step(name, recipe=RECIPE):
  return jax.jit(functools.partial(train_step, CONFIGS[name], recipe))


def start(name, seed=3):
  return jax.jit(functools.partial(init_state, CONFIGS[name], RECIPE))(seed)


def assert_close(a, b, **tolerance):
  jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), a, b)


def assert_same_training(a, b):
  """Gradients to rounding; parameters less so, since Adam divides a gradient that is only rounding by itself."""
  assert_close(a.opt_state[1][0].mu, b.opt_state[1][0].mu, rtol=1e-4, atol=1e-7)
  assert_close(a.params, b.params, rtol=0, atol=1e-4)


@pytest.mark.parametrize('name, length', [('gpt2', 1), ('gpt2', 130), ('llama2', 257)])
def test_chunked_loss_equals_optax_on_all_logits(name, length):
  config, ids = CONFIGS[name], tokens(length=length)
  params = init_params(config, 0)
  plain = lambda params: optax.softmax_cross_entropy_with_integer_labels(
      Transformer(config).apply({'params': params}, ids[:, :-1]), ids[:, 1:]).mean()
  chunked = functools.partial(next_token_loss, config, tokens_BT=ids)
  evaluated = lambda loss: jax.jit(jax.value_and_grad(loss))(params)
  assert_close(evaluated(chunked), evaluated(plain), rtol=1e-4, atol=1e-6)


def test_logits_of_the_whole_batch_never_exist():
  ids = tokens(length=512)
  params = jax.eval_shape(functools.partial(init_params, CONFIGS['gpt2']), 0)
  program = jax.jit(jax.grad(functools.partial(next_token_loss, CONFIGS['gpt2'], tokens_BT=ids))).lower(params)
  assert '8x512x50x' not in program.as_text() and '8x128x50x' in program.as_text()


@every_config
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_two_steps_equal_pytorch(name, tmp_path):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  state, train = start(name), step(name)
  huggingface.save(tmp_path / 'model', CONFIGS[name], state.params)
  peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'model')
  peer.train()
  for module in peer.modules():
    if isinstance(module, torch.nn.Dropout):
      module.p = 0.0
  norms = {f'{prefix}.{kind}' for prefix, module in peer.named_modules() if 'norm' in type(module).__name__.lower()
           for kind in ('weight', 'bias')}
  plain = [weight for key, weight in peer.named_parameters() if key in norms or key.endswith('bias')]
  decayed = [weight for key, weight in peer.named_parameters() if not (key in norms or key.endswith('bias'))]
  adam = torch.optim.AdamW([{'params': decayed, 'weight_decay': RECIPE.weight_decay},
                            {'params': plain, 'weight_decay': 0.0}], betas=(RECIPE.beta1, RECIPE.beta2))
  for i in range(2):
    ids = tokens(i)
    for group in adam.param_groups:
      group['lr'] = float(RECIPE.peak_lr * i / RECIPE.warmup_steps)
    adam.zero_grad()
    logits = peer(torch.tensor(np.asarray(ids[:, :-1]), dtype=torch.long)).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, 50), torch.tensor(np.asarray(ids[:, 1:]), dtype=torch.long).ravel())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(peer.parameters(), RECIPE.clip)
    adam.step()
    state, metrics = train(state, ids)
    np.testing.assert_allclose(metrics['loss'], loss.item(), atol=1e-5)
  peer.save_pretrained(tmp_path / 'trained')
  trained = huggingface.load(tmp_path / 'trained')[1]
  moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), trained, start(name).params)
  # A bias on all keys shifts all scores of a query alike: its gradient is rounding.
  del moved['blocks']['key']
  assert min(jax.tree.leaves(moved)) > 4e-4
  assert_close(state.params, trained, rtol=0, atol=1e-4)


@pytest.mark.parametrize('name', ['llama2'])
def test_accumulation_equals_the_whole_batch(name):
  in_parts = Recipe(**{**RECIPE.__dict__, 'accumulation': 4})
  whole, parts = (train(train(start(name), tokens())[0], tokens(1))[0] for train in (step(name), step(name, in_parts)))
  assert_same_training(parts, whole)


@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_an_ensemble_trains_as_its_networks_do_alone(monkeypatch, backend):
  """Also as accelerators compute it."""
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  seeds = jnp.arange(3)
  states = jax.jit(jax.vmap(functools.partial(init_state, CONFIGS['llama2'], RECIPE)))(seeds)
  alone = step('llama2')
  together = jax.jit(functools.partial(ensemble_step, CONFIGS['llama2'], RECIPE))
  for i in range(3):
    states, _ = together(states, tokens(i))
  for seed in range(3):
    state = start('llama2', seed)
    for i in range(3):
      state, _ = alone(state, tokens(i))
    assert_same_training(jax.tree.map(lambda leaf, seed=seed: leaf[seed], states), state)


@pytest.mark.parametrize('name, shape', [
    ('gpt2', (4, 1, 1)), ('gpt2', (1, 2, 2)), ('llama2', (1, 4, 1)), ('llama2', (2, 1, 2)),
])
def test_a_step_on_four_devices_equals_one_device(name, shape):
  mesh = sharding.make_mesh(*shape)
  init = functools.partial(init_state, CONFIGS[name], RECIPE)
  placed = sharding.shardings(mesh, jax.eval_shape(init, 3))
  state = jax.jit(init, out_shardings=placed)(3)
  jax.tree.map(np.testing.assert_array_equal, state.params, start(name).params)
  spread_step = jax.jit(functools.partial(train_step, CONFIGS[name], RECIPE), out_shardings=(placed, None))
  alone, train = start(name), step(name)
  for i in range(2):
    state, _ = spread_step(state, jax.device_put(tokens(i), NamedSharding(mesh, sharding.BATCH)))
    alone, _ = train(alone, tokens(i))
  assert_same_training(state, alone)


def test_matrices_and_their_moments_are_sharded():
  mesh = sharding.make_mesh(1, 2, 2)
  placed = sharding.shardings(mesh, jax.eval_shape(lambda: start('llama2')))
  adam = placed.opt_state[1][0]
  for tree in (placed.params, adam.mu, adam.nu):
    assert tree['blocks']['query']['kernel'].spec == PartitionSpec(None, 'fsdp', 'tensor')
    assert tree['blocks']['down']['kernel'].spec == PartitionSpec(None, 'tensor', 'fsdp')
    assert tree['embedding'].spec == PartitionSpec('tensor', 'fsdp')
    assert not any(tree['blocks']['mlp_norm']['scale'].spec)


@pytest.mark.parametrize('wrong, message', [
    (dict(accumulation=3), 'accumulation=3'), (dict(accumulation=0), 'accumulation=0'),
    (dict(warmup_steps=100), 'warmup'),
])
def test_impossible_recipes_are_refused(wrong, message):
  with pytest.raises(InputError, match=message):
    Recipe(**{**RECIPE.__dict__, **wrong})


def test_a_mesh_that_is_not_the_devices_is_refused():
  with pytest.raises(InputError, match='3 x fsdp=1 x tensor=1 is not the 4 devices'):
    sharding.make_mesh(3)
