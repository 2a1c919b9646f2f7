"""Writes the tables of stored results into their pages.

measured/README.md lists the commit and machine of each result.

    python -m experiments.pages           # writes the tables
    python -m experiments.pages --check   # writes nothing; exit code 2 if a table is another one

In a page, the table stands between <!-- table.md --> and <!-- end -->.
"""

import functools
import importlib
import json
import math
from pathlib import Path
import re

from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import switch

from .shared import program, session, tables
from .shared.settings import ProgramSettings, setting

HERE = Path(__file__).parent
MEASURED = HERE / 'measured'
TABLE = re.compile(r'(<!-- table\.md -->\n).*?(<!-- end -->)', re.DOTALL)


class Settings(ProgramSettings):
  check: bool = setting(False, switch, 'write nothing, only compare')


def main(settings: Settings) -> None:
  if not MEASURED.is_dir():
    raise InputError('no pages are installed; run it in a checkout of the repository')
  wrong = [line for folder in sorted(MEASURED.iterdir()) if folder.is_dir()
           for line in update(folder, settings.check)]
  wrong += put({MEASURED / 'README.md': origins()}, settings.check)
  if wrong:
    print(*wrong, sep='\n')
    raise InputError('tables of pages are not those of results.json: see above')


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


if __name__ == '__main__':
  program.run(main, 'pages', Settings, __doc__, has_folder=False)
