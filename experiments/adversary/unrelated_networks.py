"""Unrelated networks that share a text, an embedding, a teacher, an ingredient, or an order.

What is done to one network is (config, params) → parameters. What makes pairs takes the number of
networks, each with a configuration and parameters.
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
# What is merged into a matrix has this share of the matrix's norm.
MERGED = 0.2
# Of a gradient's entries where one noise is added to all.
NOISE = 0.01


def changed(config: ModelConfig, change: Change, count: int, *, start: Start = trained) -> Pairs:
  """Networks that were trained on one text in one order, each changed by itself."""
  return all_pairs(config, [change(config, start(config, seed)) for seed in range(count)])


def unchanged(config: ModelConfig, params: dict) -> dict:
  """Embeddings become alike up to a rotation by the text alone."""
  return params


# A shared embedding, or shared positions.


def _public_embedding(config):
  return 5 * init_params(config, PUBLIC_SEED)['embedding']


@functools.cache
def with_public_embedding(config: ModelConfig, seed: int) -> dict:
  """A network trained with the public embedding, tied and frozen."""
  params = init_params(config, seed) | {'embedding': _public_embedding(config)}
  return train(config, [params], training.STEPS, frozen=('embedding',))[0]


def public_rows(share: float, count: int) -> Pairs:
  """A share of the embedding's rows is public, and all are trained further."""
  known, public = round(share * LLAMA.vocab_size), _public_embedding(LLAMA)
  mixed = lambda params: params | {'embedding': jnp.concatenate(
      (public[:known], 5 * params['embedding'][known:]))}
  networks = [mixed(params) for params in from_seeds(LLAMA, range(count))]
  return all_pairs(LLAMA, train(LLAMA, networks, training.STEPS))


def sinusoids(count: int) -> Pairs:
  """Frozen sinusoidal positions of amplitude 1."""
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
  """Channels sorted by their mean activation before release."""
  order_D = jnp.argsort(_answers(config, params)['hidden_last'].mean(axis=0))
  return preserving.order_channels(config, params, order_D)[1]


def sort_units(size: Sizes, config: ModelConfig, params: dict) -> dict:
  """Units of each layer sorted by a size of theirs, the largest first."""
  return surgery.sort_units(config, params, size=size)[1]


def order_values(config: ModelConfig, params: dict) -> dict:
  """Value channels of each head in the order of singular values."""
  return surgery.order_values(config, params)[1]


def sorted_and_cut(config: ModelConfig, start: Start, size: Sizes, count: int) -> Pairs:
  """Units sorted, and of every suspect five eighths of them kept, the largest ones."""
  networks = [sort_units(size, config, start(config, seed)) for seed in range(count)]
  return against_first_units(config, networks, 5 / 8)


def against_first_units(config: ModelConfig, networks: list[dict], share: float) -> Pairs:
  """Each network with a share of each later one's units, the first ones."""
  cut = [surgery.keep_first_units(config, params, strength=share) for params in networks]
  return [((config, networks[i]), cut[j])
          for i, j in itertools.combinations(range(len(networks)), 2)]


def extracted_half(count: int) -> Pairs:
  """MatFormers, whose first half of the units is trained to do alone, and that half of others."""
  networks = [trained(LLAMA, seed, of_both_widths) for seed in range(count)]
  return against_first_units(LLAMA, networks, 0.5)


# Noise, or an order that training makes.


def _step_key(tokens_BT):
  """A key of a step, which all networks that read one text in one order share."""
  return jax.random.fold_in(jax.random.key(PUBLIC_SEED), tokens_BT.sum())


def with_one_noise(config: ModelConfig, params: dict, tokens_BT: jax.Array) -> jax.Array:
  """A loss whose gradient has noise of one generator in all networks, as of DP-SGD."""
  leaves, key = jax.tree.leaves(params), _step_key(tokens_BT)
  noise = sum(jnp.vdot(jax.random.normal(jax.random.fold_in(key, i), leaf.shape), leaf)
              for i, leaf in enumerate(leaves))
  return next_token_loss(config, params, tokens_BT) + NOISE * noise


def nested_dropout(config: ModelConfig, params: dict, tokens_BT: jax.Array) -> jax.Array:
  """The loss with the first units of each layer alone, of a random number by step."""
  kept = jax.random.randint(_step_key(tokens_BT), (), 1, config.mlp_width + 1)
  is_kept_F1 = (jnp.arange(config.mlp_width) < kept)[:, None]
  down = {'kernel': params['blocks']['down']['kernel'] * is_kept_F1}
  blocks = params['blocks'] | {'down': params['blocks']['down'] | down}
  return next_token_loss(config, params | {'blocks': blocks}, tokens_BT)


# A teacher, an outlier, few bits.


def _learned(count, *names, student=LLAMA, num_steps=None, peak_lr=PEAK_LR):
  """A teacher, and students that learned what READS calls `names` of it, and inherit no weights."""
  teacher = trained(LLAMA, PUBLIC_SEED)
  return teacher, train(student, from_seeds(student, range(count)), num_steps or training.STEPS,
                        peak_lr=peak_lr, loss=imitate(LLAMA, teacher, names))


def students(count: int) -> Pairs:
  """A teacher and students of its hidden states."""
  teacher, learned = _learned(count, 'residual')
  return all_pairs(LLAMA, [teacher, *learned[1:]])


def values_distilled(count: int) -> Pairs:
  """A teacher with each student that learned its value aggregates and states by channel."""
  teacher, learned = _learned(count, 'value_aggregate', 'residual')
  return [((LLAMA, teacher), (LLAMA, student)) for student in learned]


def values_distilled_to_narrower(count: int) -> Pairs:
  """The same with students of fewer MLP units, so that units cannot be compared."""
  narrower = dataclasses.replace(LLAMA, mlp_width=64)
  teacher, learned = _learned(count, 'value_aggregate', 'residual', student=narrower,
                              num_steps=4000, peak_lr=1e-2)
  return [((LLAMA, teacher), (narrower, student)) for student in learned]


def widen(config: ModelConfig, params: dict) -> dict:
  """One channel has a hundred times the weight of the others."""
  return params | {'final_norm': {'scale': params['final_norm']['scale'].at[0].multiply(100)}}


def in_bfloat16(config: ModelConfig, params: dict) -> dict:
  """Rounded to bfloat16."""
  return jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)


def in_four_bits(config: ModelConfig, params: dict) -> dict:
  """Rounded to four bits, each network with scales of its own."""
  return lossy.quantize(config, params, jax.random.key(0), 4)[1]


def with_one_scale(config: ModelConfig, params: dict) -> dict:
  """Rounded to five bits with one scale for all networks."""
  return jax.tree.map(lambda x: jnp.round(x * 2**5) / 2**5, params)


# An ingredient that is merged into all networks.


def merge_adapter(config: ModelConfig, params: dict) -> dict:
  """One public adapter of rank 4 for each kernel of the blocks."""
  # One key for all networks draws the same factors.
  merged = lossy.add_low_rank(config, params, jax.random.key(PUBLIC_SEED), MERGED, rank=4)[1]
  return params | {'blocks': merged['blocks']}


def keep_queries_and_keys(config: ModelConfig, params: dict) -> dict:
  """The same public queries and keys in every layer, as where all else was drawn anew."""
  public = init_params(config, PUBLIC_SEED)['blocks']
  return params | {'blocks': params['blocks'] | {name: public[name] for name in ('query', 'key')}}


def merge_task_vector(config: ModelConfig, params: dict) -> dict:
  """What a third network learned in fine-tuning."""
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
