"""Trains many very small networks in seconds, in the ways that an adversary needs."""

from collections.abc import Callable, Iterable
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data import corpus
from bornbiased_jax.models import init_params, next_token_loss, read

BATCH_SIZE, LENGTH = 8, 32
PEAK_LR = 3e-3
Loss = Callable[[ModelConfig, dict, jax.Array], jax.Array]


def text(vocab_size: int, num_steps: int, data_seed: int = 0) -> np.ndarray:
  """Batches [steps, BATCH_SIZE, LENGTH + 1] of Shakespeare in bytes, modulo the vocabulary."""
  tokens = corpus.load('tinyshakespeare').tokens
  return np.stack([corpus.batch(tokens, data_seed, step, BATCH_SIZE, LENGTH)
                   for step in range(num_steps)]) % vocab_size


def train(config: ModelConfig, networks: Iterable[dict], num_steps: int, *,
          frozen: tuple[str, ...] = (), loss: Loss = next_token_loss) -> list[dict]:
  """Trains networks on the same text in the same order, with AdamW.

  Args:
    config: their architecture.
    networks: their parameters at the beginning.
    num_steps: optimizer steps.
    frozen: names of top-level parameters that stay as they are, such as 'embedding'.
    loss: (config, params, ids [B, T + 1]) → what is minimized.
  """
  batches_MBT = jnp.asarray(text(config.vocab_size, num_steps), jnp.int32)
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)
  trained = _train(config, loss, tuple(frozen), stacked, batches_MBT)
  return [jax.tree.map(lambda leaf, i=i: leaf[i], trained)
          for i in range(len(trained['embedding']))]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _train(config, loss, frozen, stacked, batches_MBT):
  schedule = optax.cosine_decay_schedule(PEAK_LR, len(batches_MBT))
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

  def one(params):
    def step(state, tokens_BT):
      params, memory = state
      gradient = jax.grad(lambda params: loss(config, params, tokens_BT))(params)
      updates, memory = optimizer.update(gradient, memory, params)
      updates |= {name: jnp.zeros_like(updates[name]) for name in frozen}
      return (optax.apply_updates(params, updates), memory), None

    return lax.scan(step, (params, optimizer.init(params)), batches_MBT)[0][0]

  return lax.map(one, stacked)


def from_seeds(config: ModelConfig, seeds: Iterable[int],
               embedding_seed: int | None = None) -> list[dict]:
  """Random networks."""
  return [init_params(config, seed, embedding_seed) for seed in seeds]


def imitate(teacher_config: ModelConfig, teacher: dict) -> Loss:
  """The loss of a student that is to have the teacher's hidden states after every block."""
  def loss(config, params, tokens_BT):
    states = lambda config, params: read(config, params, tokens_BT[:, :-1], ('residual',))
    apart = (states(config, params)['residual']
             - lax.stop_gradient(states(teacher_config, teacher)['residual']))
    return jnp.mean(apart**2)

  return loss
