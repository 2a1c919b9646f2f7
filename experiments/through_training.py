"""The bias at birth and attention sinks, followed through training runs.

    python -m experiments.through_training results/pretrain_laptop/seed_42 results/other/seed_7
    python -m experiments.through_training my_run --probe=text --data=my.txt --tokenizer=my.model

All checkpoints of a run read the same sequences, as one ensemble that is compiled once. Shown are
the preferred token and its share, the cosine of two sequences, how much of the direction at the
first checkpoint is left in the direction now (their cosine; 1 means all), and how often a head
gives the first token more than 0.3 of its weight.

Prints a table with a line per checkpoint. Writes results.json (a row per checkpoint), table.md and
figure.png to the output folder.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bornbiased_jax import plotting, storage
from bornbiased_jax.analysis import Probe, Statistic, combine, inter_sequence, measure, predictions
from bornbiased_jax.analysis.attention_sink import THRESHOLD
from bornbiased_jax.analysis.similarity import normalize
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.storage import checkpoint

from .shared import program
from .shared.base_settings import ExperimentSettings
from .shared.measurements import text_of
from .shared.networks import check_length
from .shared.results import Results
from .shared.settings import PROBE_DATA, setting
from .shared.tables import grouped

SHOWN = {'top1_frequency': 'share of the favourite', 'cosine': 'cosine of two sequences',
         'overlap': 'overlap with the first direction', 'sink_rate': 'sink rate'}


@dataclasses.dataclass(frozen=True)
class Settings(ExperimentSettings):
  runs: list[str] = dataclasses.field(default_factory=list)
  num_sequences: int = setting(200, smoke=20, paper=2000)
  length: int = setting(64, smoke=16)
  probe: str = setting('tokens')
  data: str | None = setting(None, *PROBE_DATA)
  tokenizer: str = setting('bytes')
  probe_seed: int = setting(0)

  WORDS: ClassVar = 'runs'
  USAGE: ClassVar = 'RUN ...'


def main(settings, output_dir):
  checkpoints = checkpoints_of(settings)
  results = Results(output_dir, 'through_training', settings)
  text = text_of(settings)
  results.read_from([f'{run}@{step}' for _, run, step in checkpoints]
                    + ([text.digest] if text else []))
  if not results.summary:
    results.add_lacking(rows_of(settings, checkpoints), ('run', 'step'))
  # A row is all that there is to say of a checkpoint.
  results.finish(results.summary or results.rows, display, lambda: draw(results.summary))


def checkpoints_of(settings) -> list[tuple]:
  """Configuration, run and step of every checkpoint; an InputError says what cannot be read."""
  if not settings.runs:
    raise InputError('name the folders of training runs, such as results/pretrain_laptop/seed_42')
  found = []
  for run in settings.runs:
    steps = checkpoint.steps(run)
    if not steps:
      raise InputError(f'{run}: {checkpoint.why_none(path_of(run))}')
    config = storage.open(run).config
    check_length(settings.length, config, run)
    found += [(config, run, step) for step in steps]
  return found


def rows_of(settings, checkpoints) -> list[dict]:
  """What is measured of each checkpoint; those of one architecture are one ensemble."""
  probe = Probe(settings.probe, settings.num_sequences, settings.length, settings.probe_seed,
                text=text_of(settings))
  if probe.kind not in ('tokens', 'text', 'shuffled'):
    raise InputError(f'--probe: {probe.kind} is not one of tokens, text, shuffled')
  rows, first = [], {}
  for config in dict.fromkeys(config for config, _, _ in checkpoints):
    named = [(run, step) for own, run, step in checkpoints if own == config]
    networks = (storage.open(f'{run}@{step}').load() for run, step in named)
    bar = tqdm(named, desc='measuring', unit='checkpoint', delay=1, leave=False)
    for (run, step), found in zip(bar, measure(networks, statistic(config), probe), strict=True):
      direction = normalize(jnp.asarray(found['direction']['direction']))
      overlap = float(jnp.vdot(first.setdefault(run, direction), direction))
      rows.append({'run': run, 'step': step, **found['preference'],
                   'cosine': found['direction']['cosine'], 'overlap': overlap,
                   'sink_rate': found['sinks']['rate']})
  return rows


def statistic(config) -> Statistic:
  return combine({'preference': predictions(config.vocab_size),
                  'direction': inter_sequence('hidden_last'), 'sinks': sinks()})


def sinks() -> Statistic:
  """How often a head gives the first token more than a threshold of its weight."""

  def count(outputs):
    is_sink_LBH = outputs['attention_received'][..., 0] > THRESHOLD
    return {'sinks': is_sink_LBH.sum(), 'heads': jnp.int32(is_sink_LBH.size)}

  return Statistic(('attention_received',), count,
                   lambda sums: {'rate': float(sums['sinks'] / sums['heads'])})


def display(row):
  return {
      'run': row['run'], 'step': row['step'], 'favourite': row['top1_id'],
      'its share': f'{row["top1_frequency"]:.1%}', 'cosine': f'{row["cosine"]:.3f}',
      'overlap': f'{row["overlap"]:+.2f}', 'sink rate': f'{row["sink_rate"]:.2f}',
  }


def draw(summary):
  """A panel per statistic, a line per run."""
  figure = plotting.figure(10, 2.8)
  axes = figure.subplots(1, len(SHOWN))
  for ax, (name, title) in zip(axes, SHOWN.items(), strict=True):
    for fields, rows in grouped(summary, 'run'):
      step = np.array([row['step'] for row in rows])
      ax.plot(step, [row[name] for row in rows], **plotting.DOTS, label=fields['run'][-24:])
    ax.set(xlabel='optimizer step', title=title)
  axes[0].legend(fontsize='x-small')
  return figure


if __name__ == '__main__':
  program.run(main, 'through_training', Settings, __doc__)
