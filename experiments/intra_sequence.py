"""Attention makes positions alike; the first varies most (Fig 8, 9, Prop 5, Eq 2).

Averaging over the past makes neighbouring positions share most of their sum. So similarity within a
sequence grows with depth: as Proposition 5 says for uniform attention (Attn0) and for only
attention sublayers ("bare"), and more slowly where there is a residual stream. The average of i
independent values has a std of 1/sqrt(i): the first position stands out, where sinks begin.

    python -m experiments.intra_sequence                 # about 1 min on two CPU cores
    python -m experiments.intra_sequence --scale=paper   # an accelerator, or 1 h on two CPU cores

Prints a table with a line per kind of block and length. Writes results.json (a row per network and
variant) and figure.png.
"""

import dataclasses
import functools
import itertools

import numpy as np
import scipy

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import (
  StackConfig,
  bare_attention,
  combine,
  intra_sequence,
  positional_std,
  theory,
)
from bornbiased_jax.errors import InputError

from .shared import program
from .shared.base_settings import Transformers
from .shared.measurements import measure_cells, stack_cell, transformer_cell
from .shared.settings import setting
from .shared.tables import grouped


class Settings(Transformers):
  config: list[str] = setting(['tiny_gpt2'], paper=['nano_gpt2'])
  seeds: list[int] = setting(range(10), smoke=range(3))
  width: int = setting(768, smoke=128)
  depth: int = setting(6, smoke=3)
  lengths: list[int] = setting([64, 256], smoke=[16], paper=[64, 256, 1024])
  num_sequences: int = setting(100, smoke=20, paper=200)
  probe: str = setting('gaussian')


# After the name of a model: its attention sublayers without residual stream and norm.
BARE = ', bare'


def main(settings, results):
  if min(settings.lengths) < 2:
    raise InputError('--lengths: a similarity of positions needs at least two of them')
  cells = [*attn0_cells(settings), *bare_cells(settings), *transformer_cells(settings)]
  measure_cells(cells, settings, results)
  results.finish(summarize(results.rows), display, lambda: draw(results.rows, settings))


def proposition_5(settings):
  """Similarity of positions by depth, for T → ∞."""
  return [float(theory.position_similarity(depth + 1)) for depth in range(settings.depth)]


def attn0_cells(settings):
  """Stacks of Attn0, which have no weights: there is one seed, and errors are over sequences."""
  own_row = functools.partial(row, proposition_5(settings), theory.positional_std)
  for length in settings.lengths:
    config = StackConfig(('attention',) * settings.depth, settings.width, settings.width,
                         embedding_std=1.0)
    cell = stack_cell({'block': 'Attn0', 'length': length}, config, length, settings,
                      statistic('residual'), own_row)
    yield cell._replace(seeds=[0])


def bare_cells(settings):
  """Only attention sublayers, with weights and softmax, but without residual stream and norm.

  Without a norm, scores are small, and attention is nearly uniform. They have no embedding, and
  read vectors whatever the probe is.
  """
  own_row = functools.partial(row, proposition_5(settings), theory.positional_std)
  for name in settings.config:
    for length in settings.lengths:
      cell = transformer_cell(name, length, settings, lambda config: statistic('residual'), own_row,
                              of_each=True, sublayers='attention_only', num_layers=settings.depth)
      config = cell.ensemble.config
      yield cell._replace(fields={'block': f'{name}{BARE}', 'length': length},
                          ensemble=bare_attention(config),
                          probe=dataclasses.replace(cell.probe, kind='gaussian', text=None))


def transformer_cells(settings):
  """Attention-only networks with all that a block has: norm, projections, softmax, residual."""
  for name in settings.config:
    own_row = functools.partial(row, None, expected_std(configs.get(name)))
    for length in settings.lengths:
      cell = transformer_cell(name, length, settings, lambda config: statistic('value_aggregate'),
                              own_row, of_each=True, sublayers='attention_only')
      yield cell._replace(fields={'block': name, 'length': length})


def statistic(loud):
  """The similarity of positions, and the std of the intermediate `loud` at each position."""
  return combine({'similarity': intra_sequence('residual'), 'spread': positional_std(loud)})


def expected_std(config):
  """The positional std that `theory` expects of the first attention layer of a random network."""
  def coherence(position):
    if config.positions == 'rope':
      return theory.rotary_coherence(position, config.rope_theta, config.head_size)
    # It does not know attention that falls with the distance.
    return np.nan if config.positions == 'alibi' else 1.0

  return lambda position: theory.positional_std(
      position, config.linear_std**2 * config.width, config.width, coherence(position))


