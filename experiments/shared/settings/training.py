"""Settings of training: what pretrain, training_study, text_sinks and born_unbiased share."""

import dataclasses
from typing import Annotated, ClassVar

import bornbiased_jax
from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.names import ADAPTERS, RANK

from .parsing import choice, listed, natural, number, optional, positive, switch, whole
from .program import (
  Dtype,
  ExperimentSettings,
  Kind,
  Length,
  Lengths,
  Model,
  Seeds,
  Tokenizer,
  at_scale,
  pick,
  setting,
  values_of,
)

A_TEXT = 'text files, a data set as tfds:NAME, or a folder of experiments.tokenize_text'
TO_TRAIN_ON = ('what to train on: text files, folders of them, tfds:NAME, a folder of '
               "experiments.tokenize_text, or 'tinyshakespeare'")
Text = Annotated[str | None, Kind(str, TO_TRAIN_ON, A_TEXT)]
Valid = Annotated[str | None, Kind(
    optional(str), 'what to evaluate on, in the same forms; if not given, the last twentieth of '
    '--data is held out')]
Steps = Annotated[list[int] | None, Kind(
    optional(listed(natural)),
    'steps whose checkpoints are kept; the first and the last always are')]
Remat = Annotated[str, Kind(
    choice(*configs.REMATS), 'what the backward pass computes again instead of storing it: none, '
    'dots (all but products with weights) or full (all)')]
SortedLengths = Annotated[list[int], Kind(
    lambda text: sorted(Lengths.__metadata__[0].parse(text)),
    'sequence lengths at which sinks are measured, comma-separated')]
# Interventions after training.
AFTERWARDS = tuple(name for name in configs.INTERVENTIONS if name not in ('none', *configs.LEARNED))
EvaluateEvery = Annotated[int, Kind(whole, 'steps between evaluations')]


@dataclasses.dataclass(frozen=True)
class Texts(ExperimentSettings):
  """What every training on text has."""

  config: Model = setting('tiny_llama2', paper='nano_llama2')
  seeds: Seeds = setting([42, 43], paper=[42, 123])
  tokenizer: Tokenizer = setting('bytes')
  num_steps: int = setting(1000, whole, 'optimizer steps', smoke=6, continue_=500, paper=200_000)
  batch_size: int = setting(16, whole, 'sequences per step, over all devices', smoke=4, paper=128)
  length: Length = setting(128, smoke=32, paper=2048)
  keep_steps: Steps = setting([10, 100], smoke=[3], continue_=None,
                              paper=[100, 1000, 10_000, 50_000, 100_000, 150_000])
  data_seed: int = setting(42, natural, 'seed of the order of the data, the same for all --seeds')


@dataclasses.dataclass(frozen=True)
class Computation(Texts):
  """How a step is computed."""

  accumulation: int = setting(1, whole, 'parts of a batch, computed one after another to save '
                                        'memory')
  dtype: Dtype = setting('float32', paper='bfloat16')
  remat: Remat = setting('none')


@dataclasses.dataclass(frozen=True)
class Schedule(Computation):
  """The schedule of learning rates, and what goes with it."""

  peak_lr: float = setting(1e-3, number, 'learning rate after warmup', continue_=2e-4, paper=6e-4)
  min_lr: float = setting(1e-4, number, 'learning rate at the last step', continue_=2e-5,
                          paper=6e-5)
  warmup_steps: int = setting(100, natural, 'steps of linear warmup', smoke=2, paper=2000)
  start_id: int | None = setting(
      None, optional(natural), 'token id that every sequence begins with, in place of the one '
      'there; if not given, sequences begin anywhere in the text')
  save_every: int = setting(250, whole, 'steps between checkpoints, of which the latest two are '
                                        'kept', smoke=3, paper=1000)


