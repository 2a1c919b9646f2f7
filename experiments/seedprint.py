"""Does one network descend from another? Compares two and gives a verdict.

    python -m experiments.seedprint my_llama/ their_llama/
    python -m experiments.seedprint results/pretrain_laptop/seed_42@0 tiny_llama2:42

A network is given as a run of experiments.pretrain (RUN for its latest checkpoint, RUN@STEP for
another one), a transformers directory (safetensors), ORG/MODEL or ORG/MODEL@REVISION of the Hugging
Face Hub if no folder has this name, PRESET:SEED for a random network, or an .npz file that this
program has saved.

The first network is the base, the second the suspect. Several tests are made, which are called
witnesses. Those that can accuse compare the order of MLP units and of the value channels of a head.
In independent networks these orders are random, whatever data or teacher they were trained with.
The others compare the outputs of both networks on the same random inputs (SeedPrint, Algorithm 1 of
the paper, with a permutation test in place of its t-test). Three of them are repeated after undoing
a rotation, a permutation or changed signs of the suspect's residual channels, which are estimated
from both embeddings: these hide a descendant only if its embeddings were replaced as well. Each
p-value is the larger one of a permutation test and of the normal approximation.

Writes a folder for the pair into OUTPUT_DIR (results/seedprint_SCALE): results.json, figure.png and
report.html, one self-contained page. What was read of each network, its dossier, is kept in
OUTPUT_DIR/dossiers. Such a file can be compared later without the network, but then the tests that
undo a change of basis are left out, as they are for networks that are read layer by layer because
they do not fit into memory (--stream).

Exit codes: 0 related, 5 unrelated, 3 inconclusive, 4 not comparable, 2 wrong input, 1 a crash.
"""

import hashlib
import itertools
import json
from pathlib import Path
import re
import sys

import scipy
from tqdm import tqdm

from bornbiased_jax import hosts, lineage, plotting
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically
from bornbiased_jax.lineage.names import FORMS

from .shared import command_line, figures, networks, provenance, verdict_page
from .shared.command_line import Setting, flagged
from .shared.parsing import optional
from .shared.results import make_directory, write_json
from .shared.tables import table

EXIT_CODES = {'related': 0, 'unrelated': 5, 'inconclusive': 3, 'not comparable': 4}
SETTINGS = networks.SETTINGS | {
    'base': Setting(optional(str), f'a network, instead of the first word: {FORMS}'),
    'suspect': Setting(optional(str), 'the other network, instead of the second word'),
}
_LAPTOP = dict(base=None, suspect=None, stream='auto') | networks.TOKENS
SCALES = {
    'smoke': _LAPTOP | dict(base='tiny_gpt2:1', suspect='tiny_gpt2:2', num_sequences=1000,
                            length=4),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(num_sequences=10_000, length=1024),
}


def main(settings, output_dir):
  name_pair(settings)
  record, probe = provenance.begin(), networks.probe_of(settings)
  check(settings, probe)
  make_directory(output_dir)
  for name in (settings.base, settings.suspect):
    networks.tell_streamed(name, settings.stream, beside=1)
  with tqdm(total=2 * probe.num_sequences, unit='seq', delay=1, leave=False,
            disable=not hosts.is_first()) as bar:
    report = lineage.compare_networks(settings.base, settings.suspect, probe,
                                      output_dir / 'dossiers', stream=settings.stream,
                                      on_batch=bar.update)
  report = {'experiment': 'seedprint', 'settings': vars(settings),
            'environment': environment(), 'run': record()} | report
  folder = output_dir / folder_name(report)
  make_directory(folder)
  drawn = draw(report)
  file = figures.write(drawn, folder)
  page = verdict_page.render(report, plotting.encode(drawn, 'png'))
  write_atomically(folder / 'report.html', page.encode())
  write_json(folder / 'results.json', report)
  show(report)
  print(f'wrote {folder}/results.json, {file.name} and report.html')
  sys.exit(EXIT_CODES[report['verdict']])


def name_pair(settings) -> None:
  """Takes base and suspect from the words of the command line, if they are there.

  Words take the place of the scale's networks, as flags do.
  """
  words, names = vars(settings).pop('words', []), ('base', 'suspect')
  of_scale = SCALES[settings.scale]
  are_flags = any(getattr(settings, name) != of_scale[name] for name in names)
  if len(words) > 2 or (words and are_flags):
    raise InputError(f'{" ".join(words)}: give two networks, as words or as --base and --suspect')
  if words:
    vars(settings).update(itertools.zip_longest(names, words))
  for name in names:
    if not getattr(settings, name):
      raise InputError(f'--{name}: is missing: {FORMS}')


