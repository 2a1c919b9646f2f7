"""Does one network descend from another? Compares two and gives a verdict.

    python -m experiments.seedprint my_llama/ their_llama/
    python -m experiments.seedprint results/pretrain_laptop/seed_42@0 tiny_llama2:42

A network is given as a run of experiments.pretrain (RUN for its latest checkpoint, RUN@STEP for
another one), a transformers directory (safetensors), ORG/MODEL or ORG/MODEL@REVISION of the Hugging
Face Hub if no folder has this name, BASE+ADAPTER for one of these with an adapter of PEFT,
PRESET:SEED for a random network, or a signature that this program has saved (.safetensors).

The first network is the base, the second the suspect. Four tests decide. They compare the order of
MLP units and of the value channels of attention heads: chance alone decides which of two neighbours
comes first when a network is drawn, whatever it is trained with, and a descendant keeps it. Two of
them compare features as they are, and two in a basis that is fitted to one half of the layers and
tested on the other, so that channels may be permuted, rotated or cut. Three tests explain: they
compare hidden states for the same random inputs (SeedPrint, Algorithm 1 of the paper, with a
permutation test in place of its t-test), hidden states in any basis, and units in any order. Alone
they never show descent, but a pair that is alike in one of them is not called unrelated. p-values
of tests that decide are upper bounds. For a test that has no result the report gives the reason.

Writes a folder for the pair into OUTPUT_DIR (results/seedprint_SCALE): results.json, figure.png and
report.html, one self-contained page. What was read of each network, its signature, is kept in
OUTPUT_DIR/signatures, and can be compared later without the network.

Exit codes: 0 related, 5 unrelated, 3 inconclusive, 2 wrong input, 1 a crash.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from pathlib import Path
import re
import sys
import textwrap
from typing import ClassVar

from tqdm import tqdm

from bornbiased_jax import hosts, lineage, plotting
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically
from bornbiased_jax.lineage import levels
from bornbiased_jax.lineage.resolve import is_signature
from bornbiased_jax.lineage.sentences import p_text
from bornbiased_jax.names import FORMS

from .shared import command_line, figures, networks, provenance, verdict_page
from .shared.network_settings import SharedInputs, Stream
from .shared.parsing import optional
from .shared.results import header, make_directory, write_json
from .shared.settings import name_flag, setting, values_of
from .shared.tables import table

EXIT_CODES = {'related': 0, 'unrelated': 5, 'inconclusive': 3}

@dataclasses.dataclass(frozen=True)
class Settings(SharedInputs):
  base: str | None = setting(None, optional(str), smoke='tiny_gpt2:1', help=(
      f'a network, instead of the first word: {FORMS}'))
  suspect: str | None = setting(None, optional(str), smoke='tiny_gpt2:2', help=(
      'the other network, instead of the second word'))
  words: list[str] = dataclasses.field(default_factory=list)
  stream: Stream = setting('auto')
  num_sequences: int = setting(2000, smoke=1000, paper=10_000)
  length: int = setting(64, smoke=4, paper=1024)

  WORDS: ClassVar = 'words'


def main(settings, output_dir):
  settings = name_pair(settings)
  record, probe = provenance.begin(), networks.probe_of(settings)
  check(settings, probe)
  make_directory(output_dir)
  for name in (settings.base, settings.suspect):
    networks.tell_streamed(name, settings.stream)
  with tqdm(total=2 * probe.num_sequences, unit='seq', delay=1, leave=False,
            disable=not hosts.is_first()) as bar:
    report = lineage.compare_networks(settings.base, settings.suspect, probe,
                                      output_dir / 'signatures', stream=settings.stream,
                                      on_batch=bar.update)
  recorded = {name: value for name, value in vars(settings).items() if name != 'words'}
  report = header('seedprint', recorded, record()) | report
  folder = output_dir / folder_name(report)
  make_directory(folder)
  show(report)
  write_json(folder / 'results.json', report)
  drawn = draw(report)
  file = figures.write(drawn, folder)
  page = verdict_page.render(report, plotting.encode(drawn, 'png'))
  write_atomically(folder / 'report.html', page.encode())
  print(f'wrote {folder}/results.json, {file.name} and report.html')
  sys.exit(EXIT_CODES[report['verdict']])


def name_pair(settings: Settings) -> Settings:
  """Takes base and suspect from the words of the command line, if they are there.

  Words take the place of the scale's networks, as flags do.
  """
  words, names = settings.words, ('base', 'suspect')
  are_flags = any(getattr(settings, name) != values_of(Settings, name)[settings.scale]
                  for name in names)
  if len(words) > 2 or (words and are_flags):
    raise InputError(f'{" ".join(words)}: give two networks, as words or as --base and --suspect')
  if words:
    settings = dataclasses.replace(settings, **dict(itertools.zip_longest(names, words)))
  for name in names:
    if not getattr(settings, name):
      raise InputError(f'--{name}: is missing: {FORMS}')
  return settings


def check(settings, probe) -> None:
  """Raises InputError for networks that are not there, and probes that they cannot read."""
  names = {flag: getattr(settings, flag) for flag in ('base', 'suspect')}
  known = {flag: name_flag(flag, networks.look_up, name) for flag, name in names.items()}
  probe = networks.probe_of_all(probe, known.values())
  for flag, name in names.items():
    networks.check_readable(name, known[flag], probe)


def folder_name(report) -> str:
  """A folder for this pair, as it was given, and its probe: no run overwrites another's verdict."""
  sides = [report[side] for side in ('base', 'suspect')]
  given = [report['settings'][side] for side in ('base', 'suspect')]
  identity = json.dumps([sides, given, report.get('probe')], sort_keys=True).encode()
  words = [re.sub(r'[^\w@.-]+', '_', Path(str(side.get('name'))).name)[-40:] for side in sides]
  return f'{words[0]}_and_{words[1]}_{hashlib.sha256(identity).hexdigest()[:8]}'


