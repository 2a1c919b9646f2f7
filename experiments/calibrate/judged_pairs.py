"""Verdicts on pairs of unrelated networks, in cells of one or two architectures."""

from collections import Counter
from collections.abc import Callable
import functools
import itertools
import math
from typing import Any

import numpy as np
from tqdm import tqdm

from bornbiased_jax import lineage
from bornbiased_jax.lineage import Signature
from bornbiased_jax.lineage.comparison.every_test import DECIDING
from bornbiased_jax.lineage.comparison.order import order_tests
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.thresholds import ALPHA, level_z, shown_p_value
from bornbiased_jax.lineage.verdict import describe, familywise_log10_p

from .unrelated_pairs import ALPHAS, all_pairs, moments, rates, resampled

# The tests of a verdict that have a p-value.
WITH_P_VALUE = (*DECIDING, 'SeedPrint')
# Of some networks, by seed, functions that take their signatures, or features.
Takers = dict[str, Callable[[], Signature | Features]]
Compare = Callable[[Any, Any], dict]


def by_order(base: Features, suspect: Features) -> dict:
  """What `lineage.compare` says of the tests that decide, which need only features."""
  results = order_tests(base, suspect)
  log10_p = familywise_log10_p(results)
  return {'verdict': 'not related' if log10_p is None or log10_p > math.log10(ALPHA) else 'related',
          'p_value': shown_p_value(log10_p),
          'tests': [describe(name, result) for name, result in results.items()]}


# What is asked of two networks: all that a verdict has, or only the order of features.
JUDGES: dict[str, Compare] = {'verdict': lineage.compare, 'order': by_order}


def judged_cells(groups: dict[str, Takers], ending: str,
                 compare: Compare) -> dict[str, Callable[[], dict]]:
  """Cells of all pairs of each group of networks, and of all groups with each other.

  Networks of one seed are not compared, as they may have begun alike.
  """
  judge = functools.partial(judge_all, compare)
  found = {f'{name}, {ending}': functools.partial(judge, list(own.values()), all_pairs(len(own)))
           for name, own in groups.items()}
  for (name, own), (other_name, others) in itertools.combinations(groups.items(), 2):
    pairs = [(i, len(own) + j) for i, seed in enumerate(own) for j, other in enumerate(others)
             if seed != other]
    found[f'{name} and {other_name}, {ending}'] = functools.partial(
        judge, [*own.values(), *others.values()], np.array(pairs))
  return found


def judge_all(compare: Compare, takers: list[Callable], pairs: np.ndarray) -> dict:
  """Verdict, and z and p-value of every test, by pair; and how often each finds something."""
  taken = [take() for take in tqdm(takers, desc='signatures', unit='network', leave=False)]
  bar = tqdm(pairs, desc='verdicts', unit='pair', leave=False)
  reports = [compare(taken[i], taken[j]) for i, j in bar]
  by_name = [{row['test']: row for row in report['tests']} for report in reports]
  names = [name for name in WITH_P_VALUE if name in by_name[0]]
  z, p_values = ({name: [tests[name][field] for tests in by_name] for name in names}
                 for field in ('z', 'p_value'))
  p_values = {'verdict': [report['p_value'] for report in reports]} | p_values
  plain = {name: [row['statistic'] / row['std'] if row['std'] else np.nan
                  for row in (tests[name] for tests in by_name)] for name in names}
  return {'networks': len(taken), 'pairs': len(pairs),
          'verdicts': Counter(report['verdict'] for report in reports),
          'z': z, 'p_values': p_values, 'plain_z': plain,
          'plain_error': {name: error_of(np.array(each), pairs) for name, each in plain.items()},
          **rates(p_values, pairs)}


def error_of(z_P: np.ndarray, pairs: np.ndarray) -> float:
  """The standard error of the mean over the pairs that have a z, from a bootstrap over networks."""
  has_z = np.isfinite(z_P)
  return float(np.std(resampled(z_P[has_z], pairs[has_z]))) if has_z.any() else np.nan


def pooled(cells: list[dict]) -> dict:
  """What several cells say together."""
  p_P = np.array([p for row in cells for p in row['p_values']['verdict']], float)
  return {'pairs': len(p_P),
          'verdicts': sum((Counter(row['verdicts']) for row in cells), Counter()),
          **{f'verdict_{alpha}': float(np.mean(p_P <= alpha)) for alpha in ALPHAS},
          'z_of': z_of(cells)}


def z_of(cells) -> dict[str, dict]:
  """By test, over pairs for which it has a result: their number, moments of z, and small p.

  `plain` is of z before what patterns may explain is subtracted: its moments, and how many are
  above the level of the normal distribution for a p-value.
  """
  found = {}
  for name in WITH_P_VALUE:
    z, p_value, plain = (finite(row.get(field, {}).get(name, ()) for row in cells)
                         for field in ('z', 'p_values', 'plain_z'))
    if len(z):
      found[name] = {'pairs': len(z), **moments(z),
                     **{f'p_{alpha}': int(np.sum(p_value <= alpha)) for alpha in ALPHAS}}
    if len(plain):
      found[name]['plain'] = moments(plain) | {
          f'above_{alpha}': int(np.sum(plain > level_z(alpha))) for alpha in ALPHAS}
  return found


def finite(lists) -> np.ndarray:
  """What is a number in any of the lists; JSON has None for NaN."""
  values = np.array(list(itertools.chain(*lists)), float)
  return values[np.isfinite(values)]
