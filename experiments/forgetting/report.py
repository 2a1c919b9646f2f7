"""At which F each test stops to find the initialization of a network: summary, table and figure."""

import functools
import math

import numpy as np
import scipy

from bornbiased_jax import plotting
from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison.every_test import DECIDING

from ..shared.tables import grouped, mean_ci95
from .measurement import PUBLISHED, WEIGHTS

VERDICT = 'verdict'
# The order of tests where rows list them.
LISTED = ('unit order', 'value order', 'unit order, fitted basis', 'value order, fitted basis',
          'SeedPrint', 'hidden states, any basis', 'units, any order', PUBLISHED)
LINE = 'config', 'optimizer', 'steps', 'variant'
CELL = (*LINE, 'forgetting')
# Pairs that are related, and which weights of the end are compared, in the words of tables.
RELATED = {'birth': 'initialization and end', 'control': 'same initialization, other text'}
COMPARED = {'end': 'all weights', 'learned': 'weight update'}


@functools.cache
def levels_of_tests() -> dict[str, float]:
  """About where the z of a test reaches ALPHA; p-values decide, this interpolates between them."""
  normal = {'SeedPrint': thresholds.level_z(thresholds.ALPHA),
            PUBLISHED: thresholds.level_z(thresholds.ALPHA / 2)}
  return dict.fromkeys(DECIDING, thresholds.related_z(1)) | normal | {
      VERDICT: thresholds.related_z(len(DECIDING))}


def tests_of(rows: list[dict]) -> tuple[str, ...]:
  """The tests that rows have, and the verdict."""
  return (*rows[0].get('tests', LISTED), VERDICT)


def result_of(row: dict, test: str) -> dict[str, float | None]:
  """z, likeness and p-value of a test; in rows of earlier versions they are listed."""
  if 'tests' in row:
    return row['tests'][test]
  return {name: row[f'{name}_K'][LISTED.index(test)] for name in ('z', 'likeness', 'p_value')}


def value(row: dict, test: str) -> float:
  """z of a test, the largest z of those that decide, or a likeness above its level.

  A test without result has found nothing.
  """
  if test == VERDICT:
    return max(value(row, name) for name in DECIDING)
  return result_of(row, test)['z' if test in levels_of_tests() else 'likeness'] or 0.0


def is_found(row: dict, test: str) -> bool:
  """Whether a test finds the pair at ALPHA, or above its level if it has no p-value."""
  if test == VERDICT:
    return row['verdict'] == 'related'
  p_value = result_of(row, test)['p_value']
  return value(row, test) > 0 if test not in levels_of_tests() else (
      p_value is not None and p_value <= thresholds.ALPHA)


def crossing(rows: list[dict], test: str) -> float:
  """The F at which a test first fails on one network, from its rows in ascending order of F.

  Between two F arcsinh z is taken as linear in F. Infinite if the test never fails.
  """
  for before, row in zip([None, *rows], rows, strict=False):
    if not is_found(row, test):
      if before is None:
        return row['forgetting']
      high, level, low = (math.asinh(each) for each in (
          value(before, test), levels_of_tests().get(test, 0.0), value(row, test)))
      part = np.clip((high - level) / (high - low), 0, 1) if high > low else 0.5
      return before['forgetting'] + float(part) * (row['forgetting'] - before['forgetting'])
  return math.inf


def half_power(crossing_S: np.ndarray) -> tuple[float, list[float]]:
  """The F beyond which a test misses half of all networks, with a 95 % interval over them.

  The interval ends at order statistics that enclose the median with at least this probability,
  whatever the distribution: of eight networks those are the lowest and the highest (99.2 %), as of
  fewer, and below six networks it is less than 95 %. A bootstrap of eight encloses the median in
  87 %.
  """
  ordered_S = np.sort(crossing_S)
  outside = max(1, int(scipy.stats.binom.ppf(0.025, len(ordered_S), 0.5)))
  ends = ordered_S[[outside - 1, -outside]]
  return float(np.quantile(ordered_S, 0.5, method='inverted_cdf')), ends.tolist()


def kind(row: dict) -> str:
  """What a pair is, as the summary calls it; siblings from step 0 on are the positive control."""
  if row['pair'] != 'sibling':
    return row['pair']
  return f'sibling {row["branch"]:g}' if row['branch'] else 'control'


def summarize(rows: list[dict]) -> list[dict]:
  """A row per line of cells that differ only in F, and test: the F of half power."""
  summary = []
  for fields, own in grouped(rows, *LINE):
    measured = [row['forgetting'] for row in own]
    for test in tests_of(own):
      found = fields | {'test': test, 'least': min(measured), 'most': max(measured)}
      for weights in WEIGHTS:
        found |= _of_weights([row for row in own if row['weights'] == weights], test, weights)
      summary.append(found)
  return summary


def _of_weights(rows, test, weights):
  """The F of half power for each kind of related pairs, and how many unrelated ones are found."""
  of = lambda name: [row for row in rows if kind(row) == name]
  found = {}
  for pair in RELATED:
    of_network = grouped([row | {'seed': row['seeds'][0]} for row in of(pair)], 'seed')
    half, ends = half_power(np.array([
        crossing(sorted(own, key=lambda row: row['forgetting']), test) for _, own in of_network]))
    found |= {f'{pair}_{weights}': half, f'{pair}_{weights}_ci95': ends}
  unrelated = of('unrelated')
  return found | {f'unrelated_{weights}': len(unrelated),
                  f'false_{weights}': sum(is_found(row, test) for row in unrelated)}


