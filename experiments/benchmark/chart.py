"""The chart of benchmarks: how many times as long as ours each peer takes."""

import json
from pathlib import Path

from bornbiased_jax import plotting


def rows_of(paths: list[Path]) -> list[dict]:
  """The rows of these files, if they exist, that have a peer, each with its `device`."""
  rows = []
  for path in paths:
    if path.exists():
      content = json.loads(path.read_text())
      made = content['environment']
      device = f'{made["num_devices"]} x {made["device"]}'
      rows += [row | {'device': device} for row in content['rows'] if row.get('peer_over_ours')]
  return rows


def draw(rows: list[dict]) -> 'plotting.Figure':
  """One bar per row, beside its name: the median over rounds, with the quartiles as whiskers."""
  devices = sorted({row['device'] for row in rows})
  with plotting.style():
    figure = plotting.figure(9, 1 + 0.26 * len(rows))
    ax = figure.subplots()
    for i, row in enumerate(rows):
      draw_bar(ax, i, row['peer_over_ours'])
    names = [label(row) + (f', on {row["device"]}' if len(devices) > 1 else '') for row in rows]
    ax.set_yticks(range(len(rows)), names, fontsize='small')
    ax.tick_params(axis='y', length=0)
    ax.grid(visible=False, axis='y')
    ax.set_xscale('log')
    plotting.plain_log_ticks(ax.xaxis)
    ax.margins(x=0.12)
    ax.spines['left'].set_visible(False)
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlabel='times as long as ours',
           title=f'Time of the peer, on {", ".join(devices)} (orange: it is faster)')
  return figure


def draw_bar(ax, i, ratio):
  """A bar that begins at 1, and its number."""
  (low, high), median = ratio['quartiles'], ratio['median']
  ax.barh(i, median - 1, left=1, color=plotting.COLORS[0 if median >= 1 else 1], height=0.35,
          xerr=[[median - low], [high - median]], error_kw={'elinewidth': 0.8})
  ax.vlines(1, i - 0.2, i + 0.2, color='black', linewidth=1)
  ax.text(max(1, high) * 1.06, i, f'{median:.3g} ×', va='center', fontsize='small')


def label(row) -> str:
  names = {'n': 'n = ', 'length': 'T = ', 'batch_size': 'batch '}
  known = [f'{name}{row[key]:,}' for key, name in names.items() if key in row]
  known += ['ties'] if row.get('ties') else []
  return row['benchmark'] + (f' ({", ".join(known)})' if known else '') + f'; peer: {row["peer"]}'
