"""The picture of a comparison: a family tree of related groups, and the verdict on each pair."""

from pathlib import Path

from matplotlib.patches import Patch
import numpy as np
import scipy

from bornbiased_jax import plotting

from . import pairs

# With more networks than these, cells have no room for numbers.
MOST_WRITTEN = 20
_COLORS = {'related': plotting.COLORS[1], 'agrees in part': '#f3c9a5', 'inconclusive': '#bbbbbb',
           'unrelated': '#cfe3f1', 'itself': '#444444'}
_NOT_JOINED = 1 - 1e-9


def draw(names: list[str], rows: list[dict], suspect: str | None = None):
  """Who is related to whom; cells have z, or ? where no test that decides has a result.

  Args:
    names: all networks.
    rows: a row per pair.
    suspect: the network with which alone the others were compared; None: all with all.
  """
  labels = shorten(names)
  tree = scipy.cluster.hierarchy.average(distances(names, rows))
  drawn = scipy.cluster.hierarchy.dendrogram(tree, no_plot=True)
  order = [i for i in drawn['leaves'] if names[i] != suspect]
  across = order if suspect is None else [names.index(suspect)]
  with plotting.style():
    height = min(14, max(3, 1.6 + 0.34 * len(names)))
    width = height + 3.5 if suspect is None else 6
    figure = plotting.figure(width, height + (1 if suspect is None else 0))
    left, ax = figure.subplots(1, 2, width_ratios=(1, 4)) if suspect is None else (
        None, figure.subplots())
    if left:
      draw_tree(left, drawn)
    draw_verdicts(ax, names, rows, order, across)
    look = dict(parse_math=False, fontsize='small')
    ax.set_yticks(range(len(order)), [labels[i] for i in order], **look)
    ax.set_xticks(range(len(across)), [labels[i].split(' ')[0] for i in across], **look)
    figure.legend(handles=[Patch(color=color, label=name) for name, color in _COLORS.items()],
                  loc='outside lower center', ncols=5, fontsize='small')
  return figure


def draw_verdicts(ax, names, rows, order, across):
  """A cell per pair, coloured by its verdict."""
  by_pair = {frozenset((row['base'], row['suspect'])): row for row in rows}
  cells = [[by_pair.get(frozenset((names[i], names[j]))) for j in across] for i in order]
  found = lambda row: 'agrees in part' if pairs.agree_in_part(row) else row['verdict']
  verdicts = np.array([[found(row) if row else 'itself' for row in line] for line in cells])
  for verdict, color in _COLORS.items():
    plotting.heat(ax, np.where(verdicts == verdict, 1, np.nan), color, 1)
  ax.set_facecolor('white')
  ax.grid(False)
  if len(names) <= MOST_WRITTEN:
    for (i, j), verdict in np.ndenumerate(verdicts):
      if row := cells[i][j]:
        text = '?' if row['z'] is None else f'{row["z"]:z.0f}'
        ax.text(j, i, text, ha='center', va='center', fontsize='small',
                color='white' if verdict == 'related' else 'black')
  ax.set_title('verdict on each pair, and largest z of a test that decides\n'
               '(unrelated networks: below 5; ?: no such test has a result)', fontsize='small')


def draw_tree(ax, drawn):
  """Related networks joined at their likeness; who came first is not known."""
  for place, distance in zip(drawn['icoord'], drawn['dcoord'], strict=True):
    if max(distance) < _NOT_JOINED:
      ax.plot(1 - np.array(distance), (np.array(place) - 5) / 10, color=plotting.COLORS[1])
  ax.set(xlim=(0, 1.02), ylim=(len(drawn['leaves']) - 0.5, -0.5), yticks=[],
         xlabel='likeness\n(copy: ≈ 1)')
  ax.set_title('related groups', fontsize='small')
  ax.spines['left'].set_visible(False)


def distances(names: list[str], rows: list[dict]) -> np.ndarray:
  """One less the likeness of related pairs, and 1 of others, as `scipy.cluster` takes them."""
  index = {name: i for i, name in enumerate(names)}
  distance_MM = 1 - np.eye(len(names))
  for row in rows:
    if row['verdict'] == 'related':
      i, j = index[row['base']], index[row['suspect']]
      likeness = 1.0 if row['likeness'] is None else row['likeness']
      distance_MM[i, j] = distance_MM[j, i] = 1 - np.clip(likeness, 1e-6, 1)
  return distance_MM[np.triu_indices(len(names), 1)]


def shorten(names: list[str]) -> list[str]:
  """A number for each network, and as many of the last parts of its name as tell all apart.

  >>> shorten(['zoo/a/model', 'zoo/b/model'])
  ['1 a/model', '2 b/model']
  """
  # A name that is not UTF-8 is shown with its bytes as numbers.
  shown = [name.encode(errors='backslashreplace').decode() for name in names]
  parts = [Path(name).parts for name in shown]
  for count in range(1, max(map(len, parts)) + 1):
    labels = ['/'.join(each[-count:])[-28:] for each in parts]
    if len(set(labels)) == len(names):
      break
  return [f'{i} {label}' for i, label in enumerate(labels, 1)]
