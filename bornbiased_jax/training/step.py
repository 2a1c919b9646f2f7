"""A training step as a pure function of a state and token ids."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
import optax

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.configs.model import BASE_WIDTH
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention, sharding
from bornbiased_jax.models.initialization import Seed, init_params, stream_key
from bornbiased_jax.models.loss import balanced_loss
from bornbiased_jax.training.adapters import restrict
from bornbiased_jax.training.recipe import Recipe


class TrainState(NamedTuple):
  """All that a step changes."""

  step: jax.Array
  params: Any
  opt_state: Any


def learning_rate(recipe: Recipe) -> optax.Schedule:
  """Linear from 0 to the peak, then a cosine that would reach its minimum one step after the last.

  Example:
    >>> recipe = Recipe(num_steps=100, batch_size=8, length=32, warmup_steps=10)
    >>> [round(float(learning_rate(recipe)(step)), 6) for step in (0, 5, 10, 100)]
    [0.0, 0.0003, 0.0006, 6e-05]
  """
  schedule = optax.warmup_cosine_decay_schedule(
      0.0, recipe.peak_lr, recipe.warmup_steps, recipe.num_steps, recipe.min_lr)
  return lambda step: schedule(jnp.asarray(step, jnp.float32))


def optimizer(config: ModelConfig, recipe: Recipe, seed: Seed = 0) -> optax.GradientTransformation:
  """Clipping, then AdamW, which decays only matrices and embeddings.

  With an adapter both are of the adapter, which `init` draws from the seed. muP multiplies
  only the steps of Adam: weights decay by the same share at all widths.
  """
  def decays(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key not in ('scale', 'bias', 'sink_logit'), params)

  own_rates = [mup_rates(config)] if config.init_scheme == 'mup' else []
  of_all = optax.chain(clipping(recipe.clip), optax.chain(
      optax.scale_by_adam(recipe.beta1, recipe.beta2), *own_rates,
      optax.add_decayed_weights(recipe.weight_decay, decays),
      optax.scale_by_learning_rate(learning_rate(recipe))))
  key = stream_key('adapter', seed) if recipe.adapter else None
  return restrict(of_all, recipe.adapter, recipe.rank, recipe.scale, key)


def clipping(limit: float) -> optax.GradientTransformation:
  """Scales a gradient whose global norm exceeds the limit down to it.

  `optax.clip_by_global_norm` divides every element in a pass of its own over all gradients;
  this factor is part of what comes next.
  """
  def scale(gradient, params):
    del params
    factor = jnp.minimum(1, limit / optax.tree.norm(gradient))
    return jax.tree.map(lambda leaf: factor * leaf, gradient)

  return optax.stateless(scale)


def mup_rates(config: ModelConfig) -> optax.GradientTransformation:
  """Multiplies Adam's steps of sums over channels by 768 / width, so that one rate suits all.

  These are the matrices of blocks and the head of Yang et al. 2022 (Tensor Programs V, Table 3),
  and LoRA's A (Hayou et al. 2024). Embeddings, gains, biases and LoRA's B keep the rate.

  Raises:
    InputError: the head is the embedding, which Table 3 does not have.
  """
  if config.tied_head:
    raise InputError("init_scheme='mup' has no learning rate for a head that is the embedding; "
                     'add tied_head=False', 'config')
  factor = BASE_WIDTH / config.width
  return optax.stateless(lambda steps, params: jax.tree_util.tree_map_with_path(
      lambda path, leaf: factor * leaf if path[-1].key in ('kernel', 'head', 'A') else leaf, steps))


def init_state(config: ModelConfig, recipe: Recipe, seed: Seed) -> TrainState:
  """The state before the first step of the network that `seed` is."""
  return start_from(config, recipe, init_params(config, seed), seed)


def start_from(config: ModelConfig, recipe: Recipe, params: dict, seed: Seed = 0) -> TrainState:
  """The state before the first step, with given parameters; an adapter is drawn from the seed."""
  return first_state(optimizer(config, recipe, seed), params)


def first_state(optimizer: optax.GradientTransformation, params: dict) -> TrainState:
  """The state before the first step of any optimizer."""
  return TrainState(jnp.int32(0), params, optimizer.init(params))


# A run needs it for how it begins, for its step and for what it restores.
@functools.lru_cache(maxsize=4)
def abstract_state(config: ModelConfig, recipe: Recipe, mesh: Mesh | None) -> TrainState:
  """Shape, type and place on the mesh of every array of a network's state."""
  init = functools.partial(init_state, config, recipe)
  return sharding.abstract(mesh, jax.eval_shape(init, 0))


