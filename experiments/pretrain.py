"""Pretraining, from scratch or onwards (Tables 13, 14): networks that differ in their seed alone.

    python -m experiments.pretrain      # two tiny_llama2 on tinyshakespeare, 4 min on two CPU cores
    python -m experiments.pretrain --data=corpora/english --valid=english_valid.jsonl.xz --seeds=42,43
    python -m experiments.pretrain --scale=continue --init_from=results/pretrain_laptop --data=corpora/python

All seeds see the same data in the same order. Small models train together on
one device, larger ones one after another on all devices. --data takes text
(.txt, .jsonl, .xz, folders of them, tfds:NAME), or a folder that
experiments.tokenize_text made. Without --valid the last twentieth of the data
is held out.

OUTPUT_DIR/seed_SEED has the checkpoints (checkpoint.load_params reads them)
and metrics.jsonl; OUTPUT_DIR has results.json and the loss curves, figure.png.
The same command goes on from the latest checkpoint; a new folder begins from
--resume (optimizer included), else --init_from (parameters alone: a run or a
transformers directory), else the seeds.

Several hosts: the same command with --distributed on each of them, with a
shared --output_dir; beside TPU pods and Slurm, also --coordinator=HOST:PORT
--num_processes=N --process_id=I.
"""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
from matplotlib.figure import Figure
import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.data import corpus, tokenizers
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import networks
from bornbiased_jax.models import sharding
from bornbiased_jax.training import loop, monitor, start
from bornbiased_jax.training.step import Recipe
from experiments import command_line
from experiments.command_line import (
  KINDS,
  automatic,
  choice,
  flagged,
  listed,
  number,
  optional,
  positive,
  preset_name,
  required,
  switch,
  whole,
)
from experiments.results import make_directory, table, write_json

# Below this width one network does not fill an accelerator. On two CPU cores several at once took .64 to 1.1 times
# as long as one after another (`benchmark training`).
TOGETHER_WIDTH = 256
HELD_OUT = 0.05

A_TEXT = required('text, a data set as tfds:NAME, or a folder of experiments.tokenize_text')
TRAINING_KINDS = KINDS | {
    'config': (preset_name, f'model, one of {", ".join(configs.PRESETS)}'),
    'vocab_size': (optional(whole), "token ids of the model; 'auto': those of the tokenizer"),
    'max_length': (optional(whole),
                   "longest sequence that the model can read, which the interventions 'attenuate' and 'gain' refer to; "
                   "'auto': the preset's, or --length if longer"),
    'intervention': (automatic(choice(*configs.INTERVENTIONS)),
                     f"what is done to each position's weighted mean of values, of {', '.join(configs.INTERVENTIONS)} "
                     "(attention_sink --help describes them); 'auto': none, or what the parent has"),
    'intervention_position': (optional(lambda text: whole(text, 0)),
                              "position, from 0, at which 'mask', 'variance' and 'norm' act"),
    'intervention_strength': (optional(positive), "factor of 'variance' and 'norm'"),
    'data': (A_TEXT, 'what to train on: text files, folders of them, tfds:NAME, a folder of experiments.tokenize_text, '
                     "or 'tinyshakespeare'"),
    'valid': (optional(str), "what to evaluate on, likewise; 'none': the last twentieth of --data"),
    'tokenizer': (str, "'bytes', a SentencePiece .model file, or a folder with GPT-2's files"),
    'data_seed': (lambda text: whole(text, 0), 'order of the data, the same for all --seeds'),
    'num_steps': (whole, 'optimizer steps'),
    'batch_size': (whole, 'sequences a step, over all devices'),
    'accumulation': (whole, 'parts of a batch, computed one after another to save memory'),
    'peak_lr': (number, 'learning rate after warmup'),
    'min_lr': (number, 'learning rate at the last step'),
    'warmup_steps': (lambda text: whole(text, 0), 'steps of linear warmup'),
    'weight_decay': (number, "AdamW's decay of matrices and embeddings"),
    'clip': (positive, 'norm of the gradient above which it is scaled down to that'),
    'keep_steps': (optional(listed(lambda text: whole(text, 0))),
                   'steps whose checkpoints stay, as the first and the last do'),
    'save_every': (whole, 'steps between checkpoints, of which the latest two stay'),
    'evaluate_every': (whole, 'steps between evaluations'),
    'validation_sequences': (whole, 'sequences of an evaluation'),
    'together': (optional(whole), "networks that train at once; 'auto': all, if small and on one device, else 1"),
    'data_axis': (lambda text: whole(text, 0), 'devices that share a batch; 0: all that the other two leave'),
    'fsdp_axis': (whole, 'devices that share batch, parameters and optimizer'),
    'tensor_axis': (whole, 'devices that share each matrix product'),
    'resume': (optional(str), 'a run, or folder of runs, to go on from, optimizer included; instead of --config'),
    'init_from': (optional(str), 'a run, folder of runs, or transformers directory whose parameters to begin with; '
                                 'instead of --config'),
    'distributed': (switch, 'one of several hosts'),
    'coordinator': (optional(str), 'HOST:PORT of the first process, where it cannot be found out'),
    'num_processes': (optional(whole), 'how many processes there are, likewise'),
    'process_id': (optional(lambda text: whole(text, 0)), 'number of this process, likewise'),
}

