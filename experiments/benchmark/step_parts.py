"""Where the time of a training step goes: what products, attention and optimizer each take."""

from collections import Counter

import jax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.models.loss import CHUNK
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import init_state, update

from . import timing

# A float32 for each parameter: weights, gradient and both moments are read and three of them
# written, and the norm of the gradient reads it once more.
OPTIMIZER_BYTES = 4 * 8
COPIED = 2**26


def shares(config: ModelConfig, recipe: Recipe, attend, step, rounds: int) -> dict:
  """What parts of a step take by themselves, over the whole `step`.

  `optimizer_floor` is the time of a large copy of the bytes that the optimizer must move, over
  its own time.
  """
  counts = products(config, recipe.batch_size, recipe.length)
  alone = {shape: product(*shape, config.dtype) for shape in counts}
  others = {'step': step, 'attention': attention(config, recipe, attend),
            'optimizer': optimizer(config, recipe), 'copy': copy()}
  seconds = timing.in_turn(alone | others, rounds)
  taken = {'products': sum(count * seconds[shape] for shape, count in counts.items()),
           'attention': config.num_layers * seconds['attention'],
           'optimizer': seconds['optimizer']}
  num_bytes = OPTIMIZER_BYTES * num_parameters(config)
  floor = num_bytes * seconds['copy'] / (2 * 4 * COPIED)
  return {'share_of_step': {name: timing.spread(each / seconds['step'])
                            for name, each in taken.items()},
          'optimizer_floor': timing.spread(floor / seconds['optimizer'])}


def products(config: ModelConfig, batch_size: int, length: int) -> Counter:
  """How many products of activations [M, D] and weights [D, F] a forward pass has, by (M, D, F)."""
  M, d, L = batch_size * length, config.width, config.num_layers
  query, key = (heads * config.head_size for heads in (config.num_heads, config.num_kv_heads))
  found = Counter({(M, d, query): L})
  found.update({(M, d, key): 2 * L})
  found.update({(M, query, d): L})
  found.update({(M, d, config.mlp_width): L * (2 if config.gated_mlp else 1)})
  found.update({(M, config.mlp_width, d): L})
  chunk = min(CHUNK, length)
  found.update({(batch_size * chunk, d, config.vocab_size): length // chunk})
  return found


def product(M, D, F, dtype):
  """One product and both that its gradient takes."""
  x_MD, weights_DF, gradient_MF = (
      jax.random.normal(jax.random.key(i), shape, dtype)
      for i, shape in enumerate(((M, D), (D, F), (M, F))))
  run = jax.jit(lambda x_MD, weights_DF, gradient_MF: (
      x_MD @ weights_DF, gradient_MF @ weights_DF.T, x_MD.T @ gradient_MF))
  return lambda: run(x_MD, weights_DF, gradient_MF)


def attention(config, recipe, attend):
  """Attention of one layer, forward and backward."""
  shape = recipe.batch_size, recipe.length
  query_BTHK, key_BTGK, value_BTGK = (
      jax.random.normal(jax.random.key(i), (*shape, heads, config.head_size), config.dtype)
      for i, heads in enumerate((config.num_heads, config.num_kv_heads, config.num_kv_heads)))
  gradient_BTF = jnp.ones((*shape, config.num_heads * config.head_size), config.dtype)

  @jax.jit
  def run(*heads):
    aggregate_BTF, pull = jax.vjp(attend, *heads)
    return aggregate_BTF, pull(gradient_BTF)

  return lambda: run(query_BTHK, key_BTGK, value_BTGK)


def optimizer(config, recipe):
  """The update of all parameters, given a gradient."""
  state = [jax.jit(init_state, static_argnums=(0, 1))(config, recipe, 42)]
  gradient = jax.tree.map(lambda leaf: 1e-3 * jnp.ones_like(leaf), state[0].params)
  step = lambda state, gradient: update(config, recipe, state, jnp.float32(0), gradient)[0]
  update_of = jax.jit(step, donate_argnums=0)

  def run():
    state[0] = update_of(state[0], gradient)
    return state[0].step

  return run


def copy():
  """A large array plus one, which reads and writes each of its float32 numbers once."""
  x_N = [jnp.zeros(COPIED)]
  add_one = jax.jit(lambda x_N: x_N + 1, donate_argnums=0)

  def run():
    x_N[0] = add_one(x_N[0])
    return x_N[0]

  return run
