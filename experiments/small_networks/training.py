"""Trains many very small networks in seconds, in the ways that an adversary needs."""

from collections.abc import Callable, Iterable
import dataclasses
import functools
import itertools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data import corpus, windows
from bornbiased_jax.models import init_params, next_token_loss, read
from bornbiased_jax.training import adapters
from bornbiased_jax.training.step import TrainState, first_state, follow

from ..transforms.surgery import keep_first_units

BATCH_SIZE, LENGTH = 8, 32
PEAK_LR = 3e-3
STEPS = 1500
# Of networks and ingredients that everybody has.
PUBLIC_SEED = 999
_SMALL = dict(num_layers=2, num_heads=4, vocab_size=128, length=64)
NARROW = configs.get('tiny_llama2', **_SMALL, width=16, mlp_width=48, tied_head=True)
LLAMA = configs.get('tiny_llama2', **_SMALL, width=32, mlp_width=96, tied_head=True)
GPT2 = configs.get('tiny_gpt2', **_SMALL, width=32, mlp_width=128, positions='learned')

Network = tuple[ModelConfig, dict]
Pairs = list[tuple[Network, Network]]
Step = Callable[[TrainState, jax.Array], TrainState]
Loss = Callable[[ModelConfig, dict, jax.Array], jax.Array]


def all_pairs(config: ModelConfig, networks: Iterable[dict]) -> Pairs:
  """Each network with each other."""
  return [((config, a), (config, b)) for a, b in itertools.combinations(networks, 2)]


def text(vocab_size: int, num_steps: int, data_seed: int = 0,
         source: str = 'tinyshakespeare') -> np.ndarray:
  """Batches [steps, BATCH_SIZE, LENGTH + 1] of a text in bytes, modulo the vocabulary."""
  tokens = corpus.load(source).tokens
  return np.stack([windows.batch(tokens, data_seed, step, BATCH_SIZE, LENGTH)
                   for step in range(num_steps)]) % vocab_size


def train(config: ModelConfig, networks: Iterable[dict], num_steps: int, *,
          frozen: tuple[str, ...] = (), loss: Loss = next_token_loss, data_seed: int = 0,
          peak_lr: float = PEAK_LR, source: str = 'tinyshakespeare', adapter: str | None = None,
          key: jax.Array | None = None) -> list[dict]:
  """Trains networks on the same text in the same order, with AdamW and a cosine of rates.

  Top-level parameters that are `frozen` stay as they are; of an `adapter`, which `key`
  draws, only its own parameters are trained.
  """
  batches_MBT = jnp.asarray(text(config.vocab_size, num_steps, data_seed, source), jnp.int32)
  return _train(config, loss, tuple(frozen), peak_lr, adapter, list(networks), batches_MBT, key)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _train(config, loss, frozen, peak_lr, adapter, networks, batches_MBT, key):
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)
  schedule = optax.cosine_decay_schedule(peak_lr, len(batches_MBT))
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
  optimizer = adapters.restrict(optimizer, adapter, adapters.RANK, 1.0, key)
  optimizer = optax.chain(optimizer, freezing(frozen))
  take_step = functools.partial(descend, config, optimizer, loss)
  trained = lax.map(
      lambda params: fit(first_state(optimizer, params), batches_MBT, take_step).params, stacked)
  return [jax.tree.map(lambda leaf, i=i: leaf[i], trained) for i in range(len(networks))]


def fit(state: TrainState, batches: jax.Array, take_step: Step,
        first: int | jax.Array = 0, last: int | jax.Array | None = None) -> TrainState:
  """The state after a step on each batch from `first` to before `last`, in a compiled program.

  All small networks are trained by it.
  """
  batch_at = functools.partial(lax.dynamic_index_in_dim, batches, keepdims=False)
  return lax.fori_loop(first, len(batches) if last is None else last,
                       lambda i, state: take_step(state, batch_at(i)), state)


def descend(config: ModelConfig, optimizer: optax.GradientTransformation, loss: Loss,
            state: TrainState, tokens_BT: jax.Array) -> TrainState:
  """A step of any optimizer, down the gradient of any loss."""
  gradient = jax.grad(lambda params: loss(config, params, tokens_BT))(state.params)
  return follow(optimizer, state, gradient)


def freezing(names: tuple[str, ...]) -> optax.GradientTransformation:
  """Has no step change the top-level parameters of these names."""
  return optax.stateless(lambda steps, params: steps | {
      name: jax.tree.map(jnp.zeros_like, steps[name]) for name in names})


def from_seeds(config: ModelConfig, seeds: Iterable[int]) -> list[dict]:
  """Random networks."""
  return [init_params(config, seed) for seed in seeds]


@functools.cache
def trained(config: ModelConfig, seed: int, loss: Loss = next_token_loss) -> dict:
  """The network of a seed after training; many constructions begin with the same one."""
  return train(config, from_seeds(config, [seed]), STEPS, loss=loss)[0]


def fine_tune(config: ModelConfig, params: dict, key: jax.Array | None = None,
              strength: float = 0.2, data_seed: int = 1, peak_lr: float = PEAK_LR,
              adapter: str | None = None) -> Network:
  """Trains on, with other batches, for a share `strength` of the steps; `key` is of an adapter."""
  if adapter == 'prefix_plus':
    config = dataclasses.replace(config, prefix_plus=True)
    params = adapters.add_prefix(config, params)
  return config, train(config, [params], round(strength * STEPS), data_seed=data_seed,
                       peak_lr=peak_lr, adapter=adapter, key=key)[0]


def of_both_widths(config: ModelConfig, params: dict, tokens_BT: jax.Array) -> jax.Array:
  """The loss of a network plus the loss with the first half of its units, like MatFormer."""
  half = keep_first_units(config, params, strength=0.5)
  return next_token_loss(config, params, tokens_BT) + next_token_loss(*half, tokens_BT)


def imitate(teacher_config: ModelConfig, teacher: dict,
            names: tuple[str, ...] = ('residual',)) -> Loss:
  """The loss of a student that is to have what READS calls `names` as the teacher has it."""
  def loss(config, params, tokens_BT):
    own = read(config, params, tokens_BT[:, :-1], names)
    model = lax.stop_gradient(read(teacher_config, teacher, tokens_BT[:, :-1], names))
    return sum(jnp.mean((own[name] - model[name])**2) / jnp.mean(model[name]**2)
               for name in names)

  return loss
