"""Networks, a recipe and token ids for single training steps."""

import functools

import jax
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import init_state

CONFIGS = {
    'gpt2': configs.get('tiny_gpt2', num_layers=2, width=32, mlp_width=64, vocab_size=50,
                        positions='learned'),
    'llama2': configs.get('tiny_llama2', num_layers=2, width=32, mlp_width=64, vocab_size=50),
    'moe': configs.get('tiny_moe', num_layers=2, width=32, mlp_width=40, vocab_size=50,
                       num_experts=4),
}
RECIPE = Recipe(num_steps=100, batch_size=8, length=12, peak_lr=1e-3, min_lr=1e-4, warmup_steps=2)


def tokens(seed=0, length=RECIPE.length):
  return jax.random.randint(jax.random.key(seed), (RECIPE.batch_size, length + 1), 0, 50)


@functools.partial(jax.jit, static_argnums=0)
def start(name, seed=3):
  return init_state(CONFIGS[name], RECIPE, seed)


def assert_close(a, b, **tolerance):
  jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), a, b)
