"""Stored results as text: what a template says in place of numbers.

{{ measured('seed_sweep').row(length=64) | plus_minus('top1_frequency', '.1%') }} becomes
4.8 ± 0.5 %. A number's format is that of Python's format(); one that ends with % makes a percentage.
"""

from collections.abc import Iterable
import json
import math
from pathlib import Path

import jinja2


class Stored:
  """One stored file of results.

  Attributes:
    content: the whole file.
  """

  def __init__(self, path: Path):
    self.path = path
    self.content = json.loads(path.read_text())

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

  >>> number(0.0478, '.1%'), number(-1234.5, ',.0f'), number(0.5, '+.2f')
  ('4.8 %', '−1,234', '+0.50')
  """
  if spec.endswith('%'):
    return f'{number(100 * value, f"{spec[:-1]}f")} %'
  return format(value, spec).replace('-', '−')


def plus_minus(row: dict, name: str, spec: str) -> str:
  """Mean ± half-width of the 95 % interval, of fields as `results.mean_ci95` makes them.

  >>> plus_minus({'share': 0.0478, 'share_ci95': 0.0049}, 'share', '.1%')
  '4.8 ± 0.5 %'
  """
  unit = ' %' if spec.endswith('%') else ''
  mean, half = (number(value, spec).removesuffix(' %')
                for value in (row[name], row[f'{name}_ci95']))
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


def render(template: Path, measured: Path) -> str:
  """The text that a template makes from a folder of stored results.

  Raises:
    LookupError, OSError, jinja2.TemplateError: the template asks for what is not stored.
  """
  known: dict[str, Stored] = {}

  def stored(name: str, file: str = 'results') -> Stored:
    path = measured / name / f'{file}.json'
    return known.setdefault(str(path), Stored(path))

  made = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
                            trim_blocks=True, lstrip_blocks=True)
  made.filters.update(number=number, plus_minus=plus_minus, interval=interval, between=between,
                      each=each)
  return made.from_string(template.read_text()).render(measured=stored, log10=math.log10)
