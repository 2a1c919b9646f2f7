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


def run(config, seed, *, start=None, peak=3e-3, schedule='cosine', steps=STEPS, count=9,
        data_seed=0, decay=1e-4, frozen=()):
  """The history of a run: `count` checkpoints after the first, evenly spaced."""
  start = init_params(config, seed) if start is None else start
  shape = (count, steps // count)
  batches = jnp.asarray(text(config.vocab_size, steps, data_seed).reshape(*shape, 8, 33), jnp.int32)
  kept = _run(config, schedule, tuple(frozen), steps, start, batches, peak, decay)
  kept = jax.tree.map(np.asarray, kept)
  history = {0: jax.tree.map(np.asarray, start)}
  for i in range(count):
    history[(i + 1) * shape[1]] = jax.tree.map(lambda leaf, i=i: leaf[i], kept)
  return history


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


def resumed(config, seed, *, data_seed=0, peak=3e-3):
  """Stopped half way, and continued with another order of the text and a new optimizer."""
  first = run(config, seed, count=5, steps=STEPS // 2, schedule='constant')
  second = run(config, seed, start=first[max(first)], count=5, steps=STEPS // 2,
               data_seed=data_seed, peak=peak, schedule='warmup')
  return _joined(first, second)


def averaged_end(config, seed, count=4):
  """The last checkpoint is the mean of the last ones."""
  history = run(config, seed, schedule='constant')
  *_, last = history
  return history | {last: jax.tree.map(lambda *leaves: np.mean(leaves, axis=0),
                                       *list(history.values())[-count:])}


def uneven(config, seed):
  """Steps 0, 1, 2, 4, 8, … as Pythia has them, then evenly spaced."""
  first = run(config, seed, schedule='constant', steps=64, count=64, peak=1e-3)
  second = run(config, seed, start=first[64], count=4, steps=STEPS - 64)
  return _joined({step: first[step] for step in (0, 1, 2, 4, 8, 16, 32, 64)}, second)


def rounded(config, seed, dtype, **how):
  """Stored in 16 bits."""
  return jax.tree.map(lambda x: np.asarray(x, dtype).astype(np.float32), run(config, seed, **how))


def _joined(first, second):
  """A history, and what went on from its last checkpoint."""
  return first | {step + max(first): params for step, params in second.items() if step}


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
