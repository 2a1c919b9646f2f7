"""The extreme token preference of random networks (Fig 1, Table 1).

    python -m experiments.seed_sweep                 # 100 seeds, about 2 min on two CPU cores
    python -m experiments.seed_sweep --scale=paper   # Table 1; needs an accelerator

Every network reads the same random sequences and predicts the next token of
each. A fair network would spread its predictions evenly; a random transformer
prefers one token, another for every seed, the more so the longer the sequence.
The table compares the preferred token's count with the largest count of ids
drawn uniformly ('× uniform'), says how alike the last representations are
('cosine'), and how often the token that their mean direction would predict is
the preferred one ('direction → id').

Writes results.json (a row for each network and length) and figure.png to the
output folder. Started again, it goes on where it was.
"""

import functools

import jax.numpy as jnp
import numpy as np
from scipy import stats

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import preference, similarity, statistics
from bornbiased_jax.models.transformer import Transformer
from experiments import command_line
from experiments.cells import measure_cells, transformer_cell
from experiments.results import Results, grouped, mean_ci95, plus_minus

COMMON = dict(probe='tokens', probe_seed='0', embedding_seed='none', dtype='float32',
              batch_size='auto', chunk_size='auto')
SCALES = {
    'smoke': COMMON | dict(config='tiny_gpt2', seeds='0-3', num_sequences='60', lengths='4,8'),
    'laptop': COMMON | dict(config='tiny_gpt2', seeds='0-99', num_sequences='1000', lengths='16,64'),
    'paper': COMMON | dict(config='nano_gpt2,nano_llama2,gpt2_1b2', seeds='42,43', num_sequences='10000',
                           lengths='64,256,1024', dtype='bfloat16'),
}


def main(settings, output_dir):
  results = Results(output_dir, 'seed_sweep', settings)
  cells = []
  for name in settings.config:
    baseline = preference.uniform_baseline(settings.num_sequences, configs.get(name).vocab_size)[0]
    for length in settings.lengths:
      cells.append(transformer_cell(name, length, settings, statistic, functools.partial(row, baseline), readout))
  measure_cells(cells, settings, results)
  results.finish(summarize(results.rows), display, draw(results.rows, settings))


def statistic(config):
  return statistics.combine({
      'preference': preference.predictions(config.vocab_size),
      'direction': similarity.inter_sequence('hidden_last'),
      'layers': similarity.inter_sequence('residual_last'),
  })


def readout(config):
  """The token that the contraction direction would predict: argmax of W_U applied to it."""

  def top1_id(params, sums):
    logits_V = Transformer(config).apply({'params': params}, sums['direction']['unit_sum'], method='unembed')
    return {'direction_top1_id': jnp.argmax(logits_V)}

  return top1_id


def row(baseline, measured):
  return {
      **measured['preference'],
      'baseline_ratio': measured['preference']['top1_count'] / baseline,
      'inter_sequence_cosine': measured['layers']['cosine'][-1],
      'direction_top1_id': measured['direction_top1_id'],
  }


def summarize(rows):
  """Per model and length: means with 95 % intervals over seeds, and how the preferred ids compare."""
  summary = []
  for fields, group in grouped(rows, 'config', 'length'):
    shortest = min(row['length'] for row in rows if row['config'] == fields['config'])
    id_at_shortest = {row['seed']: row['top1_id'] for row in rows
                      if (row['config'], row['length']) == (fields['config'], shortest)}
    summary.append({
        **fields, 'networks': len(group),
        **mean_ci95(group, 'top1_frequency'), **mean_ci95(group, 'baseline_ratio'),
        **mean_ci95(group, 'log10_p'), **mean_ci95(group, 'inter_sequence_cosine'),
        'distinct_top1_ids': len({row['top1_id'] for row in group}),
        'same_id_as_shortest': np.mean([id_at_shortest[row['seed']] == row['top1_id'] for row in group]),
        **direction_agreement(group),
    })
  return summary


