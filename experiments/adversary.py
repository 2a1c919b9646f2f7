"""Can the verdict be fooled? Judges all pairs of networks made as by an adversary.

    python -m experiments.adversary

Some pairs are innocent: independent networks that share a text, a public embedding, a teacher, an
initialization scheme, or an order of their channels. Of these none may be called related. Others
are descendants in disguise: sign flips, permutations, rotations, redrawn embeddings, pruning,
averages. Of those whose function is what it was none may be called unrelated. Networks of one seed
and different depth share their first random numbers without descent; 'related' is right for them,
since it says so.

The networks have width 16 or 32 and two or three layers, and are trained on Shakespeare in bytes
modulo 128. experiments/shared/constructions.py says how each pair is made.

Writes results.json (a row per construction: verdicts, z of every witness by pair) and figure.png.
If a run was stopped, the same command continues it.
"""

from collections import Counter

import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.lineage import verdict
from bornbiased_jax.lineage.verdict import VERDICTS
from bornbiased_jax.lineage.witnesses import WITNESSES

from .shared import command_line
from .shared.command_line import Setting
from .shared.constructions import CONSTRUCTIONS
from .shared.parsing import some_of, whole
from .shared.results import Results

# What a verdict must not be, by what is true.
WRONG = {'unrelated': 'related', 'descendant': 'unrelated', 'same seed': 'unrelated'}
SETTINGS = command_line.SETTINGS | {
    'constructions': Setting(some_of(*CONSTRUCTIONS),
                             f'what the adversary does, comma-separated, of '
                             f'{", ".join(CONSTRUCTIONS)}'),
    'networks': Setting(lambda text: whole(text, 2, 100), 'networks of each construction'),
}
_LAPTOP = dict(constructions=list(CONSTRUCTIONS), networks=6, num_sequences=2000, length=16,
               probe_seed=0)
SCALES = {
    'smoke': _LAPTOP | dict(constructions=['mimetic init', 'channels change sign'], networks=2,
                            num_sequences=1000, length=4),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(networks=20, length=64),
}


def main(settings, output_dir):
  results = Results(output_dir, 'adversary', settings)
  done = {row['construction'] for row in results.rows}
  for name in tqdm(settings.constructions, unit='construction'):
    if name not in done:
      results.add({'construction': name, 'truth': CONSTRUCTIONS[name].truth}
                  | measure(CONSTRUCTIONS[name].make(settings.networks), settings))
  results.finish([summarize(row) for row in results.rows], display, draw(results.rows))


def measure(pairs, settings) -> dict:
  """Verdict, p-value and z of every witness, by pair."""
  probe = Probe('tokens', settings.num_sequences, settings.length, settings.probe_seed)
  subjects, reports = {}, []
  for pair in tqdm(pairs, unit='pair', leave=False):
    base, suspect = (subjects.setdefault(id(params), lineage.Subject(config, params, probe))
                     for config, params in pair)
    reports.append(lineage.judge(base, suspect))
  z = {name: [next((row['z'] for row in report['witnesses'] if row['witness'] == name), None)
              for report in reports] for name in WITNESSES}
  return {'verdicts': [report['verdict'] for report in reports],
          'p_values': [report['p_value'] for report in reports], 'z': z,
          'reasons': reports[0]['reasons'], 'doubts': reports[0]['doubts']}


def summarize(row) -> dict:
  """Counts of verdicts and of wrong ones, and the mean z of each witness."""
  counts = Counter(row['verdicts'])
  known = lambda name: [z for z in row['z'][name] if z is not None]
  return {'construction': row['construction'], 'truth': row['truth'], 'pairs': len(row['verdicts']),
          **{name: counts[name] for name in VERDICTS},
          'wrong': counts[WRONG.get(row['truth'])],
          'mean_z': {name: float(np.mean(known(name))) if known(name) else None
                     for name in WITNESSES}}


def display(row):
  verdicts = ', '.join(f'{row[name]} {name}' for name in VERDICTS if row[name])
  return {'construction': row['construction'], 'verdicts': verdicts, 'wrong': str(row['wrong']),
          'mean z, can accuse': strongest(row, accuses=True),
          'mean z, cannot': strongest(row, accuses=False)}


def strongest(row, accuses: bool) -> str:
  """The largest mean z of the witnesses that can accuse, or cannot, and its witness."""
  means = {name: z for name, z in row['mean_z'].items()
           if z is not None and WITNESSES[name].accuses == accuses}
  if not means:
    return '–'
  name = max(means, key=means.get)
  return f'{means[name]:.1f} {name}'


def draw(rows):
  """The strongest z of each pair, a row per construction, coloured by the verdict."""
  rows = sorted(rows, key=lambda row: row['truth'] != 'unrelated')
  with plotting.style():
    figure = plotting.figure(9, 1.6 + 0.2 * len(rows))
    panels = figure.subplots(1, 2, sharey=True)
    for ax, accuses in zip(panels, (True, False), strict=True):
      draw_strongest(ax, rows, accuses)
    panels[0].axvline(scipy.stats.norm.isf(verdict.ALPHA / len(verdict.ACCUSERS)), color='black',
                      linestyle='--', linewidth=0.8, label='related beyond')
    panels[0].set(title='witnesses that can accuse', xlabel='largest z of a pair')
    panels[1].set(title='witnesses that cannot', xlabel='largest z of a pair')
    panels[0].set_yticks(range(len(rows)), [row['construction'] for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    innocent = sum(row['truth'] == 'unrelated' for row in rows)
    for ax in panels:
      ax.axhline(innocent - 0.5, color='black', linewidth=0.8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside upper center', ncols=4,
                  title='A mark is a pair, coloured by its verdict. Above the line are innocent '
                        'pairs, below it\nthose with a common origin. Where a mark is missing, '
                        'no such witness was heard')
  return figure


def draw_strongest(ax, rows, accuses: bool):
  """A tick per pair at the largest z of its witnesses of one kind, in the colour of its verdict."""
  z = [strongest_z(row, accuses) for row in rows]
  for name, color in zip(VERDICTS, plotting.COLORS[1::-1] + plotting.COLORS[2:], strict=False):
    marks = [(z[i][pair], i) for i, row in enumerate(rows)
             for pair, judged in enumerate(row['verdicts']) if judged == name]
    if marks:
      ax.plot(*zip(*marks, strict=True), '|', color=color, markersize=8, label=name)
  plotting.z_axis(ax, (-5, 0, 5, 50))
  ax.set_xlim(-5, 100)


def strongest_z(row, accuses: bool) -> list[float]:
  """By pair, the largest z of the witnesses that can accuse, or cannot; NaN if none was heard."""
  z = [row['z'][name] for name in WITNESSES if WITNESSES[name].accuses == accuses]
  return [max((each for each in pair if each is not None), default=np.nan)
          for pair in zip(*z, strict=True)]


if __name__ == '__main__':
  command_line.run(main, 'adversary', SCALES, __doc__, SETTINGS)