def check(settings, probe) -> None:
  """Raises InputError for networks that are not there, and probes that they cannot read."""
  for flag in ('base', 'suspect'):
    name = getattr(settings, flag)
    networks.check_readable(name, flagged(flag, networks.look_up, name), probe)


def folder_name(report) -> str:
  """A folder for this pair, as it was given, and its probe: no run overwrites another's verdict."""
  sides = [report[side] for side in ('base', 'suspect')]
  given = [report['settings'][side] for side in ('base', 'suspect')]
  identity = json.dumps([sides, given, report.get('probe')], sort_keys=True).encode()
  words = [re.sub(r'[^\w@.-]+', '_', Path(str(side.get('name'))).name)[-40:] for side in sides]
  return f'{words[0]}_and_{words[1]}_{hashlib.sha256(identity).hexdigest()[:8]}'


def show(report) -> None:
  print(f'{report["verdict"].upper()}: {report["settings"]["base"]} and '
        f'{report["settings"]["suspect"]}', *revisions(report), *report['reasons'],
        *report.get('doubts', []), sep='\n  ')
  if rows := report.get('witnesses'):
    print(table([display(row) for row in rows]))


def revisions(report) -> list[str]:
  """What was read of the Hugging Face Hub; a stranger's file may claim any revision."""
  read = {side: str(report[side].get('revision')) for side in ('base', 'suspect')
          if not report['settings'][side].endswith('.npz')}
  return [f'The {side} was read at commit {commit}.' for side, commit in read.items()
          if re.fullmatch('[0-9a-f]{40}', commit)]


def display(row) -> dict[str, str]:
  if row['obstacle']:
    return {'witness': row['witness'], 'can accuse': yes(row), 'z': '–', 'p-value': '–'}
  return {'witness': row['witness'], 'can accuse': yes(row), 'z': f'{row["z"]:.1f}',
          'p-value': f'{row["p_value"]:.2g}'}


def yes(row) -> str:
  return 'yes' if row['accuses'] else 'no'


def draw(report):
  """z of each witness that was heard, beside what chance gives; or that there is none."""
  rows = [row for row in report.get('witnesses', []) if row['obstacle'] is None]
  with plotting.style():
    figure = plotting.figure(8, 1.8 + 0.3 * max(1, len(rows)))
    ax = figure.subplots()
    ax.set_title(title(report), parse_math=False)
    if rows:
      draw_witnesses(ax, rows, report['alpha'])
      figure.legend(loc='outside lower center', ncols=4, fontsize='small')
    else:
      ax.set_axis_off()
      ax.text(0, 0.5, 'no witness was heard', fontsize='large')
  return figure


def title(report) -> str:
  """Verdict, probe and names, each on a line of its own."""
  base, suspect = (str(report[side].get('name'))[-90:] for side in ('base', 'suspect'))
  read = (f' (n = {report["sequences"]:,}, T = {report["probe"]["length"]})'
          if report.get('probe') else '')
  return f'{report["verdict"].capitalize()}{read}\nbase: {base}\nsuspect: {suspect}'


def draw_witnesses(ax, rows, alpha):
  """A dot at the z of each witness; at the right z and the statistic, the mean likeness."""
  ax.axvspan(-2, 2, color='#cccccc', linewidth=0, label='chance: 95 % of unrelated pairs')
  for i, row in enumerate(rows):
    ax.plot(row['z'], i, 'o', color=plotting.COLORS[1 if row['accuses'] else 0])
    write_right(ax, i, f'{row["z"]:z.1f}', f'{row["statistic"]:z.3f}')
  write_right(ax, -0.8, 'z', 'likeness\n(copy: 1)')
  for color, name in ((1, 'can accuse'), (0, 'cannot accuse')):
    ax.plot([], [], 'o', color=plotting.COLORS[color], label=name)
  if accusers := sum(row['accuses'] for row in rows):
    ax.axvline(scipy.stats.norm.isf(alpha / accusers), color='black', linestyle='--', linewidth=1,
               label='accuses beyond')
  plotting.z_axis(ax, (-5, 0, 5, 50, 500))
  ax.set_yticks(range(len(rows)), [row['witness'] for row in rows])
  ax.set(ylim=(len(rows) - 0.5, -0.5), xlabel='z')


def write_right(ax, y, z, likeness):
  """A line of the two columns at the right of a picture."""
  for points, text in ((40, z), (95, likeness)):
    ax.annotate(text, (1, y), (points, 0), ax.get_yaxis_transform(), 'offset points', ha='right',
                va='center', annotation_clip=False)


if __name__ == '__main__':
  command_line.run(main, 'seedprint', SCALES, __doc__, SETTINGS, positional='words',
                   several_hosts=True)
