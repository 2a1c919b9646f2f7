"""How well does theory predict random transformers, layer by layer?

Ensembles of many architectures read random sequences: full and without attention, both
initializations, rotary and learned positions, GELU and ReLU, several lengths. After each layer the
cosine of two sequences is compared with theory.finite_width, and its std over networks too. No
number is fitted. A deviation is relative to the cosine after the last layer.

    python -m experiments.layer_theory                 # 576 networks, about 20 min on two CPU cores
    python -m experiments.layer_theory --scale=paper   # nano too; needs an accelerator

Prints a table with a line per architecture and length. Writes results.json (a row per network) and
figure.png to the output folder.
"""

import itertools

import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import inter_sequence
from bornbiased_jax.fields import some_of

from .shared import measurements, program
from .shared.base_settings import Transformers
from .shared.measurements import measure_cells, predict, transformer_cell
from .shared.settings import setting
from .shared.tables import ci95, described, grouped, plus_minus

FIELDS = ('sublayers', 'init_scheme', 'positions', 'activation')

class Settings(Transformers):
  config: list[str] = setting(['tiny_gpt2'], paper=['tiny_gpt2', 'nano_gpt2'])
  seeds: list[int] = setting(range(12), smoke=range(3))
  num_sequences: int = setting(100, smoke=40, paper=1000)
  lengths: list[int] = setting([16, 64, 256], smoke=[8])
  sublayers: list[str] = setting(['full', 'mlp_only'], some_of(*configs.SUBLAYERS),
                                 'blocks, comma-separated')
  init_schemes: list[str] = setting(['gpt2', 'plain'], some_of(*configs.INIT_SCHEMES),
                                    'initializations', smoke=['gpt2'])
  positions: list[str] = setting(['rope', 'learned'], some_of(*configs.POSITIONS),
                                 'kinds of positions', smoke=['rope'])
  activations: list[str] = setting(['gelu_tanh', 'relu'], some_of(*configs.ACTIVATIONS),
                                   'activations of the MLP', smoke=['gelu_tanh'])


def main(settings, results):
  architectures = cells(settings)
  measure_cells(architectures, settings, results)
  summary = results.summary or summarize(
      results.rows, predict(architectures, measurements.predicted_similarity))
  results.finish(summary, display, lambda: draw(summary))


def cells(settings):
  statistic = lambda config: inter_sequence('residual_last')
  return [
      transformer_cell(name, length, settings, statistic, row,
                       **dict(zip(FIELDS, fields, strict=True)))
      for name, length in itertools.product(settings.config, settings.lengths)
      for fields in itertools.product(settings.sublayers, settings.init_schemes,
                                      settings.positions, settings.activations)]


def row(measured):
  return {'layer_cosine': measured['cosine']}


def summarize(rows, theory):
  summary = []
  for fields, group in grouped(rows, 'config', 'length', *FIELDS):
    cosine_SL = np.array([row['layer_cosine'] for row in group])
    predicted = theory[tuple(fields.values())]
    mean_L = cosine_SL.mean(axis=0)
    relative_L = (np.asarray(predicted.inter_cosine_L) - mean_L) / mean_L[-1]
    worst = int(np.abs(relative_L).argmax())
    deviation_S = (predicted.inter_cosine_L[worst] - cosine_SL[:, worst]) / mean_L[-1]
    deviation = described(deviation_S, 'largest_deviation')
    summary.append(fields | {
        'networks': len(group), 'layer_cosine': mean_L,
        'layer_cosine_ci95': [ci95(own) for own in cosine_SL.T],
        'layer_theory': predicted.inter_cosine_L, 'its_layer': worst + 1,
        'its_ci95': deviation.pop('largest_deviation_ci95'), **deviation,
        'cosine_std': cosine_SL[:, -1].std(ddof=1), 'theory_std': predicted.inter_cosine_std})
  return summary


def display(row):
  return {
      'model': row['config'], 'T': row['length'], 'sublayers': row['sublayers'],
      'init': row['init_scheme'], 'positions': row['positions'], 'activation': row['activation'],
      'last cosine': f'{row["layer_cosine"][-1]:.3f}', 'theory': f'{row["layer_theory"][-1]:.3f}',
      'largest deviation': plus_minus(row, 'largest_deviation', '+.1%', 'its_ci95'),
      'std': f'{row["cosine_std"]:.3f}', 'theory std': f'{row["theory_std"]:.3f}',
  }


def draw(summary):
  """Measured against predicted: left every layer, right the std over networks."""
  figure = plotting.figure(8, 3.6)
  layers, spread = figure.subplots(1, 2)
  for color, (fields, group) in zip(
      plotting.COLORS * 9, grouped(summary, 'config', 'sublayers', 'activation'), strict=False):
    label = ', '.join(fields.values()).replace('_only', ' only').removesuffix('_tanh')
    each = {name: np.concatenate([row[name] for row in group])
            for name in ('layer_theory', 'layer_cosine', 'layer_cosine_ci95')}
    layers.errorbar(each['layer_theory'], each['layer_cosine'], each['layer_cosine_ci95'],
                    fmt='o', markersize=3, elinewidth=0.8, color=color, label=label)
    spread.plot([row['theory_std'] for row in group], [row['cosine_std'] for row in group], 'o',
                markersize=4, color=color)
  for ax, what in ((layers, 'cosine of two sequences, each layer'),
                   (spread, 'std over networks, last layer')):
    ax.axline((0, 0), slope=1, color='black', linestyle='--', linewidth=1)
    ax.set(title=what, xlabel='theory', ylabel='measured', xlim=(0, None), ylim=(0, None))
  layers.legend(fontsize='small', title_fontsize='small',
                title=f'{summary[0]["networks"]} networks per point, bars: 95 % intervals')
  return figure


if __name__ == '__main__':
  program.measure(main, 'layer_theory', Settings, __doc__, several_hosts=True)
