"""Attention sinks of networks on text, under interventions (Fig 12, Table 7).

    python -m experiments.text_sinks --data=my_train.jsonl.xz --texts=my_test.txt,other.jsonl.xz
    python -m experiments.text_sinks my_llama/ --tokenizer=my_llama/tokenizer.model \\
        --texts=my_text.txt --output_dir=results/sinks_of_my_llama

Networks of the same seeds are trained on the same data in the same order, each with one of
--interventions on o_i, the weighted mean of values at position i:

    none                none
    amplify, attenuate  o_i sqrt(i), o_i sqrt(i / T): the same variance everywhere, if attention
                        were uniform
    rmsnorm             each head's o_i normalized to mean square 1, with a learned gain
    sink_logit          each head has a learned score that takes weight and gives no value (gpt-oss)
    gain, damp          o_i times a constant: the mean factor of 'amplify' and of 'attenuate'
    mask                --position attends only to itself, and keeps its variance
    variance, norm      --strength times o_i at --position, about its mean and as a whole

Networks trained without one are also measured under each of --afterwards, which they have never
met. So are networks named on the command line; then nothing is trained. Sequences begin with the id
that a run was trained with, else with the BOS of the tokenizer's files, else with --start_id.

A head is a sink in a sequence if the mean weight on the position, over the queries from it on,
exceeds 0.3. Sequences are drawn from the first of --texts (by default the last twentieth of
--data). Losses are measured on the first --loss_sequences windows of each of --texts, in nats
per token. "Disparity first" says in how many of the networks with sinks the first token's largest
coordinate had doubled, over their mean, at a checkpoint before each layer's sink.

--scale=laptop takes about an hour on two CPU cores. One intervention after another is trained and
measured; finished ones are not trained again. Writes the checkpoints to
OUTPUT_DIR/INTERVENTION/seed_SEED, results.json (a row per network and step) and figure.png.
"""

import dataclasses
from pathlib import Path
import shutil

from bornbiased_jax import configs, storage
from bornbiased_jax.data import Corpus, Tokenizer, hold_out, load_tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import choice, listed, natural, optional, positive, whole
from bornbiased_jax.storage import Model

from ..shared import base_settings, program, runs
from ..shared.base_settings import Schedule, Training
from ..shared.networks import Beginning, beginning_of, check_length, check_shortest
from ..shared.settings import (
  A_TEXT,
  SINK_LENGTHS,
  TO_TRAIN_ON,
  arguments,
  kinds,
  name_flag,
  refuse,
  setting,
  some,
)
from . import report
from .measures import losses, measure
from .report import display

# Models pad their vocabularies by a few percent.
PADDING = 1.1


class Settings(Schedule):
  networks: list[str] = arguments('[NETWORK ...]')
  data: str | None = setting('tinyshakespeare', optional(str), TO_TRAIN_ON, paper=None)
  seeds: list[int] = setting([42, 43])
  texts: list[str] | None = setting(
      None, listed(str), 'text files to evaluate on, comma-separated, the first also for sink '
      'rates; if not given, the last twentieth of --data')
  interventions: list[str] = setting(
      list(configs.INTERVENTIONS), *some(configs.INTERVENTIONS, 'what networks are trained with'),
      smoke=['none', 'mask'])
  afterwards: list[str] | None = setting(
      ['amplify', 'attenuate', 'mask', 'variance', 'norm'], smoke=['amplify'])
  position: int = setting(16, natural, "position, from 0, at which 'mask', "
                          "'variance' and 'norm' make another sink", smoke=4)
  strength: float = setting(4.0, positive, "factor of 'variance' and 'norm'")
  lengths: list[int] = setting([32, 64, 128], *SINK_LENGTHS, smoke=[16, 32],
                               paper=[32, 64, 128, 256, 512])
  num_sequences: int = setting(100, smoke=8, help='sequences over which sink rates are averaged')
  loss_sequences: int = setting(256, whole, 'windows of --length tokens at the beginning of each '
                                            'text whose loss is measured, at most', smoke=8)
  probe_seed: int = setting(0)
  num_steps: int = setting(2000, smoke=6, paper=200_000)
  peak_lr: float = setting(3e-3, paper=6e-4)
  min_lr: float = setting(3e-4, paper=6e-5)
  keep_steps: list[int] | None = setting([100, 300, 600, 1000, 1500], smoke=[3],
                              paper=[300, 1000, 3000, 10_000, 30_000, 100_000])
  save_every: int = setting(250, paper=1000)
  checkpoints: str = setting('all', choice('all', 'last'), "with 'last', the first checkpoint of "
                             'a network and those of --keep_steps are removed when its '
                             'intervention is measured')