def show(report) -> None:
  rows = report['tests']
  print(f'{report["verdict"].upper()}: {report["settings"]["base"]} and '
        f'{report["settings"]["suspect"]}', *revisions(report), *report['reasons'],
        *report['caveats'], sep='\n  ')
  if counting := [row for row in rows if row['reason'] is None]:
    print(table([display(row) for row in counting]))
  for row in rows:
    if row['reason']:
      print(textwrap.fill(f'{row["test"]}: no result, as {row["reason"]}', 100,
                          subsequent_indent='  '))


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
    found = {'z': f'{row["z"]:z.1f}', 'p-value': p_text(math.log10(row['p_value'])),
             'alike above': ''}
  return {'test': row['test'], 'decides': 'yes' if row['decides'] else 'no',
          'likeness': f'{row["statistic"]:z.3f}', **found}


def draw(report):
  """z of each test, beside what chance gives; of the others their likeness, or why there is none.

  At the right z and the likeness.
  """
  rows = report['tests']
  z = [row['z'] for row in rows if row['z'] is not None]
  deciding = sum(row['decides'] and row['z'] is not None for row in rows)
  with plotting.style():
    figure = plotting.figure(9, 1.8 + 0.32 * len(rows))
    ax = figure.subplots()
    ax.set_title(title(report), parse_math=False)
    lowest, highest = min([-6, *(1.2 * each for each in z)]), max([1000, *(2 * each for each in z)])
    ax.axvspan(lowest, 2, color='#cccccc', linewidth=0,
               label='chance: 97 % of unrelated pairs at least')
    plotting.z_axis(ax, (-5, 0, 5, 50, 500))
    for i, row in enumerate(rows):
      draw_test(ax, i, row)
    for color, name in ((1, 'decides'), (0, 'explains')):
      ax.plot([], [], 'o', color=plotting.COLORS[color], label=name)
    if deciding:
      ax.axvline(levels.related_z(deciding, report['alpha']), color='black', linestyle='--',
                 linewidth=1, label='related beyond, about')
    write_right(ax, -0.8, 'z', 'likeness\n(copy: 1)')
    ax.set_yticks(range(len(rows)), [row['test'] for row in rows])
    ax.set(xlim=(lowest, highest), ylim=(len(rows) - 0.5, -0.5), xlabel='z')
    figure.legend(loc='outside lower center', ncols=4, fontsize='small')
  return figure


def title(report) -> str:
  """Verdict, probe and names, each on a line of its own."""
  base, suspect = (str(report[side].get('name'))[-90:] for side in ('base', 'suspect'))
  return (f'{report["verdict"].capitalize()} (n = {report["sequences"]:,}, T = '
          f'{report["probe"]["length"]})\nbase: {base}\nsuspect: {suspect}')


def draw_test(ax, i, row):
  """A dot at z, or a line of text."""
  text, z = row['reason'], ''
  if text is None and row['level'] is not None:
    text = f'no z: alike above {row["level"]:g}'
  elif text is None:
    z = f'{row["z"]:z.1f}'
    ax.plot(row['z'], i, 'o', color=plotting.COLORS[1 if row['decides'] else 0])
  if text:
    ax.text(0.51, i, textwrap.fill(text, 64), transform=ax.get_yaxis_transform(), va='center',
            fontsize='x-small', bbox=dict(facecolor='white', edgecolor='none', pad=1))
  write_right(ax, i, z, '' if row['statistic'] is None else f'{row["statistic"]:z.3f}')


def write_right(ax, y, z, likeness):
  """A line of the two columns at the right of a picture."""
  for points, text in ((40, z), (95, likeness)):
    ax.annotate(text, (1, y), (points, 0), ax.get_yaxis_transform(), 'offset points', ha='right',
                va='center', annotation_clip=False)


if __name__ == '__main__':
  command_line.run(main, 'seedprint', Settings, __doc__, several_hosts=True)