def row(closed_form, std_theory, measured):
  """Similarity by depth, and the std of the first layer with 1/sqrt(i) and the block's theory."""
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
    measured = [row['measured'] for row in group]
    summary.append({
        **fields, 'networks': len(group),
        'measured': np.mean(measured, axis=0),
        # Over networks, each with sequences of its own; over sequences for a single one.
        'standard_error': (scipy.stats.sem(measured, axis=0) if len(group) > 1
                           else group[0]['standard_error']),
        'theory': group[0]['theory'],
        **{name: farthest_from_one(np.mean([row[name] for row in group], axis=0))
           for name in ('std_over_uniform', 'std_over_theory')},
    })
  return summary


def farthest_from_one(ratio_T):
  worst = int(np.argmax(np.abs(ratio_T - 1)))
  return {'ratio': ratio_T[worst], 'position': worst + 1}


def display(row):
  by_depth = lambda values: '–' if values is None else ' '.join(f'{value:.3f}' for value in values)
  worst = lambda name: f'{row[name]["ratio"]:.3f} at i = {row[name]["position"]}'
  return {'block': row['block'], 'T': row['length'], 'networks': row['networks'],
          'similarity of positions, by depth': by_depth(row['measured']),
          'Prop 5 (T → ∞)': by_depth(row['theory']),
          'std / 1/√i, worst': worst('std_over_uniform'),
          'std / theory, worst': worst('std_over_theory')}


def draw(rows, settings):
  """Fig 8, Fig 9, and Fig 9 divided by 1/sqrt(i)."""
  figure = plotting.figure(11, 3.2)
  depth_ax, position_ax, ratio_ax = figure.subplots(1, 3)
  groups = grouped(rows, 'block', 'length')
  for color, (fields, group) in zip(itertools.cycle(plotting.COLORS), groups):
    label = f'{name_of(fields["block"])}, T = {fields["length"]}'
    cosine = np.array([row['measured'] for row in group])
    # What is alone lies on Attn0, and both are to be seen.
    look = plotting.OPEN if fields['block'].endswith(BARE) else plotting.DOTS
    plotting.band(depth_ax, np.arange(1, cosine.shape[1] + 1), cosine, color=color, label=label,
                  **look)
    if fields['length'] == max(settings.lengths):
      draw_positions(position_ax, ratio_ax, fields['block'], group, color)
  draw_theory(depth_ax, position_ax, settings)
  label_axes(depth_ax, position_ax, ratio_ax)
  counts = {fields['block']: len({row['seed'] for row in group})
            for fields, group in grouped(rows, 'block')}
  figure.suptitle('; '.join(f'{block}: {plotting.of_networks(count)}'
                            for block, count in counts.items() if not block.endswith(BARE)),
                  fontsize='medium')
  return figure


def name_of(block):
  """A stack of attention, for readers."""
  return block if block == 'Attn0' or block.endswith(BARE) else f'{block}, with residual and norm'


def draw_positions(position_ax, ratio_ax, block, rows, color):
  std = np.array([np.divide(row['std'], row['std'][0]) for row in rows])
  position = np.arange(1, std.shape[1] + 1)
  is_uniform = block == 'Attn0' or block.endswith(BARE)
  expected = theory.positional_std if is_uniform else expected_std(configs.get(block))
  plotting.band(position_ax, position, std, color=color, label=name_of(block))
  plotting.band(ratio_ax, position, std * np.sqrt(position), color=color,
                label=name_of(block))
  plotting.theory(ratio_ax, position, expected(position) * np.sqrt(position))


def draw_theory(depth_ax, position_ax, settings):
  depth = np.arange(1, settings.depth + 1)
  similarity = [theory.position_similarity(int(layers)) for layers in depth]
  plotting.theory(depth_ax, depth, similarity, 'Proposition 5 (T → ∞)')
  position = np.arange(1, max(settings.lengths) + 1)
  plotting.theory(position_ax, position, theory.positional_std(position), '1/√i')


def label_axes(depth_ax, position_ax, ratio_ax):
  depth_ax.set(xlabel='attention layers', ylabel='mean cosine of two positions', ylim=(0, 1),
               title='positions of one sequence grow alike')
  depth_ax.xaxis.get_major_locator().set_params(integer=True)
  position_ax.set(xscale='log', yscale='log', xlabel='position i',
                  ylabel='std of the value aggregate / first',
                  title='the first position is the loudest')
  ratio_ax.set(xscale='log', xlabel='position i', ylabel='std / first, times √i',
               title='beyond 1/√i, with theory (dashed)')
  for axis in (position_ax.xaxis, position_ax.yaxis, ratio_ax.xaxis):
    plotting.plain_log_ticks(axis)
  for ax in (depth_ax, position_ax):  # The third has the colours of the second.
    ax.legend(fontsize='small')


if __name__ == '__main__':
  program.measure(main, 'intra_sequence', Settings, __doc__, several_hosts=True)
