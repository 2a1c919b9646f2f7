"""Writes the tables of stored results into their pages, and checks all pages.

measured/README.md lists the commit and machine of each result.

    python -m experiments.pages           # writes the tables
    python -m experiments.pages --check   # writes nothing; exit code 2 if a page disagrees

In a page, the table stands between <!-- table.md --> and <!-- end -->. Every number outside it that
has a decimal point or % must be one of the results in its folder or linked in its paragraph, its
row of a table, or else its section, as it is rounded there. A page lists the others, and where they
come from, such as <!-- not from results.json: 0.35 (paper, Table 1); 1.7 (0.34 / 0.2) -->.
"""

from collections.abc import Collection
import functools
import importlib
import json
import math
from pathlib import Path
import re

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import switch

from .shared import program, session, tables
from .shared.settings import ProgramSettings, setting

HERE = Path(__file__).parent
MEASURED = HERE / 'measured'
TABLE = re.compile(r'(<!-- table\.md -->\n).*?(<!-- end -->)', re.DOTALL)
NOT_STORED = re.compile(r'<!-- not from results\.json: (.*?) -->', re.DOTALL)
CODE_OR_COMMENT = re.compile(r'```.*?```|`[^`]*`|<!--.*?-->', re.DOTALL)
LINK = re.compile(r'\]\(([^)#\s]+)[^)]*\)')
NUMBER = re.compile(r'(?<![\w.])([−+]?)(\d+(?:,\d{3})*(?:\.\d+)?)(e[−+-]?\d+)?(?!\w|\.\d)')
PERCENT = re.compile(r'[\d.±–− ]*%')
UNITS = {'%': 0.01, 'points': 0.01, 'ms': 1e-3, 'MB': 1e6, 'GiB': 2**30, 'GB': 1e9, 'TB': 1e12,
         'T ': 1e12, 'billion': 1e9}
# The unit of a number may follow after others, like in 4.7 ± 0.5 %.
UNIT = re.compile(rf'(?:[\d.,±–−+ ]|to |and |of )*?({"|".join(UNITS)})')


class Settings(ProgramSettings):
  check: bool = setting(False, switch, 'write nothing, only compare')


def main(settings: Settings) -> None:
  if not MEASURED.is_dir():
    raise InputError('no pages are installed; run it in a checkout of the repository')
  pages = [HERE.parent / 'README.md', HERE / 'README.md', *sorted(MEASURED.glob('*/README.md'))]
  wrong = [line for folder in sorted(MEASURED.iterdir()) if folder.is_dir()
           for line in update(folder, settings.check)]
  wrong += put({MEASURED / 'README.md': origins()}, settings.check)
  wrong += [line for page in pages for line in problems(page)]
  if wrong:
    print(*wrong, sep='\n')
    raise InputError('pages disagree with what they show: see above')


def update(folder: Path, check: bool) -> list[str]:
  """Writes the table of a folder, also into its page, or only says what would change."""
  page = folder / 'README.md'
  made = {folder / 'table.md': table(folder)} if (folder / 'results.json').exists() else {}
  if page.exists():
    made[page] = TABLE.sub(lambda found: f'{found[1]}\n{table(folder)}\n{found[2]}',
                           page.read_text())
  return put(made, check)


def put(made: dict[Path, str], check: bool) -> list[str]:
  """Writes files, or says which of them would change."""
  changed = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
  for path in changed if not check else ():
    path.write_text(made[path])
  return [f'{path.relative_to(HERE)}: its table is not that of results.json'
          for path in changed if check]


def origins() -> str:
  """A page with the commit, the time and the machine of each stored result."""
  rows = []
  for path in sorted(MEASURED.glob('*/*.json')):
    content = json.loads(path.read_text())
    if isinstance(content, dict) and 'environment' in content:
      run = content.get('run') or {}
      name = path.parent.name if path.name == 'results.json' else f'{path.parent.name}/{path.stem}'
      seconds = run.get('seconds')
      rows.append({'result': f'[{name}]({path.parent.name})', 'commit': run.get('commit'),
                   'minutes': seconds and f'{seconds / 60:.1f}',
                   'JAX': content['environment']['jax'],
                   'device': session.device_of(content)})
  return ('# What measured each result\n\nA dash stands for what was not recorded when the result '
          'was made. Some shared their two CPU cores, or their GPU, with\nother programs.\n\n'
          f'{tables.markdown(rows)}')


