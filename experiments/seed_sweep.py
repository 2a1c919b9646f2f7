"""The extreme token preference of random networks (Fig 1, Table 1).

Every network reads the same random sequences and predicts the next token of
each. A fair network would spread its predictions evenly over the vocabulary. A
random transformer prefers one token. Which one depends on the seed, and the
longer the sequences are, the stronger is the preference.

    python -m experiments.seed_sweep                 # 100 seeds, about 4 min on two CPU cores
    python -m experiments.seed_sweep --scale=paper   # Table 1; needs an accelerator

Prints a table with one line per model and length. Its column '× uniform'
divides the count of the preferred token by the largest count among ids that are
drawn uniformly. 'theory' is mean and standard deviation over networks of the
top-1 share by theory.preference_at_birth. 'cosine' is the similarity of the last
tokens of different sequences after the last layer. 'direction → id' is the share
of networks whose preferred token is the one that the mean direction of the last
tokens predicts, and 'its cosine with shortest T' how alike a network's directions at
two lengths are, each a mean over n sequences, with theory's in parentheses.

Writes results.json (one row per network and length) and figure.png to the
output folder. If a run was stopped, the same command continues it.
"""

import functools

import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import uniform_baseline

from .shared import command_line, measurements
from .shared.cells import ONE_HEAD, TOKENS, measure_cells, transformer_cell
from .shared.results import Results
from .shared.tables import grouped, mean_ci95, plus_minus, with_theory

_COMMON = TOKENS | ONE_HEAD
SCALES = {
    'smoke': _COMMON | dict(
        config=['tiny_gpt2'], seeds=list(range(4)), num_sequences=60, lengths=[4, 8]),
    'laptop': _COMMON | dict(
        config=['tiny_gpt2'], seeds=list(range(100)), num_sequences=1000, lengths=[16, 64]),
    'paper': _COMMON | dict(
        config=['nano_gpt2', 'nano_llama2', 'gpt2_1b2'], seeds=[42, 43], num_sequences=10000,
        lengths=[64, 256, 1024], dtype='bfloat16'),
}


def main(settings, output_dir):
  results = Results(output_dir, 'seed_sweep', settings)
  cells = []
  for name in settings.config:
    baseline = uniform_baseline(settings.num_sequences, configs.get(name).vocab_size)[0]
    own_row = functools.partial(row, baseline, len(settings.lengths) > 1)
    for length in settings.lengths:
      cells.append(transformer_cell(name, length, settings, measurements.preference, own_row,
                                    measurements.direction_token))
  measure_cells(cells, settings, results)
  results.finish(summarize(results.rows, settings), display, draw(results.rows, settings))


def row(baseline, is_compared, measured):
  # The direction is kept where that of another length is compared with it.
  return {
      **measured['preference'],
      'baseline_ratio': measured['preference']['top1_count'] / baseline,
      'inter_sequence_cosine': measured['layers']['cosine'][-1],
      'direction_top1_id': measured['direction_top1_id'],
      **({'direction': direction(measured)} if is_compared else {}),
  }


def direction(measured):
  """The contraction direction, of length 1, in four decimals."""
  sum_D = measured['direction']['direction']
  return np.round(sum_D / np.linalg.norm(sum_D), 4).astype(float)


def summarize(rows, settings):
  """Means over seeds with 95 % intervals per model and length, and how preferred ids compare."""
  summary = []
  for fields, group in with_theory(grouped(rows, 'config', 'length')):
    shortest = min(row['length'] for row in rows if row['config'] == fields['config'])
    at_shortest = {row['seed']: row for row in rows
                   if (row['config'], row['length']) == (fields['config'], shortest)}
    pairs = [(row, at_shortest[row['seed']]) for row in group]
    summary.append({
        **fields, 'networks': len(group),
        **mean_ci95(group, 'top1_frequency'), **mean_ci95(group, 'baseline_ratio'),
        **mean_ci95(group, 'log10_p'), **mean_ci95(group, 'inter_sequence_cosine'),
        'cosine_std': np.std([row['inter_sequence_cosine'] for row in group],
                             ddof=int(len(group) > 1)),
        **measurements.predicted_last_cosine(fields, settings),
        'distinct_top1_ids': len({row['top1_id'] for row in group}),
        'same_id_as_shortest': np.mean([row['top1_id'] == other['top1_id']
                                        for row, other in pairs]),
        **same_direction(pairs, fields, settings, shortest),
        **measurements.direction_agreement(group),
        **(measurements.predicted_preference(fields, settings) if settings.probe == 'tokens'
           else {}),
    })
  return summary