def state_shardings(config: ModelConfig, recipe: Recipe, mesh: Mesh | None) -> TrainState:
  """The place on the mesh of every array of a network's state."""
  return jax.tree.map(lambda leaf: leaf.sharding, abstract_state(config, recipe, mesh))


def train_step(config: ModelConfig, recipe: Recipe, state: TrainState, tokens_BT: jax.Array, *,
               attend: Callable[..., jax.Array] = attention.plain
               ) -> tuple[TrainState, dict[str, jax.Array]]:
  """One optimizer step.

  `sharded_step` is this function jitted for a mesh.

  Args:
    config: the architecture.
    recipe: how it is trained.
    state: from `init_state`, or from the step before.
    tokens_BT: ids [batch_size, T + 1]; the first T are read, the last T predicted.
    attend: how attention is computed (`attention_kernels.choose`).

  Returns:
    The next state, and `loss` (nats per token), `gradient_norm` (of all
    parameters, before clipping) and `learning_rate`.
  """
  loss, gradient = accumulated_gradient(
      config, recipe.accumulation, state.params, tokens_BT, recipe.balance, attend=attend)
  return update(config, recipe, state, loss, gradient)


@functools.lru_cache(maxsize=4)
def sharded_step(config: ModelConfig, recipe: Recipe, mesh: Mesh,
                 attend: Callable[..., jax.Array]) -> Callable:
  """`train_step` jitted for a mesh: (state, ids) → (state, metrics); consumes its state.

  Runs that follow each other in one process and differ in seed or data compile their step once.
  """
  step = functools.partial(train_step, config, recipe, attend=attend)
  placed = state_shardings(config, recipe, mesh)
  return jax.jit(step, donate_argnums=0, out_shardings=(placed, None))


def ensemble_step(config: ModelConfig, recipe: Recipe, states: TrainState,
                  tokens_BT: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
  """`train_step` of several networks on the same ids.

  States and metrics have a leading axis of networks.
  """
  gradient_of = lambda params: accumulated_gradient(
      config, recipe.accumulation, params, tokens_BT, recipe.balance)
  # On a CPU one network follows another: if they were batched, the activations
  # of one layer of all networks would fall out of its cache.
  one_by_one = jax.default_backend() == 'cpu'
  over_networks = lax.map if one_by_one else lambda f, params: jax.vmap(f)(params)
  losses, gradients = over_networks(gradient_of, states.params)
  return jax.vmap(functools.partial(update, config, recipe))(states, losses, gradients)


def update(config: ModelConfig, recipe: Recipe, state: TrainState, loss: jax.Array,
           gradient: dict) -> tuple[TrainState, dict[str, jax.Array]]:
  """The state after an optimizer step with this gradient, and the metrics of `train_step`."""
  metrics = {'loss': loss, 'gradient_norm': optax.tree.norm(gradient),
             'learning_rate': learning_rate(recipe)(state.step)}
  return follow(optimizer(config, recipe), state, gradient), metrics


def follow(optimizer: optax.GradientTransformation, state: TrainState,
           gradient: dict) -> TrainState:
  """The state after a step that an optimizer makes of a gradient."""
  with jax.numpy_dtype_promotion('standard'):  # As optax needs it, whatever is asked for elsewhere.
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
  return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)


def accumulated_gradient(config: ModelConfig, accumulation: int, params: dict,
                         tokens_BT: jax.Array, balance: float = 0.0, *,
                         attend: Callable[..., jax.Array] = attention.plain
                         ) -> tuple[jax.Array, dict]:
  """Loss of a batch, and the gradient of `balanced_loss`, as means over parts of equal size."""
  def gradient_of(params, tokens_BT):
    (_, loss), gradient = jax.value_and_grad(
        lambda params: balanced_loss(config, params, tokens_BT, balance, attend=attend),
        has_aux=True)(params)
    return loss, gradient

  if accumulation == 1:
    return gradient_of(params, tokens_BT)
  # Interleaved, so that each part is spread over all devices as the batch is.
  parts = jnp.swapaxes(tokens_BT.reshape(-1, accumulation, tokens_BT.shape[1]), 0, 1)
  zero = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
  add = lambda total, part: (jax.tree.map(jnp.add, total, gradient_of(params, part)), None)
  total, _ = lax.scan(add, zero, parts)
  return jax.tree.map(lambda x: x / accumulation, total)
