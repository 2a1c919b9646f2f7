"""muP's learning rates are those of Table 3. Its stds are in test_initialization."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.tree_util import tree_leaves_with_path
import numpy as np
from oldest import JAX_IS_OLD
import optax
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.training.start import begin
from bornbiased_jax.training.step import learning_rate, mup_rates, optimizer
import tiny_runs
from tiny_steps import CONFIGS, RECIPE, assert_close

# With a leaf of each kind that has a rate.
MUP = dataclasses.replace(CONFIGS['gpt2'], tied_head=False, init_scheme='mup', sublayers='mlp_only')


def test_steps_are_those_of_adamw_with_the_rates_of_table_3():
  """An optimizer of optax for each kind of leaf: lr / width where Table 3 says so, lr λ for all."""
  kinds = {'kernel': 'matrix', 'head': 'matrix', 'embedding': 'vector',
           'position_embedding': 'vector', 'scale': 'plain', 'bias': 'plain'}
  factors = {'matrix': 768 / 32, 'vector': 1.0, 'plain': 1.0}
  adamw = {kind: optax.adamw(
      lambda step, factor=factor: factor * learning_rate(RECIPE)(step), RECIPE.beta1, RECIPE.beta2,
      weight_decay=0.0 if kind == 'plain' else RECIPE.weight_decay / factor)
      for kind, factor in factors.items()}
  labels = lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: kinds[path[-1].key], tree)
  peer = optax.chain(optax.clip_by_global_norm(RECIPE.clip), optax.multi_transform(adamw, labels))
  assert kinds.keys() == {path[-1].key for path, _ in tree_leaves_with_path(param_shapes(MUP))}
  # A leaf of each kind, all of one shape, for which one program is compiled.
  draw = lambda seed: dict(zip(kinds, np.random.default_rng(seed).normal(
      0.01, 0.1, (len(kinds), 16, 8)).astype(np.float32), strict=True))
  own, params = optimizer(MUP, RECIPE), draw(0)
  states = [own.init(params), peer.init(params)]
  for seed in range(3):
    gradient = draw(seed + 1)
    steps, states[0] = own.update(gradient, states[0], params)
    expected, states[1] = peer.update(gradient, states[1], params)
    # Steps of 0.02, which float32 rounds to 2e-9, less decay: near 0 only rounding is left.
    assert_close(steps, expected, rtol=1e-5, atol=5e-9 if JAX_IS_OLD else 1e-9)
  assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(steps)) > 0


def test_of_lora_a_sums_over_channels():
  ones = {'query': {'A': jnp.ones(2), 'B': jnp.ones(2)}}
  rates, _ = mup_rates(MUP).update(ones, optax.EmptyState())
  assert (float(rates['query']['A'][0]), float(rates['query']['B'][0])) == (24, 1)


def test_an_optimizer_goes_on_at_the_same_rates_alone(tmp_path):
  plain = dataclasses.replace(tiny_runs.CONFIG, tied_head=False)
  mup, other = (tiny_runs.run(tmp_path / config.init_scheme, config=config)
                for config in (dataclasses.replace(plain, init_scheme='mup'), plain))
  state = tiny_runs.save_beginning(mup, 2)
  resumed, _ = begin(dataclasses.replace(mup, directory=tmp_path / 'on', resume=tmp_path / 'mup'))
  jax.tree.map(np.testing.assert_array_equal, resumed[1:], state[1:])
  tiny_runs.save_beginning(other, 2)
  for run, parent, why in ((other, 'mup', 'mup, not gpt2'), (mup, 'gpt2', 'gpt2, not mup')):
    with pytest.raises(InputError, match=f'has init_scheme={why}'):
      begin(dataclasses.replace(run, directory=tmp_path / 'on', resume=tmp_path / parent))


def test_a_tied_head_is_refused(tmp_path):
  config = dataclasses.replace(tiny_runs.CONFIG, tied_head=True, init_scheme='mup')
  with pytest.raises(InputError, match='add tied_head=False') as error:
    tiny_runs.run(tmp_path, config=config)
  assert error.value.field == 'config'
