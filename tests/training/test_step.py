"""A training step is PyTorch's, and the same in parts, in ensembles and on several devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np
import optax
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from bornbiased_jax.storage import huggingface
from bornbiased_jax.training.step import (
  clipping,
  ensemble_step,
  init_state,
  optimizer,
  train_step,
)
from tiny_steps import CONFIGS, RECIPE, assert_close, start, tokens


@functools.cache
def step(name, recipe=RECIPE):
  return jax.jit(functools.partial(train_step, CONFIGS[name], recipe))


def assert_same_training(a, b):
  """Compares gradients up to rounding, and parameters less exactly.

  Adam divides every gradient by its own size, also one that is nothing but rounding.
  """
  assert_close(a.opt_state[1][0].mu, b.opt_state[1][0].mu, rtol=1e-4, atol=1e-7)
  assert_close(a.params, b.params, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['gpt2', 'moe'])
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
  norms = {f'{prefix}.{kind}' for prefix, module in peer.named_modules()
           if 'norm' in type(module).__name__.lower() for kind in ('weight', 'bias')}
  is_plain = lambda name: name in norms or name.endswith('bias')
  plain = [weight for name, weight in peer.named_parameters() if is_plain(name)]
  decayed = [weight for name, weight in peer.named_parameters() if not is_plain(name)]
  adam = torch.optim.AdamW([{'params': decayed, 'weight_decay': RECIPE.weight_decay},
                            {'params': plain, 'weight_decay': 0.0}],
                           betas=(RECIPE.beta1, RECIPE.beta2))
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
  moved = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b)).max(), trained, start(name).params)
  # A bias on all keys shifts all scores of a query alike, so that its gradient is rounding.
  del moved['blocks']['key']
  assert min(jax.tree.leaves(moved)) > 4e-4
  assert_close(state.params, trained, rtol=0, atol=1e-4)


def test_accumulation_equals_the_whole_batch():
  in_parts = dataclasses.replace(RECIPE, accumulation=4)
  states, metrics = [], []
  for train in (step('llama2'), step('llama2', in_parts)):
    state, _ = train(start('llama2'), tokens())
    state, measured = train(state, tokens(1))
    states.append(state)
    metrics.append(measured)
  assert_same_training(*states)
  # Clipping hides the size of a gradient from the state.
  assert_close(*metrics, rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_an_ensemble_trains_as_its_networks_do_alone(monkeypatch, backend):
  """This holds in the order of computation of CPUs and in that of accelerators."""
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  born = [start('llama2', seed) for seed in range(3)]
  states = jax.tree.map(lambda *leaves: np.stack(leaves), *born)
  alone = step('llama2')
  together = jax.jit(functools.partial(ensemble_step, CONFIGS['llama2'], RECIPE))
  for i in range(3):
    states, _ = together(states, tokens(i))
  for seed, state in enumerate(born):
    for i in range(3):
      state, _ = alone(state, tokens(i))
    assert_same_training(jax.tree.map(lambda leaf, seed=seed: leaf[seed], states), state)


@pytest.mark.slow
def test_a_step_on_four_devices_equals_one_device():
  """Whole runs on a mesh, whose axes are data and fsdp, are in test_loop."""
  mesh = sharding.make_mesh(1, 2, 2)
  init = functools.partial(init_state, CONFIGS['gpt2'], RECIPE)
  placed = sharding.shardings(mesh, jax.eval_shape(init, 3))
  state = jax.jit(init, out_shardings=placed)(3)
  jax.tree.map(np.testing.assert_array_equal, state.params, start('gpt2').params)
  spread_step = jax.jit(functools.partial(train_step, CONFIGS['gpt2'], RECIPE),
                        out_shardings=(placed, None))
  alone, train = start('gpt2'), step('gpt2')
  for i in range(2):
    state, _ = spread_step(state, jax.device_put(tokens(i), NamedSharding(mesh, sharding.BATCH)))
    alone, _ = train(alone, tokens(i))
  assert_same_training(state, alone)


def test_a_gradient_is_scaled_down_to_its_limit_and_never_up():
  gradient = {'a': jnp.array([3.0, 0.0]), 'b': jnp.array([4.0])}
  for limit, size in ((1.0, 1.0), (10.0, 5.0)):
    scaled, _ = clipping(limit).update(gradient, clipping(limit).init(gradient))
    assert float(optax.tree.norm(scaled)) == pytest.approx(size)


def test_gains_and_biases_do_not_decay():
  params = {name: jnp.ones(2) for name in ('kernel', 'embedding', 'scale', 'bias')}
  adam, gradient = optimizer(CONFIGS['gpt2'], RECIPE), jax.tree.map(jnp.zeros_like, params)
  _, state = adam.update(gradient, adam.init(params), params)  # The first rate is 0.
  updates, _ = adam.update(gradient, state, params)
  assert [bool(updates[name].any()) for name in params] == [True, True, False, False]


@pytest.mark.parametrize('wrong, message', [
    (dict(accumulation=3), 'accumulation=3'), (dict(accumulation=0), 'accumulation=0'),
    (dict(warmup_steps=100), 'warmup'),
])
def test_impossible_recipes_are_refused(wrong, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(RECIPE, **wrong)