def direction_agreement(rows):
  """How often the contraction direction's top token is the preferred one (Finding 2.2), with its exact interval."""
  agree = sum(row['direction_top1_id'] == row['top1_id'] for row in rows)
  return {'direction_agreement': agree / len(rows),
          'direction_agreement_ci95': list(stats.binomtest(agree, len(rows)).proportion_ci())}


def display(row):
  return {
      'model': row['config'], 'T': str(row['length']), 'networks': str(row['networks']),
      'top-1 share': f'{row["top1_frequency"]:.2%}', '× uniform': plus_minus(row, 'baseline_ratio', '.1f'),
      'log10 p': f'{row["log10_p"]:.1f}',
      'distinct ids': str(row['distinct_top1_ids']),
      'same id as shortest T': f'{row["same_id_as_shortest"]:.0%}',
      'cosine': plus_minus(row, 'inter_sequence_cosine', '.3f'), 'direction → id': f'{row["direction_agreement"]:.0%}',
  }


def draw(rows, settings):
  """For each model: Fig 1's ranked histogram beside its random baseline, and every network's ratio to it."""
  with plotting.style():
    figure = plotting.figure(8, 3.2 * len(settings.config))
    axes = figure.subplots(len(settings.config), 2, squeeze=False)
    for name, (ranked, spread) in zip(settings.config, axes, strict=True):
      own = [row for row in rows if row['config'] == name]
      draw_ranked(ranked, name, own, settings)
      draw_spread(spread, own, settings.lengths)
  return figure


def draw_ranked(ax, name, rows, settings):
  vocab_size = configs.get(name).vocab_size
  for length in settings.lengths:
    share = 100 / settings.num_sequences * np.array([row['top_counts'] for row in rows if row['length'] == length])
    rank = np.arange(1, share.shape[1] + 1)
    plotting.band(ax, rank, share, marker='o', markersize=3, label=f'T = {length}')
  baseline = 100 / settings.num_sequences * preference.uniform_baseline(settings.num_sequences, vocab_size)
  plotting.theory(ax, rank, baseline[:rank.size], 'drawn uniformly')
  ax.set(yscale='log', xlabel="predicted token, by rank in its network's predictions",
         ylabel='share of sequences (%)', title=f'{name}: what a random network predicts')
  ax.xaxis.get_major_locator().set_params(integer=True)
  plotting.plain_log_ticks(ax.yaxis)
  ax.legend(title=f'mean of {len(rows) // len(settings.lengths)} networks, 10–90 % band')


def draw_spread(ax, rows, lengths):
  jitter = np.random.default_rng(0)
  for position, length in enumerate(lengths):
    ratio = [row['baseline_ratio'] for row in rows if row['length'] == length]
    ax.plot((position - 0.3, position + 0.3), [np.mean(ratio)] * 2, color='black')
    ax.plot(position + jitter.uniform(-0.2, 0.2, len(ratio)), ratio, 'o', markersize=3 if len(ratio) > 20 else 5,
            alpha=0.5 if len(ratio) > 20 else 1, markeredgewidth=0, zorder=3)
  ax.axhline(1, color='black', linestyle='--', linewidth=1)
  ax.text(-0.45, 1, 'drawn uniformly', va='bottom')
  ratios = [row['baseline_ratio'] for row in rows]
  ax.set(yscale='log', ylim=(min(0.7, 0.8 * min(ratios)), max(2, 1.3 * max(ratios))),
         xticks=range(len(lengths)), xticklabels=lengths, xlim=(-0.5, len(lengths) - 0.5),
         xlabel='sequence length T (tokens)', ylabel='count of the preferred token / uniform',
         title='every network (dot) and their mean (bar)')
  plotting.plain_log_ticks(ax.yaxis)


if __name__ == '__main__':
  command_line.run(main, 'seed_sweep', SCALES, __doc__)
