"""Settings that several programs have: of ensembles, of comparisons and of training."""

import functools

from bornbiased_jax.analysis import probes
from bornbiased_jax.data import Corpus, Tokenizer, corpus, load_tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import natural, optional, whole
from bornbiased_jax.training import Recipe

from .settings import (
  MODELS,
  PROBE_DATA,
  ProgramSettings,
  at_scale,
  name_flag,
  pick,
  setting,
  values_of,
)

# Initializations with and without a common direction, and what figures call them.
INITS = {'gpt2': 'GPT-2 initialization', 'centred': 'centred'}


class ExperimentSettings(ProgramSettings):
  """The settings of a program that has several scales."""

  SCALES = ('smoke', 'laptop', 'paper')


class Stacks(ExperimentSettings):
  """Ensembles of simplified layers."""

  seeds: list[int] = setting(range(10), smoke=range(3), paper=range(20))
  num_sequences: int = setting(1000, smoke=60, paper=10_000)
  probe_seed: int = setting(0)
  batch_size: int | None = setting(None, optional(whole), 'sequences per forward pass; if not '
                                   'given, what suits the device')
  chunk_size: int | None = setting(None, optional(whole), 'networks at once; if not given, as many '
                                   'as memory holds')

  TECHNICAL = ('probe_seed', 'batch_size', 'chunk_size')


class Transformers(Stacks):
  """Ensembles of transformers."""

  config: list[str] = setting(['tiny_gpt2'], *MODELS)
  probe: str = setting('tokens')
  data: str | None = setting(None, *PROBE_DATA)
  tokenizer: str = setting('bytes')
  embedding_seed: int | None = setting(
      None, optional(natural), 'seed from which all networks take their embedding and head, so '
      "that token ids mean the same in all; with 'none' each has its own")
  dtype: str = setting('float32')

  TECHNICAL = ('probe', 'data', 'tokenizer', 'embedding_seed', 'dtype', *Stacks.TECHNICAL)


def text_of(settings: Transformers) -> Corpus | None:
  """What a probe of text reads."""
  if settings.probe not in probes.OF_TEXT:
    if settings.data:
      raise InputError('--data: is read only with --probe=text or --probe=shuffled')
    return None
  if not settings.data:
    raise InputError(f"--data: --probe={settings.probe} needs a text, such as 'tinyshakespeare'")
  return load_corpus(settings.data, settings.tokenizer)


@functools.lru_cache(maxsize=16)
def load_corpus(data: str, tokenizer: str, data_flag: str = 'data',
                tokenizer_flag: str = 'tokenizer') -> Corpus:
  """A text in the tokens of a tokenizer, once; errors name the flags that both are from."""
  of_flag = name_flag(tokenizer_flag, load_tokenizer, tokenizer)
  return load_text(data_flag, data, of_flag)


def load_text(flag: str, spec: str, tokenizer: Tokenizer) -> Corpus:
  """The text that a flag names; of one too large for memory, the error names the program to use."""
  try:
    return name_flag(flag, corpus.load, spec, tokenizer)
  except InputError as error:
    message = str(error).replace('corpus.write', 'python -m experiments.tokenize_text')
    raise InputError(message) from None


class Inputs(ExperimentSettings):
  """Random sequences that networks read, to be compared."""

  num_sequences: int = setting(2000)
  length: int = setting(64)
  probe_seed: int = setting(0)

  TECHNICAL = ('probe_seed',)


class SharedInputs(Inputs):
  """Sequences for networks that may have different vocabularies."""

  num_ids: int | None = setting(
      None, optional(whole), 'random token ids are drawn below this number, so that models of '
      'different vocabularies read the same; if not given, below the smallest of their '
      'vocabularies')

  TECHNICAL = ('num_ids', *Inputs.TECHNICAL)


def until(last: str):
  """For `FITTED`, the steps of a list that a run has, whose number of steps a setting says."""
  return lambda steps, values: steps and [step for step in steps if step <= values[last]]