def same_direction(pairs, fields, settings, shortest):
  """Mean cosine of each network's directions at two lengths, and theory's."""
  # Older runs have not kept the direction.
  if fields['length'] == shortest or any('direction' not in row for pair in pairs for row in pair):
    return {}
  cosines = [{'direction_cosine': np.dot(row['direction'], other['direction'])}
             for row, other in pairs]
  predicted = measurements.predicted_direction_cosine(fields, settings, shortest)
  return mean_ci95(cosines, 'direction_cosine') | {'theory_direction_cosine': predicted}


def display(row):
  return {
      'model': row['config'], 'T': str(row['length']), 'networks': str(row['networks']),
      'top-1 share': f'{row["top1_frequency"]:.2%}',
      'theory (± std)': (f'{row["theory_top1_frequency"]:.1%} ± '
                         f'{row["theory_top1_frequency_std"]:.1%}'
                         if 'theory_top1_frequency' in row else '–'),
      '× uniform': plus_minus(row, 'baseline_ratio', '.1f'),
      'log10 p': f'{row["log10_p"]:.1f}',
      'distinct ids': str(row['distinct_top1_ids']),
      'same id as shortest T': f'{row["same_id_as_shortest"]:.0%}',
      'cosine': plus_minus(row, 'inter_sequence_cosine', '.3f'),
      'direction → id': f'{row["direction_agreement"]:.0%}',
      'its cosine with shortest T': (
          f'{plus_minus(row, "direction_cosine", ".3f")} ({row["theory_direction_cosine"]:.3f})'
          .replace('nan', '–') if 'direction_cosine' in row else '–'),
  }


def draw(rows, settings):
  """Left, for each model: predicted tokens by rank, as in Fig 1. Right: every network."""
  with plotting.style():
    figure = plotting.figure(8, 3.2 * len(settings.config))
    axes = figure.subplots(len(settings.config), 2, squeeze=False)
    for name, (ranked, spread) in zip(settings.config, axes, strict=True):
      own = [row for row in rows if row['config'] == name]
      draw_ranked(ranked, name, own, settings)
      draw_spread(spread, own, settings)
  return figure


def draw_ranked(ax, name, rows, settings):
  percent = 100 / settings.num_sequences
  for length in settings.lengths:
    counts = np.array([row['top_counts'] for row in rows if row['length'] == length])
    rank = np.arange(1, counts.shape[1] + 1)
    plotting.band(ax, rank, percent * counts, marker='o', markersize=3, label=f'T = {length}')
  baseline = uniform_baseline(settings.num_sequences, configs.get(name).vocab_size)
  ax.plot(rank, percent * baseline[:rank.size], 'k:', linewidth=1, label='drawn uniformly')
  ax.set(yscale='log', xlabel="predicted token, by rank in its network's predictions",
         ylabel='share of sequences (%)', title=f'{name}: what a random network predicts')
  ax.xaxis.get_major_locator().set_params(integer=True)
  plotting.plain_log_ticks(ax.yaxis)
  ax.legend(title=f'mean of {plotting.of_networks(len(rows) // len(settings.lengths))}')


def draw_spread(ax, rows, settings):
  jitter = np.random.default_rng(0)
  for position, (fields, group) in enumerate(grouped(rows, 'config', 'length')):
    ratio = [row['baseline_ratio'] for row in group]
    is_crowded = len(ratio) > 20
    ends = position - 0.3, position + 0.3
    ax.plot(ends, [np.mean(ratio)] * 2, color='black')
    ax.plot(position + jitter.uniform(-0.2, 0.2, len(ratio)), ratio, 'o',
            markersize=3 if is_crowded else 5, alpha=0.5 if is_crowded else 1,
            markeredgewidth=0, zorder=3)
    if settings.probe == 'tokens':
      share = measurements.predicted_preference(fields, settings)['theory_top1_frequency']
      per_share = group[0]['baseline_ratio'] / group[0]['top1_frequency']
      plotting.theory(ax, ends, [share * per_share] * 2, None if position else 'theory of the mean')
  ax.axhline(1, color='black', linestyle=':', linewidth=1)
  ax.text(-0.45, 1, 'drawn uniformly', va='bottom')
  ratios, lengths = [row['baseline_ratio'] for row in rows], settings.lengths
  ax.set(yscale='log', ylim=(min(0.5, 0.8 * min(ratios)), max(2, 1.3 * ax.dataLim.y1)),
         xticks=range(len(lengths)), xticklabels=lengths, xlim=(-0.5, len(lengths) - 0.5),
         xlabel='sequence length T (tokens)', ylabel='count of the preferred token / uniform',
         title='every network (dot) and their mean (bar)')
  plotting.plain_log_ticks(ax.yaxis)
  if settings.probe == 'tokens':
    ax.legend(loc=(0.5, 0.02))


if __name__ == '__main__':
  command_line.run(main, 'seed_sweep', SCALES, __doc__, several_hosts=True)