# What tells the rows of networks apart. One that is named on the command line has its name as its
# intervention, and neither seed nor step.
FIELDS = 'intervention', 'afterwards', 'seed', 'step'
# By the values of these fields, networks as `storage.open` takes them.
Sources = dict[tuple, str]
# What is of no use to networks that are named.
OF_TRAINING = {'interventions', 'checkpoints', *kinds(Schedule)} - {
    'length', 'start_id', 'tokenizer'}


def main(settings, results):
  check(settings)
  tokenizer, texts = load_texts(settings)
  if settings.networks:
    groups = {None: named(settings, tokenizer, texts)}
  else:
    groups = {each: checkpoints(settings, each, results.directory)
              for each in settings.interventions}
  keys_of = {name: [dict(zip(FIELDS, key, strict=True)) for key in sources]
             for name, sources in groups.items()}
  settings = check_position(settings, sum(keys_of.values(), []))
  for intervention, sources in groups.items():
    keys = keys_of[intervention]
    if intervention and results.lacking(keys):
      training = training_of(settings, intervention)
      runs.train_for(results, {results.directory / intervention: training})
    for row in results.missing(keys, 'network'):
      results.add(row | measured(row, sources[*row.values()], tokenizer, texts, settings))
    remove(settings, sources)
  results.finish(report.summarize(results.rows), display,
                 lambda: report.draw(results.rows, settings))


def remove(settings, sources: Sources) -> None:
  """Removes the checkpoints of a training before its last, unless all are to stay."""
  for (*_, step), source in sources.items() if settings.checkpoints == 'last' else ():
    if step is not None and step < settings.num_steps:
      shutil.rmtree('/'.join(source.rsplit('@', 1)), ignore_errors=True)


def measured(row: dict, source: str, tokenizer: Tokenizer, texts: dict[str, Corpus],
             settings) -> dict:
  """The rest of the row of a network."""
  model = storage.open(source)
  try:
    config, params = model.load()
  except InputError as error:
    again = f'; to train it again, remove {Path(source).parent}' if row['seed'] is not None else ''
    raise InputError(f'{error}{again}') from None
  if row['afterwards']:
    config = dataclasses.replace(
        config, intervention=row['afterwards'], intervention_position=settings.position,
        intervention_strength=settings.strength)
  beginning = check_beginning(model, tokenizer, settings)
  settings = dataclasses.replace(settings, start_id=next(iter(beginning.ids), None))
  is_last = row['step'] in (None, settings.num_steps)
  found = measure(config, params, texts, settings, is_last)
  return {'begins_with': str(beginning)} | found | {'loss': losses(config, params, texts, settings)}


def check_beginning(model: Model, tokenizer: Tokenizer, settings) -> Beginning:
  beginning = beginning_of(model, tokenizer, settings.start_id)
  if len(beginning.ids) > 1:
    raise InputError(f'sequences of {model.name} begin with ids {beginning}; only one can be set '
                     'here')
  return beginning


def check(settings) -> None:
  """Raises InputError for what would otherwise fail after an hour."""
  longest = settings.lengths[-1]
  if longest > settings.length:
    raise InputError(f'--lengths: {longest} exceeds --length={settings.length}, the sequences that '
                     'networks read')
  check_shortest(settings.lengths[0])
  if not settings.data and not (settings.networks and settings.texts):
    raise InputError(f'--data: is missing: {A_TEXT}')
  if settings.networks:
    refuse(settings, OF_TRAINING, 'networks that are named are not trained; leave it out')
    if settings.texts and settings.data:
      refuse(settings, ['data'], 'networks that are named read --texts; leave it out')
    return
  check_attention('--config', configs.get(settings.config))
  if 'none' not in settings.interventions:
    raise InputError("--interventions: 'none' must be among them, which the others are compared "
                     'with')
  for intervention in settings.interventions:
    base_settings.check(training_of(settings, intervention))


