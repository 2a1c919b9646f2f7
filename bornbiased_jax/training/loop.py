"""Training from the first step to the last; stopping and resuming changes no bit of it."""

from collections.abc import Callable
import contextlib
import functools
import signal
import threading

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np

from bornbiased_jax.data import windows
from bornbiased_jax.models import attention, attention_kernels, flops, sharding
from bornbiased_jax.models.loss import next_token_loss
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training.monitor import Monitor
from bornbiased_jax.training.run import Run
from bornbiased_jax.training.start import begin
from bornbiased_jax.training.step import TrainState, ensemble_step, sharded_step


def train(run: Run) -> dict:
  """Trains until the last step.

  The run begins where its own folder, `resume`, `init_from` or its seeds let
  it begin (`start.begin`). Checkpoints and a metrics.jsonl are written to the
  folder of each network. At SIGINT or SIGTERM the state is saved first, and
  then KeyboardInterrupt is raised.

  Returns:
    The rates of this session (`Monitor.rate`).

  Raises:
    InputError: the text has ids outside the vocabulary, the folder holds
      another run, a save failed, or a loss is not finite; what was saved
      before stays.
  """
  for text in (run.data, run.validation):
    text.check(run.config.vocab_size)
  state, parents = begin(run)
  take_step, start = compiled_step(run), int(jnp.max(state.step))
  with _writers(run) as writers, _monitor(run, start) as monitor, _stop_signal() as stop:
    if start == 0:
      _save(run, writers, parents, state, 0)
    for step in range(start + 1, run.recipe.num_steps + 1):
      state, metrics = take_step(state, batch_at(run, step - 1))
      monitor.add(step, metrics)
      if _is_due(run, step, run.evaluate_every):
        monitor.flush()
        monitor.validation(step, evaluate(run, state.params))
      # Asked once: for a signal that comes later, the next step saves.
      stopping = stop.is_set()
      if _is_due(run, step, run.save_every) or step in run.keep_steps or stopping:
        monitor.flush()
        _save(run, writers, parents, state, step)
      if stopping:
        raise KeyboardInterrupt
    return monitor.rate()


def _is_due(run, step, interval):
  return step % interval == 0 or step == run.recipe.num_steps


def compiled_step(run: Run) -> Callable[[TrainState, jax.Array], tuple[TrainState, dict]]:
  """The step jitted for the run's mesh and networks; it consumes the state that it is given."""
  if run.together:
    return _compiled_ensemble_step(run.config, run.recipe)
  return sharded_step(run.config, run.recipe, run.mesh, _attend(run))


# Runs that follow each other in one process and differ in seed or data compile their step once.
@functools.lru_cache(maxsize=4)
def _compiled_ensemble_step(config, recipe):
  return jax.jit(functools.partial(ensemble_step, config, recipe), donate_argnums=0)


def _attend(run):
  # Not all fused kernels have a gradient under vmap.
  if run.together:
    return attention.plain
  return attention_kernels.choose(run.config, run.recipe.length, run.mesh)


def batch_at(run: Run, step: int) -> jax.Array:
  """Ids [batch_size, T + 1] of a step. Each host reads only its own rows."""
  recipe = run.recipe
  rows = functools.partial(windows.batch, run.data.tokens, run.data_seed, step, recipe.batch_size,
                           recipe.length)
  return _spread(run, rows, recipe.batch_size)


def _spread(run, rows, num_rows):
  shape = num_rows, run.recipe.length + 1
  spread = NamedSharding(run.mesh, sharding.BATCH)
  return jax.make_array_from_callback(
      shape, spread, lambda index: windows.begin(rows(index[0]), run.recipe.start_id))


def evaluate(run: Run, params: dict) -> np.ndarray:
  """Mean loss of each network [networks], in nats per token, on the run's validation sequences."""
  windows_NT = windows.spaced_windows(
      run.validation.tokens, run.validation_sequences, run.recipe.length)
  loss_of = _compiled_loss(run.config, _attend(run), run.together)
  total: np.ndarray = np.zeros(())
  for weight, part_NT in _parts(run, windows_NT):
    tokens_NT = _spread(run, lambda rows, part_NT=part_NT: part_NT[rows], len(part_NT))
    total = total + weight * np.asarray(loss_of(params, tokens_NT), float)
  return np.atleast_1d(total / len(windows_NT))


def _parts(run, windows_NT):
  """Parts of the windows that devices can share, each with the number of windows in it."""
  size, shards = run.recipe.batch_size // run.recipe.accumulation, sharding.batch_shards(run.mesh)
  whole = len(windows_NT) // shards * shards
  for first in range(0, whole, size):
    part_NT = windows_NT[first:min(first + size, whole)]
    yield len(part_NT), part_NT
  for window_T in windows_NT[whole:]:  # Every device has the same one.
    yield 1, np.repeat(window_T[None], shards, axis=0)


@functools.lru_cache(maxsize=4)
def _compiled_loss(config, attend, together):
  loss = functools.partial(next_token_loss, config, attend=attend)
  return jax.jit(jax.vmap(loss, in_axes=(0, None)) if together else loss)


@contextlib.contextmanager
def _writers(run):
  keep_steps = (0, run.recipe.num_steps, *run.keep_steps)
  writers = [checkpoint.Writer(directory, keep_steps) for directory in run.directories]
  try:
    yield writers
  finally:
    for writer in writers:
      writer.close()


def _save(run, writers, parents, state, step):
  for i, (writer, seed, parent) in enumerate(zip(writers, run.seeds, parents, strict=True)):
    alone = _network(state, i) if run.together else state
    writer.save(step, alone.params, alone.opt_state, run.metadata(seed, parent))


@jax.jit
def _network(state, i):
  return jax.tree.map(lambda leaf: leaf[i], state)


def _monitor(run, start):
  recipe = run.recipe
  tokens_per_step = recipe.batch_size * recipe.length * len(run.seeds)
  # A backward pass costs as much as two forward passes.
  flops_per_sequence = 3 * flops.forward_flops(run.config, recipe.length, recipe.length)
  flops_per_token = flops_per_sequence / recipe.length
  peak = flops.matmul_rate(run.config.dtype) * run.mesh.size
  return Monitor(run.directories, start, recipe.num_steps, tokens_per_step,
                 lambda tokens_per_s: tokens_per_s * flops_per_token / peak)


@contextlib.contextmanager
def _stop_signal():
  """An event that the first SIGINT or SIGTERM sets; a second one interrupts. Only for one host."""
  stop, before = threading.Event(), {}

  def request(number, _):
    stop.set()
    signal.signal(number, before[number])

  if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield stop
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
