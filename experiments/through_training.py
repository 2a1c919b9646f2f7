"""How biased are given models, compared with random ones, theory and chance?

    python -m experiments.through_training results/pretrain_laptop/seed_42 results/other/seed_7
    python -m experiments.through_training my_trainer/       # its checkpoint-0, checkpoint-20, …
    python -m experiments.through_training my_llama/ --probe=text --data=my.txt --tokenizer=my.model

A model is given as to experiments.sample; of a run, and of a folder with a folder for each step,
all checkpoints are measured. Models of one architecture read the same sequences, and so do random
models that are drawn as its configuration says. Shown are the preferred token and its share, the
cosine of two sequences, how much of the direction at the first checkpoint is left in the direction
now (their cosine; 1 means all), and how often a head gives the first token more than 0.3 of its
weight. Chance is the share of the commonest of as many ids that are drawn uniformly.

Prints a table with a line per model, and three of each architecture. Writes results.json (a row
per model), table.md and figure.png to the output folder, by default one of these models and
settings in results/through_training_SCALE.
"""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bornbiased_jax import plotting, storage
from bornbiased_jax.analysis import (
  Probe,
  Statistic,
  combine,
  inter_sequence,
  measure,
  predictions,
  theory,
  transformer,
  uniform_baseline,
)
from bornbiased_jax.analysis.attention_sink import THRESHOLD
from bornbiased_jax.analysis.similarity import normalize
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError

from .shared import measurements, program
from .shared.base_settings import ExperimentSettings, text_of
from .shared.networks import check_length, expand, folder_name, step_of
from .shared.settings import PROBE_DATA, arguments, kinds, setting
from .shared.tables import grouped

SHOWN = {'top1_frequency': 'share of the preferred token', 'cosine': 'cosine of two sequences',
         'overlap': 'overlap with the first direction', 'sink_rate': 'sink rate'}


class Settings(ExperimentSettings):
  runs: list[str] = arguments('MODEL | RUN | FOLDER ...')
  seeds: list[int] = setting(range(5), smoke=range(2))
  num_sequences: int = setting(200, smoke=20, paper=2000)
  length: int = setting(64, smoke=16)
  probe: str = setting('tokens')
  data: str | None = setting(None, *PROBE_DATA)
  tokenizer: str = setting('bytes')
  probe_seed: int = setting(0)

  def own_folder(self):
    return folder_name(self, self.runs, kinds(Settings))


class Given(NamedTuple):
  """A model, the run or folder that it is of, and its step, if it has one."""

  name: str
  run: str
  step: int | None
  config: ModelConfig


def main(settings, results):
  given = networks_of(settings.runs, settings.length)
  text = text_of(settings)
  results.read_from([each.name for each in given] + ([text.digest] if text else []))
  if not results.summary:
    results.add_lacking(rows_of(settings, given), ('run', 'step', 'seed'))
  results.finish(results.summary or summarize(settings, given, results.rows), display,
                 lambda: draw(results.summary))


def networks_of(names: list[str], length: int) -> list[Given]:
  """The models that are meant, in order; an InputError says what cannot be read."""
  if not names:
    raise InputError('name models, folders of training runs such as '
                     'results/pretrain_laptop/seed_42, or a folder of checkpoints')
  found = []
  for given in names:
    each_of = [Given(name, given, step_of(name) if name != given else None,
                     storage.open(name).config) for name in expand(given)]
    for each in each_of:
      check_length(length, each.config, each.name)
    found += sorted(each_of, key=lambda each: each.step or 0)
  return found


def probe_of(settings) -> Probe:
  probe = Probe(settings.probe, settings.num_sequences, settings.length, settings.probe_seed,
                text=text_of(settings))
  if probe.kind not in ('tokens', 'text', 'shuffled'):
    raise InputError(f'--probe: {probe.kind} is not one of tokens, text, shuffled')
  return probe


def architectures(given: list[Given]) -> dict[ModelConfig, str]:
  """What random models of each architecture are called."""
  first: dict[ModelConfig, str] = {}
  for each in given:
    first.setdefault(each.config, each.run)
  return {config: 'random' if len(first) == 1 else f'random, as {run}'
          for config, run in first.items()}


