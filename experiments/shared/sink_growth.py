"""Grows attention sinks: all seeds of one kind of network on Bigram-Backcopy, in one program."""

from collections.abc import Callable, Iterator
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis import attention_sink
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data import backcopy
from bornbiased_jax.data.backcopy import Backcopy
from bornbiased_jax.models.loss import token_losses
from bornbiased_jax.training.step import Recipe, ensemble_step, init_state

# Thresholds of a sink, of which 0.3 is that of Gu et al.
EPSILONS = (0.1, 0.2, attention_sink.THRESHOLD, 0.4, 0.5, 0.6)


def held_out(task: Backcopy, settings, length: int, start: bool) -> np.ndarray:
  """Ids [num_sequences, length + 1] that are not those of training."""
  # Keys of training are folded once. Twice makes others, also from the same seed.
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.probe_seed), length), 0)
  return np.asarray(backcopy.draw(task, key, settings.num_sequences, length, start))


def grow(config: ModelConfig, recipe: Recipe, task: Backcopy, seeds: list[int], *, start: bool,
         data_seed: int, steps: list[int],
         advance: Callable[[int], None]) -> Iterator[tuple[int, list[dict]]]:
  """Trains a network per seed, all on the same sequences in the same order.

  Args:
    config: their architecture.
    recipe: how they are trained; each step draws sequences of its own.
    task: where sequences are from.
    seeds: the networks.
    start: whether sequences begin with a start token.
    data_seed: with the step it decides which sequences.
    steps: when to look at the networks, in ascending order; 0 is before training.
    advance: called with the number of steps after some of them.

  Yields:
    Each of `steps`, and the parameters of every network then.
  """
  states = jax.vmap(functools.partial(init_state, config, recipe))(jnp.asarray(seeds))
  done = 0
  for step in steps:
    states = _train(config, recipe, start, data_seed, task, states, done, step)
    jax.block_until_ready(states.step)
    advance(step - done)
    done = step
    yield step, [jax.tree.map(lambda leaf, i=i: leaf[i], states.params) for i in range(len(seeds))]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=5)
def _train(config, recipe, start, data_seed, task, states, first, last):
  def one_step(step, states):
    key = jax.random.fold_in(jax.random.key(data_seed), step)
    ids_BT = backcopy.draw(task, key, recipe.batch_size, recipe.length, start)
    return ensemble_step(config, recipe, states, ids_BT)[0]

  return lax.fori_loop(first, last, one_step, states)


def measure(config: ModelConfig, params: dict, task: Backcopy, ids_NT: np.ndarray,
            longest_NT: np.ndarray, settings) -> dict:
  """What a row has of a network after training.

  Args:
    config: its architecture.
    params: its parameters.
    task: what it was trained on.
    ids_NT: sequences of the length of training, and the id after each.
    longest_NT: sequences of the longest of `lengths`, and the id after each.
    settings: `lengths` and `position`.
  """
  received_NLHT = attention_sink.received(config, params, ids_NT[:, :-1])
  by_length = [attention_sink.sink_rate(config, params, longest_NT[:, :length])
               for length in settings.lengths]
  by_threshold = [attention_sink.rate_of(received_NLHT, config, 0, each) for each in EPSILONS]
  elsewhere = attention_sink.rate_of(received_NLHT, config, settings.position)
  first = by_threshold[EPSILONS.index(attention_sink.THRESHOLD)]
  return {
      'rate': first.rate, 'weight': first.weight_NLH.mean(), 'floor': first.floor,
      'rate_LH': first.rate_LH, 'excess': float(_excess(config, params, task, ids_NT)),
      'rate_T': [sinks.rate for sinks in by_length],
      'weight_T': [sinks.weight_NLH.mean() for sinks in by_length],
      'rate_E': [sinks.rate for sinks in by_threshold],
      'position_rate': elsewhere.rate, 'position_weight': elsewhere.weight_NLH.mean(),
      'position_floor': elsewhere.floor,
      **who_rests(config, params, task, ids_NT[:, :-1]),
      **{name: values for name, values in
         attention_sink.diagnostics(config, params, ids_NT[:, :-1]).items()
         if name != 'positional_std_LT'}}


def who_rests(config: ModelConfig, params: dict, task: Backcopy, ids_NT: np.ndarray) -> dict:
  """Mean weight on the first position, of queries that copy and of all others behind the first."""
  weight_NLHT = attention_sink.first_weights(config, params, ids_NT)
  copies_NT = task.is_trigger_V[ids_NT]
  mean = lambda chosen_NT: weight_NLHT.mean(axis=(1, 2))[:, 1:][chosen_NT[:, 1:]].mean()
  return {'weight_copying': mean(copies_NT), 'weight_resting': mean(~copies_NT)}


def look(config: ModelConfig, params: dict, task: Backcopy, ids_NT: np.ndarray) -> dict:
  """What is followed while a network is trained: sinks at the first position, and the loss.

  Returns:
    `rate` and `weight` (see `sink_rate`), and `excess`, nats per token above what is possible.
  """
  sinks = attention_sink.sink_rate(config, params, ids_NT[:, :-1])
  return {'rate': sinks.rate, 'weight': sinks.weight_NLH.mean(),
          'excess': float(_excess(config, params, task, ids_NT))}


@functools.partial(jax.jit, static_argnums=0)
def _excess(config, params, task, ids_NT):
  return (token_losses(config, params, ids_NT) + backcopy.log_likelihood(task, ids_NT)).mean()