class Texts(ExperimentSettings):
  """What every training on text has."""

  config: str = setting('tiny_llama2', paper='nano_llama2')
  seeds: list[int] = setting([42, 43], paper=[42, 123])
  tokenizer: str = setting('bytes')
  num_steps: int = setting(1000, smoke=6, continue_=500, paper=200_000)
  batch_size: int = setting(16, smoke=4, paper=128)
  length: int = setting(128, smoke=32, paper=2048)
  keep_steps: list[int] | None = setting([10, 100], smoke=[3], continue_=None, paper=[
      100, 1000, 10_000, 50_000, 100_000, 150_000])
  data_seed: int = setting(42)

  TECHNICAL = ('data_seed',)
  FITTED = {'keep_steps': until('num_steps')}


class Computation(Texts):
  """How a step is computed."""

  accumulation: int = setting(Recipe.accumulation)
  dtype: str = setting('float32', paper='bfloat16')
  remat: str = setting('none')


class Schedule(Computation):
  """The schedule of learning rates, and what goes with it."""

  peak_lr: float = setting(1e-3, continue_=2e-4, paper=6e-4)
  min_lr: float = setting(1e-4, continue_=2e-5, paper=6e-5)
  warmup_steps: int = setting(100, smoke=2, paper=2000)
  start_id: int | None = setting(None)
  save_every: int = setting(250, smoke=3, paper=1000)
  together: int | None = setting(
      None, optional(whole), 'networks that train at once; if not given, all if they are small and '
      'on one device, else 1')

  FITTED = Computation.FITTED | {'warmup_steps': lambda steps, values: (
      steps if steps < values['num_steps'] else values['num_steps'] // 3),
      'min_lr': lambda rate, values: (
          rate if rate <= values['peak_lr'] else values['peak_lr'] / 10)}


class Training(Schedule):
  """All settings of a training; at the scale `continue`, of one that goes on with a network.

  Those that are fields of `training.Recipe` and `training.Run` are what is said of them there.
  """

  data: str | None = setting('tinyshakespeare', paper=None)
  valid: str | None = setting(None)
  init_from: str | None = setting(None)
  resume: str | None = setting(None)
  adapter: str | None = setting(None)
  rank: int | None = setting(None)
  alpha: float | None = setting(None)
  weight_decay: float = setting(Recipe.weight_decay)
  balance: float = setting(Recipe.balance)
  clip: float = setting(Recipe.clip)
  evaluate_every: int = setting(250, smoke=3, paper=1000)
  validation_sequences: int = setting(64, smoke=8, paper=256)
  vocab_size: int | None = setting(None, optional(whole), 'token ids of the model; if not given, '
                                                          'those of the tokenizer')
  max_length: int | None = setting(
      None, optional(whole), 'longest sequence that the model can read, to which interventions '
      "such as 'attenuate' refer; if not given, as --config says, or --length if longer")
  tied_head: bool | None = setting(None)
  init_scheme: str | None = setting(None)
  intervention: str | None = setting(None)
  intervention_position: int | None = setting(None)
  intervention_strength: float | None = setting(None)
  data_axis: int = setting(0, natural, 'devices that share a batch; 0: all that --fsdp_axis and '
                                       '--tensor_axis leave')
  fsdp_axis: int = setting(1, whole, 'devices that share batch, parameters and optimizer')
  tensor_axis: int = setting(1, whole, 'devices that share each matrix product')

  SCALES = ('smoke', 'laptop', 'continue', 'paper')
  TECHNICAL = (
      'data_seed', 'start_id', 'clip', 'balance', 'validation_sequences', 'intervention',
      'intervention_position', 'intervention_strength', 'max_length')


def of_study(settings: Texts, base: str, **changes) -> Training:
  """Settings of training at the scale `base`, with those that a study has and some changed.

  A study that has no warmup has the scale's, or a third of a short run.
  """
  own = pick(Training, settings) | changes
  warmup = min(values_of(Training, 'warmup_steps')[base], own['num_steps'] // 3)
  return at_scale(Training, base, **{'warmup_steps': warmup} | own)


def check(settings: Training) -> None:
  """Raises InputError for settings that contradict each other, before anything is read or made."""
  recipe_of(settings)
  check_keep_steps(settings)
  if settings.resume and settings.init_from:
    raise InputError('--init_from: only without --resume, which brings parameters too')
  if settings.adapter and not (settings.resume or settings.init_from):
    raise InputError('--adapter: only with --init_from or --resume, which bring the model that '
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


def recipe_of(settings: Training) -> Recipe:
  """The recipe; raises InputError for one that is impossible."""
  return Recipe(**pick(Recipe, settings))
