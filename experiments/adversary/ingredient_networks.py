"""Pairs of networks of independent seeds to which one ingredient was added, or taught.

Each function makes the pairs of some number of networks, each with a configuration and parameters.
All are trained on one text.
"""

import jax
import jax.numpy as jnp

from bornbiased_jax.lineage.transforms import lossy

from ..shared.small_training import (
  LLAMA,
  PUBLIC_SEED,
  STEPS,
  Pairs,
  all_pairs,
  fine_tune,
  from_seeds,
  imitate,
  train,
  trained,
)

# What is merged into a matrix has this share of the matrix's norm.
MERGED = 0.2


def adapter_merged(count: int) -> Pairs:
  """One public adapter of rank 4 for each kernel of the blocks, merged into all networks."""
  def merge(params):
    # One key for all networks draws the same factors.
    key = jax.random.key(PUBLIC_SEED)
    return params | {'blocks': lossy.add_low_rank(LLAMA, params, key, MERGED, rank=4)[1]['blocks']}

  return all_pairs(LLAMA, [merge(trained(LLAMA, seed)) for seed in range(count)])


def task_vector_merged(count: int) -> Pairs:
  """What a third network learned in fine-tuning, merged into all networks."""
  public = trained(LLAMA, PUBLIC_SEED)
  task = jax.tree.map(jnp.subtract, fine_tune(LLAMA, public)[1]['blocks'], public['blocks'])

  def add(path, x, direction):
    return _add(x, direction) if path[-1].key == 'kernel' else x

  merge = lambda params: params | {
      'blocks': jax.tree_util.tree_map_with_path(add, params['blocks'], task)}
  return all_pairs(LLAMA, [merge(trained(LLAMA, seed)) for seed in range(count)])


def _add(x_LDF, direction_LDF):
  """Adds a direction to the matrix of each layer, with a share MERGED of its norm."""
  norm = lambda x_LDF: jnp.linalg.norm(x_LDF, axis=(1, 2), keepdims=True)
  return x_LDF + MERGED * norm(x_LDF) / norm(direction_LDF) * direction_LDF


def values_distilled(count: int) -> Pairs:
  """A teacher, and students that learned its value aggregates and states channel by channel."""
  teacher = trained(LLAMA, PUBLIC_SEED)
  learned = train(LLAMA, from_seeds(LLAMA, range(count)), STEPS,
                  loss=imitate(LLAMA, teacher, ('value_aggregate', 'residual')))
  return [((LLAMA, teacher), (LLAMA, student)) for student in learned]
