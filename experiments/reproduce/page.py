"""The page that `reproduce` writes: per figure and table, what is claimed and what was measured."""

import json
from pathlib import Path
import re
from typing import NamedTuple

from ..shared import figures
from .catalogue import Item

TEMPLATE = Path(__file__).with_name('report.html')


class Shown(NamedTuple):
  """A run as the page shows it."""

  folder: str
  command: str
  problem: str | None
  table: str
  png: bytes
  how: str


def read(folder: Path) -> dict:
  """What results.json says of a run; nothing if there is none that can be read."""
  try:
    return dict(json.loads((folder / 'results.json').read_text()))
  except (OSError, ValueError, TypeError):
    return {}


def seconds_of(content: dict) -> float:
  return (content.get('run') or {}).get('seconds') or 0.0


def render(scale: str, items: list[Item], commands: dict[str, str], problems: dict[str, str],
           output_dir: Path) -> str:
  """The page, which stands for itself.

  `commands` has each run by its folder in `output_dir`, `problems` why some are not complete.
  """
  runs = {folder: read(output_dir / folder) for folder in commands}
  shown = [{'names': item.names, 'heading': heading(item), 'title': item.title,
            'claim': item.claim, 'published': item.published,
            'runs': [_shown(output_dir / run.folder, run.folder, commands[run.folder],
                            problems.get(run.folder), runs[run.folder])
                     for run in item.runs if scale in run.minutes]} for item in items]
  return figures.template(TEMPLATE).render(
      scale=scale, items=shown, duration=duration, total=len(runs),
      done=sum(content.get('complete', False) for content in runs.values()),
      seconds=sum(map(seconds_of, runs.values())))


def _shown(path, folder, command, problem, content):
  file = lambda name: (path / name).read_bytes() if (path / name).exists() else b''
  if not content.get('complete'):
    problem = problem or ('Stopped before its end.' if content else 'Not run.')
  table = file('table.md') or file('table.txt')  # That of versions before 0.2.
  return Shown(folder, command, problem, table.decode(), file('figure.png'), _how(content))


def _how(content: dict) -> str:
  """Device, versions, commit and run time in a line."""
  if not (made := content.get('environment')):
    return ''
  parts = [f'{made["num_devices"]} × {made["device"]}', f'JAX {made["jax"]}',
           f'bornbiased_jax {made["bornbiased_jax"]}', f'Python {made["python"]}']
  if commit := (content.get('run') or {}).get('commit'):
    parts.append(f'commit {commit}')
  if seconds := seconds_of(content):
    parts.append(duration(seconds))
  return ', '.join(parts)


def heading(item: Item) -> str:
  """
  >>> heading(Item(('fig1', 'table1'), 'A preferred token', '', '', ()))
  'Figure 1, Table 1: A preferred token'
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