def rows_of(settings, given: list[Given]):
  """What is measured of each model, and then of random ones of its architecture."""
  first: dict[str, jnp.ndarray] = {}
  for config, words in architectures(given).items():
    own = [each for each in given if each.config == config]
    bar = functools.partial(tqdm, desc='measuring', unit='model', delay=1, leave=False)
    measured = functools.partial(measure, statistic=statistic(config), probe=probe_of(settings))
    loaded = (storage.open(each.name).load() for each in own)
    for each, found in zip(bar(own), measured(loaded), strict=True):
      direction = normalize(jnp.asarray(found['direction']['direction']))
      overlap = float(jnp.vdot(first.setdefault(each.run, direction), direction))
      step = {} if each.step is None else {'step': each.step}
      yield {'run': each.run} | step | row(found) | {'overlap': overlap}
    drawn = measured(transformer(config), seeds=settings.seeds)
    for seed, found in zip(bar(settings.seeds), drawn, strict=True):
      yield {'run': words, 'seed': seed} | row(found)


def row(found: dict) -> dict:
  return found['preference'] | {'cosine': found['direction']['cosine'],
                                'sink_rate': found['sinks']['rate']}


def statistic(config) -> Statistic:
  return combine({'preference': predictions(config.vocab_size),
                  'direction': inter_sequence('hidden_last'), 'sinks': sinks()})


def summarize(settings, given: list[Given], rows: list[dict]) -> list[dict]:
  """The rows of given models, and of each architecture random models, theory and chance."""
  words_of = architectures(given)
  summary = [row for row in rows if 'seed' not in row]
  for config, words in words_of.items():
    drawn = [row for row in rows if 'seed' in row and row['run'] == words]
    means = {name: float(np.mean([row[name] for row in drawn]))
             for name in ('top1_frequency', 'cosine', 'sink_rate')}
    chance = uniform_baseline(settings.num_sequences, config.vocab_size)[0]
    summary += [{'run': f'{words}, {len(drawn)} models'} | means,
                predicted(words.replace('random', 'theory'), config, probe_of(settings)),
                {'run': words.replace('random', 'chance'),
                 'top1_frequency': chance / settings.num_sequences}]
  return summary


def predicted(words: str, config: ModelConfig, probe: Probe) -> dict:
  """What theory says of random models, or why it says nothing."""
  config, reads = dataclasses.replace(config, length=probe.length), measurements.read(probe)
  try:
    share = measurements.preferred_tokens(config, probe.num_sequences, None, reads)
    finite = theory.finite_width(config, probe.length, reads)
    return {'run': words, 'cosine': float(finite.inter_cosine_L[-1]),
            'top1_frequency': share['theory_top1_frequency']}
  except InputError as error:
    return {'run': f'{words}: {error}'}


def sinks() -> Statistic:
  """How often a head gives the first token more than a threshold of its weight."""

  def count(outputs):
    is_sink_LBH = outputs['attention_received'][..., 0] > THRESHOLD
    return {'sinks': is_sink_LBH.sum(), 'heads': jnp.int32(is_sink_LBH.size)}

  return Statistic(('attention_received',), count,
                   lambda sums: {'rate': float(sums['sinks'] / sums['heads'])})


def display(row):
  texts = {name: spec.format(row[name]) if name in row else None for name, spec in (
      ('top1_frequency', '{:.1%}'), ('cosine', '{:.3f}'), ('overlap', '{:+.2f}'),
      ('sink_rate', '{:.2f}'))}
  return {'model': row['run'], 'step': row.get('step'), 'preferred token': row.get('top1_id'),
          'its share': texts['top1_frequency'], 'cosine': texts['cosine'],
          'overlap': texts['overlap'], 'sink rate': texts['sink_rate']}


def draw(summary):
  """A panel per statistic: a line per run, and horizontal lines to compare it with."""
  figure = plotting.figure(10, 2.8)
  axes = figure.subplots(1, len(SHOWN))
  for ax, (name, title) in zip(axes, SHOWN.items(), strict=True):
    for fields, rows in grouped([row for row in summary if 'overlap' in row], 'run'):
      step = np.array([row.get('step', 0) for row in rows])
      ax.plot(step, [row[name] for row in rows], **plotting.DOTS, label=fields['run'][-24:])
    references = [row for row in summary if 'overlap' not in row and name in row]
    for row, line in zip(references, itertools.cycle(('-', '--', ':')), strict=False):
      ax.axhline(row[name], color='grey', linestyle=line, linewidth=1, label=row['run'][-24:])
    ax.set(xlabel='optimizer step', title=title)
  axes[0].legend(fontsize='x-small')
  return figure


if __name__ == '__main__':
  program.measure(main, 'through_training', Settings, __doc__)
