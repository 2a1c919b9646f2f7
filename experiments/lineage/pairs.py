"""Pairs of models: what both read, their verdict, its correction for many pairs, and groups."""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import math

import scipy

from bornbiased_jax import lineage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import Signature, thresholds
from bornbiased_jax.lineage.comparison.every_test import DECIDING
from bornbiased_jax.lineage.networks import common_probe
from bornbiased_jax.storage import Model

from ..shared import networks
from ..shared.verdicts import counted

# Of the pairs that are called related, at most this share is expected to be independent.
FALSE_DISCOVERY_RATE = 0.01
# What a row keeps of a report, and of each test; what a test is stands once on the page.
_OF_PAIR = ('identical', 'p_value', 'agree', 'reasons', 'caveats')
_OF_TEST = ('test', 'decides', 'statistic', 'z', 'p_value', 'level', 'reason')


def probes(pair: tuple[str, str], known: dict[str, Model | Signature], probe: Probe) -> list[Probe]:
  """What each model of a pair reads: what experiments.seedprint has this pair read.

  A model that cannot read what a saved signature has read reads what it can.
  """
  both = common_probe(probe, [known[name] for name in pair])
  found = []
  for name in pair:
    read = both
    try:
      networks.check_readable(name, known[name], both)
    except InputError:
      read = common_probe(probe, [known[name]])
    num_ids = read.num_ids or known[name].config.vocab_size
    found.append(dataclasses.replace(read, num_ids=num_ids))
  return found


def judge(pair: tuple[str, str], base: Signature, suspect: Signature) -> dict:
  """A row: the verdict on a pair by itself (`verdict.compare`)."""
  report = lineage.compare(base, suspect)
  deciding = [row for row in report['tests'] if row['decides'] and row['z'] is not None]
  strongest = max(deciding, key=lambda row: row['z'], default={'z': None, 'statistic': None})
  return {'base': pair[0], 'suspect': pair[1], 'verdict': report['verdict'],
          'z': strongest['z'], 'likeness': strongest['statistic'],
          **{name: report[name] for name in _OF_PAIR},
          'tests': [{name: row[name] for name in _OF_TEST} for row in report['tests']],
          'bounds': [[row['of'], row['bound'], row['std']] for row in deciding],
          'probe': report['probe']}


def correct(rows: list[dict]) -> None:
  """Corrects for the number of pairs: `verdict` may become inconclusive, and nothing else.

  Adds `alone`, the verdict on the pair by itself; `corrected_p_value`; `correction`, a sentence if
  a verdict was withdrawn; and `detectable`, the mean likeness that is called related in spite of
  the correction. p-values are by Benjamini and Yekutieli, valid for dependent pairs.
  """
  tested = [row for row in rows if row['p_value'] is not None]
  alpha = alpha_of(len(tested))
  corrected = scipy.stats.false_discovery_control(
      [row['p_value'] for row in tested], method='by') if tested else []
  p_values = {id(row): float(p) for row, p in zip(tested, corrected, strict=True)}
  for row in rows:
    p_value = p_values.get(id(row))
    row |= {'alone': row['verdict'], 'corrected_p_value': p_value, 'correction': None,
            'detectable': detectable(row.pop('bounds'), alpha)}
    # One pair in many is extreme by chance.
    if row['verdict'] == 'related' and not row['identical'] and p_value > FALSE_DISCOVERY_RATE:
      row |= {'verdict': 'inconclusive', 'correction': (
          f'By itself this pair would be called related. Among {counted(len(tested), "pair")} its '
          f'corrected p-value is {p_value:.2g}.')}


def alpha_of(num_pairs: int) -> float:
  """The largest p-value with which one pair among so many is certain to be called related.

  >>> alpha_of(1), float(f'{alpha_of(100):.2g}')
  (0.0001, 1.9e-05)
  """
  if not num_pairs:
    return thresholds.ALPHA
  harmonic = sum(1 / k for k in range(1, num_pairs + 1))
  return min(thresholds.ALPHA, FALSE_DISCOVERY_RATE / (num_pairs * harmonic))


def detectable(bounds: list, alpha: float) -> float | None:
  """The mean likeness, of units and of values, that is called related; None if none is."""
  found, needed_z = [], thresholds.related_z(len(DECIDING), alpha)
  for of in ('units', 'values'):
    found.append(min((thresholds.detectable(bound, std, needed_z)
                      for each, bound, std in bounds if each == of and std), default=math.inf))
  return max(found) if math.isfinite(max(found)) else None


def agree_in_part(row: dict) -> bool:
  """Whether something was found on a pair that does not suffice to call it related."""
  return row['verdict'] == 'inconclusive' and bool(row['agree'])


def are_related(row: dict) -> bool:
  return row['verdict'] == 'related'


def groups(names: Iterable[str], rows: list[dict],
           joins: Callable[[dict], bool] = are_related) -> list[list[str]]:
  """Models that a row `joins` with another one of their group, the largest group first."""
  group = {name: {name} for name in names}
  for row in rows:
    if joins(row) and group[row['base']] is not group[row['suspect']]:
      joined = group[row['base']] | group[row['suspect']]
      group |= dict.fromkeys(joined, joined)
  found = {id(members): [name for name in group if name in members] for members in group.values()}
  return sorted((members for members in found.values() if len(members) > 1),
                key=lambda members: -len(members))


def others(name: str, rows: list[dict]) -> Iterator[tuple[str, dict]]:
  """The other model of each row that a model is in, and the row."""
  for row in rows:
    if name in (row['base'], row['suspect']):
      yield row['suspect' if row['base'] == name else 'base'], row


def closest(name: str, rows: list[dict]) -> tuple[str, dict] | None:
  """The related model that is most like this one, and their row; None if there is none."""
  related = [(other, row) for other, row in others(name, rows) if are_related(row)]
  return max(related, default=None, key=lambda each: (
      each[1]['identical'], 1.0 if each[1]['likeness'] is None else each[1]['likeness'], each[0]))
