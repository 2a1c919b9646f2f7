"""Adapters are trained as their definitions say; they stop, resume and spread as any run."""

import dataclasses
import functools

from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.loss import next_token_loss
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training import export_adapter, loop
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.start import begin
from bornbiased_jax.training.step import init_state, optimizer, train_step
from small_networks import logits
import tiny_runs
from tiny_runs import final
from tiny_steps import CONFIGS, RECIPE, tokens

LORA = dict(adapter='lora', rank=3, alpha=6)
ADAPTERS = {'lora': LORA, 'prefix_plus': dict(adapter='prefix_plus')}
SEEDS = {'lora': (2, 3), 'prefix_plus': (3,)}  # Those that are trained together.


def merge(base, factors, scale):
  """The parameters of a network with LoRA, by the definition."""
  blocks = {name: module | ({'kernel': module['kernel'] + scale * jnp.einsum(
      'lir,lro->lio', *(factors[name][each] for each in 'AB'))} if name in factors else {})
      for name, module in base['blocks'].items()}
  return base | {'blocks': blocks}


@functools.cache
def born(seed):
  recipe = dataclasses.replace(RECIPE, **LORA)
  return jax.jit(functools.partial(init_state, CONFIGS['gpt2'], recipe))(seed)


def test_steps_are_those_of_gradients_by_the_factors():
  config, recipe = CONFIGS['gpt2'], dataclasses.replace(RECIPE, **LORA)
  state = born(1)
  base, factors = state.params, state.opt_state.factors
  plain = optimizer(config, RECIPE)
  memory = jax.jit(plain.init)(factors)
  step = jax.jit(functools.partial(train_step, config, recipe))
  gradient_of = jax.grad(lambda factors, ids: next_token_loss(
      config, merge(base, factors, 2.0), ids))

  @jax.jit
  def expected_step(factors, memory, ids):
    updates, memory = plain.update(gradient_of(factors, ids), memory, factors)
    return optax.apply_updates(factors, updates), memory

  for i in range(4):
    state, _ = step(state, tokens(i))
    factors, memory = expected_step(factors, memory, tokens(i))
  assert min(np.abs(own['B']).max() for own in factors.values()) > 1e-4
  near = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-5)
  jax.tree.map(near, state.opt_state.factors, factors)
  jax.tree.map(near, state.params, jax.jit(merge)(base, factors, 2.0))


def test_a_is_drawn_as_peft_draws_it_from_the_seed():
  drawn = [born(seed).opt_state.factors for seed in (1, 2)]
  a = np.concatenate([own['A'].ravel() * own['A'].shape[1]**0.5 for own in drawn[0].values()])
  assert np.abs(a).max() <= 1 and a.std() == pytest.approx(3**-0.5, rel=0.05)
  matrices = [own['A'] for factors in drawn for own in factors.values() if own['A'].shape[1] == 32]
  assert all(np.abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 0.4
             for i, x in enumerate(matrices) for y in matrices[:i])
  assert not any(own['B'].any() for own in drawn[0].values())


@pytest.fixture(scope='module')
def parent(tmp_path_factory):
  directory = tmp_path_factory.mktemp('parent')
  for seed in (2, 3):
    tiny_runs.save_beginning(tiny_runs.run(directory, seeds=(seed,)), 6)
  return directory


def run_of(adapter, directory, recipe=(), **settings):
  config = dataclasses.replace(tiny_runs.CONFIG, prefix_plus=adapter == 'prefix_plus')
  recipe = ADAPTERS[adapter] | dict(recipe)
  return tiny_runs.run(directory, recipe=recipe, **dict(config=config) | settings)


@pytest.fixture(scope='module')
def adapted(parent, tmp_path_factory):
  """A function from an adapter to the folder of a run that trained it, as no run is stopped."""
  @functools.cache
  def get(adapter):
    directory = tmp_path_factory.mktemp(adapter)
    loop.train(run_of(adapter, directory, init_from=parent, seeds=SEEDS[adapter]))
    return directory

  return get


every_adapter = pytest.mark.parametrize('adapter', ADAPTERS)


def assert_frozen(changes, but):
  assert not any(np.any(leaf) for name, leaf in flatten_dict(changes, sep='/').items()
                 if not (name.startswith('blocks/') and name.endswith(but)))


def test_each_seed_has_an_adapter_of_its_own(parent, tmp_path):
  state, _ = begin(run_of('lora', tmp_path, init_from=parent, seeds=(2, 3)))
  for name, factors in state.opt_state.factors.items():
    assert np.abs(factors['A'][0] - factors['A'][1]).mean() > np.abs(factors['A']).mean() / 2, name


