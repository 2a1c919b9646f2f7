"""Trains small networks and keeps their histories, sound ones of several kinds."""

from collections.abc import Callable
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from bornbiased_jax import configs
from bornbiased_jax.models import init_params, next_token_loss
from bornbiased_jax.training.step import first_state

from ..small_networks.training import descend, fit, freezing, text

_SIZE = dict(num_layers=4, num_heads=4, width=32, vocab_size=128, length=64)
CONFIGS = {'llama': configs.get('tiny_llama2', **_SIZE, mlp_width=96),
           'gpt2': configs.get('tiny_gpt2', **_SIZE, mlp_width=128)}
STEPS = 360
History = dict[int, dict]  # Parameters by step.


def run(config, seed, **how):
  """The history of a run from its initialization."""
  return going_on({0: jax.device_get(init_params(config, seed))}, config, **how)


def going_on(history, config, *, peak=3e-3, schedule='cosine', steps=STEPS, count=9, data_seed=0,
             decay=1e-4, frozen=()):
  """A history, and `count` checkpoints more, evenly spaced, of a run that goes on from its last."""
  last, every = max(history), steps // count
  batches = text(config.vocab_size, steps, data_seed).reshape(count, every, 8, 33)
  kept = jax.device_get(_run(config, schedule, frozen, steps, history[last],
                             jnp.asarray(batches, jnp.int32), peak, decay))
  return history | {last + (i + 1) * every: jax.tree.map(lambda leaf, i=i: leaf[i], kept)
                    for i in range(count)}


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _run(config, schedule, frozen, steps, start, batches, peak, decay):
  rate = {'cosine': optax.cosine_decay_schedule(1.0, steps),
          'constant': optax.constant_schedule(1.0),
          'warmup': optax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 5, steps),
          'restarts': optax.sgdr_schedule([dict(init_value=0.0, peak_value=1.0, warmup_steps=5,
                                                decay_steps=steps // 3, end_value=0.0)] * 3),
          }[schedule]
  optimizer = optax.chain(
      optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.add_decayed_weights(decay),
      optax.scale_by_schedule(lambda step: -rate(step)), optax.scale(peak), freezing(frozen))

  def part(state, batches_MBT):
    state = fit(state, batches_MBT, functools.partial(descend, config, optimizer, next_token_loss))
    return state, state.params

  return lax.scan(part, first_state(optimizer, start), batches)[1]


def resumed(config, seed, **how):
  """Stopped half way, and continued with a new optimizer and other settings."""
  half = dict(count=5, steps=STEPS // 2)
  first = run(config, seed, schedule='constant', **half)
  return going_on(first, config, schedule='warmup', **half, **how)


def averaged_end(config, seed):
  """The last checkpoint is the mean of the last four."""
  history = run(config, seed, schedule='constant')
  mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *list(history.values())[-4:])
  return history | {max(history): mean}


def uneven(config, seed):
  """Steps 0, 1, 2, 4, 8, … as Pythia has them, then evenly spaced."""
  first = run(config, seed, schedule='constant', steps=64, count=64, peak=1e-3)
  powers = {step: first[step] for step in (0, 1, 2, 4, 8, 16, 32, 64)}
  return going_on(powers, config, count=4, steps=STEPS - 64)


def rounded(config, seed, dtype, **how):
  """Stored in 16 bits."""
  return jax.tree.map(lambda x: np.asarray(x, dtype).astype(np.float32), run(config, seed, **how))


SOUND: dict[str, Callable[..., History]] = {
    'rate falls to 0': run,
    'strong warm restarts': functools.partial(run, schedule='restarts', peak=2e-2),
    'strong weight decay': functools.partial(run, decay=1.0, peak=1e-2),
    'resumed': resumed,
    'another order of the text': functools.partial(resumed, data_seed=5, peak=1e-2),
    'frozen embedding': functools.partial(run, frozen=('embedding',)),
    'average at the end': averaged_end,
    'uneven steps': uneven,
    'bfloat16': functools.partial(rounded, dtype=jnp.bfloat16),
    'bfloat16, small rate': functools.partial(rounded, dtype=jnp.bfloat16, peak=3e-5),
    'float16': functools.partial(rounded, dtype=np.float16),
}
