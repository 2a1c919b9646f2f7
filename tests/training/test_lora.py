"""LoRA moves its factors as autodiff and optax do, and stops, resumes and spreads as any run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.loss import next_token_loss
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training import export_adapter, loop
from bornbiased_jax.training.start import begin
from bornbiased_jax.training.step import Recipe, init_state, optimizer, train_step
import tiny_runs
from tiny_runs import final
from tiny_steps import CONFIGS, RECIPE, tokens

LORA = dict(adapter='lora', rank=3, alpha=6)


def merge(base, factors, scale):
  """The parameters of a network with LoRA, by the definition."""
  blocks = {name: module | ({'kernel': module['kernel'] + scale * jnp.einsum(
      'lir,lro->lio', *(factors[name][each] for each in 'AB'))} if name in factors else {})
      for name, module in base['blocks'].items()}
  return base | {'blocks': blocks}


@pytest.mark.parametrize('name', CONFIGS)
def test_steps_are_those_of_gradients_by_the_factors(name):
  config, recipe = CONFIGS[name], dataclasses.replace(RECIPE, **LORA)
  state = init_state(config, recipe, 3)
  base, factors = state.params, state.opt_state.factors
  plain = optimizer(RECIPE)
  memory = plain.init(factors)
  step = jax.jit(functools.partial(train_step, config, recipe))
  gradient_of = jax.jit(jax.grad(lambda factors, ids: next_token_loss(
      config, merge(base, factors, 2.0), ids)))
  for i in range(4):
    state, _ = step(state, tokens(i))
    updates, memory = plain.update(gradient_of(factors, tokens(i)), memory, factors)
    factors = optax.apply_updates(factors, updates)
  assert min(float(jnp.abs(own['B']).max()) for own in factors.values()) > 1e-4
  near = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-5)
  jax.tree.map(near, state.opt_state.factors, factors)
  jax.tree.map(near, state.params, merge(base, factors, 2.0))


def test_a_is_drawn_as_peft_draws_it_from_the_seed():
  recipe = dataclasses.replace(RECIPE, **LORA)
  drawn = [init_state(CONFIGS['llama2'], recipe, seed).opt_state.factors for seed in (1, 2)]
  a = np.concatenate([own['A'].ravel() * own['A'].shape[1]**0.5 for own in drawn[0].values()])
  assert np.abs(a).max() <= 1 and a.std() == pytest.approx(3**-0.5, rel=0.05)
  matrices = [own['A'] for factors in drawn for own in factors.values() if own['A'].shape[1] == 32]
  assert all(np.abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 0.4
             for i, x in enumerate(matrices) for y in matrices[:i])
  assert not any(own['B'].any() for own in drawn[0].values())


@pytest.fixture(scope='module')
def parent(tmp_path_factory):
  directory = tmp_path_factory.mktemp('parent')
  loop.train(tiny_runs.run(directory, seeds=(2, 3)))
  return directory


def lora_run(directory, parent, recipe=(), **settings):
  return tiny_runs.run(directory, recipe=LORA | dict(recipe), init_from=parent, **settings)


@pytest.fixture(scope='module')
def adapted(parent, tmp_path_factory):
  directory = tmp_path_factory.mktemp('adapted')
  loop.train(lora_run(directory, parent))
  return directory


def test_the_base_is_frozen_and_each_matrix_changes_by_the_rank(parent, adapted):
  changes = jax.tree.map(np.subtract, final(adapted), final(parent))
  for name, module in changes['blocks'].items():
    for part, change in module.items():
      ranks = np.linalg.matrix_rank(change, 1e-4) if part == 'kernel' else change.any()
      assert np.all(ranks == (3 if part == 'kernel' else 0)), name
  assert not any(leaf.any() for leaf in jax.tree.leaves(changes | {'blocks': {}}))
  beginning = checkpoint.load_params(adapted / 'seed_3', 0)[1]
  jax.tree.map(np.testing.assert_array_equal, beginning, final(parent))


def test_stop_and_resume_is_not_stopping_bit_for_bit(parent, adapted, tmp_path):
  stopped = lora_run(tmp_path, parent)
  save, calls = loop._save, []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, '_save', lambda *of: calls.append(save(*of)) if of[-1] < 4 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
      loop.train(stopped)
  assert checkpoint.steps(tmp_path / 'seed_3') == [0, 2]
  loop.train(lora_run(tmp_path, parent))
  ends = [begin(lora_run(directory, parent))[0] for directory in (tmp_path, adapted)]
  jax.tree.map(np.testing.assert_array_equal, *ends)


@pytest.mark.parametrize('change', [dict(shape=(1, 2, 2)), dict(seeds=(2, 3))])
def test_on_a_mesh_and_together_it_is_the_same(parent, adapted, tmp_path, change):
  loop.train(lora_run(tmp_path, parent, **change))
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=2e-4),
               final(tmp_path), final(adapted))


def test_it_is_resumed_as_it_was(parent, adapted, tmp_path):
  more = dict(num_steps=8)
  state, (origin,) = begin(tiny_runs.run(tmp_path, recipe=LORA | more, resume=adapted))
  assert int(state.step) == origin['step'] == 6
  plain = dict.fromkeys(LORA)
  for recipe, source, message in (
      (plain, adapted, 'was trained with adapter=lora, not None'),
      (LORA, parent, 'was trained with adapter=None, not lora'),
      (LORA | dict(rank=4), adapted, 'rank=3, not 4'),
      (LORA | dict(alpha=1), adapted, 'alpha=6, not 1')):
    with pytest.raises(InputError, match=message):
      begin(tiny_runs.run(tmp_path, recipe=recipe | more, resume=source))
  with pytest.raises(InputError, match='holds a run with rank=3, not 5'):
    begin(lora_run(adapted, parent, dict(rank=5)))


@pytest.mark.parametrize('wrong, message, field', [
    (dict(rank=4), 'rank=4: only with an adapter', 'rank'),
    (dict(alpha=4.0), 'alpha=4.0: only with an adapter', 'alpha'),
    (dict(adapter='lora', rank=0), 'rank=0 must be a whole number', 'rank'),
    (dict(adapter='lora', alpha=-1), 'alpha=-1 must be a positive number', 'alpha'),
    (dict(adapter='ia3'), "adapter='ia3' is none of lora", 'adapter'),
])
def test_impossible_adapters_are_refused(wrong, message, field):
  with pytest.raises(InputError, match=message) as error:
    Recipe(**tiny_runs.RECIPE | wrong)
  assert error.value.field == field


def test_only_lora_is_exported(parent, tmp_path):
  with pytest.raises(InputError, match='seed_3 is not of a run that trained LoRA'):
    export_adapter(parent / 'seed_3', tmp_path / 'adapter')
  assert not (tmp_path / 'adapter').exists()