@functools.cache
def table(folder: Path) -> str:
  """The table of stored results, as their program writes it."""
  content = json.loads((folder / 'results.json').read_text(), object_hook=readable)
  name = f'{__package__}.{content["experiment"]}'
  is_package = hasattr(importlib.import_module(name), '__path__')
  program = importlib.import_module(f'{name}.__main__' if is_package else name)
  return tables.markdown([program.display(row) for row in content['summary']])


def readable(row: dict) -> dict:
  """A row as its program made it: JSON has no -inf and no NaN, and transforms were renamed."""
  missing = {name: -math.inf if name.startswith('log10') else math.nan for name in row
             if name.startswith('log10') or name.endswith(('_ci95', 'error'))}
  return {'transform' if name == 'alteration' else name:
          missing.get(name) if value is None else value for name, value in row.items()}


def problems(page: Path) -> list[str]:
  """The faults of a page: links to nothing, and numbers that are not stored or listed."""
  text, name = page.read_text(), page.relative_to(HERE.parent)
  shown = CODE_OR_COMMENT.sub('', TABLE.sub('', text))
  listed = {number for origins in NOT_STORED.findall(text)
            for origin in origins.split(';') for number in re.split('[, ]+', origin.split('(')[0])}
  used = {number for section in re.split(r'\n(?=#)', shown)
          for number in unknown(page.parent, section, listed)}
  return [*(f'{name}: there is no {link}' for link in LINK.findall(text)
            if not re.match('https?:', link) and not (page.parent / link).exists()),
          *(f'{name}: {number} is in no result of its folder' for number in sorted(used - listed)),
          *(f'{name}: {number} is listed and not there' for number in sorted(listed)
            if number not in shown)]


def unknown(folder: Path, section: str, listed: Collection[str] = ()) -> list[str]:
  """The numbers of a section that are in no result of its folder or of those that it links to.

  Those on both sides of ± must be of one row, unless the second is listed.
  """
  found = []
  for block in re.split(r'\n\s*\n|\n(?=\||- )', section):
    folders = {folder, *(linked(folder, block) or linked(folder, section))}
    rows, plain = sum(map(numbers, folders), []), LINK.sub(']', block)
    for match in NUMBER.finditer(plain):
      unit = UNIT.match(plain, match.end())
      scale = UNITS[unit[1]] if unit else 1
      half = NUMBER.match(plain, match.end() + 3) if plain[match.end():].startswith(' ± ') else None
      together = [match] + ([half] if half and half[0] not in listed else [])
      if '.' in match[0] or PERCENT.match(plain, match.end()):
        if not any(all(is_stored(*each.groups(), scale, row) for each in together) for row in rows):
          found.append(match[0])
  return found


def linked(folder: Path, text: str) -> set[Path]:
  """The folders of results that a text links to."""
  paths = [(folder / link).resolve() for link in LINK.findall(text)]
  return {MEASURED / path.relative_to(MEASURED).parts[0] for path in paths
          if path.is_relative_to(MEASURED) and path != MEASURED}


def is_stored(sign: str, digits: str, exponent: str | None, scale: float, stored) -> bool:
  """Whether a number, as it is written, is a stored one rounded. Only a written sign counts."""
  scale *= 10 ** int((exponent or 'e0')[1:].replace('−', '-'))
  value = float(digits.replace(',', '')) * scale
  half = 0.5 * scale * 10 ** -len(digits.partition('.')[2])
  others = stored if sign else np.abs(stored)
  return bool(np.any(np.abs(others - (-value if sign == '−' else value)) <= half * (1 + 1e-9)))


@functools.cache
def numbers(folder: Path) -> list[np.ndarray]:
  """The numbers of each row of a folder's results: of its summaries, if any, and its table."""
  rows = []
  for path in folder.glob('*.json') if folder.parent == MEASURED else ():
    content = json.loads(path.read_text())
    if isinstance(content, dict):
      measured = content.pop('rows', [])
      content = sum((part for part in content.values() if isinstance(part, list)), []) or measured
    rows += [re.findall(r'-?\d+\.?\d*(?:e[-+]\d+)?', json.dumps(row)) for row in content]
  if (folder / 'results.json').exists():
    rows += [re.findall(r'-?\d+\.?\d*(?:e[-+]?\d+)?', line)
             for line in table(folder).splitlines()]
  return [np.array(row, float) for row in rows if row]


if __name__ == '__main__':
  program.run(main, 'pages', Settings, __doc__, has_folder=False)