def test_lora_changes_each_matrix_by_its_rank_and_nothing_else(parent, adapted):
  changes = jax.tree.map(np.subtract, final(adapted('lora')), final(parent))
  for name, module in changes['blocks'].items():
    assert 'norm' in name or (np.linalg.matrix_rank(module['kernel'], 1e-4) == 3).all()
  assert_frozen(changes, 'kernel')
  beginning = checkpoint.load_params(adapted('lora') / 'seed_3', 0)[1]
  jax.tree.map(np.testing.assert_array_equal, beginning, final(parent))


def test_prefix_plus_begins_as_its_parent_and_changes_nothing_of_it(parent, adapted):
  folder = adapted('prefix_plus') / 'seed_3'
  (config, params), (_, end) = checkpoint.load_params(folder, 0), checkpoint.load_params(folder)
  ids = np.arange(24)[None]
  np.testing.assert_array_equal(logits(config, params, ids),
                                logits(tiny_runs.CONFIG, final(parent), ids))
  memory = end['blocks'].pop('prefix')['memory']
  assert memory.shape == (2, 2, 16, 16) and (np.abs(memory).max(axis=(2, 3)) > 1e-3).all()
  jax.tree.map(np.testing.assert_array_equal, end, final(parent))
  with pytest.raises(InputError, match='prefix_plus=True, not False'):
    begin(tiny_runs.run(folder / 'new', init_from=folder))
  with pytest.raises(InputError, match='needs a configuration with prefix_plus=True'):
    run_of('prefix_plus', folder, config=tiny_runs.CONFIG)


@every_adapter
def test_stop_and_resume_is_not_stopping_bit_for_bit(adapter, parent, adapted, tmp_path):
  run = run_of(adapter, tmp_path, init_from=parent, seeds=SEEDS[adapter])
  save = loop._save
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, '_save', lambda *of: save(*of) if of[-1] < 4 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
      loop.train(run)
  assert checkpoint.steps(tmp_path / 'seed_3') == [0, 2]
  loop.train(run)
  ends = [begin(dataclasses.replace(run, directory=directory))[0]
          for directory in (tmp_path, adapted(adapter))]
  assert (np.asarray(ends[0].step) == 6).all()
  jax.tree.map(np.testing.assert_array_equal, *ends)


def test_on_a_mesh_and_together_it_is_the_same(parent, adapted, tmp_path):
  loop.train(run_of('lora', tmp_path, init_from=parent, shape=(1, 2, 2)))
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=2e-4),
               final(tmp_path), final(adapted('lora')))


def test_it_is_resumed_as_it_was(parent, adapted, tmp_path):
  more, lora = dict(num_steps=8), adapted('lora')
  state, (origin,) = begin(run_of('lora', tmp_path, more, resume=lora))
  assert int(state.step) == origin['step'] == 6
  plain = dict.fromkeys(LORA)
  for recipe, source, message in (
      (plain, lora, 'has adapter=lora, not None'),
      ({}, parent, 'has adapter=None, not lora'),
      (dict(rank=4), lora, 'rank=3, not 4'), (dict(alpha=1), lora, 'alpha=6, not 1')):
    with pytest.raises(InputError, match=message):
      begin(run_of('lora', tmp_path, recipe | more, resume=source))
  with pytest.raises(InputError, match='has rank=3, not 5'):
    begin(run_of('lora', lora, dict(rank=5), init_from=parent))


@pytest.mark.parametrize('wrong, message, field', [
    (dict(rank=4), "rank=4: only with adapter='lora'", 'rank'),
    (dict(alpha=4.0), "alpha=4.0: only with adapter='lora'", 'alpha'),
    (dict(adapter='prefix_plus', rank=2), "rank=2: only with adapter='lora'", 'rank'),
    (dict(adapter='lora', rank=0), 'rank=0: ', 'rank'),
    (dict(adapter='lora', alpha=-1), 'alpha=-1: ', 'alpha'),
    (dict(adapter='ia3'), "'ia3' is not one of lora, prefix_plus", 'adapter'),
])
def test_impossible_adapters_are_refused(wrong, message, field):
  with pytest.raises(InputError, match=message) as error:
    Recipe(**tiny_runs.RECIPE | wrong)
  assert error.value.field == field


def test_only_lora_is_exported(parent, tmp_path):
  with pytest.raises(InputError, match='seed_3 is not of a run that trained LoRA'):
    export_adapter(parent / 'seed_3', tmp_path / 'adapter')
  assert not (tmp_path / 'adapter').exists()
