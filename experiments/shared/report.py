"""The page that `reproduce` writes: per figure and table, what is claimed and what was measured."""

import json
from pathlib import Path
import re
import shlex
from typing import NamedTuple

from . import templates
from .catalogue import Item, Run

TEMPLATE = Path(__file__).with_name('report.html')


class Shown(NamedTuple):
  """A run as the page shows it."""

  folder: str
  command: str
  problem: str | None
  table: str
  png: bytes
  how: str


def render(scale: str, items: list[Item], commands: dict[str, list[str]], state: dict[str, dict],
           output_dir: Path) -> str:
  """The page, which stands for itself.

  Args:
    scale: the scale of the runs.
    items: what is shown, in this order.
    commands: of each run, by folder, what follows `python`.
    state: of each run that was begun or left out, by folder: `complete`, `problem`, `seconds`.
    output_dir: holds the folders of the runs.
  """
  shown = [{'names': item.names, 'heading': heading(item), 'title': item.title,
            'claim': item.claim, 'published': item.published,
            'runs': [_shown(run, commands[run.folder], state.get(run.folder, {}), output_dir)
                     for run in item.runs if scale in run.minutes]} for item in items]
  records = [state.get(folder, {}) for folder in commands]
  return templates.template(TEMPLATE).render(
      scale=scale, items=shown, duration=duration, total=len(records),
      done=sum(record.get('complete', False) for record in records),
      seconds=sum(record.get('seconds', 0) for record in records))


def _shown(run: Run, command: list[str], record: dict, output_dir: Path) -> Shown:
  folder = output_dir / run.folder
  read = lambda name: (folder / name).read_bytes() if (folder / name).exists() else b''
  problem = record.get('problem', None if record.get('complete') else 'Not run.')
  table = read('table.md') or read('table.txt')  # That of versions before 0.2.
  return Shown(run.folder, shlex.join(['python', *command]), problem, table.decode(),
               read('figure.png'), _how(read('results.json'), record))


def _how(results: bytes, record: dict) -> str:
  """Device, versions, commit and run time in a line."""
  if not results:
    return ''
  try:
    content = json.loads(results)
    made, commit = content['environment'], (content['run'] or {}).get('commit')
    parts = [f'{made["num_devices"]} × {made["device"]}', f'JAX {made["jax"]}',
             f'bornbiased_jax {made["bornbiased_jax"]}', f'Python {made["python"]}']
  except (ValueError, LookupError, TypeError, AttributeError):
    return 'results.json cannot be read.'
  if commit:
    parts.append(f'commit {commit}')
  if record.get('seconds'):
    parts.append(duration(record['seconds']))
  return ', '.join(parts)


def heading(item: Item) -> str:
  """
  >>> heading(Item(('fig1', 'table1'), 'A favourite', '', '', ()))
  'Figure 1, Table 1: A favourite'
  """
  of_paper = [re.sub(r'^(fig|table)(\d+)$', r'\1 \2', name).replace('fig ', 'Figure ')
              .replace('table ', 'Table ') for name in item.names if name[-1].isdigit()]
  return ': '.join([', '.join(of_paper), item.title]) if of_paper else item.title


def duration(seconds: float) -> str:
  """
  >>> duration(42), duration(125), duration(7300)
  ('42 s', '2 min', '2 h 2 min')
  """
  minutes = round(seconds / 60)
  if seconds < 100:
    return f'{seconds:.0f} s'
  return f'{minutes} min' if minutes < 100 else f'{minutes // 60} h {minutes % 60} min'