def by_cell(rows: list[dict]) -> list[dict]:
  """A row per cell: loss, the slope with its theory, and each test's power and median z."""
  found = []
  for fields, own in grouped(rows, *CELL):
    starts = [row for row in own if row['pair'] == 'birth' and row['weights'] == 'end']
    row = fields | {'networks': len(starts), 'law': starts[0]['law']}
    for name in ('loss', 'slope', 'overlap'):
      row |= mean_ci95(starts, name)
    named = [pair | {'kind': kind(pair)} for pair in own]
    for each, pairs in grouped(named, 'kind', 'weights'):
      row[f'{each["kind"]}_{each["weights"]}'] = {
          test: {'share': float(np.mean([is_found(pair, test) for pair in pairs])),
                 'value': float(np.median([value(pair, test) for pair in pairs]))}
          for test in tests_of(own)}
    found.append(row)
  return found


def display(row: dict) -> dict[str, str]:
  return {'trained': line_text(row),
          'test': row['test'],
          **{f'{words}: {compared}': half_text(row, f'{pair}_{weights}')
             for weights, compared in COMPARED.items() for pair, words in RELATED.items()},
          'unrelated found: all weights, weight update': ', '.join(
              f'{row[f"false_{weights}"]} of {row[f"unrelated_{weights}"]}' for weights in WEIGHTS)}


def line_text(row: dict) -> str:
  variant = '' if row['variant'] == 'plain' else f', {row["variant"]}'
  return f'{row["config"]}, {row["optimizer"]}, {row["steps"]:,} steps{variant}'


def half_text(row: dict, name: str) -> str:
  """An F and its interval: above the largest that was measured where a test did not fail, and at
  most the smallest where it never succeeded. An interval that says no more than F is left out.
  Infinity is null in JSON.
  """

  def text(F):
    if F is None or not math.isfinite(F):
      return f'> {row["most"]:g}'
    return f'≤ {F:g}' if 0 < F == row.get('least') else f'{F:.1f}'

  half, *ends = (text(F) for F in (row[name], *row[f'{name}_ci95']))
  return half if ends == [half, half] else f'{half} ({"–".join(ends)})'


def display_cell(row: dict) -> dict[str, str]:
  share = lambda name: ', '.join(f'{row[name][test]["share"]:.0%}'
                                 for test in ('unit order', 'SeedPrint', VERDICT))
  return {'trained': line_text(row), 'F': f'{row["forgetting"]:g}',
          'loss': f'{row["loss"]:.3f}', 'slope (theory)': f'{row["slope"]:.4f} ({row["law"]:.4f})',
          'overlap': f'{row["overlap"]:.3f}',
          'unit order, SeedPrint, verdict: all weights': share('birth_end'),
          'weight update': share('birth_learned')}


def display_recipe(row: dict) -> dict[str, str]:
  return {'recipe': row['recipe'], 'F': f'{row["forgetting"]:.1f}',
          'left by decay': f'{row["left"]:.2g}', 'source': row['source']}


def draw(rows: list[dict]) -> 'plotting.Figure':
  """How many initializations each test finds: by F on the first line of cells, or by variant."""
  rows = [row for row in rows if all(row[name] == rows[0][name] for name in LINE
                                     if name != 'variant')]
  first = [row for row in rows if row['variant'] == rows[0]['variant']]
  over = 'forgetting' if len({row['forgetting'] for row in first}) > 1 else 'variant'
  shown = [row for row in (first if over == 'forgetting' else rows) if kind(row) == 'birth']
  tests = tests_of(rows)
  figure = plotting.figure(10, 1.3 + 0.27 * len(tests))
  panels = figure.subplots(1, len(WEIGHTS), sharey=True, squeeze=False)[0]
  for ax, weights in zip(panels, WEIGHTS, strict=True):
    draw_found(ax, [row for row in shown if row['weights'] == weights], over)
    ax.set_title(f'initializations found, {COMPARED[weights]}')
  panels[0].set_yticks(range(len(tests)), tests)
  figure.suptitle(line_text(first[0]) + (f', F = {first[0]["forgetting"]:g}' * (over == 'variant')),
                  fontsize='medium')
  return figure


def draw_found(ax, rows, over):
  """A cell per test and F, or variant: how many networks are found."""
  groups = grouped(rows, over)
  if over == 'forgetting':
    groups = sorted(groups, key=lambda each: each[0][over])
  counts = np.array([[sum(is_found(row, test) for row in own) for _, own in groups]
                     for test in tests_of(rows)])
  of_all = np.array([len(own) for _, own in groups])
  plotting.heat(ax, counts / of_all, plotting.COLORS[5], 1,
                [[f'{count}/{number}' for count, number in zip(line, of_all, strict=True)]
                 for line in counts])
  ax.set_xticks(range(len(groups)), [f'{fields[over]:g}' if over == 'forgetting' else
                                     fields[over].replace(' ', '\n') for fields, _ in groups])
  ax.set_xlabel('decay exponent F = λ Σ lr' if over == 'forgetting' else '')
