"""Grows attention sinks: all seeds of one kind of network on Bigram-Backcopy, in one program."""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import itertools
import math

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis import attention_sink
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.loss import token_losses
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import ensemble_step, init_state

from ..small_networks.training import fit
from . import backcopy
from .backcopy import Backcopy

# Thresholds of a sink; Gu et al. use 0.3.
EPSILONS = (0.1, 0.2, attention_sink.THRESHOLD, 0.4, 0.5, 0.6)


def held_out(task: Backcopy, settings, length: int, start: bool) -> np.ndarray:
  """Ids [num_sequences, length + 1] that training does not read."""
  # Keys of training are folded once. Twice makes others, also from the same seed.
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.probe_seed), length), 0)
  return np.asarray(backcopy.draw(task, key, settings.num_sequences, length, start))


def grow(config: ModelConfig, recipe: Recipe, task: Backcopy, seeds: list[int], *, start: bool,
         data_seed: int, steps: list[int],
         advance: Callable[[int], None]) -> Iterator[tuple[int, list[dict]]]:
  """Trains a network per seed, all on the same sequences in the same order.

  Yields each of `steps`, and the parameters of every network then. `advance` is called with the
  number of steps after some of them.
  """
  batches_MBT = _draw(recipe, start, data_seed, task)
  states = _initial(config, recipe, jnp.asarray(seeds, jnp.uint32))
  for first, last in itertools.pairwise([0, *steps]):
    states = _train(config, recipe, states, batches_MBT, first, last)
    params = jax.device_get(states.params)
    advance(last - first)
    yield last, [jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(len(seeds))]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _draw(recipe, start, data_seed, task):
  """The batches [num_steps, B, T + 1] of all steps."""
  key = jax.random.key(data_seed)
  return lax.map(lambda step: backcopy.draw(task, jax.random.fold_in(key, step), recipe.batch_size,
                                            recipe.length, start), jnp.arange(recipe.num_steps))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _initial(config, recipe, seeds):
  return jax.vmap(functools.partial(init_state, config, recipe))(seeds)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _train(config, recipe, states, batches_MBT, first, last):
  take_step = lambda states, ids_BT: ensemble_step(config, recipe, states, ids_BT)[0]
  return fit(states, batches_MBT, take_step, first, last)


def measure(config: ModelConfig, params: dict, task: Backcopy, ids_NT: np.ndarray,
            longest_NT: np.ndarray, settings) -> dict:
  """What a row has of a network after training.

  Rates and weights are those of the head that is a sink most often: with several heads or layers
  the others need not rest. `rate_all` is the share of all heads, as Gu et al. count.
  """
  received_NLHT = attention_sink.received(config, params, ids_NT[:, :-1])
  by_threshold = [attention_sink.rate_of(received_NLHT, config, 0, each) for each in EPSILONS]
  first = by_threshold[EPSILONS.index(attention_sink.THRESHOLD)]
  elsewhere = attention_sink.rate_of(received_NLHT, config, settings.position)
  made = attention_sink.diagnostics(config, params, ids_NT[:, :-1])
  return {
      **best_head(first), 'floor': first.floor, 'rate_all': first.rate,
      'excess': float(_excess(config, params, task, ids_NT)),
      **by_length(config, params, longest_NT, settings.lengths),
      'rate_E': [best_head(sinks)['rate'] for sinks in by_threshold],
      'position_weight': elsewhere.weight_NLH.mean(axis=0).max(), 'position_floor': elsewhere.floor,
      **who_rests(config, params, task, ids_NT[:, :-1]),
      **{name: made[name] for name in ('disparity_L', 'residual_ratio_L', 'value_ratio_L')}}


def best_head(sinks: attention_sink.SinkRate) -> dict[str, float]:
  """`rate`, the share of sequences in which it is a sink, and its mean `weight`."""
  return {'rate': sinks.rate_LH.max(), 'weight': sinks.weight_NLH.mean(axis=0).max()}


def by_length(config: ModelConfig, params: dict, longest_NT: np.ndarray,
              lengths: list[int]) -> dict:
  """Sinks in sequences of each length that the network can read as it was trained.

  Beyond the length of training it can if neither its positions nor its intervention refer to it.
  """
  if config.positions == 'rope' and config.intervention not in ('attenuate', 'gain', 'damp'):
    config = dataclasses.replace(config, length=max(config.length, *lengths))
  found = [best_head(attention_sink.sink_rate(config, params, longest_NT[:, :length]))
           for length in lengths if length <= config.length]
  return {f'{name}_T': [each[name] for each in found] for name in ('rate', 'weight')}


def who_rests(config: ModelConfig, params: dict, task: Backcopy, ids_NT: np.ndarray) -> dict:
  """The best head's mean weight on the first position, of queries that copy and of all others."""
  weight_NLHT = attention_sink.first_weights(config, params, ids_NT)
  layer, head = np.unravel_index(weight_NLHT.mean(axis=(0, 3)).argmax(), weight_NLHT.shape[1:3])
  copies_NT = np.asarray(backcopy.copies(task, ids_NT))
  mean = lambda chosen_NT: np.average(weight_NLHT[:, layer, head, 1:], weights=chosen_NT[:, 1:])
  return {'weight_copying': mean(copies_NT) if copies_NT.any() else math.nan,
          'weight_resting': mean(~copies_NT)}


def look(config: ModelConfig, params: dict, task: Backcopy, ids_NT: np.ndarray) -> dict:
  """Its best head, and nats per token above the loss of the task's own probabilities."""
  sinks = attention_sink.sink_rate(config, params, ids_NT[:, :-1])
  return best_head(sinks) | {'excess': float(_excess(config, params, task, ids_NT))}


@functools.partial(jax.jit, static_argnums=0)
def _excess(config, params, task, ids_NT):
  return (token_losses(config, params, ids_NT) + backcopy.log_likelihood(task, ids_NT)).mean()
