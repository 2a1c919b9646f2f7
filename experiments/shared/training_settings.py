"""Settings of training: what pretrain, training_study and text_sinks have in common."""

import dataclasses
from types import SimpleNamespace

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.training import Recipe

from . import command_line
from .command_line import Setting, name_flags
from .parsing import (
  choice,
  listed,
  number,
  optional,
  positive,
  preset_name,
  whole,
)

A_TEXT = 'text files, a data set as tfds:NAME, or a folder of experiments.tokenize_text'
SETTINGS = command_line.SETTINGS | {
    'config': Setting(preset_name, 'model, one of those below'),
    'data': Setting(str,
                    'what to train on: text files, folders of them, tfds:NAME, a folder of '
                    "experiments.tokenize_text, or 'tinyshakespeare'", hint=A_TEXT),
    'valid': Setting(optional(str),
                     'what to evaluate on, in the same forms; if not given, the last twentieth of '
                     '--data is held out'),
    'tokenizer': Setting(str, "'bytes', a SentencePiece .model file, or a folder with GPT-2's "
                              'encoder.json and vocab.bpe'),
    'init_from': Setting(optional(str),
                         'run, folder of runs, transformers directory, or ORG/MODEL[@REVISION] of '
                         'the Hugging Face Hub whose parameters to begin with; instead of '
                         '--config'),
    'resume': Setting(optional(str),
                      'run, or folder of runs, to go on from, optimizer included; instead of '
                      '--config'),
    'num_steps': Setting(whole, 'optimizer steps'),
    'batch_size': Setting(whole, 'sequences per step, over all devices'),
    'accumulation': Setting(whole,
                            'parts of a batch, computed one after another to save memory'),
    'peak_lr': Setting(number, 'learning rate after warmup'),
    'min_lr': Setting(number, 'learning rate at the last step'),
    'warmup_steps': Setting(lambda text: whole(text, 0), 'steps of linear warmup'),
    'weight_decay': Setting(number, "AdamW's decay of matrices and embeddings"),
    'clip': Setting(positive, 'norm of the gradient above which it is scaled down to this norm'),
    'start_id': Setting(optional(lambda text: whole(text, 0)),
                        'token id that every sequence begins with, in place of the one there; if '
                        'not given, sequences begin anywhere in the text'),
    'keep_steps': Setting(optional(listed(lambda text: whole(text, 0))),
                          'steps whose checkpoints are kept; the first and the last always are'),
    'save_every': Setting(whole, 'steps between checkpoints, of which the latest two are kept'),
    'evaluate_every': Setting(whole, 'steps between evaluations'),
    'validation_sequences': Setting(whole, 'sequences per evaluation, from all over the text'),
    'data_seed': Setting(lambda text: whole(text, 0),
                         'seed of the order of the data, the same for all --seeds'),
    'vocab_size': Setting(optional(whole),
                          'token ids of the model; if not given, those of the tokenizer'),
    'max_length': Setting(optional(whole),
                          'longest sequence that the model can read, to which interventions such '
                          "as 'attenuate' refer; if not given, that of --config, or --length if "
                          'that is longer'),
    'tied_head': Setting(None,
                         'the LM head is the embedding (--notied_head: it is a matrix of its own); '
                         'if not given, that of --config'),
    'init_scheme': Setting(optional(choice(*configs.INIT_SCHEMES)),
                           'how parameters are drawn; if not given, as in --config'),
    'intervention': Setting(choice(*configs.INTERVENTIONS),
                            "what is done to each position's weighted mean of values, one of "
                            f'{", ".join(configs.INTERVENTIONS)} (see text_sinks --help); if '
                            'not given, none, or what the parent has'),
    'intervention_position': Setting(optional(lambda text: whole(text, 0)),
                                     "position, from 0, at which 'mask', 'variance' and 'norm' "
                                     'act'),
    'intervention_strength': Setting(optional(positive), "factor of 'variance' and 'norm'"),
    'together': Setting(optional(whole),
                        'networks that train at once; if not given, all if they are small and on '
                        'one device, else 1'),
    'data_axis': Setting(lambda text: whole(text, 0),
                         'devices that share a batch; 0: all that --fsdp_axis and --tensor_axis '
                         'leave'),
    'fsdp_axis': Setting(whole, 'devices that share batch, parameters and optimizer'),
    'tensor_axis': Setting(whole, 'devices that share each matrix product'),
}

_LAPTOP = dict(
    config='tiny_llama2', seeds=[42, 43], data='tinyshakespeare', valid=None, tokenizer='bytes',
    init_from=None, resume=None, num_steps=1000, batch_size=16, length=128, accumulation=1,
    peak_lr=1e-3, min_lr=1e-4, warmup_steps=100, weight_decay=0.1, clip=1.0, start_id=None,
    dtype='float32', remat='none', keep_steps=[10, 100], save_every=250, evaluate_every=250,
    validation_sequences=64, data_seed=42, vocab_size=None, max_length=None, tied_head=None,
    init_scheme=None, intervention=None, intervention_position=None, intervention_strength=None,
    together=None, data_axis=0, fsdp_axis=1, tensor_axis=1)
SCALES = {
    'smoke': _LAPTOP | dict(
        num_steps=6, batch_size=4, length=32, warmup_steps=2, keep_steps=[3], save_every=2,
        evaluate_every=3, validation_sequences=8),
    'laptop': _LAPTOP,
    'continue': _LAPTOP | dict(num_steps=500, peak_lr=2e-4, min_lr=2e-5, keep_steps=None),
    'paper': _LAPTOP | dict(
        config='nano_llama2', seeds=[42, 123], data=None, num_steps=200_000, batch_size=128,
        length=2048, peak_lr=6e-4, min_lr=6e-5, warmup_steps=2000, dtype='bfloat16',
        keep_steps=[100, 1000, 10_000, 50_000, 100_000, 150_000], save_every=1000,
        evaluate_every=1000, validation_sequences=256),
}


def of_study(settings: SimpleNamespace, names: tuple[str, ...], base: str,
             **changes) -> SimpleNamespace:
  """Settings of training at the scale `base`, with a study's own in `names` and some changed."""
  own = {name: getattr(settings, name) for name in names}
  return SimpleNamespace(scale=base, **SCALES[base] | own | changes)


def warmup_of(scale: str, num_steps: int) -> int:
  """The scale's warmup, or a third of a short run."""
  return min(SCALES[scale]['warmup_steps'], num_steps // 3)


def check(settings: SimpleNamespace) -> None:
  """Raises InputError for settings that contradict each other, before anything is read or made."""
  recipe_of(settings)
  check_keep_steps(settings)
  if settings.resume and settings.init_from:
    raise InputError('--init_from: only without --resume, which brings parameters too')
  if (settings.intervention_position or 0) >= settings.length:
    raise InputError(f'--intervention_position: {settings.intervention_position} is not one of '
                     f'--length={settings.length} positions, from 0')


def check_keep_steps(settings: SimpleNamespace, keep_steps: str = 'keep_steps',
                     num_steps: str = 'num_steps') -> None:
  """Raises InputError for a step to keep, in the setting `keep_steps`, beyond the last one."""
  last = getattr(settings, num_steps)
  for step in getattr(settings, keep_steps) or ():
    if step > last:
      raise InputError(f'--{keep_steps}: {step} exceeds --{num_steps}={last}')


def recipe_of(settings: SimpleNamespace) -> Recipe:
  """The recipe; raises InputError for one that is impossible, and names its flags."""
  names = [field.name for field in dataclasses.fields(Recipe) if hasattr(settings, field.name)]
  return name_flags(Recipe, **{name: getattr(settings, name) for name in names})
