"""Unrelated networks that share a text, an embedding, a teacher, an ingredient, or an order.

A change of one network is a function (config, params) → parameters. A function that makes pairs
takes the number of networks. A network is a configuration and parameters.
"""

from collections.abc import Callable
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models import init_params, next_token_loss, read

from ..small_networks import training
from ..small_networks.training import (
  GPT2,
  LLAMA,
  PEAK_LR,
  PUBLIC_SEED,
  Pairs,
  all_pairs,
  fine_tune,
  from_seeds,
  imitate,
  of_both_widths,
  train,
  trained,
)
from ..transforms import lossy, preserving, surgery

# (config, seed) → parameters, and (config, params) → parameters, or a number by layer and unit.
Start = Callable[[ModelConfig, int], dict]
Change = Callable[[ModelConfig, dict], dict]
Sizes = Callable[[ModelConfig, dict], jax.Array]
# Norm of a merged ingredient, over that of the matrix that takes it.
MERGED = 0.2
# Size of the noise that `with_one_noise` adds to a gradient.
NOISE = 0.01


def changed(config: ModelConfig, change: Change, count: int, *, start: Start = trained) -> Pairs:
  """Trains networks on one text in one order, and changes each of them."""
  return all_pairs(config, [change(config, start(config, seed)) for seed in range(count)])


def unchanged(config: ModelConfig, params: dict) -> dict:
  """No change: one text already makes embeddings alike, up to a rotation."""
  return params


# A shared embedding, or shared positions.


def _public_embedding(config):
  return 5 * init_params(config, PUBLIC_SEED)['embedding']


@functools.cache
def with_public_embedding(config: ModelConfig, seed: int) -> dict:
  """Trains a network with the public embedding, which is tied and stays as it is."""
  params = init_params(config, seed) | {'embedding': _public_embedding(config)}
  return train(config, [params], training.STEPS, frozen=('embedding',))[0]


def public_rows(share: float, count: int) -> Pairs:
  """A share of the embedding's rows begins as public ones; all rows are trained."""
  known, public = round(share * LLAMA.vocab_size), _public_embedding(LLAMA)
  mixed = lambda params: params | {'embedding': jnp.concatenate(
      (public[:known], 5 * params['embedding'][known:]))}
  networks = [mixed(params) for params in from_seeds(LLAMA, range(count))]
  return all_pairs(LLAMA, train(LLAMA, networks, training.STEPS))


def sinusoids(count: int) -> Pairs:
  """All networks have sinusoidal positions of amplitude 1, which are not trained."""
  rate = 1e4 ** (-np.arange(0, GPT2.width, 2) / GPT2.width)
  angle = np.arange(GPT2.length)[:, None] * rate
  table = jnp.float32(np.stack((np.sin(angle), np.cos(angle)), -1).reshape(GPT2.length, -1))
  networks = [params | {'position_embedding': table} for params in from_seeds(GPT2, range(count))]
  return all_pairs(GPT2, train(GPT2, networks, training.STEPS, frozen=('position_embedding',)))


# A shared order of channels, units or values.


def _answers(config, params):
  ids = jax.random.randint(jax.random.key(0), (500, 16), 0, config.vocab_size)
  return read(config, params, ids, ('hidden_last', 'mlp_hidden'))


def by_activation(config: ModelConfig, params: dict) -> jax.Array:
  """The mean size of each unit's activation, [layers, units]."""
  return jnp.abs(_answers(config, params)['mlp_hidden']).mean(axis=(1, 2))


def sort_channels(config: ModelConfig, params: dict) -> dict:
  """Sorts channels by their mean activation, as before a release."""
  order_D = jnp.argsort(_answers(config, params)['hidden_last'].mean(axis=0))
  return preserving.order_channels(config, params, order_D)[1]


def sort_units(size: Sizes, config: ModelConfig, params: dict) -> dict:
  """Sorts the units of each layer by `size`, the largest first."""
  return surgery.sort_units(config, params, size=size)[1]


def order_values(config: ModelConfig, params: dict) -> dict:
  """Orders the value channels of each head by singular value."""
  return surgery.order_values(config, params)[1]


def sorted_and_cut(config: ModelConfig, start: Start, size: Sizes, count: int) -> Pairs:
  """Sorts the units of all networks; each suspect keeps the largest five eighths."""
  networks = [sort_units(size, config, start(config, seed)) for seed in range(count)]
  return against_first_units(config, networks, 5 / 8)


def against_first_units(config: ModelConfig, networks: list[dict], share: float) -> Pairs:
  """Pairs each network with each later one, which keeps the first `share` of its units."""
  cut = [surgery.keep_first_units(config, params, strength=share) for params in networks]
  return [((config, networks[i]), cut[j])
          for i, j in itertools.combinations(range(len(networks)), 2)]


def extracted_half(count: int) -> Pairs:
  """Pairs MatFormers with the first half of another one, which can work by itself."""
  networks = [trained(LLAMA, seed, of_both_widths) for seed in range(count)]
  return against_first_units(LLAMA, networks, 0.5)


