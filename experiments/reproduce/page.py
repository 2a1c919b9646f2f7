"""The page that `reproduce` writes: per figure and table, what is claimed and what was measured."""

import json
from pathlib import Path
import re

from .catalogue import Item

_DECIDES_NOTHING = (
    "**This scale shows that the programs run. Its networks and samples are too small to decide\n"
    "anything: the headings are the paper's claims, not what these numbers say.**")
_DECIDES = ("The headings are the paper's claims; whether they hold is for the numbers to say.")
_NOTATION = (
    'After ± comes half of a 95 % interval, unless a header or text says std or s.e. Of two\n'
    'networks, which are too few for an interval, both values stand.')


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
  """The page in Markdown, which shows the pictures in its folder.

  `commands` has each run by its folder in `output_dir`, `problems` why some are not complete.
  """
  runs = [read(output_dir / folder) for folder in commands]
  done, seconds = sum(run.get('complete', False) for run in runs), sum(map(seconds_of, runs))
  parts = ['# Transformers Are Born Biased, measured again',
           f'`--scale={scale}`: {done} of {len(runs)} runs are complete; they took '
           f'{duration(seconds)} in all.',
           _DECIDES_NOTHING if scale in ('smoke', 'rehearsal') else _DECIDES, _NOTATION]
  for item in items:
    folders = [run.folder for run in item.runs if scale in run.minutes]
    parts += [f'## {heading(item)}', f'**Claim.** {item.claim}', f'**Published.** {item.published}']
    parts += [part for folder in folders for part in _shown(
        output_dir, folder, commands[folder], problems.get(folder))]
    parts += [] if folders else ['Nothing at this scale.']
  return '\n\n'.join(parts) + '\n'


def _shown(output_dir: Path, folder: str, command: str, problem: str | None) -> list[str]:
  """Of a run: why it is not complete, table, picture, command, and how it was made."""
  content, path = read(output_dir / folder), output_dir / folder
  if not content.get('complete'):
    problem = problem or ('Stopped before its end.' if content else 'Not run.')
  table = (path / 'table.md').read_text().strip() if (path / 'table.md').exists() else ''
  picture = f'![{folder}]({folder}/figure.png)' if (path / 'figure.png').exists() else ''
  return [part for part in (f'### {folder}', problem, table, picture, f'    {command}',
                            _how(content)) if part]


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