_COMMON = dict(vocab_size='auto', max_length='auto', intervention='auto', intervention_position='auto',
               intervention_strength='auto', valid='none', tokenizer='bytes', data_seed='42', accumulation='1',
               weight_decay='0.1', clip='1.0', remat='none', together='auto', data_axis='0', fsdp_axis='1',
               tensor_axis='1', resume='none', init_from='none', distributed='false', coordinator='none',
               num_processes='none', process_id='none')
_LAPTOP = dict(config='tiny_llama2', seeds='42,43', data='tinyshakespeare', num_steps='1000', batch_size='16',
               length='128', peak_lr='1e-3', min_lr='1e-4', warmup_steps='100', dtype='float32', keep_steps='10,100',
               save_every='250', evaluate_every='250', validation_sequences='64', **_COMMON)
SCALES = {
    'smoke': _LAPTOP | dict(num_steps='6', batch_size='4', length='32', warmup_steps='2', keep_steps='3',
                            save_every='2', evaluate_every='3', validation_sequences='8'),
    'laptop': _LAPTOP,
    'continue': _LAPTOP | dict(num_steps='500', peak_lr='2e-4', min_lr='2e-5', keep_steps='none'),
    'paper': _LAPTOP | dict(config='nano_llama2', seeds='42,123', data='none', num_steps='200000', batch_size='128',
                            length='2048', peak_lr='6e-4', min_lr='6e-5', warmup_steps='2000', dtype='bfloat16',
                            keep_steps='100,1000,10000,50000,100000,150000', save_every='1000', evaluate_every='1000',
                            validation_sequences='256'),
}


def main(settings: SimpleNamespace, output_dir: Path) -> None:
  connect(settings)
  run_all = [loop.train(run) for run in runs(settings, output_dir)]
  if jax.process_index() == 0:
    report(settings, output_dir, run_all)


def run_study(settings: SimpleNamespace, names: tuple[str, ...], base: str, output_dir: Path, **overrides) -> None:
  """Calls `main` at the scale `base` with those of a study's settings in `names`, and with others."""
  as_text = lambda value: ('none' if value is None else ','.join(map(str, value)) if isinstance(value, list)
                           else str(value))
  given = {name: getattr(settings, name) for name in names} | overrides
  main(command_line.resolve(SCALES, base, TRAINING_KINDS, **{name: as_text(value) for name, value in given.items()}),
       output_dir)


def check(settings: SimpleNamespace) -> None:
  """Raises InputError for settings that would have no effect."""
  for flag in ('coordinator', 'num_processes', 'process_id'):
    if getattr(settings, flag) is not None and not settings.distributed:
      raise InputError(f'--{flag}: only with --distributed')
  if settings.resume and settings.init_from:
    raise InputError('--init_from: only without --resume, which brings parameters too')
  beyond = [step for step in settings.keep_steps or () if step > settings.num_steps]
  if beyond:
    raise InputError(f'--keep_steps: {beyond[0]} exceeds --num_steps={settings.num_steps}')
  if (settings.intervention_position or 0) >= settings.length:
    raise InputError(f'--intervention_position: {settings.intervention_position} is not one of --length='
                     f'{settings.length} positions, from 0')


def connect(settings: SimpleNamespace) -> None:
  """Joins the other hosts; before anything asks for a device."""
  if not settings.distributed:
    return
  try:
    jax.distributed.initialize(settings.coordinator, settings.num_processes, settings.process_id)
  except (ValueError, RuntimeError) as error:
    raise InputError(f'--distributed: {error}; give --coordinator, --num_processes and --process_id') from None


