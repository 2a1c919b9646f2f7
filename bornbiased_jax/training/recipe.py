"""The recipe that a training follows (Tables 13 and 14)."""

import dataclasses
import math

from bornbiased_jax.errors import InputError, check_count, check_positive
from bornbiased_jax.training.adapters import ADAPTERS, RANK


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a model is trained: AdamW with warmup and cosine decay, and clipped gradients.

  Args:
    num_steps: optimizer steps.
    batch_size: sequences per step, over all devices and accumulated parts.
    length: positions per sequence, T.
    accumulation: number of parts into which a batch is split; they are
      computed one after another.
    peak_lr: learning rate after warmup. With init_scheme='mup' some leaves have another one
      (`mup_rates`).
    min_lr: learning rate at the last step.
    warmup_steps: steps of linear warmup.
    weight_decay: AdamW's decay of matrices and embeddings; gains and biases
      do not decay.
    beta1: decay of the running mean of the gradient.
    beta2: decay of the running mean of its square.
    clip: global norm above which the gradient is scaled down to it.
    start_id: token id that every sequence begins with, in place of the one
      there; None leaves sequences as they are.
    adapter: what alone is trained (`adapters`), 'lora' or 'prefix_plus'; None
      trains all parameters.
    rank: of LoRA; None is RANK.
    alpha: LoRA's product is multiplied by alpha / rank; None is the rank.
    balance: weight of the balance loss of experts (`models.mlp.balance_loss`), which is no part
      of the loss that is reported; 0: experts are not balanced.

  Raises:
    InputError: accumulation does not divide batch_size, the warmup is
      longer than the run, or rank or alpha are given without LoRA.
  """

  num_steps: int
  batch_size: int
  length: int
  accumulation: int = 1
  peak_lr: float = 6e-4
  min_lr: float = 6e-5
  warmup_steps: int = 2000
  weight_decay: float = 0.1
  beta1: float = 0.9
  beta2: float = 0.95
  clip: float = 1.0
  start_id: int | None = None
  adapter: str | None = None
  rank: int | None = None
  alpha: float | None = None
  balance: float = 0.0

  def __post_init__(self):
    for name in ('num_steps', 'batch_size', 'length', 'accumulation'):
      check_count(name, getattr(self, name))
    if self.batch_size % self.accumulation:
      raise InputError(f'accumulation={self.accumulation} does not divide '
                       f'batch_size={self.batch_size}', 'accumulation')
    if self.min_lr > self.peak_lr:
      raise InputError(f'min_lr={self.min_lr} exceeds peak_lr={self.peak_lr}', 'min_lr')
    if self.warmup_steps >= self.num_steps:
      raise InputError(f'warmup_steps={self.warmup_steps} must be fewer than '
                       f'num_steps={self.num_steps}', 'warmup_steps')
    if not 0 <= self.balance < math.inf:
      raise InputError(f'balance={self.balance!r} is no number from 0', 'balance')
    self._resolve_adapter()

  def _resolve_adapter(self):
    if self.adapter not in (None, *ADAPTERS):
      raise InputError(f'adapter={self.adapter!r} is none of {", ".join(ADAPTERS)}', 'adapter')
    for name in ('rank', 'alpha'):
      if self.adapter != 'lora' and getattr(self, name) is not None:
        raise InputError(f"{name}={getattr(self, name)}: only with adapter='lora'", name)
    if self.adapter == 'lora':
      rank = RANK if self.rank is None else self.rank
      check_count('rank', rank)
      check_positive('alpha', rank if self.alpha is None else self.alpha)
      object.__setattr__(self, 'rank', rank)

  @property
  def scale(self) -> float:
    """What the product of an adapter is multiplied by."""
    return 1.0 if self.alpha is None or self.rank is None else self.alpha / self.rank
