"""Is a history of checkpoints what it claims to be? Finds its faults.

    python -m experiments.audit results/pretrain_laptop/seed_42
    python -m experiments.audit my_run/                    # my_run/step_0, my_run/checkpoint-500, …
    python -m experiments.audit EleutherAI/pythia-70m@step{0,1000,2000,3000}

A history is a run of experiments.pretrain, a folder with a folder for each step, or models in the
forms that experiments.seedprint takes, with a step in each name. It finds
  - repeats: checkpoints, layers or shards of equal digest, where training must have changed them;
  - checkpoints of another origin than most, by the tests that decide in experiments.seedprint;
  - steps in the wrong order; where there are none, also checkpoints and matrices that are farther
    from the steps around them than these are from each other, unlike in any sound history;
  - what cannot be read, numbers that are not finite, and other architectures.
Tensors that do not change from the first checkpoint on, or until the last, are no faults; nor are
those that small updates do not reach, and a step 1 that equals step 0. Checkpoints in fewer than
16 bits, Lookahead's, and a tensor that stands still in the middle can be called faulty though they
are sound. Not seen are shards of a step that is not in the history, the first two or the last two
steps in the wrong order, a layer of another model in the first or the last step, and a history that
was trained twice. experiments.audit.injections measures how often each fault is found.

Each checkpoint is read once, one layer at a time where it is a Hugging Face model folder. Writes
results.json, report.html, one page to send to others, and figure.png into OUTPUT_DIR
(results/audit_SCALE). Exit codes: 0 nothing found, 1 something found, 2 wrong input.
"""

import functools
import itertools
import os
from pathlib import Path
import re
import sys
import textwrap

from tqdm import tqdm

from bornbiased_jax import plotting, storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.storage.layers import in_memory

from ..shared import figures, program, session, verdicts
from ..shared.base_settings import ExperimentSettings
from ..shared.networks import expand, step_of
from ..shared.results import header, make_directory
from ..shared.settings import arguments
from .findings import Checkpoint, examine, survey


class Settings(ExperimentSettings):
  history: list[str] = arguments('RUN_OR_FOLDER | MODEL@STEP ...')


def main(settings, output_dir):
  record, names = session.begin(), find(settings.history)
  report = examine((step, functools.partial(_read, names[step])) for step in tqdm(
      names, unit='checkpoint', delay=1, leave=False))
  report = header('audit', settings, record()) | {'networks': names} | report
  make_directory(output_dir)
  write(report, output_dir)
  sys.exit(1 if report['findings'] else 0)


def write(report: dict, output_dir: Path) -> None:
  """Prints the report, and writes all files."""
  verdicts.write(report, output_dir, text, lambda: draw(report), functools.partial(render, report))


def find(given: list[str]) -> dict[int, str]:
  """The models of a history, as the command takes it, by their steps, ascending."""
  found: dict[int, str] = {}
  for name in itertools.chain.from_iterable(map(expand, given)):
    step = step_of(name)
    if step is None:
      missing = '' if path_of(name).exists() else 'no such folder, and '
      raise InputError(f'{name}: {missing}no step in this name; give ORG/MODEL@step1000, RUN@1000, '
                       'or a folder such as step_1000, checkpoint-1000 or 1000')
    if step in found:
      raise InputError(f'{found[step]} and {name} are both of step {step}; give one of them')
    found[step] = name
  if len(found) < 3:
    raise InputError(f'{" ".join(given) or "no history"}: {len(found)} checkpoints, and at least '
                     '3 are needed; give a run, a folder of folders step_0, step_1000, …, '
                     'or ORG/MODEL@step{0,1000,2000}')
  return dict(sorted(found.items()))


def _read(name: str) -> Checkpoint:
  """Reads a model layer by layer; a run's is in memory."""
  model = storage.open(name)
  return survey(in_memory(*model.load()) if model.files is None else model.layers())


def summary(report: dict, name: str = 'this history') -> str:
  """What was found, in a sentence."""
  steps, found = list(report['networks']), report['findings']
  of = f'{name} of {len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}'
  if not found:
    return f'Nothing was found that is wrong with {of}.'
  does = 'does' if len(found) == 1 else 'do'
  return f'{verdicts.counted(len(found), "thing")} {does} not fit in {of}.'


def render(report: dict, png: bytes) -> str:
  """The page."""
  of = os.path.commonprefix(list(report['networks'].values()))
  name = figures.isolated(re.sub('[@/][^@/]*$', '', of) or 'this folder') + ', a history'
  kind = 'faults-found' if report['findings'] else 'nothing-found'
  return figures.template('audit.html').render(
      report, answers=[(kind, summary(report, name))], png=png)


def text(report: dict) -> str:
  """The report for a console."""
  said = [f'- {each["kind"]}: {each["what"]}' for each in report['findings']]
  return '\n'.join([summary(report), *(
      textwrap.fill(each, 100, subsequent_indent='  ') for each in said)])


def draw(report: dict):
  """The distance of each step to the one before, and where something was found."""
  steps = list(report['networks'])
  far = {row['step']: row['from_previous'] for row in report['checkpoints']}
  figure = plotting.figure(9, 3.6)
  ax = figure.subplots()
  ax.plot([far.get(step) for step in steps], **plotting.DOTS)
  for step in {step for each in report['findings'] for step in each['steps']}:
    ax.axvline(steps.index(step), color=plotting.COLORS[1], alpha=0.25, linewidth=4)
  places = range(0, len(steps), 1 + len(steps) // 16)
  ax.set_xticks(places, [str(steps[place]) for place in places], rotation=45)
  ax.set(xlabel='step, as the name claims (marked: something was found)', ylim=(0, None),
         ylabel='distance to the step before / norm', title=summary(report))
  return figure


if __name__ == '__main__':
  program.run(main, 'audit', Settings, __doc__)
