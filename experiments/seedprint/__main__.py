"""Do two models have a common origin? Compares them and gives a verdict.

    python -m experiments.seedprint my_llama/ their_llama/
    python -m experiments.seedprint results/pretrain_laptop/seed_42@0 tiny_llama2:42

A model is a run of experiments.pretrain (RUN for its latest checkpoint, RUN@STEP for another
one), a Hugging Face model folder, a GGUF file, ORG/MODEL[@REVISION] of the Hugging Face Hub if no
folder here is called ORG, BASE+ADAPTER with an adapter of PEFT, PRESET:SEED or config.json:SEED for
a random one, or a signature that this program has saved (.safetensors). The program first says how
long it will take; two CPU cores read 1 B parameters in about 20 minutes.
bornbiased_jax/lineage/README.md says how the verdict is made.

Writes results.json, figure.png and report.html, one self-contained page, to OUTPUT_DIR/
BASE_and_SUSPECT, with _ for each / and : in the names; settings of the probe that differ from the
scale's are added to the name. The signature of each model, all that tests read of it, is kept in
OUTPUT_DIR/signatures, and can be compared later without the model.

Exit codes: 0 related, 5 unrelated, 3 inconclusive, 2 wrong input, 1 a crash.
"""

import dataclasses
import functools
import json
from pathlib import Path
import re
import sys
import textwrap

from tqdm import tqdm

from bornbiased_jax import hosts, lineage
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import optional, switch
from bornbiased_jax.lineage import Signature, sentences
from bornbiased_jax.lineage.networks import common_probe
from bornbiased_jax.storage import Model
from bornbiased_jax.storage.model import FORMS, is_signature

from ..shared import figures, networks, program, session, verdicts
from ..shared.base_settings import SharedInputs
from ..shared.results import header, make_directory
from ..shared.settings import arguments, name_flag, setting, values_of
from ..shared.tables import table
from . import picture

# What of the settings says what both networks read.
_PROBE = ('num_sequences', 'length', 'probe_seed', 'num_ids')

class Settings(SharedInputs):
  base: str | None = setting(None, optional(str), smoke='tiny_gpt2:1', help=(
      f'a model, instead of the first word: {FORMS}'))
  suspect: str | None = setting(None, optional(str), smoke='tiny_gpt2:2', help=(
      'the other model, instead of the second word'))
  words: list[str] = arguments('BASE SUSPECT')
  json: bool = setting(False, switch, 'print results.json, and nothing else')
  stream: str = setting('auto')
  num_sequences: int = setting(2000, smoke=1000, paper=10_000)
  length: int = setting(64, smoke=4, paper=1024)


def main(settings, output_dir):
  settings = name_pair(settings)
  record, probe = session.begin(), networks.probe_of(settings)
  folder = output_dir / folder_name(settings)
  check_folder(folder, settings)
  pair = check(settings, probe)
  make_directory(output_dir)
  for each in pair.values():
    networks.tell_streamed(each, settings.stream)
  with tqdm(total=2 * probe.num_sequences, unit='seq', delay=1, leave=False,
            disable=not hosts.is_first()) as bar:
    report = lineage.compare_networks(*pair.values(), probe, output_dir / 'signatures',
                                      stream=settings.stream, on_batch=bar.update)
  recorded = {name: value for name, value in vars(settings).items() if name != 'words'}
  report = header('seedprint', recorded, record()) | report | {
      side: report[side] | verdicts.describe_network(each) for side, each in pair.items()}
  report['summary'] = summarize(report, *label_of(report))
  make_directory(folder)
  write(report, folder)
  sys.exit(verdicts.EXIT_CODES[report['verdict']])


def write(report, folder: Path) -> None:
  """Prints the report, and writes all files."""
  verdicts.write(report, folder, text, lambda: picture.draw(report),
                 functools.partial(verdicts.render, facts(report)))


def name_pair(settings: Settings) -> Settings:
  """Takes base and suspect from the words of the command line, if they are there.

  Words take the place of the scale's models, as flags do.
  """
  words, names = settings.words, ('base', 'suspect')
  are_flags = any(getattr(settings, name) != values_of(Settings, name)[settings.scale]
                  for name in names)
  if len(words) not in (0, 2) or (words and are_flags):
    raise InputError(f'{" ".join(words)}: give two models, either as words or as --base and '
                     f'--suspect; a model is {FORMS}')
  if words:
    settings = dataclasses.replace(settings, **dict(zip(names, words, strict=True)))
  for name in names:
    if not getattr(settings, name):
      raise InputError(f'--{name}: is missing: {FORMS}')
  return settings