@dataclasses.dataclass(frozen=True)
class Training(Schedule):
  """All settings of a training; at the scale `continue`, of one that goes on with a network."""

  data: Text = setting('tinyshakespeare', paper=None)
  valid: Valid = setting(None)
  init_from: str | None = setting(
      None, optional(str), 'run, folder of runs, transformers directory, ORG/MODEL[@REVISION] of '
      'the Hugging Face Hub, or BASE+ADAPTER of PEFT, whose parameters to begin with; instead of '
      '--config')
  resume: str | None = setting(
      None, optional(str), 'run, or folder of runs, to go on from, optimizer included; instead of '
      '--config')
  adapter: str | None = setting(
      None, optional(choice(*ADAPTERS)), "what alone is trained, only with --init_from or --resume:"
      " 'lora', of each matrix in a block a product of low rank, with checkpoints of the merged "
      "network; 'prefix_plus', a matrix that adds to each head what it makes of queries "
      '(Prefix-Tuning+)')
  rank: int | None = setting(None, optional(whole), 'rank of --adapter=lora; if not given, '
                                                    f'{RANK}')
  alpha: float | None = setting(
      None, optional(positive), 'the product of --adapter=lora is multiplied by alpha / rank; if '
      'not given, by 1')
  weight_decay: float = setting(0.1, number, "AdamW's decay of matrices and embeddings")
  balance: float = setting(0.0, number, 'weight of the balance loss of experts; 0: none')
  clip: float = setting(1.0, positive,
                        'norm of the gradient above which it is scaled down to this norm')
  evaluate_every: EvaluateEvery = setting(250, smoke=3, paper=1000)
  validation_sequences: int = setting(64, whole, 'sequences per evaluation, from all over the text',
                                      smoke=8, paper=256)
  vocab_size: int | None = setting(None, optional(whole), 'token ids of the model; if not given, '
                                                          'those of the tokenizer')
  max_length: int | None = setting(
      None, optional(whole), 'longest sequence that the model can read, to which interventions '
      "such as 'attenuate' refer; if not given, that of --config, or --length if that is longer")
  tied_head: bool | None = setting(
      None, switch, 'the LM head is the embedding (--notied_head: it is a matrix of its own); if '
      'not given, that of --config')
  init_scheme: str | None = setting(None, optional(choice(*configs.INIT_SCHEMES)),
                                    'how parameters are drawn; if not given, as in --config')
  intervention: str | None = setting(
      None, choice(*configs.INTERVENTIONS), "what is done to each position's weighted mean of "
      f'values, one of {", ".join(configs.INTERVENTIONS)} (see text_sinks --help); if not given, '
      'none, or what the parent has')
  intervention_position: int | None = setting(
      None, optional(natural), "position, from 0, at which 'mask', 'variance' and 'norm' act")
  intervention_strength: float | None = setting(None, optional(positive),
                                                "factor of 'variance' and 'norm'")
  together: int | None = setting(
      None, optional(whole), 'networks that train at once; if not given, all if they are small and '
      'on one device, else 1')
  data_axis: int = setting(0, natural, 'devices that share a batch; 0: all that --fsdp_axis and '
                                       '--tensor_axis leave')
  fsdp_axis: int = setting(1, whole, 'devices that share batch, parameters and optimizer')
  tensor_axis: int = setting(1, whole, 'devices that share each matrix product')

  SCALES: ClassVar = ('smoke', 'laptop', 'continue', 'paper')


def of_study(settings: Texts, base: str, **changes) -> Training:
  """Settings of training at the scale `base`, with those that a study has and some changed."""
  return at_scale(Training, base, **pick(Training, settings) | changes)


def warmup_of(scale: str, num_steps: int) -> int:
  """The scale's warmup, or a third of a short run."""
  return min(values_of(Training, 'warmup_steps')[scale], num_steps // 3)


def check(settings: Training) -> None:
  """Raises InputError for settings that contradict each other, before anything is read or made."""
  recipe_of(settings)
  check_keep_steps(settings)
  if settings.resume and settings.init_from:
    raise InputError('--init_from: only without --resume, which brings parameters too')
  if settings.adapter and not (settings.resume or settings.init_from):
    raise InputError('--adapter: only with --init_from or --resume, which bring the network that '
                     'it adapts')
  if (settings.intervention_position or 0) >= settings.length:
    raise InputError(f'--intervention_position: {settings.intervention_position} is not one of '
                     f'--length={settings.length} positions, from 0')


def check_keep_steps(settings: Texts, keep_steps: str = 'keep_steps',
                     num_steps: str = 'num_steps') -> None:
  """Raises InputError for a step to keep, in the setting `keep_steps`, beyond the last one."""
  last = getattr(settings, num_steps)
  for step in getattr(settings, keep_steps) or ():
    if step > last:
      raise InputError(f'--{keep_steps}: {step} exceeds --{num_steps}={last}')


def recipe_of(settings: Training) -> 'bornbiased_jax.training.Recipe':
  """The recipe; raises InputError for one that is impossible."""
  recipe = bornbiased_jax.training.Recipe  # Imported when it is needed, as it imports JAX.
  return recipe(**pick(recipe, settings))
