"""The recipe that a training follows (Tables 13 and 14)."""

import dataclasses

from bornbiased_jax import fields
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import (
  choice,
  field,
  natural,
  num_tokens,
  number,
  optional,
  positive,
  whole,
)
from bornbiased_jax.training.adapters import ADAPTERS, RANK


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a model is trained: AdamW with warmup and cosine decay, and clipped gradients.

  Each field's meaning is its help, since fields are flags of the programs that train. With
  init_scheme='mup' some leaves have a learning rate of their own (`step.mup_rates`). `beta1` and
  `beta2` are the decay of the running means of the gradient and of its square.

  Raises:
    InputError: a field cannot have its value, accumulation does not divide batch_size, the warmup
      is not shorter than the run, min_lr exceeds peak_lr, or rank or alpha are given without LoRA.
  """

  num_steps: int = field(whole, 'optimizer steps')
  batch_size: int = field(whole, 'sequences per step, over all devices')
  length: int = field(num_tokens, 'tokens per sequence, T')
  accumulation: int = field(whole, 'parts of a batch, computed one after another to save memory',
                            default=1)
  peak_lr: float = field(number, 'learning rate after warmup', default=6e-4)
  min_lr: float = field(number, 'learning rate that the decay ends at', default=6e-5)
  warmup_steps: int = field(natural, 'steps of linear warmup', default=2000)
  weight_decay: float = field(number, "AdamW's decay of matrices and embeddings", default=0.1)
  beta1: float = 0.9
  beta2: float = 0.95
  clip: float = field(positive, 'norm of the gradient above which it is scaled down to this norm',
                      default=1.0)
  start_id: int | None = field(
      optional(natural), 'token id that every sequence begins with, instead of the one there; if '
      'not given, sequences begin anywhere in the text', default=None)
  adapter: str | None = field(
      optional(choice(*ADAPTERS)), 'what to train instead of all weights; needs --init_from or '
      "--resume: 'lora', a product of low rank for each matrix in a block, or 'prefix_plus', a "
      "matrix that adds a function of queries to each head's output (Prefix-Tuning+)", default=None)
  rank: int | None = field(optional(whole), f'rank of --adapter=lora; if not given, {RANK}',
                           default=None)
  alpha: float | None = field(
      optional(positive), 'the product of --adapter=lora is multiplied by alpha / rank; if not '
      'given, by 1', default=None)
  balance: float = field(number, 'weight of the balance loss of experts in each part of a batch, '
                                 'which the reported loss leaves out; 0: none',
                         default=0.0)

  def __post_init__(self):
    fields.check(self)
    if self.batch_size % self.accumulation:
      raise InputError(f'accumulation={self.accumulation} does not divide '
                       f'batch_size={self.batch_size}', 'accumulation')
    if self.min_lr > self.peak_lr:
      raise InputError(f'min_lr={self.min_lr} exceeds peak_lr={self.peak_lr}', 'min_lr')
    if self.warmup_steps >= self.num_steps:
      raise InputError(f'warmup_steps={self.warmup_steps} must be fewer than '
                       f'num_steps={self.num_steps}', 'warmup_steps')
    if self.adapter == 'lora':
      object.__setattr__(self, 'rank', self.rank or RANK)
    for name in ('rank', 'alpha') if self.adapter != 'lora' else ():
      if getattr(self, name) is not None:
        raise InputError(f"{name}={getattr(self, name)}: only with adapter='lora'", name)

  @property
  def scale(self) -> float:
    """What the product of an adapter is multiplied by."""
    return 1.0 if self.alpha is None or self.rank is None else self.alpha / self.rank
