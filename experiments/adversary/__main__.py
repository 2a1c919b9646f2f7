"""Can the verdict be fooled? Judges all pairs of networks made as by an adversary.

    python -m experiments.adversary

Unrelated networks share a text, a public embedding, a teacher, an initialization scheme, a sparsity
mask, or an order in which a tool has sorted them; none may be called related. Networks that share
an ingredient, such as a public adapter that both merged, have part of their weights in common, but
no ancestor. Descendants were rotated, permuted, pruned, quantized, cut, stacked, averaged or
trained on; none may be called unrelated. Where MLP units are in another order, 'inconclusive' is
right, and 'related' for networks of one seed and different depth, which share their first random
numbers.

The networks have width 16 or 32 and two to six layers, and are trained on Shakespeare in bytes
modulo 128. experiments/adversary/constructions.py says how each pair is made.

Writes results.json (a row per construction) and figure.png (z of every deciding test).
"""

from collections import Counter
import dataclasses

import scipy
from tqdm import tqdm

from bornbiased_jax import lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.fields import some_of, whole
from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison.every_test import DECIDING, TESTS
from bornbiased_jax.lineage.verdict import VERDICTS

from ..shared import program
from ..shared.base_settings import Inputs
from ..shared.results import Results
from ..shared.settings import setting
from .constructions import CONSTRUCTIONS

# What a verdict must not be, by what is true.
WRONG = {'unrelated': 'related', 'descendant': 'unrelated', 'same seed': 'unrelated'}


@dataclasses.dataclass(frozen=True)
class Settings(Inputs):
  constructions: list[str] = setting(
      list(CONSTRUCTIONS), some_of(*CONSTRUCTIONS),
      f'what the adversary does, comma-separated, of {", ".join(CONSTRUCTIONS)}',
      smoke=['mimetic init', 'channels change sign'])
  networks: int = setting(6, lambda text: whole(text, 2, 100), 'networks of each construction',
                          smoke=2, paper=20)
  num_sequences: int = setting(2000, smoke=1000)
  length: int = setting(16, smoke=4, paper=64)


def main(settings, output_dir):
  results = Results(output_dir, 'adversary', settings)
  for row in results.missing(({'construction': name} for name in settings.constructions),
                             'construction'):
    made = CONSTRUCTIONS[row['construction']]
    results.add(row | {'truth': made.truth, 'by_principle': made.by_principle}
                | measure(made.make(settings.networks), settings))
  summary = [summarize(row) for row in results.rows]
  results.finish(summary, display, lambda: draw(results.rows))
  for line in totals(summary):
    print(line)


def measure(pairs, settings) -> dict:
  """Verdict, p-value and the result of every test, by pair."""
  subjects, reports, swapped = {}, [], []
  for pair in tqdm(pairs, unit='pair', leave=False):
    # Both read ids that both have.
    num_ids = min(config.vocab_size for config, _ in pair)
    probe = Probe('tokens', settings.num_sequences, settings.length, settings.probe_seed, num_ids)
    base, suspect = (
        subjects.setdefault((id(params), num_ids), lineage.Subject(config, params, probe))
        for config, params in pair)
    reports.append(lineage.judge(base, suspect))
    swapped.append(lineage.judge(suspect, base)['verdict'])
  rows_of = lambda name: [next(row for row in report['tests'] if row['test'] == name)
                          for report in reports]
  return {'verdicts': [report['verdict'] for report in reports], 'verdicts_swapped': swapped,
          'p_values': [report['p_value'] for report in reports],
          'tests': {name: {field: [row[field] for row in rows_of(name)]
                           for field in ('z', 'statistic', 'p_value', 'applies', 'reason')}
                    for name in TESTS},
          'reasons': reports[0]['reasons'], 'caveats': reports[0]['caveats']}


def summarize(row) -> dict:
  """Counts of verdicts and of wrong ones, and of each test the range of z."""
  counts = Counter(row['verdicts'])
  return {'construction': row['construction'], 'truth': row['truth'],
          'by_principle': row['by_principle'], 'pairs': len(row['verdicts']),
          **{name: counts[name] for name in VERDICTS},
          'changed_by_order': sum(a != b for a, b in zip(
              row['verdicts'], row.get('verdicts_swapped', row['verdicts']), strict=True)),
          'wrong': counts[WRONG[row['truth']]] if row['truth'] in WRONG else 0,
          'tests': {name: summarize_test(row['tests'][name]) for name in TESTS}}


