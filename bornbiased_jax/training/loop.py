"""Training from the first step to the last: one network, or several under vmap, on any mesh, exact to resume."""

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import os
from pathlib import Path
import signal
import threading

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from bornbiased_jax.configs import ModelConfig, check_count
from bornbiased_jax.data import corpus
from bornbiased_jax.data.corpus import Corpus
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention, flops, sharding
from bornbiased_jax.models.initialization import as_seed
from bornbiased_jax.models.loss import next_token_loss
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training.monitor import Monitor
from bornbiased_jax.training.start import begin, state_shardings
from bornbiased_jax.training.step import Recipe, TrainState, ensemble_step, train_step


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """All that defines a training run, of several networks where there are several seeds.

  Args:
    config: the architecture.
    recipe: how it is trained.
    seeds: networks that see the same data in the same order, and train
      together under vmap.
    data: what they train on.
    validation: what they are evaluated on.
    data_seed: order of the data, independent of `seeds`.
    directory: each network has a folder seed_SEED in it.
    mesh: from `sharding.make_mesh`.
    keep_steps: steps whose checkpoints stay; the first and the last always do.
    save_every: steps between checkpoints of which the latest two stay.
    evaluate_every: steps between evaluations.
    validation_sequences: sequences of an evaluation, at most.
    resume: a run, or folder of runs, to go on from, with its optimizer state.
    init_from: a run, a folder of runs, or a `transformers` directory to take
      parameters from.

  Raises:
    InputError: a seed given twice or outside its range, an interval below
      one step, a batch that the mesh does not divide, several networks on
      several devices, or sequences longer than the model's.
  """

  config: ModelConfig
  recipe: Recipe
  seeds: tuple[int, ...]
  data: Corpus
  validation: Corpus
  data_seed: int
  directory: Path
  mesh: Mesh
  keep_steps: tuple[int, ...] = ()
  save_every: int = 1000
  evaluate_every: int = 1000
  validation_sequences: int = 64
  resume: str | os.PathLike | None = None
  init_from: str | os.PathLike | None = None

  def __post_init__(self):
    recipe, shards = self.recipe, self.mesh.shape['data'] * self.mesh.shape['fsdp']
    if len({int(as_seed(seed)) for seed in self.seeds}) != len(self.seeds):
      raise InputError(f'seeds={self.seeds} has one of them twice')
    for name in ('save_every', 'evaluate_every', 'validation_sequences'):
      check_count(name, getattr(self, name))
    if recipe.batch_size // recipe.accumulation % shards:
      raise InputError(f'batch_size={recipe.batch_size} in accumulation={recipe.accumulation} parts cannot be spread '
                       f'over data x fsdp = {shards} devices; choose a multiple of {recipe.accumulation * shards}')
    if self.together and self.mesh.size > 1:
      raise InputError(f'{len(self.seeds)} networks train together on one device only; '
                       f'here are {self.mesh.size}, so train them one after another, each a run (--together=1)')
    if recipe.length > self.config.length:
      raise InputError(f'length={recipe.length} exceeds the configuration\'s length={self.config.length}')

  @property
  def together(self) -> bool:
    """Whether states have a leading axis of networks."""
    return len(self.seeds) > 1

  @property
  def directories(self) -> list[Path]:
    """A folder a network, in the order of `seeds`."""
    return [self.directory / f'seed_{seed}' for seed in self.seeds]

  def story(self, seed: int, parent: dict | None) -> dict:
    """What a checkpoint tells of its run."""
    return checkpoint.as_story(config=self.config, recipe=self.recipe, seed=seed, parent=parent,
                               data=self.data.metadata(), data_seed=self.data_seed)


