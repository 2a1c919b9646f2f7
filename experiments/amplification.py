"""Attention amplifies what MLPs have made common: MLP0, MLP0 after MLP0, Attn0 after MLP0 (Table 3, Prop 4).

    python -m experiments.amplification                 # about 2 min on two CPU cores
    python -m experiments.amplification --scale=paper   # an accelerator, or an hour on two CPU cores

After one shared ReLU MLP0 independent inputs have cosine 1/pi. A second MLP0
raises it to 0.49; averaging the T tokens of a sequence instead leaves only what
they share, cosine T / (T + pi - 1).

Writes results.json (a row for each network; in the summary the measured mean,
its standard error and the theory) and figure.png to the output folder. Started
again, it goes on where it was.
"""

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis import similarity, theory
from bornbiased_jax.analysis.simplified import StackConfig
from experiments import command_line
from experiments.cells import measure_cells, stack_cell
from experiments.results import Results, grouped, mean_and_theory

COMMON = dict(probe_seed='0', batch_size='auto', chunk_size='auto')
SCALES = {
    'smoke': COMMON | dict(seeds='0-2', width='256', lengths='8,16', num_sequences='40'),
    'laptop': COMMON | dict(seeds='0-9', width='2048', lengths='3,10,32,100,1024', num_sequences='40'),
    'paper': COMMON | dict(seeds='0-19', width='2048', lengths='3,10,32,100,1024', num_sequences='200'),
}


def main(settings, output_dir):
  results = Results(output_dir, 'amplification', settings)
  statistic = similarity.inter_sequence('residual_last', pair_std=True)
  stacks = [('mlp', 'mlp', 1)] + [('mlp', 'attention', length) for length in settings.lengths]
  cells = []
  for first, second, length in stacks:
    config = StackConfig((first, second), settings.width, settings.width)
    cells.append(stack_cell({'layers': f'{first}, {second}', 'length': length}, config, length, settings,
                            statistic, layers_row))
  measure_cells(cells, settings, results)
  results.finish(summarize(results.rows, settings), display, draw(results.rows, settings))


def layers_row(measured):
  return {'layer_cosine': measured['cosine'], 'layer_cosine_std': measured['cosine_std']}


def summarize(rows, settings):
  """Table 3: one line for each composition and length."""
  probe_error = similarity.isotropic_std(settings.num_sequences, settings.width)
  after_mlp, after_two = map(float, theory.iterate(theory.relu_similarity, 0.0, 2))
  summary = []
  for fields, group in grouped(rows, 'layers', 'length'):
    first, last = ([row['layer_cosine'][i] for row in group] for i in (0, 1))
    length = fields['length']
    if fields['layers'] == 'mlp, mlp':
      summary.append({'composition': 'MLP0', 'length': length, **mean_and_theory(first, probe_error, after_mlp)})
      summary.append({'composition': 'MLP0(MLP0)', 'length': length, **mean_and_theory(last, probe_error, after_two)})
    else:
      amplified = float(theory.amplified_similarity(after_mlp, length))
      summary.append({'composition': 'Attn0(MLP0)', 'length': length, **mean_and_theory(last, probe_error, amplified)})
  return summary


def display(row):
  return {'composition': row['composition'], 'T': str(row['length']),
          'cosine': f'{row["measured"]:.4f} ± {row["standard_error"]:.4f} (s.e.)', 'theory': f'{row["theory"]:.4f}'}


def draw(rows, settings):
  with plotting.style():
    figure = plotting.figure(4.5, 3.2)
    ax = figure.subplots()
    own = [row for row in rows if row['layers'] == 'mlp, attention']
    cosine = np.array([[row['layer_cosine'][1] for row in group] for _, group in grouped(own, 'length')])
    plotting.band(ax, settings.lengths, cosine.T, linestyle='none', marker='o', markersize=4,
                  label='Attn0(MLP0), last position')
    length = np.geomspace(1, 2 * max(settings.lengths), 100)
    plotting.theory(ax, length, theory.amplified_similarity(1 / np.pi, length), 'T / (T + π − 1)')
    twice = np.mean([row['layer_cosine'][1] for row in rows if row['layers'] == 'mlp, mlp'])
    ax.axhline(twice, color=plotting.COLORS[1], label='MLP0(MLP0)')
    ax.set(xscale='log', xlabel='sequence length T (tokens)', ylabel='cosine of two sequences', ylim=(0, 1.02),
           title=f'attention amplifies (width {settings.width}, {len(settings.seeds)} networks)')
    ax.legend()
  return figure


if __name__ == '__main__':
  command_line.run(main, 'amplification', SCALES, __doc__)
