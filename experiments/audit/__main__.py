"""Is a history of checkpoints what it claims to be? Finds what is not.

    python -m experiments.audit results/pretrain_laptop/seed_42
    python -m experiments.audit my_run/                    # my_run/step_0, my_run/checkpoint-500, …
    python -m experiments.audit EleutherAI/pythia-70m@step{0,1000,2000,3000}

A history is a run of experiments.pretrain, a folder with a folder for each step (transformers
directories or runs), or networks in the forms that experiments.seedprint takes, with a step in each
name. It finds
  - repeats: checkpoints, layers or shards of equal digest, where training must have changed them;
  - checkpoints of another origin than most, by the tests that decide in experiments.seedprint;
  - steps in the wrong order, and checkpoints off the path: of three steps the first and the last
    are the farthest apart, in every sound history that we have measured;
  - matrices from another step or another network, which leave the path where others do not;
  - what cannot be read, numbers that are not finite, and other architectures.
Tensors that training left alone from the first checkpoint on, or to the last, are notes and no
faults; so are those of 16 bits that small updates do not reach, and a step 1 that equals step 0. A
tensor that stands still in the middle alone is called a repeat. Checkpoints in fewer than 16 bits,
and Lookahead's, can be called faulty though they are sound. experiments.audit.injections measures
how often each fault is found.

Each checkpoint is read once, one layer at a time where it is a transformers directory. Writes a
folder for the history into OUTPUT_DIR (results/audit_SCALE): results.json, figure.png and
report.html. Exit codes: 0 nothing found, 1 something found, 2 wrong input.
"""

import dataclasses
import functools
import hashlib
import json
import math
from pathlib import Path
import re
import sys
import textwrap
from typing import ClassVar

import numpy as np
from tqdm import tqdm

from bornbiased_jax import plotting
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.sentences import p_text

from ..shared import figures, program, provenance
from ..shared.base_settings import ExperimentSettings
from ..shared.results import header, make_directory, write_json
from ..shared.tables import table
from .findings import examine
from .history import Checkpoint, find, open_network, same_files, survey

TEMPLATE = Path(__file__).with_name('audit.html')
# More findings than these stand in report.html and results.json alone.
MOST_SHOWN = 40


@dataclasses.dataclass(frozen=True)
class Settings(ExperimentSettings):
  history: list[str] = dataclasses.field(default_factory=list)

  WORDS: ClassVar = 'history'
  USAGE: ClassVar = 'RUN_OR_FOLDER | NETWORK@STEP ...'


def main(settings, output_dir):
  record, names = provenance.begin(), find(settings.history)
  found = examine((step, _survey(names[step])) for step in tqdm(
      names, unit='checkpoint', delay=1, leave=False))
  name_files(found['findings'], names)
  report = header('audit', settings, record()) | {'networks': names} | found
  folder = output_dir / folder_name(names)
  make_directory(folder)
  show(report)
  write_json(folder / 'results.json', report)
  file = figures.write_with_page(draw(report), folder, functools.partial(page, report))
  print(f'wrote {folder}/results.json, {file.name} and report.html')
  sys.exit(1 if faults(report) else 0)


def _survey(name: str) -> Checkpoint | InputError:
  try:
    return survey(open_network(name))
  except InputError as error:
    return error


def name_files(findings: list[dict], names: dict[int, str]) -> None:
  """Adds to repeats of some tensors which files the checkpoints have in common."""
  for each in findings:
    if each['kind'] == 'repeat in part':
      each['files'] = same_files([names[step] for step in each['steps']])
      if each['files']:
        each['what'] += f' They have the file {", ".join(each["files"])} in common.'


def folder_name(names: dict[int, str]) -> str:
  """A folder for this history: no other one overwrites what was found."""
  identity = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]
  first = Path(next(iter(names.values())).partition('@')[0])
  word = first.name if '@' in next(iter(names.values())) else first.absolute().parent.name
  return f'{re.sub("[^a-zA-Z0-9_.-]+", "_", word)[-60:]}_{identity}'


def faults(report: dict) -> list[dict]:
  """The findings that are no notes."""
  return [each for each in report['findings'] if each['is_fault']]


def summary(report: dict) -> str:
  """What was found, in a sentence."""
  steps = list(report['networks'])
  of = f'{len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}'
  if found := faults(report):
    things = '1 thing does' if len(found) == 1 else f'{len(found)} things do'
    return f'{things} not fit in this history of {of}.'
  return f'Nothing was found that is wrong with this history of {of}.'


def show(report: dict) -> None:
  print(summary(report))
  if rows := [display(each) for each in report['findings'][:MOST_SHOWN]]:
    print(table(rows))
  for each in report['findings'][:MOST_SHOWN]:
    print(textwrap.fill(f'- {each["what"]}', 100, subsequent_indent='  '))
  if (more := len(report['findings']) - MOST_SHOWN) > 0:
    print(f'{more} more findings are in report.html')


def display(finding: dict) -> dict[str, str]:
  """A row of the table of findings."""
  steps = ', '.join(map(str, finding['steps']))
  value, p_value = finding['value'], finding['p_value']
  return {'finding': finding['kind'] if finding['is_fault'] else f'note: {finding["kind"]}',
          'steps': textwrap.shorten(steps, 30, placeholder=' …'),
          'where': textwrap.shorten(finding['where'], 30, placeholder=' …') or '–',
          'evidence': '–' if value is None else f'{finding["measure"]} {value:.3g}'
                      if isinstance(value, float) else f'{finding["measure"]} {value}',
          'p-value of descent': '–' if p_value is None else p_text(math.log10(p_value))}


def page(report: dict, png: bytes) -> str:
  """One page that stands for itself; names in it are escaped."""
  return figures.template(TEMPLATE).render(
      report=report, faults=faults(report), summary=summary(report),
      png=png, rows=[display(each) for each in report['findings']])


def draw(report: dict):
  """Distances of each step to the first and to the one before, and where something was found."""
  steps = list(report['networks'])
  place = {step: i for i, step in enumerate(steps)}
  kinds = list(dict.fromkeys(each['kind'] for each in faults(report)))
  height = 0.28 * max(1, len(kinds))
  with plotting.style():
    figure = plotting.figure(9, 3.6 + height)
    ax, marks = figure.subplots(2, 1, sharex=True, height_ratios=(3, 0.3 + height))
    for field, name in (('from_first', 'to the first step'),
                        ('from_previous', 'to the step before')):
      y = [row.get(field) for row in report['checkpoints']]
      ax.plot([place[row['step']] for row in report['checkpoints']],
              [math.nan if value is None else value for value in y], label=name, **plotting.DOTS)
    ax.set(ylabel='distance / norm, typical matrix', ylim=(0, None), title=summary(report))
    ax.legend(loc='best')
    for i, kind in enumerate(kinds):
      at = sorted({place[step] for each in faults(report) if each['kind'] == kind
                   for step in each['steps']})
      marks.plot(at, [i] * len(at), 's', color=plotting.COLORS[1], markersize=6)
      for x in at:
        ax.axvline(x, color=plotting.COLORS[1], alpha=0.25, linewidth=4)
    marks.set_yticks(range(len(kinds)), kinds)
    marks.set(ylim=(max(len(kinds), 1) - 0.5, -0.5), xlabel='step, as the name claims')
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 16)).round().astype(int))
    marks.set_xticks(shown, [str(steps[i]) for i in shown], rotation=45 if len(steps) > 8 else 0)
  return figure


if __name__ == '__main__':
  program.run(main, 'audit', Settings, __doc__)
