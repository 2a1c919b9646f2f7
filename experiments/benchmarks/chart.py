"""A bar for every hot path that has a peer: how many times as long the peer takes."""

import json
from pathlib import Path

from matplotlib.figure import Figure

from bornbiased_jax import plotting


def rows_of(paths: list[Path]) -> list[dict]:
  """Rows with a peer of the benchmarks in these files, and in each the `device` it ran on."""
  found = [json.loads(path.read_text()) for path in paths if path.exists()]
  return [row | {'device': f'{made["environment"]["num_devices"]} x {made["environment"]["device"]}'}
          for made in found for row in made['rows'] if row.get('peer_over_ours')]


def draw(rows: list[dict]) -> Figure:
  """Medians, with the quartiles over rounds as whiskers."""
  with plotting.style():
    figure = plotting.figure(8, 1 + 0.32 * len(rows))
    ax = figure.subplots()
    for i, row in enumerate(rows):
      (low, high), median = row['peer_over_ours']['quartiles'], row['peer_over_ours']['median']
      ax.barh(i, median - 1, left=1, color=plotting.COLORS[0 if median >= 1 else 1], height=0.6,
              xerr=[[median - low], [high - median]], error_kw={'elinewidth': 0.8})
      ax.text(max(1, high) * 1.06, i, f'{median:.3g} ×', va='center', fontsize='small')
    ax.axvline(1, color='black', linewidth=1)
    ax.set_xscale('log')
    plotting.plain_log_ticks(ax.xaxis)
    ax.margins(x=0.12)
    devices = sorted({row['device'] for row in rows})
    ax.set_yticks(range(len(rows)), [label(row) + (f', {row["device"]}' if len(devices) > 1 else '') for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel='times as long as ours', title=f'How long peers take ({", ".join(devices)})')
  return figure


def label(row) -> str:
  known = [f'{name} {row[key]:,}' for name, key in (('n', 'n'), ('T', 'length'), ('batch', 'batch_size')) if key in row]
  known += ['ties'] if row.get('ties') else []
  return row['benchmark'] + (f' ({", ".join(known)})' if known else '') + f'  over  {row["peer"]}'
