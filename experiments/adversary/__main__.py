"""Can the verdict be fooled? Judges pairs that an adversary made.

    python -m experiments.adversary

Unrelated networks share a text, a public embedding, a teacher, an initialization scheme, a sparsity
mask, or an order in which a tool has sorted them; none may be called related. Networks that share
an ingredient, such as a public adapter that both merged, have part of their weights in common, but
no ancestor. Descendants were rotated, permuted, pruned, quantized, cut, stacked, averaged or
trained further; none may be called unrelated. Right is 'inconclusive' where MLP units are in
another order, and 'related' for networks of one seed and different depth, which share their first
random numbers.

The networks have width 16 or 32 and two to six layers, and are trained on Shakespeare in bytes
modulo 128. experiments/adversary/constructions.py says how each pair is made.

Writes results.json (a row per construction) and figure.png (how many pairs have which verdict).
"""

from collections import Counter

import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.fields import whole
from bornbiased_jax.lineage.comparison.every_test import DECIDING, TESTS
from bornbiased_jax.lineage.verdict import VERDICTS

from ..shared import program
from ..shared.base_settings import Inputs
from ..shared.settings import setting, some
from ..shared.tables import grouped
from .constructions import CONSTRUCTIONS

# Colours of verdicts: related pairs are orange, unrelated ones blue.
VERDICT_COLORS = (plotting.COLORS[1], plotting.COLORS[0], plotting.COLORS[2])
# The wrong verdict for each truth.
WRONG = {'unrelated': 'related', 'descendant': 'unrelated', 'same seed': 'unrelated'}


class Settings(Inputs):
  constructions: list[str] = setting(
      list(CONSTRUCTIONS), *some(CONSTRUCTIONS, 'what the adversary does, comma-separated'),
      smoke=['mimetic init', 'channels change sign'])
  networks: int = setting(6, lambda text: whole(text, 2, 100), 'networks of each construction',
                          smoke=2, paper=20)
  num_sequences: int = setting(2000, smoke=1000)
  length: int = setting(16, smoke=4, paper=64)


def main(settings, results):
  for row in results.missing(({'construction': name} for name in settings.constructions),
                             'construction'):
    made = CONSTRUCTIONS[row['construction']]
    results.add(row | {'truth': made.truth, 'by_principle': made.by_principle}
                | measure(made.make(settings.networks), settings))
  summary = [summarize(row) for row in results.rows]
  results.finish(summary, display, lambda: draw(summary))
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
          'tests': {name: summarize_test(row['tests'][name]) for name in row['tests']}}


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


def draw(summary):
  """A bar per truth: how many pairs have which verdict."""
  groups = grouped(summary, 'truth', 'by_principle')
  figure = plotting.figure(8, 1.2 + 0.4 * len(groups))
  ax = figure.subplots()
  left = np.zeros(len(groups))
  for name, color in zip(VERDICTS, VERDICT_COLORS, strict=True):
    counts = np.array([sum(row[name] for row in rows) for _, rows in groups])
    share = 100 * counts / [sum(row['pairs'] for row in rows) for _, rows in groups]
    bars = ax.barh(range(len(groups)), share, left=left, color=color, label=name)
    ax.bar_label(bars, [str(count or '') for count in counts], label_type='center', color='white',
                 fontsize='small')
    left += share
  ax.set_yticks(range(len(groups)), [text_of(**fields) for fields, _ in groups])
  ax.set(xlabel='share of pairs (%); numbers are pairs', xlim=(0, 100))
  ax.invert_yaxis()
  ax.grid(visible=False)
  figure.legend(loc='outside upper center', ncols=3, title='Verdict')
  return figure


def text_of(truth, by_principle):
  """What a pair is, for a figure."""
  return f'{truth}, units permuted' if by_principle else truth


if __name__ == '__main__':
  program.measure(main, 'adversary', Settings, __doc__)
