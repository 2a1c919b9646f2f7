"""The chart of benchmarks: how many times as long as ours each peer takes."""

from bornbiased_jax import plotting


def display(row: dict) -> dict[str, str]:
  """A line of the table: the time of the peer over ours, with quartiles, if there is a peer."""
  ratio = row.get('peer_over_ours')
  shown = '–'
  if ratio:
    shown = '{:.3g} ({:.3g}–{:.3g})'.format(ratio['median'], *ratio['quartiles'])
  return {'benchmark': label(row), 'the peer takes, × ours': shown}


def draw(rows: list[dict], device: str) -> 'plotting.Figure':
  """One bar per row with a peer: the median over rounds, with the quartiles as whiskers."""
  rows = [row for row in rows if row.get('peer_over_ours')]
  figure = plotting.figure(9, 1 + 0.26 * max(1, len(rows)))
  ax = figure.subplots()
  for i, row in enumerate(rows):
    draw_bar(ax, i, row['peer_over_ours'])
  ax.set_yticks(range(len(rows)), list(map(label, rows)), fontsize='small')
  ax.tick_params(axis='y', length=0)
  ax.grid(visible=False, axis='y')
  ax.set_xscale('log')
  plotting.plain_log_ticks(ax.xaxis)
  ax.margins(x=0.12)
  ax.spines['left'].set_visible(False)
  ax.set(ylim=(max(1, len(rows)) - 0.5, -0.5), xlabel='times as long as ours',
         title=f'Time of the peer, on {device} (orange: it is faster)')
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
  name = row['benchmark'] + (f' ({", ".join(known)})' if known else '')
  return name + (f'; peer: {row["peer"]}' if 'peer' in row else '')