# Noise, or an order that training makes.


def _step_key(tokens_BT):
  """A key for each step, the same for all networks that read one text in one order."""
  return jax.random.fold_in(jax.random.key(PUBLIC_SEED), tokens_BT.sum())


def with_one_noise(config: ModelConfig, params: dict, tokens_BT: jax.Array) -> jax.Array:
  """Adds the same noise to the gradients of all networks, as DP-SGD with one seed does."""
  leaves, key = jax.tree.leaves(params), _step_key(tokens_BT)
  noise = sum(jnp.vdot(jax.random.normal(jax.random.fold_in(key, i), leaf.shape), leaf)
              for i, leaf in enumerate(leaves))
  return next_token_loss(config, params, tokens_BT) + NOISE * noise


def nested_dropout(config: ModelConfig, params: dict, tokens_BT: jax.Array) -> jax.Array:
  """The loss with only the first units of each layer; each step draws how many."""
  kept = jax.random.randint(_step_key(tokens_BT), (), 1, config.mlp_width + 1)
  is_kept_F1 = (jnp.arange(config.mlp_width) < kept)[:, None]
  down = {'kernel': params['blocks']['down']['kernel'] * is_kept_F1}
  blocks = params['blocks'] | {'down': params['blocks']['down'] | down}
  return next_token_loss(config, params | {'blocks': blocks}, tokens_BT)


# A teacher, an outlier, few bits.


def _learned(count, *names, student=LLAMA, num_steps=None, peak_lr=PEAK_LR):
  """Trains a teacher, and students that imitate `names` of READS and inherit no weights."""
  teacher = trained(LLAMA, PUBLIC_SEED)
  return teacher, train(student, from_seeds(student, range(count)), num_steps or training.STEPS,
                        peak_lr=peak_lr, loss=imitate(LLAMA, teacher, names))


def students(count: int) -> Pairs:
  """Pairs a teacher and students that learned its hidden states."""
  teacher, learned = _learned(count, 'residual')
  return all_pairs(LLAMA, [teacher, *learned[1:]])


def values_distilled(count: int) -> Pairs:
  """Pairs a teacher with students that learned its value aggregates and hidden states."""
  teacher, learned = _learned(count, 'value_aggregate', 'residual')
  return [((LLAMA, teacher), (LLAMA, student)) for student in learned]


def values_distilled_to_narrower(count: int) -> Pairs:
  """The same for students with fewer MLP units, which no test of units can compare."""
  narrower = dataclasses.replace(LLAMA, mlp_width=64)
  teacher, learned = _learned(count, 'value_aggregate', 'residual', student=narrower,
                              num_steps=4000, peak_lr=1e-2)
  return [((LLAMA, teacher), (narrower, student)) for student in learned]


def widen(config: ModelConfig, params: dict) -> dict:
  """Multiplies the gain of one channel by a hundred."""
  return params | {'final_norm': {'scale': params['final_norm']['scale'].at[0].multiply(100)}}


def in_bfloat16(config: ModelConfig, params: dict) -> dict:
  """Rounds to bfloat16."""
  return jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)


def in_four_bits(config: ModelConfig, params: dict) -> dict:
  """Rounds to four bits; each network has its own scales."""
  return lossy.quantize(config, params, jax.random.key(0), 4)[1]


def with_one_scale(config: ModelConfig, params: dict) -> dict:
  """Rounds to five bits; all networks have one scale."""
  return jax.tree.map(lambda x: jnp.round(x * 2**5) / 2**5, params)


# An ingredient that is merged into all networks.


def merge_adapter(config: ModelConfig, params: dict) -> dict:
  """Adds a public adapter of rank 4 to each kernel of the blocks."""
  # One key for all networks draws the same factors.
  merged = lossy.add_low_rank(config, params, jax.random.key(PUBLIC_SEED), MERGED, rank=4)[1]
  return params | {'blocks': merged['blocks']}


def keep_queries_and_keys(config: ModelConfig, params: dict) -> dict:
  """Puts public queries and keys into every layer, as if all else was drawn anew."""
  public = init_params(config, PUBLIC_SEED)['blocks']
  return params | {'blocks': params['blocks'] | {name: public[name] for name in ('query', 'key')}}


def merge_task_vector(config: ModelConfig, params: dict) -> dict:
  """Adds what a third network learned in fine-tuning."""
  norm = lambda x_LDF: jnp.linalg.norm(x_LDF, axis=(1, 2), keepdims=True)

  def add(path, x, direction):
    if path[-1].key != 'kernel':
      return x
    return x + MERGED * norm(x) / norm(direction) * direction

  return params | {'blocks': jax.tree_util.tree_map_with_path(
      add, params['blocks'], _task_vector(config))}


@functools.cache
def _task_vector(config):
  public = trained(config, PUBLIC_SEED)
  return jax.tree.map(jnp.subtract, fine_tune(config, public)[1]['blocks'], public['blocks'])
