"""Pairs of unrelated networks that share a text, an embedding, a teacher, or an order of units.

Each function makes the pairs of some number of networks, each with a configuration and parameters.
"""

from collections.abc import Callable
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.lineage.transforms import lossy, preserving
from bornbiased_jax.models import init_params, read

from ..shared import surgery
from ..shared.small_training import (
  GPT2,
  LLAMA,
  PUBLIC_SEED,
  STEPS,
  Pairs,
  all_pairs,
  from_seeds,
  imitate,
  of_both_widths,
  train,
  trained,
)

# (config, seed) → parameters, and (config, params) → a number by layer and unit, to sort by.
Start = Callable[[ModelConfig, int], dict]
Sizes = Callable[[ModelConfig, dict], jax.Array]


def same_text(config: ModelConfig, count: int) -> Pairs:
  """Trained on one text in one order: embeddings become alike up to a rotation."""
  return all_pairs(config, [trained(config, seed) for seed in range(count)])


# A shared embedding, or shared positions.


def _public_embedding(config):
  return 5 * init_params(config, PUBLIC_SEED)['embedding']


@functools.cache
def with_public_embedding(config: ModelConfig, seed: int) -> dict:
  """A network trained with the public embedding, tied and frozen."""
  params = init_params(config, seed) | {'embedding': _public_embedding(config)}
  return train(config, [params], STEPS, frozen=('embedding',))[0]


def frozen_embedding(count: int) -> Pairs:
  """One public embedding, tied and frozen."""
  return all_pairs(LLAMA, [with_public_embedding(LLAMA, seed) for seed in range(count)])


def public_rows(share: float, count: int) -> Pairs:
  """A share of the embedding's rows is public, and all are trained further."""
  known, public = round(share * LLAMA.vocab_size), _public_embedding(LLAMA)
  mixed = lambda params: params | {'embedding': jnp.concatenate(
      (public[:known], 5 * params['embedding'][known:]))}
  networks = [mixed(params) for params in from_seeds(LLAMA, range(count))]
  return all_pairs(LLAMA, train(LLAMA, networks, STEPS))


def sinusoids(count: int) -> Pairs:
  """Frozen sinusoidal positions of amplitude 1."""
  rate = 1e4 ** (-np.arange(0, GPT2.width, 2) / GPT2.width)
  angle = np.arange(GPT2.length)[:, None] * rate
  table = jnp.float32(np.stack((np.sin(angle), np.cos(angle)), -1).reshape(GPT2.length, -1))
  networks = [params | {'position_embedding': table} for params in from_seeds(GPT2, range(count))]
  return all_pairs(GPT2, train(GPT2, networks, STEPS, frozen=('position_embedding',)))


# A shared order of channels, units or values.


def _answers(config, params):
  ids = jax.random.randint(jax.random.key(0), (500, 16), 0, config.vocab_size)
  return read(config, params, ids, ('hidden_last', 'mlp_hidden'))


def by_activation(config: ModelConfig, params: dict) -> jax.Array:
  """The mean size of each unit's activation, [layers, units]."""
  return jnp.abs(_answers(config, params)['mlp_hidden']).mean(axis=(1, 2))


def sorted_channels(count: int) -> Pairs:
  """Channels sorted by their mean activation before release."""
  def sort(params):
    order_D = jnp.argsort(_answers(LLAMA, params)['hidden_last'].mean(axis=0))
    return preserving.order_channels(LLAMA, params, order_D)[1]

  return all_pairs(LLAMA, [sort(trained(LLAMA, seed)) for seed in range(count)])


def _sorted(config: ModelConfig, start: Start, size: Sizes, count: int) -> list[dict]:
  """Networks with the units of each layer sorted by a size of theirs, the largest first."""
  networks = [start(config, seed) for seed in range(count)]
  return [preserving.order_units(config, params, jnp.argsort(-size(config, params), axis=-1))[1]
          for params in networks]


def sorted_units(config: ModelConfig, start: Start, size: Sizes, count: int) -> Pairs:
  """Units of each layer sorted by a size of theirs."""
  return all_pairs(config, _sorted(config, start, size, count))


def sorted_and_cut(config: ModelConfig, start: Start, size: Sizes, count: int) -> Pairs:
  """Units sorted, and of every suspect five eighths of them kept, the largest ones."""
  return against_first_units(config, _sorted(config, start, size, count), 5 / 8)


def against_first_units(config: ModelConfig, networks: list[dict], share: float) -> Pairs:
  """Each network with a share of each later one's units, the first ones."""
  cut = [surgery.keep_first_units(config, params, strength=share) for params in networks]
  return [((config, networks[i]), cut[j])
          for i, j in itertools.combinations(range(len(networks)), 2)]


def extracted_half(count: int) -> Pairs:
  """MatFormers, whose first half of the units is trained to do alone, and that half of others."""
  networks = [trained(LLAMA, seed, of_both_widths) for seed in range(count)]
  return against_first_units(LLAMA, networks, 0.5)


def ordered_values(count: int) -> Pairs:
  """Value channels of each head in the order of singular values, and one public embedding."""
  return all_pairs(LLAMA, [surgery.order_values(LLAMA, with_public_embedding(LLAMA, seed))[1]
                           for seed in range(count)])


# A teacher, an outlier, few bits.


def students(count: int) -> Pairs:
  """Students that learned the hidden states of one teacher, and inherit no weights."""
  teacher = trained(LLAMA, PUBLIC_SEED)
  learned = train(LLAMA, from_seeds(LLAMA, range(count)), STEPS, loss=imitate(LLAMA, teacher))
  return all_pairs(LLAMA, [teacher, *learned[1:]])


def one_outlier(count: int) -> Pairs:
  """One channel of each network has a hundred times the weight of the others."""
  widen = lambda params: params | {'final_norm': {
      'scale': params['final_norm']['scale'].at[0].multiply(100)}}
  return all_pairs(LLAMA, [widen(trained(LLAMA, seed)) for seed in range(count)])


def in_bfloat16(count: int) -> Pairs:
  """Rounded to bfloat16."""
  change = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)
  return all_pairs(LLAMA, [jax.tree.map(change, trained(LLAMA, seed)) for seed in range(count)])


def in_four_bits(count: int) -> Pairs:
  """Rounded to four bits, each network with scales of its own."""
  return all_pairs(LLAMA, [lossy.quantize(LLAMA, trained(LLAMA, seed), jax.random.key(0), 4)[1]
                           for seed in range(count)])
