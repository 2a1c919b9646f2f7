"""The picture of a comparison: verdict and likeness of each pair, in groups of related models."""

from matplotlib.patches import Patch
import numpy as np
import scipy

from bornbiased_jax import plotting

from . import pairs

# With more networks than these, cells have no room for numbers.
MOST_WRITTEN = 20
_COLORS = {'identical': '#8c2d04', 'related': plotting.COLORS[1], 'agrees in part': '#f3c9a5',
           'inconclusive': '#bbbbbb', 'unrelated': '#cfe3f1', 'itself': '#444444'}


def draw(label: dict[str, str], rows: list[dict], suspect: str | None = None):
  """Who is related to whom; cells have the likeness, = for copies, or ? where no test decides.

  Args:
    label: what each model is called, by its name.
    rows: a row per pair.
    suspect: the only model with which the others were compared; None: all with all.
  """
  order = [name for name in in_order(list(label), rows) if name != suspect]
  across = order if suspect is None else [suspect]
  height = min(14, max(3, 1.6 + 0.34 * len(label)))
  figure = plotting.figure(height + 2 if suspect is None else 6, height + 1)
  ax = figure.subplots()
  draw_verdicts(ax, cells(rows, order, across))
  look = dict(parse_math=False, fontsize='small')
  ax.set_yticks(range(len(order)), [label[name] for name in order], **look)
  ax.set_xticks(range(len(across)), [label[name] for name in across], rotation=90, **look)
  figure.legend(handles=[Patch(color=color, label=name) for name, color in _COLORS.items()],
                loc='outside lower center', ncols=3, fontsize='small')
  return figure


def cells(rows: list[dict], order: list[str], across: list[str]) -> list[list[dict]]:
  """A line per model: the row of each pair with `shade`, a key of colours, and `text`."""
  by_pair = {frozenset((row['base'], row['suspect'])): row for row in rows}
  return [[_cell(by_pair.get(frozenset((name, other)))) for other in across] for name in order]


def _cell(row):
  if row is None:
    return {'shade': 'itself', 'text': ''}
  if row['identical']:
    return row | {'shade': 'identical', 'text': '='}
  return row | {'shade': 'agrees in part' if pairs.agree_in_part(row) else row['verdict'],
                'text': '?' if row['likeness'] is None else f'{row["likeness"]:z.2f}'}


def draw_verdicts(ax, lines):
  """A cell per pair, coloured by its verdict."""
  shades = np.array([[cell['shade'] for cell in line] for line in lines])
  for shade, color in _COLORS.items():
    plotting.heat(ax, np.where(shades == shade, 1, np.nan), color, 1)
  ax.set_facecolor('white')
  ax.grid(False)
  if len(lines) <= MOST_WRITTEN:
    for (i, j), shade in np.ndenumerate(shades):
      ax.text(j, i, lines[i][j]['text'], ha='center', va='center', fontsize='small',
              color='white' if shade in ('identical', 'related') else 'black')
  ax.set_title('verdict on each pair, and likeness in the test that finds most\n'
               '(unrelated models: ≈ 0; =: the same numbers; ?: no test that decides applies)',
               fontsize='small')


def in_order(names: list[str], rows: list[dict]) -> list[str]:
  """The models in an order that keeps related ones together, those most alike side by side."""
  tree = scipy.cluster.hierarchy.average(distances(names, rows))
  return [names[i] for i in scipy.cluster.hierarchy.leaves_list(tree)]


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
