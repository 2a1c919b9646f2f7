"""Attention makes the positions of one sequence alike and its first position loud (Fig 8, 9, Prop 5, Eq 2).

    python -m experiments.intra_sequence                 # about 1 min on two CPU cores
    python -m experiments.intra_sequence --scale=paper   # an accelerator, or an hour on two CPU cores

Averaging over the past makes neighbouring positions share most of their sum:
the similarity within a sequence grows with depth as Proposition 5 says, for
uniform attention (Attn0) and, damped by the residual stream, for a random
transformer's. The average of i independent values has a standard deviation of
1/sqrt(i): the first position stands out, the seed of the attention sink.

Writes results.json (a row for each network and variant, with the measured
similarity by depth, its standard error over sequences and the theory) and
figure.png to the output folder. Started again, it goes on where it was.
"""

import functools
import itertools

import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import positions, similarity, statistics, theory
from bornbiased_jax.analysis.simplified import StackConfig
from bornbiased_jax.errors import InputError
from experiments import command_line
from experiments.ablation import GAUSSIAN
from experiments.cells import measure_cells, stack_cell, transformer_cell
from experiments.results import Results, grouped

SCALES = {
    'smoke': GAUSSIAN | dict(config='tiny_gpt2', seeds='0-2', width='128', depth='3', lengths='16,32',
                             num_sequences='20'),
    'laptop': GAUSSIAN | dict(config='tiny_gpt2', seeds='0-9', width='768', depth='6', lengths='64,256',
                              num_sequences='100'),
    'paper': GAUSSIAN | dict(config='nano_gpt2', seeds='0-9', width='768', depth='6', lengths='64,256,1024',
                             num_sequences='200'),
}


def main(settings, output_dir):
  if min(settings.lengths) < 2:
    raise InputError('--lengths: a similarity of positions needs at least two of them')
  results = Results(output_dir, 'intra_sequence', settings)
  measure_cells([*attn0_cells(settings), *transformer_cells(settings)], settings, results)
  results.finish(summarize(results.rows), display, draw(results.rows, settings))


def attn0_cells(settings):
  """Stacks of Attn0, which have no weights: every seed would be the same, and error is over sequences."""
  for length in settings.lengths:
    config = StackConfig(('attention',) * settings.depth, settings.width, settings.width, embedding_std=1.0)
    closed_form = [float(theory.position_similarity(depth + 1)) for depth in range(settings.depth)]
    statistic = statistics.combine({'similarity': similarity.intra_sequence('residual'),
                                    'spread': positions.positional_std('residual')})
    cell = stack_cell({'block': 'Attn0', 'length': length}, config, length, settings, statistic,
                      functools.partial(row, closed_form, theory.positional_std))
    yield cell._replace(seeds=[0])


def transformer_cells(settings):
  """Attention-only networks with everything a block has: norm, projections, softmax, residual stream."""
  statistic = lambda config: statistics.combine({'similarity': similarity.intra_sequence('residual'),
                                                 'spread': positions.positional_std('value_aggregate')})
  for name in settings.config:
    for length in settings.lengths:
      cell = transformer_cell(name, length, settings, statistic, sublayers='attention_only',
                              row=functools.partial(row, None, positional_std(configs.get(name))))
      yield cell._replace(fields={'block': name, 'length': length})


def positional_std(config):
  """What `theory` says of the first attention layer of a random network."""
  return lambda position: theory.positional_std(
      position, config.linear_std**2 * config.width, config.width,
      theory.rotary_coherence(position, config.rope_theta, config.head_size))


def row(closed_form, std_theory, measured):
  """Similarity by depth, and the first layer's positional std over the first position's, against both theories."""
  std_T = measured['spread']['std'][0]
  position_T = np.arange(1, std_T.size + 1)
  return {
      'measured': measured['similarity']['cosine'],
      'standard_error': measured['similarity']['standard_error'],
      'theory': closed_form,
      'std': std_T,
      'std_over_uniform': std_T / std_T[0] / theory.positional_std(position_T),
      'std_over_theory': std_T / std_T[0] / std_theory(position_T),
  }


