"""The chart of benchmarks: how many times as long as ours each peer takes."""

import json
from pathlib import Path

from bornbiased_jax import plotting


def rows_of(paths: list[Path]) -> list[dict]:
  """The rows of benchmarks that have a peer, each with the `device` that it ran on.

  Args:
    paths: JSON files of experiments.benchmark, which need not all exist.
  """
  rows = []
  for path in paths:
    if path.exists():
      content = json.loads(path.read_text())
      made = content['environment']
      device = f'{made["num_devices"]} x {made["device"]}'
      rows += [row | {'device': device} for row in content['rows'] if row.get('peer_over_ours')]
  return rows


def draw(rows: list[dict]) -> 'plotting.Figure':
  """One bar per row: the median over rounds, with the quartiles as whiskers."""
  with plotting.style():
    figure = plotting.figure(8, 1 + 0.32 * len(rows))
    ax = figure.subplots()
    for i, row in enumerate(rows):
      (low, high), median = (row['peer_over_ours'][name] for name in ('quartiles', 'median'))
      color = plotting.COLORS[0 if median >= 1 else 1]
      ax.barh(i, median - 1, left=1, color=color, height=0.6,
              xerr=[[median - low], [high - median]], error_kw={'elinewidth': 0.8})
      ax.text(max(1, high) * 1.06, i, f'{median:.3g} ×', va='center', fontsize='small')
    ax.axvline(1, color='black', linewidth=1)
    ax.set_xscale('log')
    plotting.plain_log_ticks(ax.xaxis)
    ax.margins(x=0.12)
    devices = sorted({row['device'] for row in rows})
    device_of = lambda row: f', {row["device"]}' if len(devices) > 1 else ''
    ax.set_yticks(range(len(rows)), [label(row) + device_of(row) for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel='times as long as ours', title=f'How long peers take ({", ".join(devices)})')
  return figure


def label(row) -> str:
  names = {'n': 'n', 'length': 'T', 'batch_size': 'batch'}
  known = [f'{name} {row[key]:,}' for key, name in names.items() if key in row]
  known += ['ties'] if row.get('ties') else []
  return row['benchmark'] + (f' ({", ".join(known)})' if known else '') + f'  over  {row["peer"]}'
