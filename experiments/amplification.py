"""Attention amplifies what MLPs have made common (Table 3, Prop 4).

Independent inputs have cosine 1/pi after one ReLU MLP0 that they share, and 0.49 after a second.
Attn0, which averages the T tokens of a sequence, instead leaves only what the tokens share: the
cosine becomes T / (T + pi - 1). Every network reads vectors of its own.

    python -m experiments.amplification                 # about 2 min on two CPU cores
    python -m experiments.amplification --scale=paper   # an accelerator, or 1 h on two CPU cores

Prints Table 3, with the median over networks of the probability that vectors without a common
direction are as similar. Writes results.json (a row per network) and figure.png.
"""

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis import inter_sequence, theory
from bornbiased_jax.analysis.simplified import StackConfig

from .shared import measurements, program
from .shared.base_settings import Stacks
from .shared.measurements import measure_cells, stack_cell
from .shared.settings import setting
from .shared.tables import grouped, mean_and_theory, with_error


class Settings(Stacks):
  width: int = setting(2048, smoke=256)
  lengths: list[int] = setting([3, 10, 32, 100, 1024], smoke=[8, 16])
  num_sequences: int = setting(40, paper=200)


def main(settings, results):
  statistic = inter_sequence('residual_last', pair_std=True)
  stacks = [('mlp', 'mlp', 1)] + [('mlp', 'attention', length) for length in settings.lengths]
  cells = []
  for first, second, length in stacks:
    config = StackConfig((first, second), settings.width, settings.width)
    cells.append(stack_cell({'layers': f'{first}, {second}', 'length': length}, config, length,
                            settings, statistic, measurements.layers_row))
  measure_cells(cells, settings, results)
  results.finish(summarize(results.rows, settings), display, lambda: draw(results.rows, settings))


def summarize(rows, settings):
  """Table 3: one line per composition and length."""
  after_mlp, after_two = map(float, theory.iterate(theory.relu_similarity, 0.0, 2))
  summary = []
  for fields, group in grouped(rows, 'layers', 'length'):
    first, last = ([row['layer_cosine'][i] for row in group] for i in (0, 1))
    length = fields['length']
    if fields['layers'] == 'mlp, mlp':
      lines = [('MLP0', first, after_mlp), ('MLP0(MLP0)', last, after_two)]
    else:
      amplified = float(theory.amplified_similarity(after_mlp, length))
      lines = [('Attn0(MLP0)', last, amplified)]
    summary += [{'composition': name, 'length': length, **mean_and_theory(cosine, expected),
                 'median_log10_p_isotropic': measurements.median_log10_p(
                     cosine, settings.num_sequences, settings.width)}
                for name, cosine, expected in lines]
  return summary


def display(row):
  return {'composition': row['composition'], 'T': row['length'],
          'cosine': with_error(row, 'z.4f'), 'theory': f'{row["theory"]:z.4f}',
          'log10 p if isotropic': f'{row["median_log10_p_isotropic"]:,.1f}'}


def draw(rows, settings):
  """Cosine after Attn0(MLP0) by sequence length, with theory and MLP0(MLP0)."""
  figure = plotting.figure(4.5, 3.2)
  ax = figure.subplots()
  own = [row for row in rows if row['layers'] == 'mlp, attention']
  cosine = np.array([[row['layer_cosine'][1] for row in group]
                     for _, group in grouped(own, 'length')])
  plotting.band(ax, settings.lengths, cosine.T, linestyle='none', marker='o', markersize=4,
                label='Attn0(MLP0), last position')
  length = np.geomspace(1, 2 * max(settings.lengths), 100)
  plotting.theory(ax, length, theory.amplified_similarity(1 / np.pi, length), 'T / (T + π − 1)')
  twice = np.mean([row['layer_cosine'][1] for row in rows if row['layers'] == 'mlp, mlp'])
  ax.axhline(twice, color=plotting.COLORS[1], label='MLP0(MLP0)')
  ax.set(xscale='log', xlabel='sequence length T (tokens)', ylabel='cosine of two sequences',
         ylim=(0, 1.02), title=f'attention amplifies (width {settings.width}, '
         f'{len(settings.seeds)} networks)')
  ax.legend()
  return figure


if __name__ == '__main__':
  program.measure(main, 'amplification', Settings, __doc__, several_hosts=True)
