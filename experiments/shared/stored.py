"""Stored results as text: what a template says in place of numbers.

{{ measured('seed_sweep').row(length=64) | plus_minus('top1_frequency', '.1%') }} becomes
4.8 ± 0.5 %. Formats are those of Python's format(); one that ends with % makes a percentage.
"""

from collections.abc import Iterable
import decimal
import functools
import json
import math
from pathlib import Path
import statistics

import scipy

from bornbiased_jax.lineage.testing.every_test import TESTS

from . import catalogue, pages
from .tables import ci95


class Stored:
  """One stored file of results.

  Attributes:
    content: the whole file.
  """

  def __init__(self, path: Path):
    self.path = path
    self.content = json.loads(path.read_text())
    if isinstance(self.content, dict) and not self.content.get('complete', True):
      raise LookupError(f'{path} is not complete')

  def row(self, **fields) -> dict:
    """The one row of the summary with these fields.

    Raises:
      LookupError: there is none, or several.
    """
    found = self.summary(**fields)
    if len(found) != 1:
      raise LookupError(f'{self.path}: {len(found)} rows of the summary have {fields}')
    return found[0]

  def summary(self, **fields) -> list[dict]:
    return _with_fields(self.content['summary'], fields)

  def rows(self, **fields) -> list[dict]:
    return _with_fields(self.content['rows'], fields)


def _with_fields(rows, fields):
  return [row for row in rows if all(row[name] == value for name, value in fields.items())]


def number(value: float, spec: str = '') -> str:
  """A number as README has it.

  >>> number(0.0478, '.1%'), number(-1234.5, ',.0f'), number(0.5, '+.2f'), number(-2e-6, '.1e')
  ('4.8 %', '−1,234', '+0.50', '−2.0e-6')
  """
  if spec.endswith('%'):
    return f'{number(100 * value, f"{spec[:-1]}f")} %'
  mantissa, e, exponent = format(value, spec).partition('e')
  return mantissa.replace('-', '−') + (f'e{int(exponent)}' if e else '')


def bound(value: float, towards: str) -> float:
  """A number of two digits that is no smaller, towards 'up', or no larger, towards 'down'.

  >>> bound(0.0009648, 'up'), bound(0.19679, 'down'), bound(0.5, 'up')
  (0.00097, 0.19, 0.5)
  """
  rounding = {'up': decimal.ROUND_CEILING, 'down': decimal.ROUND_FLOOR}[towards]
  return float(decimal.Context(prec=2, rounding=rounding).create_decimal_from_float(value))


def plus_minus(row: dict, name: str, spec: str, half: str | None = None) -> str:
  """Mean ± half-width of the 95 % interval, of fields as `tables.mean_ci95` makes them.

  Args:
    half: another field, whose value comes after ±.

  >>> plus_minus({'share': 0.0478, 'share_ci95': 0.0049}, 'share', '.1%')
  '4.8 ± 0.5 %'
  """
  unit = ' %' if spec.endswith('%') else ''
  mean, half = (number(value, spec).removesuffix(' %')
                for value in (row[name], row[half or f'{name}_ci95']))
  return f'{mean} ± {half.lstrip("+")}{unit}'


def interval(row: dict, name: str, spec: str) -> str:
  """A share with both ends of its interval.

  >>> interval({'share': 0.55, 'share_ci95': [0.447, 0.65]}, 'share', '.0%')
  '55 % (45–65 %)'
  """
  low, high = row[f'{name}_ci95']
  return f'{number(row[name], spec)} ({between([low, high], spec)})'


def between(values: Iterable[float], spec: str) -> str:
  """The smallest and the largest value.

  >>> between([0.3, 0.1, 0.2], '.1f'), between([-1.5, 2], '.1f')
  ('0.1–0.3', '−1.5 to 2.0')
  """
  values = list(values)
  low, high = number(min(values), spec), number(max(values), spec)
  if low == high:
    return low
  return f'{low} to {high}' if '−' in low else f'{low.removesuffix(" %")}–{high}'


def each(values: Iterable[float], spec: str) -> str:
  """All values.

  >>> each([0.019, 0.018], '.1%')
  '1.9, 1.8 %'
  """
  texts = [number(value, spec) for value in values]
  return ', '.join([text.removesuffix(' %') for text in texts[:-1]] + texts[-1:])


def cells(values: Iterable[float], spec: str) -> str:
  """All values, each in a cell of a table's row.

  >>> cells([0.318, 0.494], '.2f')
  '0.32 | 0.49'
  """
  return ' | '.join(number(value, spec) for value in values)


def gather(rows: Iterable[dict], *path) -> list:
  """All values at a path of names and positions. A list of names on the path stands for each.

  Values that are lists are joined, and nulls are left out.

  >>> gather([{'z': {'units': [0.5, None], 'values': [1.5]}}], 'z', ['units', 'values'])
  [0.5, 1.5]
  """
  found = list(rows)
  for part in path:
    names = part if isinstance(part, list) else [part]
    found = [value[name] for value in found for name in names]
  return [one for value in found for one in (value if isinstance(value, list) else [value])
          if one is not None]


def minus(values: Iterable[float], others: Iterable[float]) -> list[float]:
  """Differences of values that belong together, such as those of one seed.

  >>> minus([3, 2], [1, 2])
  [2, 0]
  """
  return [value - other for value, other in zip(values, others, strict=True)]


def summarize(values: list[float]) -> dict[str, float]:
  """`mean`, `mean_ci95` and `std` of values, one per network.

  >>> plus_minus(summarize([0.1, 0.2, 0.3]), 'mean', '.2f')
  '0.20 ± 0.25'
  """
  return {'mean': statistics.fmean(values), 'mean_ci95': ci95(values),
          'std': statistics.stdev(values)}


def share(part: float, whole: int) -> dict:
  """The `share` of networks of which something holds, and its exact binomial interval.

  >>> interval(share(0.66, 100), 'share', '.0%')
  '66 % (56–75 %)'
  """
  test = scipy.stats.binomtest(round(part * whole), whole)
  return {'share': part, 'share_ci95': list(test.proportion_ci())}


def largest(rows: Iterable[dict], name: str) -> dict:
  """The row whose field is farthest from zero.

  >>> largest([{'gap': 0.1}, {'gap': -0.2}], 'gap')
  {'gap': -0.2}
  """
  return max(rows, key=lambda row: abs(row[name]))


def render(template: Path, measured: Path) -> str:
  """The text that a template makes from a folder of stored results.

  Raises:
    LookupError, OSError, jinja2.TemplateError: the template asks for what is not stored.
  """
  @functools.cache
  def stored(name: str, file: str = 'results') -> Stored:
    return Stored(measured / name / f'{file}.json')

  return pages.template(
      template, number=number, bound=bound, plus_minus=plus_minus, interval=interval,
      between=between, each=each, cells=cells, gather=gather, minus=minus, summarize=summarize,
      share=share, largest=largest).render(
          measured=stored, hours=catalogue.hours, tests=TESTS, log10=math.log10,
          exp=math.exp)