def train(run: Run) -> dict:
  """Trains to the last step, from where the run's folder, `resume`, `init_from` or the seeds let it begin.

  Leaves checkpoints and a metrics.jsonl in each network's folder. SIGINT and
  SIGTERM save first and then raise KeyboardInterrupt.

  Returns:
    Rates of this session (see `Monitor.rate`).

  Raises:
    InputError: ids outside the vocabulary, the folder of another run, a
      save that failed, or a loss that is not finite, with its step; what was
      saved before stays.
  """
  for text in (run.data, run.validation):
    text.check(run.config.vocab_size)
  corpus.num_windows(run.data.tokens, run.recipe.length)
  _validation_windows(run)
  state, parents = begin(run)
  step_fn, start = compiled_step(run), int(jnp.max(state.step))
  with _writers(run) as writers, _monitor(run, start) as monitor, _stop_signal() as stop:
    if start == 0:
      _save(run, writers, parents, state, 0)
    for step in range(start + 1, run.recipe.num_steps + 1):
      state, metrics = step_fn(state, batch_at(run, step - 1))
      monitor.add(step, metrics)
      if _is_due(run, step, run.evaluate_every):
        monitor.flush()
        monitor.validation(step, evaluate(run, state.params))
      stopping = stop.is_set()  # Asked once: a signal that comes later is saved for at the next step.
      if _is_due(run, step, run.save_every) or step in run.keep_steps or stopping:
        monitor.flush()
        _save(run, writers, parents, state, step)
      if stopping:
        raise KeyboardInterrupt
    return monitor.rate()


def _is_due(run, step, interval):
  return step % interval == 0 or step == run.recipe.num_steps


def compiled_step(run: Run) -> Callable[[TrainState, jax.Array], tuple[TrainState, dict]]:
  """A step jitted for the run's mesh and networks; it consumes the state it is given."""
  if run.together:
    return jax.jit(functools.partial(ensemble_step, run.config, run.recipe), donate_argnums=0)
  step = functools.partial(train_step, run.config, run.recipe, attend=_attend(run))
  return jax.jit(step, donate_argnums=0, out_shardings=(state_shardings(run), None))


def _attend(run):
  # Fused kernels do not all take a vmapped gradient.
  return attention.plain if run.together else attention.choose(run.config, run.recipe.length, run.mesh)


def batch_at(run: Run, step: int) -> jax.Array:
  """Ids [batch_size, T + 1] of a step, each host's rows read by that host alone."""
  recipe = run.recipe
  rows = functools.partial(corpus.batch, run.data.tokens, run.data_seed, step, recipe.batch_size, recipe.length)
  return _spread(run, rows, recipe.batch_size)


def _spread(run, rows, num_rows):
  shape = num_rows, run.recipe.length + 1
  return jax.make_array_from_callback(shape, NamedSharding(run.mesh, sharding.BATCH), lambda index: rows(index[0]))


def evaluate(run: Run, params: dict) -> np.ndarray:
  """Mean loss [networks], in nats a token, on the first sequences of the validation text."""
  windows_NT, part_size = _validation_windows(run), run.recipe.batch_size // run.recipe.accumulation
  total = 0.0
  for first in range(0, len(windows_NT), part_size):
    part_NT = windows_NT[first:first + part_size]
    tokens_NT = _spread(run, lambda rows, part_NT=part_NT: part_NT[rows], len(part_NT))
    total = total + len(part_NT) * np.asarray(_loss(run.config, _attend(run), run.together)(params, tokens_NT), float)
  return np.atleast_1d(total / len(windows_NT))


def _validation_windows(run):
  """As many as the mesh divides."""
  windows_NT = corpus.first_windows(run.validation.tokens, run.validation_sequences, run.recipe.length)
  shards = run.mesh.shape['data'] * run.mesh.shape['fsdp']
  if len(windows_NT) < shards:
    raise InputError(f'{run.validation.name}: {len(windows_NT)} sequences of length {run.recipe.length} are fewer than '
                     f'the {shards} devices that share a batch')
  return windows_NT[:len(windows_NT) // shards * shards]


@functools.lru_cache(maxsize=4)
def _loss(config, attend, together):
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
    writer.save(step, alone.params, alone.opt_state, run.story(seed, parent))


@jax.jit
def _network(state, i):
  return jax.tree.map(lambda leaf: leaf[i], state)


def _monitor(run, start):
  tokens_a_step = run.recipe.batch_size * run.recipe.length * len(run.seeds)
  flops_a_token = 3 * flops.forward_flops(run.config, run.recipe.length, run.recipe.length) / run.recipe.length
  peak = flops.matmul_rate(run.config.dtype) * run.mesh.size
  return Monitor(run.directories, start, run.recipe.num_steps, tokens_a_step,
                 lambda tokens_per_s: tokens_per_s * flops_a_token / peak)


@contextlib.contextmanager
def _stop_signal():
  """An event that SIGINT or SIGTERM sets, a second of them interrupts; on one host, in the main thread."""
  stop, before = threading.Event(), {}

  def request(number, _):
    stop.set()
    signal.signal(number, before[number])

  # Hosts would stop at different steps, and wait for each other for ever.
  if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield stop
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
