"""The extreme token preference of random networks (Fig 1, Table 1).

Every network reads the same random sequences and predicts the next token of each. A random
transformer prefers one token, which depends on the seed, and the more the longer the sequences are.

    python -m experiments.seed_sweep                 # 100 seeds, about 3 min on two CPU cores
    python -m experiments.seed_sweep --scale=paper   # Table 1; needs an accelerator

Prints a table with a line per model and length. '× uniform' divides the count of the preferred
token by the largest count among ids that are drawn uniformly; 'log10 p' is the logarithm of the
probability that some id is counted as often among such ids; 'theory' is the top-1 share by
theory.preference_at_initialization; 'τ' is the std of states along their mean direction over
sequences; 'direction → id' is the share of networks whose preferred token this direction predicts,
and 'its cosine with shortest T' how alike the directions at two lengths are, with theory's in
parentheses.

Writes results.json (a row per network and length) and figure.png.
"""

import functools

import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import uniform_baseline
from bornbiased_jax.analysis.probes import OF_IDS
from bornbiased_jax.analysis.theory import infinite_width

from .shared import measurements, program, tables
from .shared.base_settings import Transformers
from .shared.measurements import measure_cells, predict, transformer_cell
from .shared.settings import setting
from .shared.tables import described, grouped, mean_ci95, plus_minus


class Settings(Transformers):
  config: list[str] = setting(['tiny_gpt2'], paper=['nano_gpt2', 'nano_llama2', 'gpt2_1b2'])
  seeds: list[int] = setting(range(100), smoke=range(4), paper=[42, 43])
  lengths: list[int] = setting([16, 64], smoke=[4, 8], paper=[64, 256, 1024])
  embedding_seed: int | None = setting(0)
  dtype: str = setting('float32', paper='bfloat16')


def main(settings, results):
  cells = []
  for name in settings.config:
    baseline = uniform_baseline(settings.num_sequences, configs.get(name).vocab_size)[0]
    own_row = functools.partial(row, baseline, len(settings.lengths) > 1)
    for length in settings.lengths:
      cells.append(transformer_cell(name, length, settings, measurements.preference, own_row,
                                    measurements.direction_token))
  measure_cells(cells, settings, results)
  # A complete run has what theory says, which takes longer than to draw it again.
  theory = {(row['config'], row['length']): row for row in results.summary} or predict(
      cells, functools.partial(predicted, min(settings.lengths)))
  results.finish(results.summary or summarize(results.rows, theory), display,
                 lambda: draw(results.rows, theory, settings))


def row(baseline, is_compared, measured):
  # The direction is kept where that of another length is compared with it.
  return {
      **measured['preference'],
      'baseline_ratio': measured['preference']['top1_count'] / baseline,
      'inter_sequence_cosine': measured['layers']['cosine'][-1],
      'direction_top1_id': measured['direction_top1_id'],
      'direction_std': measured['direction']['direction_std'],
      **({'direction': direction(measured)} if is_compared else {}),
  }


def direction(measured):
  """The contraction direction, of length 1, in four decimals."""
  mean_D = measured['direction']['direction']
  return np.round(mean_D / np.linalg.norm(mean_D), 4).astype(float)


def predicted(shortest, cell):
  """What theory says of a cell: cosines, and of token ids the preference."""
  config, probe, finite = cell.ensemble.config, cell.probe, measurements.predicted_similarity(cell)
  found = {'theory_cosine': finite.inter_cosine_L[-1],
           'theory_cosine_std': finite.inter_cosine_std,
           'theory_direction_std': finite.direction_std}
  if probe.length != shortest:
    found['theory_direction_cosine'] = measurements.unless_unknown(
        lambda: infinite_width(config, probe.length, probe).direction_cosine(shortest), np.nan)
  if probe.kind in OF_IDS:
    other = shortest if probe.length > shortest else None
    found |= measurements.preferred_tokens(config, probe.num_sequences, other,
                                           measurements.read(probe))
    same = found.pop('theory_same_id')
    # At the shortest length both preferred tokens are of the same sequences.
    found['theory_same_id_as_shortest'] = 1.0 if probe.length == shortest else same
  return found


