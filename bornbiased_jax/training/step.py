"""A training step as a pure function, and the recipe it follows (Tables 13 and 14)."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from bornbiased_jax.configs import ModelConfig, check_count
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention
from bornbiased_jax.models.initialization import draw_params
from bornbiased_jax.models.loss import next_token_loss


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a model is trained: AdamW with warmup and cosine decay, clipped gradients.

  Args:
    num_steps: optimizer steps.
    batch_size: sequences a step, over all devices and accumulated parts.
    length: positions a sequence, T.
    accumulation: parts into which a batch is split, one after another.
    peak_lr: learning rate after warmup.
    min_lr: learning rate at the last step.
    warmup_steps: steps of linear warmup.
    weight_decay: on matrices and embeddings, not on gains and biases.
    beta1: decay of the gradient's mean.
    beta2: decay of the gradient's square.
    clip: largest global norm of the gradient.

  Raises:
    InputError: accumulation does not divide batch_size, or warmup is longer
      than the run.
  """

  num_steps: int
  batch_size: int
  length: int
  accumulation: int = 1
  peak_lr: float = 6e-4
  min_lr: float = 6e-5
  warmup_steps: int = 2000
  weight_decay: float = 0.1
  beta1: float = 0.9
  beta2: float = 0.95
  clip: float = 1.0

  def __post_init__(self):
    for name in ('num_steps', 'batch_size', 'length', 'accumulation'):
      check_count(name, getattr(self, name))
    if self.batch_size % self.accumulation:
      raise InputError(f'accumulation={self.accumulation} does not divide batch_size={self.batch_size}')
    if self.min_lr > self.peak_lr:
      raise InputError(f'min_lr={self.min_lr} exceeds peak_lr={self.peak_lr}')
    if self.warmup_steps >= self.num_steps:
      raise InputError(f'warmup_steps={self.warmup_steps} must be fewer than num_steps={self.num_steps}')


class TrainState(NamedTuple):
  """All that a step changes."""

  step: jax.Array
  params: Any
  opt_state: Any


def learning_rate(recipe: Recipe) -> optax.Schedule:
  """Linear from 0 to the peak, then cosine, which would be at the minimum one step after the last."""
  return optax.warmup_cosine_decay_schedule(0.0, recipe.peak_lr, recipe.warmup_steps, recipe.num_steps, recipe.min_lr)


def optimizer(recipe: Recipe) -> optax.GradientTransformation:
  """Clipping and AdamW, with decay on matrices and embeddings alone."""
  def decays(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in ('scale', 'bias'), params)

  return optax.chain(
      optax.clip_by_global_norm(recipe.clip),
      optax.adamw(learning_rate(recipe), recipe.beta1, recipe.beta2, weight_decay=recipe.weight_decay, mask=decays))


def init_state(config: ModelConfig, recipe: Recipe, seed) -> TrainState:
  """Step 0 of the network that `seed` is."""
  return start_from(recipe, draw_params(config, seed))


def start_from(recipe: Recipe, params: dict) -> TrainState:
  """Step 0 from given parameters."""
  return TrainState(jnp.int32(0), params, optimizer(recipe).init(params))


def train_step(config: ModelConfig, recipe: Recipe, state: TrainState, tokens_BT: jax.Array, *,
               attend: Callable[..., jax.Array] = attention.plain) -> tuple[TrainState, dict[str, jax.Array]]:
  """One optimizer step on ids [batch_size, T + 1].

  Jit it with `config`, `recipe` and `attend` (attention.choose) bound.

  Returns:
    The next state, and `loss` (nats a token), `gradient_norm` before clipping
    and `learning_rate`.
  """
  loss, gradient = accumulated_gradient(config, recipe.accumulation, state.params, tokens_BT, attend=attend)
  return _update(recipe, state, loss, gradient)


def ensemble_step(config: ModelConfig, recipe: Recipe, states: TrainState,
                  tokens_BT: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
  """`train_step` of several networks on the same ids; states and metrics have a leading axis of networks."""
  gradient_of = lambda params: accumulated_gradient(config, recipe.accumulation, params, tokens_BT)
  # On a CPU one after another: batched, a layer's activations of all networks fall out of its cache.
  over_networks = lax.map if jax.default_backend() == 'cpu' else lambda f, params: jax.vmap(f)(params)
  losses, gradients = over_networks(gradient_of, states.params)
  return jax.vmap(functools.partial(_update, recipe))(states, losses, gradients)


def _update(recipe, state, loss, gradient):
  updates, opt_state = optimizer(recipe).update(gradient, state.opt_state, state.params)
  metrics = {'loss': loss, 'gradient_norm': optax.tree.norm(gradient),
             'learning_rate': learning_rate(recipe)(state.step)}
  return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), metrics


def accumulated_gradient(config: ModelConfig, accumulation: int, params: dict, tokens_BT: jax.Array, *,
                         attend: Callable[..., jax.Array] = attention.plain) -> tuple[jax.Array, dict]:
  """Loss of the batch [B, T + 1] of ids and its gradient, as the mean over `accumulation` parts of equal size."""
  gradient_of = jax.value_and_grad(lambda params, tokens: next_token_loss(config, params, tokens, attend=attend))
  if accumulation == 1:
    return gradient_of(params, tokens_BT)
  # Interleaved, so that each part is spread over all devices as the batch is.
  parts = jnp.swapaxes(tokens_BT.reshape(-1, accumulation, tokens_BT.shape[1]), 0, 1)
  zero = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
  add = lambda total, part: (jax.tree.map(jnp.add, total, gradient_of(params, part)), None)
  total, _ = lax.scan(add, zero, parts)
  return jax.tree.map(lambda x: x / accumulation, total)
