"""Trains small networks at a decay exponent F = λ Σ lr: how much of the initialization decays.

With decoupled weight decay λ a weight ends as w_T = Π(1 − λ lr_t) w_0 + what gradients add. The
product is about exp(−F). Decay is one part of the optimizer, the same whatever comes before it.
"""

import dataclasses
import functools
import inspect

import jax
import numpy as np
import optax
from optax import contrib

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data import Corpus, windows
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import next_token_loss
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import TrainState, clipping, first_state, learning_rate

from ..small_networks.training import descend, fit

PEAK_LR = {'adamw': 1e-3, 'sgd': 0.1, 'muon': 1e-3}
# What one factor changes at a time.
VARIANTS = {
    'plain': {}, 'embeddings do not decay': {}, 'warm restart': {},
    'batch / 4': {'batch': 0.25}, 'batch × 4': {'batch': 4}}
# Siblings branch off between parts of a training.
SEGMENTS = 4


@dataclasses.dataclass(frozen=True)
class Cell:
  """How some networks are trained that differ only in their seed.

  λ follows from `forgetting`, F = λ Σ lr. `batch_size` and `length` are those before the variant.
  """

  config: str
  optimizer: str
  forgetting: float
  steps: int
  batch_size: int
  length: int
  variant: str = 'plain'

  @property
  def weight_decay(self) -> float:
    """λ; raises InputError if one step would forget everything."""
    lr_M = rates(self)
    if self.forgetting * lr_M.max() >= lr_M.sum():
      raise InputError(f'{self.steps} are too few for F = {self.forgetting:g}', 'steps')
    return self.forgetting / lr_M.sum()

  @property
  def survival(self) -> float:
    """Π(1 − λ lr_t), the part of an initial weight that is left at the end."""
    return float(np.prod(1 - self.weight_decay * rates(self)))

  @property
  def sequences(self) -> int:
    """Sequences per step."""
    return round(self.batch_size * VARIANTS[self.variant].get('batch', 1))


def schedule(cell: Cell) -> optax.Schedule:
  """Warmup and cosine to a tenth; twice, of half the length, with a warm restart."""
  times = 2 if cell.variant == 'warm restart' else 1
  steps, peak = cell.steps // times, PEAK_LR[cell.optimizer]
  one = learning_rate(Recipe(steps, cell.sequences, cell.length, peak_lr=peak, min_lr=peak / 10,
                             warmup_steps=steps // 20))
  return optax.join_schedules([one] * times, [steps] * (times - 1))


def rates(cell: Cell) -> np.ndarray:
  """The learning rate of each step."""
  with jax.ensure_compile_time_eval():  # They are numbers also where a step is compiled.
    return np.asarray(schedule(cell)(np.arange(cell.steps)), np.float64)


def decays(cell: Cell, params: dict) -> dict:
  """Whether each leaf decays."""
  return jax.tree_util.tree_map_with_path(lambda path, _: is_decayed(cell, path), params)


def is_decayed(cell: Cell, path: tuple) -> bool:
  """Gains and biases do not decay, like in `training.step`."""
  kept = ('embedding', 'position_embedding') if cell.variant == 'embeddings do not decay' else ()
  return path[-1].key not in ('scale', 'bias') and path[0].key not in kept


def optimizer(cell: Cell) -> optax.GradientTransformation:
  """Clipping, the direction of an optimizer, then decoupled decay."""
  return optax.chain(
      clipping(1.0), _direction(cell.optimizer),
      optax.add_decayed_weights(cell.weight_decay, functools.partial(decays, cell)),
      optax.scale_by_learning_rate(schedule(cell)))


def _direction(name):
  if name == 'adamw':
    return optax.scale_by_adam(0.9, 0.95)
  if name == 'sgd':
    return optax.trace(0.9)
  # Matrices of all layers are stacked. The scale is that of AdamW's steps, so that one rate serves
  # both the matrices and the rest, which Muon leaves to Adam; its sign is that of a step down.
  if 'consistent_rms' not in inspect.signature(contrib.muon).parameters:
    raise InputError('--optimizers: muon needs optax 0.2.7 or newer')
  matrices = lambda params: jax.tree_util.tree_map_with_path(
      lambda path, _: contrib.MuonDimensionNumbers(1, 2) if path[-1].key == 'kernel' else None,
      params)
  return optax.chain(
      contrib.muon(1.0, adam_b1=0.9, adam_b2=0.95, consistent_rms=0.2,
                   muon_weight_dimension_numbers=matrices),
      optax.scale(-1.0))


def text(cell: Cell, data: Corpus, data_seed: int) -> np.ndarray:
  """Batches [segments, steps, B, T + 1] of the whole training, in the order of a data seed."""
  batches = [windows.batch(data.tokens, data_seed, step, cell.sequences, cell.length)
             for step in range(cell.steps)]
  return np.stack(batches).reshape(SEGMENTS, -1, cell.sequences, cell.length + 1)


def grow(cell: Cell, start: dict, own_SMBT: np.ndarray, other_SMBT: np.ndarray,
         branches: tuple[int, ...]) -> dict[int | None, dict]:
  """Trains a network, and siblings that go on with other text after so many segments, from 0.

  Returns parameters at the end: of the network by None, of siblings by their branch.
  """
  config = config_of(cell, int(start['embedding'].shape[0]))
  trunk = [first_state(optimizer(cell), start)]
  for segment_MBT in own_SMBT:
    trunk.append(advance(config, cell, trunk[-1], segment_MBT))
  ends = {None: trunk[-1].params}
  for branch in branches:
    state = trunk[branch]
    for segment_MBT in other_SMBT[branch:]:
      state = advance(config, cell, state, segment_MBT)
    ends[branch] = state.params
  return ends


def config_of(cell: Cell, vocab_size: int) -> ModelConfig:
  return configs.get(cell.config, vocab_size=vocab_size)


@functools.partial(jax.jit, static_argnums=(0, 1))
def advance(config: ModelConfig, cell: Cell, state: TrainState, batches_MBT) -> TrainState:
  """The state after some more steps."""
  take_step = functools.partial(descend, config, optimizer(cell), next_token_loss)
  return fit(state, batches_MBT, take_step)