def summarize(rows):
  summary = []
  for fields, group in grouped(rows, 'block', 'length'):
    summary.append({
        **fields, 'networks': len(group),
        'measured': np.mean([row['measured'] for row in group], axis=0),
        'standard_error': np.sqrt(np.mean(np.square([row['standard_error'] for row in group]), axis=0)),
        'theory': group[0]['theory'],
        **{name: farthest_from_one(np.mean([row[name] for row in group], axis=0))
           for name in ('std_over_uniform', 'std_over_theory')},
    })
  return summary


def farthest_from_one(ratio_T):
  worst = int(np.argmax(np.abs(ratio_T - 1)))
  return {'ratio': ratio_T[worst], 'position': worst + 1}


def display(row):
  by_depth = lambda values: ' '.join(f'{value:.3f}' for value in values) if values is not None else '–'
  return {'block': row['block'], 'T': str(row['length']), 'networks': str(row['networks']),
          'similarity of positions, by depth': by_depth(row['measured']), 'Prop 5 (T → ∞)': by_depth(row['theory']),
          **{f'std / {label}, worst': f'{row[name]["ratio"]:.3f} at i = {row[name]["position"]}'
             for label, name in (('1/√i', 'std_over_uniform'), ('theory', 'std_over_theory'))}}


def draw(rows, settings):
  """Fig 8, Fig 9, and what of Fig 9 is left after dividing by 1/sqrt(i)."""
  with plotting.style():
    figure = plotting.figure(11, 3.2)
    depth_ax, position_ax, ratio_ax = figure.subplots(1, 3)
    for color, (fields, group) in zip(itertools.cycle(plotting.COLORS), grouped(rows, 'block', 'length')):
      label = f'{fields["block"]}, T = {fields["length"]}'
      cosine = np.array([row['measured'] for row in group])
      plotting.band(depth_ax, np.arange(1, cosine.shape[1] + 1), cosine, marker='o', markersize=3, color=color,
                    label=label)
      if fields['length'] == max(settings.lengths):
        draw_positions(position_ax, ratio_ax, fields['block'], group, color)
    depth = np.arange(1, settings.depth + 1)
    plotting.theory(depth_ax, depth, [theory.position_similarity(int(layers)) for layers in depth],
                    'Proposition 5 (T → ∞)')
    position = np.arange(1, max(settings.lengths) + 1)
    plotting.theory(position_ax, position, theory.positional_std(position), '1/√i')
    depth_ax.set(xlabel='attention layers', ylabel='mean cosine of two positions', ylim=(0, 1),
                 title='positions of one sequence grow alike')
    depth_ax.xaxis.get_major_locator().set_params(integer=True)
    position_ax.set(xscale='log', yscale='log', xlabel='position i', ylabel='std of the value aggregate / first',
                    title='the first position is the loudest')
    ratio_ax.set(xscale='log', xlabel='position i', ylabel='std / first, times √i',
                 title='beyond 1/√i, with theory (dashed)')
    for ax in (position_ax, ratio_ax):
      plotting.plain_log_ticks(ax.xaxis)
    plotting.plain_log_ticks(position_ax.yaxis)
    for ax in (depth_ax, position_ax, ratio_ax):
      ax.legend(fontsize='small')
  return figure


def draw_positions(position_ax, ratio_ax, block, rows, color):
  std = np.array([np.divide(row['std'], row['std'][0]) for row in rows])
  position = np.arange(1, std.shape[1] + 1)
  expected = theory.positional_std if block == 'Attn0' else positional_std(configs.get(block))
  plotting.band(position_ax, position, std, color=color, label=block)
  plotting.band(ratio_ax, position, std * np.sqrt(position), color=color, label=block)
  plotting.theory(ratio_ax, position, expected(position) * np.sqrt(position))


if __name__ == '__main__':
  command_line.run(main, 'intra_sequence', SCALES, __doc__)