def summarize_test(results) -> dict:
  """The range of z, or of the statistic of a test without z; in how many pairs it was excluded."""
  values = [z if z is not None else statistic for z, statistic, reason in zip(
      results['z'], results['statistic'], results['reason'], strict=True) if reason is None]
  excluded = sum(applies and reason is not None for applies, reason in zip(
      results['applies'], results['reason'], strict=True))
  return {'least': min(values, default=None), 'most': max(values, default=None),
          'excluded': excluded, 'does_not_apply': len(results['z']) - len(values) - excluded}


def totals(summary) -> list[str]:
  """The sentences that the whole list supports, with the 95 % bound of each share."""
  said = []
  for truth, wrong in WRONG.items():
    rows = [row for row in summary if row['truth'] == truth]
    if count := sum(row['pairs'] for row in rows):
      found = sum(row['wrong'] for row in rows)
      upper = scipy.stats.binomtest(found, count).proportion_ci(0.9).high
      said.append(f'{truth}: {found} of {count} pairs are called {wrong} (95 % bound '
                  f'{100 * upper:.1f} %, were all pairs independent)')
  said.append(f'{sum(row["changed_by_order"] for row in summary)} of '
              f'{sum(row["pairs"] for row in summary)} verdicts change if both are swapped')
  rows = [row for row in summary if row['truth'] == 'descendant' and not row['by_principle']]
  if count := sum(row['pairs'] for row in rows):
    said.append(f'descendants whose units keep their order: '
                f'{sum(row["inconclusive"] for row in rows)} of {count} pairs are inconclusive')
  return said


def display(row):
  verdicts = ', '.join(f'{row[name]} {name}' for name in VERDICTS if row[name])
  return {'construction': row['construction'], 'truth': row['truth'], 'verdicts': verdicts,
          'wrong': row['wrong'], **{name: shown(row['tests'][name]) for name in DECIDING}}


def shown(test) -> str:
  """The range of z of a test over pairs."""
  if test['least'] is None:
    return 'excluded' if test['excluded'] else 'does not apply'
  excluded = f', {test["excluded"]} excluded' if test['excluded'] else ''
  return f'{test["least"]:.1f} … {test["most"]:.1f}{excluded}'


def draw(rows):
  """z of every pair by deciding test, a row per construction, coloured by the verdict."""
  order = list(dict.fromkeys(made.truth for made in CONSTRUCTIONS.values()))
  rows = sorted(rows, key=lambda row: order.index(row['truth']))
  figure = plotting.figure(13, 1.8 + 0.19 * len(rows))
  panels = figure.subplots(1, len(DECIDING), sharey=True)
  for ax, name in zip(panels, DECIDING, strict=True):
    draw_test(ax, rows, name)
  panels[0].set_yticks(range(len(rows)), [row['construction'] for row in rows])
  panels[0].set_ylim(len(rows) - 0.5, -0.5)
  write_truths(panels, rows)
  figure.legend(*panels[0].get_legend_handles_labels(), loc='outside upper center', ncols=4,
                title='A mark is a pair, coloured by its verdict. Lines part what is true. A test '
                      'without\na mark does not apply, is excluded, or has a z below −12')
  return figure


def draw_test(ax, rows, name):
  """A tick per pair at the z of one test, in the colour of the pair's verdict."""
  for verdict, color in zip(VERDICTS, plotting.COLORS[1::-1] + plotting.COLORS[2:], strict=False):
    marks = [(z, i) for i, row in enumerate(rows)
             for z, judged in zip(row['tests'][name]['z'], row['verdicts'], strict=True)
             if judged == verdict and z is not None]
    ax.plot(*(zip(*marks, strict=True) if marks else ((), ())), '|', color=color, markersize=7,
            label=verdict)
  ax.axvline(thresholds.related_z(len(DECIDING)), color='black', linestyle='--',
             linewidth=0.8, label='evidence beyond')
  plotting.z_axis(ax.xaxis, (-5, 0, 5, 50))
  ax.set(title=name, xlim=(-12, 60))


def write_truths(panels, rows):
  """Lines between groups of what is true, and their names at the right."""
  truths = [row['truth'] for row in rows]
  for truth in dict.fromkeys(truths):
    last = len(truths) - truths[::-1].index(truth) - 0.5
    for ax in panels:
      ax.axhline(last, color='black', linewidth=0.8)
    panels[-1].annotate(truth.replace(' ', '\n'), (1.02, (truths.index(truth) - 0.5 + last) / 2),
                        xycoords=('axes fraction', 'data'), fontsize='small', va='center')


if __name__ == '__main__':
  program.run(main, 'adversary', Settings, __doc__)