def summarize(rows, theory):
  """Means over seeds per model and length, how preferred ids compare, and what `predicted` says."""
  summary = []
  for fields, group in grouped(rows, 'config', 'length'):
    shortest = min(row['length'] for row in rows if row['config'] == fields['config'])
    at_shortest = {row['seed']: row for row in rows
                   if (row['config'], row['length']) == (fields['config'], shortest)}
    pairs = [(row, at_shortest[row['seed']]) for row in group]
    summary.append({
        **fields, 'networks': len(group),
        **tables.top1_summary(group), **mean_ci95(group, 'baseline_ratio'),
        **mean_ci95(group, 'log10_p'), **mean_ci95(group, 'inter_sequence_cosine'),
        'cosine_std': np.std([row['inter_sequence_cosine'] for row in group],
                             ddof=int(len(group) > 1)),
        'distinct_top1_ids': len({row['top1_id'] for row in group}),
        'same_id_as_shortest': np.mean([row['top1_id'] == other['top1_id']
                                        for row, other in pairs]),
        **tables.direction_agreement(group), **theory[tuple(fields.values())],
    })
    # Older runs have not kept the direction.
    if fields['length'] == shortest or any('direction' not in each for each in group):
      summary[-1].pop('theory_direction_cosine', None)
    else:
      summary[-1] |= described([np.dot(row['direction'], other['direction'])
                                for row, other in pairs], 'direction_cosine')
  return summary


def display(row):
  return {
      'model': row['config'], 'T': row['length'], 'networks': row['networks'],
      'top-1 share': f'{row["top1_frequency"]:.2%}',
      **tables.top1_columns(row),
      '× uniform': plus_minus(row, 'baseline_ratio', '.1f'),
      'log10 p': f'{row["log10_p"]:.1f}',
      'distinct ids': row['distinct_top1_ids'],
      'same id as shortest T': f'{row["same_id_as_shortest"]:.0%}',
      'cosine': plus_minus(row, 'inter_sequence_cosine', '.3f'),
      'direction → id': f'{row["direction_agreement"]:.0%}',
      'its cosine with shortest T': (
          f'{plus_minus(row, "direction_cosine", ".3f")} ({row["theory_direction_cosine"]:.3f})'
          .replace('nan', '–') if 'direction_cosine' in row else '–'),
  }


def draw(rows, theory, settings):
  """Left, for each model: predicted tokens by rank, like Fig 1. Right: every network."""
  figure = plotting.figure(8, 3.2 * len(settings.config))
  axes = figure.subplots(len(settings.config), 2, squeeze=False)
  for name, (ranked, spread) in zip(settings.config, axes, strict=True):
    own = [row for row in rows if row['config'] == name]
    draw_ranked(ranked, name, own, settings)
    draw_spread(spread, own, theory, settings)
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
  ax.legend(title=f'mean of {plotting.of_networks(len({row["seed"] for row in rows}))}')


def draw_spread(ax, rows, theory, settings):
  jitter = np.random.default_rng(0)
  for position, (fields, group) in enumerate(grouped(rows, 'config', 'length')):
    ratio = [row['baseline_ratio'] for row in group]
    is_crowded = len(ratio) > 20
    ends = position - 0.3, position + 0.3
    ax.plot(ends, [np.mean(ratio)] * 2, color='black')
    ax.plot(position + jitter.uniform(-0.2, 0.2, len(ratio)), ratio, 'o',
            markersize=3 if is_crowded else 5, alpha=0.5 if is_crowded else 1,
            markeredgewidth=0, zorder=3)
    if settings.probe in OF_IDS:
      share = theory[tuple(fields.values())]['theory_top1_frequency']
      per_share = group[0]['baseline_ratio'] / group[0]['top1_frequency']
      # Wider than the mean's bar, which would hide it.
      plotting.theory(ax, (position - 0.42, position + 0.42), [share * per_share] * 2,
                      None if position else 'theory of the mean')
  ax.axhline(1, color='black', linestyle=':', linewidth=1)
  ax.text(-0.45, 1, 'drawn uniformly', va='bottom')
  ratios, lengths = [row['baseline_ratio'] for row in rows], settings.lengths
  ax.set(yscale='log', ylim=(min(0.5, 0.8 * min(ratios)), max(2, 1.3 * ax.dataLim.y1)),
         xticks=range(len(lengths)), xticklabels=lengths, xlim=(-0.5, len(lengths) - 0.5),
         xlabel='sequence length T (tokens)', ylabel='count of the preferred token / uniform',
         title='every network (dot) and their mean (bar)')
  plotting.plain_log_ticks(ax.yaxis)
  if settings.probe in OF_IDS:
    ax.legend(loc=(0.5, 0.02))


if __name__ == '__main__':
  program.measure(main, 'seed_sweep', Settings, __doc__, several_hosts=True)
