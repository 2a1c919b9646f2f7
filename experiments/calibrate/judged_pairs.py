"""Verdicts on pairs of unrelated networks, in cells of one or two architectures."""

from collections import Counter
from collections.abc import Callable
import functools
import itertools

import numpy as np
from tqdm import tqdm

from bornbiased_jax import lineage
from bornbiased_jax.lineage import Signature
from bornbiased_jax.lineage.comparison.every_test import DECIDING

from .unrelated_pairs import ALPHAS, all_pairs, moments, rates

# The tests of a verdict that have a p-value.
WITH_P_VALUE = (*DECIDING, 'SeedPrint')
# Of some networks, by seed, functions that take their signatures.
Takers = dict[str, Callable[[], Signature]]


def verdict_cells(groups: dict[str, Takers], ending: str) -> dict[str, Callable[[], dict]]:
  """Cells of all pairs of each group of networks, and of all groups with each other.

  Networks of one seed are not compared, as they may have begun alike.
  """
  found = {f'{name}, {ending}': functools.partial(judge_all, list(own.values()),
                                                  all_pairs(len(own)))
           for name, own in groups.items()}
  for (name, own), (other_name, others) in itertools.combinations(groups.items(), 2):
    pairs = [(i, len(own) + j) for i, seed in enumerate(own) for j, other in enumerate(others)
             if seed != other]
    found[f'{name} and {other_name}, {ending}'] = functools.partial(
        judge_all, [*own.values(), *others.values()], np.array(pairs))
  return found


def judge_all(takers: list[Callable[[], Signature]], pairs: np.ndarray) -> dict:
  """Verdict, and z and p-value of every test, by pair; and how often each finds something."""
  taken = [take() for take in tqdm(takers, desc='signatures', unit='network', leave=False)]
  bar = tqdm(pairs, desc='verdicts', unit='pair', leave=False)
  reports = [lineage.compare(taken[i], taken[j]) for i, j in bar]
  by_name = [{row['test']: row for row in report['tests']} for report in reports]
  z, p_values = ({name: [tests[name][field] for tests in by_name] for name in WITH_P_VALUE}
                 for field in ('z', 'p_value'))
  p_values = {'verdict': [report['p_value'] for report in reports]} | p_values
  return {'networks': len(taken), 'pairs': len(pairs),
          'verdicts': Counter(report['verdict'] for report in reports),
          'z': z, 'p_values': p_values, **rates(p_values, pairs)}


def pooled(cells: list[dict]) -> dict:
  """What several cells say together."""
  p_P = np.array([p for row in cells for p in row['p_values']['verdict']], float)
  return {'pairs': len(p_P),
          'verdicts': sum((Counter(row['verdicts']) for row in cells), Counter()),
          **{f'verdict_{alpha}': float(np.mean(p_P <= alpha)) for alpha in ALPHAS},
          'z_of': z_of(cells)}


def z_of(cells) -> dict[str, dict]:
  """By test, over pairs for which it has a result: their number, moments of z, and small p."""
  found = {}
  for name in WITH_P_VALUE:
    z, p_value = (np.array([value for row in cells for value in row[field][name]
                            if value is not None]) for field in ('z', 'p_values'))
    if len(z):
      found[name] = {'pairs': len(z), **moments(z),
                     **{f'p_{alpha}': int(np.sum(p_value <= alpha)) for alpha in ALPHAS}}
  return found