def check(settings, probe) -> dict[str, Model | Signature]:
  """Says what it will cost; raises InputError for models that are not there or cannot read it.

  Returns:
    The models or saved signatures, base and suspect.
  """
  names = {flag: getattr(settings, flag) for flag in ('base', 'suspect')}
  pair = {flag: name_flag(flag, lineage.look_up, name) for flag, name in names.items()}
  probe = common_probe(probe, list(pair.values()))
  for flag, name in names.items():
    networks.check_readable(name, pair[flag], probe)
  verdicts.tell([(each, [probe]) for each in pair.values() if isinstance(each, Model)],
                [tuple(each.config for each in pair.values())])
  return pair


def folder_name(settings: Settings) -> str:
  """The folder of this pair: both names, and what of the probe is not the scale's own.

  >>> from experiments.shared.settings import resolve
  >>> folder_name(resolve(Settings, base='zoo/a', suspect='tiny_gpt2:2', length='8'))
  'zoo_a_and_tiny_gpt2_2_length_8'
  """
  return networks.folder_name(settings, [settings.base, settings.suspect], _PROBE)


def check_folder(folder: Path, settings: Settings) -> None:
  """Raises InputError if a folder has the verdict on another pair, whose names are alike."""
  try:
    found = json.loads((folder / 'results.json').read_text())['settings']
    pair = found['base'], found['suspect']
  except (OSError, ValueError, LookupError, TypeError):  # There is no verdict.
    return
  if pair != (settings.base, settings.suspect):
    raise InputError(f'--output_dir: {folder} has the verdict on {" and ".join(pair)}; choose '
                     'another folder, or remove this one')


def label_of(report) -> list[str]:
  """What base and suspect are called."""
  return verdicts.labels([report[side] | {'name': report['settings'][side]}
                          for side in ('base', 'suspect')])


def summarize(report, base: str, suspect: str) -> list[str]:
  """Three sentences: the verdict, how certain it is, and which tests had no result."""
  missing = sum(row['reason'] is not None for row in report['tests'])
  verdict = 'identical' if report['identical'] else report['verdict']
  return [verdicts.ANSWERS[verdict].format(suspect, base), certainty(report),
          f'{missing} of {len(report["tests"])} tests had no result; the reasons are below.'
          if missing else f'All {len(report["tests"])} tests had a result.']


def certainty(report) -> str:
  """How certain a verdict is, in words."""
  if report['identical']:
    return sentences.IDENTICAL
  if report['verdict'] == 'related':
    return verdicts.chance(report['p_value'])
  if report['verdict'] == 'unrelated':
    return report['reasons'][0] + ' ' + report['reasons'][1]
  return 'This is no finding in either direction; the reasons say what is missing.'


def facts(report) -> dict:
  """What the page shows (`verdicts.render`)."""
  sides = ('base', 'suspect')
  label = dict(zip(sides, map(figures.isolated, label_of(report)), strict=True))
  answer, *said = summarize(report, **label)
  pair = report | label | {'names': [report['settings'][side] for side in sides]}
  return {'answers': [(report['verdict'], answer)], 'summary': said, 'pairs': [pair],
          'networks': [report[side] | {'label': label[side]} for side in sides], 'matrix': [],
          'left_out': [], **{name: report[name] for name in ('settings', 'environment', 'run')}}


def text(report) -> str:
  """The report for a console, the verdict first."""
  rows = report['tests']
  lines = [f'{report["verdict"].upper()}: {report["settings"]["base"]} and '
           f'{report["settings"]["suspect"]}']
  lines += [textwrap.fill(each, 100, initial_indent='  ', subsequent_indent='  ')
            for each in (*revisions(report), *report['reasons'], *report['caveats'])]
  if counting := [row for row in rows if row['reason'] is None]:
    lines.append(table([display(row) for row in counting]))
  return '\n'.join(lines + [
      textwrap.fill(f'{row["test"]}: no result, as {row["reason"]}', 100, subsequent_indent='  ')
      for row in rows if row['reason']])


def revisions(report) -> list[str]:
  """What was read of the Hugging Face Hub; a file may claim any revision."""
  read = {side: str(report[side].get('revision')) for side in ('base', 'suspect')
          if not is_signature(report['settings'][side])}
  return [f'The {side} was read at commit {commit}.' for side, commit in read.items()
          if re.fullmatch('[0-9a-f]{40}', commit)]


def display(row) -> dict[str, str]:
  """A line of the table, of a test that has a result."""
  if row['level'] is not None:
    found = dict.fromkeys(('z', 'p-value'), '') | {'alike above': f'{row["level"]:g}'}
  else:
    found = {'z': f'{row["z"]:z.1f}', 'p-value': verdicts.p_of_test(row), 'alike above': ''}
  return {'test': row['test'], 'decides': 'yes' if row['decides'] else 'no',
          'likeness': f'{row["statistic"]:z.3f}', **found}


if __name__ == '__main__':
  program.run(main, 'seedprint', Settings, __doc__, several_hosts=True)