def check_position(settings, keys: list[dict]):
  """The settings for networks of these keys, without --position if nothing acts there."""
  if not report.acts_there(keys):
    refuse(settings, ['position', 'strength'], 'nothing acts at one position')
    return dataclasses.replace(settings, position=None)
  if settings.position >= settings.lengths[0]:
    raise InputError(f'--position: {settings.position} is not one of {settings.lengths[0]} '
                     'positions, from 0, of the shortest of --lengths')
  if not settings.position and any('mask' in key.values() for key in keys):
    raise InputError("--position: 0 attends only to itself without 'mask' too; give at least 1")
  return settings


def check_attention(name: str, config: configs.ModelConfig) -> None:
  if config.sublayers == 'mlp_only':
    raise InputError(f'{name}: the model has no attention')


def load_texts(settings) -> tuple[Tokenizer, dict[str, Corpus]]:
  """The tokenizer, and what to evaluate on, by its name."""
  tokenizer = name_flag('tokenizer', load_tokenizer, settings.tokenizer)
  if (settings.start_id or 0) >= tokenizer.vocab_size:
    raise InputError(f'--start_id: {settings.start_id} is not one of the {tokenizer.vocab_size} '
                     f'token ids of --tokenizer={settings.tokenizer}')
  if settings.texts:
    texts = {text: base_settings.load_text('texts', text, tokenizer) for text in settings.texts}
  else:
    _, held_out = hold_out(base_settings.load_text('data', settings.data, tokenizer), runs.HELD_OUT)
    texts = {held_out.name: held_out}
  flag = 'texts' if settings.texts else 'data'
  for text in texts.values():
    name_flag(flag, text.check, tokenizer.vocab_size)
    name_flag(flag, text.check_length, settings.length)
  return tokenizer, texts


def named(settings, tokenizer: Tokenizer, texts: dict[str, Corpus]) -> Sources:
  """Each network of the command line, as it is and under each intervention."""
  vocab_size = next(iter(texts.values())).vocab_size
  sources = {}
  for name in settings.networks:
    model = storage.open(name)
    config = model.config
    check_attention(name, config)
    if (name, None, None, None) in sources:
      raise InputError(f'{name} is named twice')
    if not vocab_size <= config.vocab_size <= PADDING * vocab_size:
      raise InputError(f'--tokenizer: {settings.tokenizer} has {vocab_size} token ids, {name} '
                       f"{config.vocab_size}; give the network's own")
    check_length(settings.length, config, name)
    check_beginning(model, tokenizer, settings)
    afterwards = settings.afterwards if config.intervention == 'none' else None
    sources |= {(name, each, None, None): name for each in (None, *(afterwards or ()))}
  return sources


def checkpoints(settings, intervention: str, output_dir: Path) -> Sources:
  """The kept steps of a training; the last ones of 'none' also under `afterwards`."""
  later = settings.afterwards or () if intervention == 'none' else ()
  last = settings.num_steps
  return {(intervention, each, seed, step): f'{output_dir / intervention}/seed_{seed}@{step}'
          for each in (None, *later) for seed in settings.seeds
          for step in ([last] if each else runs.saved_steps(settings))}


def training_of(settings, intervention: str) -> Training:
  """Settings of the training with an intervention."""
  where = {}
  if intervention in configs.AT_ONE_POSITION:
    where = dict(intervention_position=settings.position, intervention_strength=settings.strength)
  valid = settings.texts[0] if settings.texts else None
  return base_settings.of_study(settings, settings.scale, intervention=intervention,
                                valid=valid, max_length=settings.length, **where)


if __name__ == '__main__':
  program.measure(main, 'text_sinks', Settings, __doc__)
