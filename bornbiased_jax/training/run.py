"""All that defines a training run."""

import dataclasses
import os
from pathlib import Path

from jax.sharding import Mesh

from bornbiased_jax import fields, storage
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data.corpus import Corpus
from bornbiased_jax.errors import InputError, check_id
from bornbiased_jax.fields import SEEDS, field, listed, natural, optional, whole
from bornbiased_jax.files import path_of
from bornbiased_jax.models.sharding import batch_shards
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import optimizer


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """One training run, of one network or of several that differ in their seeds.

  Fields with a help are flags of the programs that train; if there are several seeds, their
  networks train together under vmap.

  Args:
    config: the architecture.
    recipe: how it is trained.
    data: the text to train on.
    validation: the text to evaluate on.
    directory: folder of the run; each network has a folder seed_SEED in it.
    mesh: devices to train on, from `models.make_mesh`.
    init_from: as its flag says, or (config, params) that memory holds.

  Raises:
    InputError: a seed is given twice or outside its range, an interval is
      below one step, a text has no sequence, the start token is no token, the mesh does not divide
      the batch, several networks would train on several devices, sequences
      are longer than the model's, the model lacks the adapter or experts to balance, muP's head is
      tied, or the loss would never reach its routers.
  """

  config: ModelConfig
  recipe: Recipe
  data: Corpus
  validation: Corpus
  directory: Path
  mesh: Mesh
  seeds: tuple[int, ...] = field(SEEDS.parse, SEEDS.help)
  data_seed: int = field(natural, 'seed of the order of the data, the same for all --seeds')
  keep_steps: tuple[int, ...] = field(
      optional(listed(natural)), 'steps whose checkpoints are kept; the first and the last always '
      'are', default=())
  save_every: int = field(whole, 'steps between checkpoints; the latest two are kept',
                          default=1000)
  evaluate_every: int = field(whole, 'steps between evaluations', default=1000)
  validation_sequences: int = field(whole, 'sequences per evaluation, from all over the text',
                                    default=64)
  resume: str | os.PathLike | None = field(
      optional(str), 'run, or folder of runs, to go on from, optimizer included; instead of '
      '--config', default=None)
  init_from: str | os.PathLike | storage.Model | None = field(
      optional(str), 'run, folder of runs, Hugging Face model folder, ORG/MODEL[@REVISION] of the '
      'Hugging Face Hub, or BASE+ADAPTER of PEFT, whose parameters to begin with; instead of '
      '--config', default=None)

  def __post_init__(self):
    object.__setattr__(self, 'directory', path_of(self.directory))
    if isinstance(self.init_from, tuple):  # (config, params)
      object.__setattr__(self, 'init_from', storage.open(self.init_from))
    fields.check(self)
    self._check_batch()
    if self.together and self.mesh.size > 1:
      raise InputError(f'{len(self.seeds)} networks train together on one device only, and here '
                       f'are {self.mesh.size}; train one after another (together=1)', 'together')
    if self.recipe.adapter == 'prefix_plus' and not self.config.prefix_plus:
      raise InputError("adapter='prefix_plus' needs a configuration with prefix_plus=True",
                       'adapter')
    optimizer(self.config, self.recipe)  # Refuses what it has no learning rates for.
    if self.recipe.adapter == 'lora' and self.config.num_experts > 1:
      raise InputError("adapter='lora' knows no experts, and this model has "
                       f'{self.config.num_experts}', 'adapter')
    if self.recipe.balance and self.config.num_experts == 1:
      raise InputError(f'balance={self.recipe.balance}: the model has no experts', 'balance')
    if self.config.num_experts > 1 == self.config.experts_per_token and (
        self.config.renormalized_experts):
      raise InputError('experts_per_token=1 with renormalized_experts=True: the weight of the only '
                       'expert is 1, so that the loss never reaches the router; set '
                       'renormalized_experts=False', 'config')
    check_id('start_id', self.recipe.start_id, self.config.vocab_size)
    if self.recipe.length > self.config.length:
      raise InputError(f'length={self.recipe.length} exceeds the {self.config.length} positions of '
                       'the model', 'length')
    for text in (self.data, self.validation):
      text.check_length(self.recipe.length)

  def _check_batch(self):
    recipe, shards = self.recipe, batch_shards(self.mesh)
    if recipe.batch_size // recipe.accumulation % shards:
      raise InputError(
          f'batch_size={recipe.batch_size} in accumulation={recipe.accumulation} parts cannot be '
          f'spread over data x fsdp = {shards} devices; choose a multiple of '
          f'{recipe.accumulation * shards}', 'batch_size')

  @property
  def together(self) -> bool:
    """Whether there are several networks, so that states have a leading axis of networks."""
    return len(self.seeds) > 1

  @property
  def directories(self) -> list[Path]:
    """The folder of each network, in the order of `seeds`."""
    return [self.directory / f'seed_{seed}' for seed in self.seeds]

  def metadata(self, seed: int, parent: dict | None) -> dict:
    """What the checkpoints of one network say about their run, as JSON."""
    return checkpoint.as_metadata(
        config=self.config, recipe=self.recipe, seed=seed, parent=parent,
        data=self.data.metadata(), data_seed=self.data_seed)