def runs(settings: SimpleNamespace, output_dir: Path) -> list[loop.Run]:
  """The runs, one after another, into which memory and devices divide the seeds."""
  check(settings)
  train, valid = texts(settings)
  config = model(settings, train)
  if settings.resume or settings.init_from:
    settings.config = None  # Not what results.json should say then.
  recipe = Recipe(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(Recipe)
                     if hasattr(settings, field.name)})
  mesh = sharding.make_mesh(settings.data_axis, settings.fsdp_axis, settings.tensor_axis)
  small = config.width <= TOGETHER_WIDTH and mesh.size == 1
  together = settings.together or (len(settings.seeds) if small else 1)
  make_directory(output_dir)
  return [loop.Run(config, recipe, tuple(settings.seeds[first:first + together]), train, valid, settings.data_seed,
                   output_dir, mesh, tuple(settings.keep_steps or ()), settings.save_every, settings.evaluate_every,
                   settings.validation_sequences, settings.resume, settings.init_from)
          for first in range(0, len(settings.seeds), together)]


def texts(settings: SimpleNamespace) -> tuple[corpus.Corpus, corpus.Corpus]:
  """What to train on, and what to evaluate on."""
  tokenizer = flagged('tokenizer', tokenizers.load, settings.tokenizer)
  train = flagged('data', corpus.load, settings.data, tokenizer)
  if settings.valid:
    return train, flagged('valid', corpus.load, settings.valid, tokenizer)
  return corpus.hold_out(train, HELD_OUT)


def model(settings: SimpleNamespace, train: corpus.Corpus) -> configs.ModelConfig:
  """The preset, or what the parent is, with the settings that do not change its shape."""
  own = {name: getattr(settings, name) for name in
         ('dtype', 'remat', 'intervention', 'intervention_position', 'intervention_strength')
         if getattr(settings, name) is not None}
  source = settings.resume or settings.init_from
  if source:
    if settings.vocab_size or settings.max_length:
      raise InputError(f'--{"vocab_size" if settings.vocab_size else "max_length"}: the parent brings its own')
    config = flagged('resume' if settings.resume else 'init_from', parent_config, source)
    flagged('seeds', start.parents_of, source, settings.seeds)
    return dataclasses.replace(config, **own)
  vocab_size = settings.vocab_size or train.vocab_size
  length = settings.max_length or max(settings.length, configs.get(settings.config).length)
  return configs.get(settings.config, vocab_size=vocab_size, length=length, **own)


def parent_config(source: str) -> configs.ModelConfig:
  """Of a run, a folder of runs (its first), or a transformers directory."""
  if not Path(source).expanduser().is_dir():
    raise InputError(f'{source} is not a directory: neither a run, nor a folder of runs, nor a transformers model')
  return networks.load_config(str(next(iter(start.runs_in(source)), source)))


def report(settings: SimpleNamespace, output_dir: Path, rates: list[dict]) -> None:
  metrics = {seed: monitor.read(output_dir / f'seed_{seed}') for seed in settings.seeds}
  summary = [summarize(seed, lines) for seed, lines in metrics.items()]
  write('pretrain', settings, output_dir, summary, figure(metrics), rates=rates)


def write(experiment: str, settings: SimpleNamespace, output_dir: Path, summary: list[dict], drawn: Figure,
          **more) -> None:
  """results.json, the loss curves and a table."""
  write_json(output_dir / 'results.json', {'experiment': experiment, 'settings': vars(settings),
                                           'environment': environment(), **more, 'summary': summary})
  plotting.save(drawn, output_dir / 'figure.png')
  print(table([{name: f'{value:.3f}' if isinstance(value, float) else str(value) for name, value in row.items()}
               for row in summary]))
  print(f'wrote {output_dir}/results.json and {output_dir}/figure.png, beside the checkpoints')


def summarize(seed: int, lines: list[dict]) -> dict:
  trained = [line for line in lines if 'loss' in line]
  evaluated = [line for line in lines if 'perplexity' in line]
  tail = np.mean([line['loss'] for line in trained[-max(1, len(trained) // 20):]])
  return {'seed': seed, 'step': trained[-1]['step'], 'loss': float(tail),
          'validation_loss': evaluated[-1]['validation_loss'], 'perplexity': evaluated[-1]['perplexity']}


def figure(metrics_of_seed: dict[int, list[dict]]):
  """Training loss, smoothed over a hundredth of the run, and validation loss as dots."""
  with plotting.style():
    drawn = plotting.figure(6, 3.4)
    ax = drawn.subplots()
    for seed, lines in metrics_of_seed.items():
      plotting.loss_curve(ax, lines, label=f'seed {seed}')
    ax.set(xlabel='optimizer step', ylabel='loss (nats a token)', title='Training loss (line), validation loss (dots)')
    ax.legend(ncols=1 + len(metrics_of_seed) // 6)
  return drawn


if __name__ == '__main__':
  command_line.run(main, 'pretrain', SCALES, __doc__, TRAINING_KINDS)
