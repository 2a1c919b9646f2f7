"""Which sublayer contracts: full, attention-only and MLP-only networks of the same weights (Fig 3, 7, Table 2).

    python -m experiments.ablation                 # 6 x 20 tiny networks, about 2 min on two CPU cores
    python -m experiments.ablation --scale=paper   # 12 layers; needs an accelerator

Every network reads the same random vectors. GPT-2's MLP contracts, because its
GELU's mean is not zero; attention alone does not, but it amplifies what the
MLPs have made common. In LLaMA's gated MLP the activation is multiplied by an
independent linear unit of mean zero, E[silu(g) u] = 0, and little is left
to contract: this explanation of the preference is one of GPT-2's family.

Writes results.json (a row for each network and variant) and figure.png to the
output folder. Started again, it goes on where it was.
"""

import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import preference, similarity
from bornbiased_jax.analysis.statistics import p_value_text
from experiments import command_line, contraction
from experiments.cells import measure_cells, transformer_cell
from experiments.results import Results, grouped, mean_ci95, plus_minus
from experiments.seed_sweep import COMMON, readout

GAUSSIAN = COMMON | dict(probe='gaussian')
SCALES = {
    'smoke': GAUSSIAN | dict(config='tiny_gpt2,tiny_llama2', seeds='0-2', num_sequences='60', lengths='8'),
    'laptop': GAUSSIAN | dict(config='tiny_gpt2,tiny_llama2', seeds='0-19', num_sequences='1000', lengths='64'),
    'paper': GAUSSIAN | dict(config='nano_gpt2,nano_llama2', seeds='0-9', num_sequences='10000', lengths='64'),
}


def main(settings, output_dir):
  results = Results(output_dir, 'ablation', settings)
  measure_cells(cells(settings), settings, results)
  results.finish(summarize(results.rows, settings), display, draw(results.rows, settings))


def cells(settings):
  return [transformer_cell(name, length, settings, contraction.statistic, contraction.row, readout,
                           sublayers=sublayers)
          for name in settings.config for length in settings.lengths for sublayers in configs.SUBLAYERS]


def summarize(rows, settings):
  summary = []
  for fields, group in grouped(rows, 'config', 'length', 'sublayers'):
    cosine = np.mean([row['inter_sequence_cosine'] for row in group])
    config = configs.get(fields['config'])
    baseline = preference.uniform_baseline(settings.num_sequences, config.vocab_size)[0]
    summary.append({
        **fields, 'networks': len(group),
        **mean_ci95(group, 'inter_sequence_cosine'),
        'pair_std': np.mean([row['layer_cosine_std'][-1] for row in group]),
        'log10_p_isotropic': similarity.isotropic_log10_p(cosine, settings.num_sequences, config.width),
        **mean_ci95(group, 'top1_frequency'),
        'baseline_ratio': np.mean([row['top1_count'] for row in group]) / baseline,
    })
  return summary


def display(row):
  return {
      'model': row['config'], 'T': str(row['length']), 'sublayers': row['sublayers'], 'networks': str(row['networks']),
      'last-layer cosine': plus_minus(row, 'inter_sequence_cosine', '.4f'),
      'std over pairs': f'{row["pair_std"]:.4f}',
      'p if isotropic': p_value_text(row['log10_p_isotropic']),
      'top-1 share': f'{row["top1_frequency"]:.2%}', '× uniform': f'{row["baseline_ratio"]:.1f}',
  }


def draw(rows, settings):
  """For each model: similarity by layer and the ranked histogram of predictions, for the three variants."""
  with plotting.style():
    figure = plotting.figure(8, 3 * len(settings.config))
    # One scale for all models: a gated MLP's contraction is small beside GELU's, not merely different.
    axes = figure.subplots(len(settings.config), 2, squeeze=False, sharey='col')
    for (layers, ranked), (fields, group) in zip(axes, grouped(rows, 'config'), strict=True):
      for variant, own in grouped(group, 'sublayers', 'length'):
        label = variant['sublayers'] + (f', T = {variant["length"]}' if len(settings.lengths) > 1 else '')
        cosine = np.array([row['layer_cosine'] for row in own])
        plotting.band(layers, np.arange(1, cosine.shape[1] + 1), cosine, marker='o', markersize=3, label=label)
        share = 100 / settings.num_sequences * np.array([row['top_counts'] for row in own])
        plotting.band(ranked, np.arange(1, share.shape[1] + 1), share, marker='o', markersize=3, label=label)
      label_axes(layers, ranked, fields['config'], settings)
  return figure


def label_axes(layers, ranked, name, settings):
  baseline = preference.uniform_baseline(settings.num_sequences, configs.get(name).vocab_size)
  plotting.theory(ranked, np.arange(1, baseline.size + 1), 100 * baseline / settings.num_sequences, 'drawn uniformly')
  layers.set(xlabel='layer', ylabel='cosine of two sequences',
             title=f'{name}: {len(settings.seeds)} networks, band 10–90 %')
  ranked.set(yscale='log', xlabel='predicted token, by rank', ylabel='share of sequences (%)',
             title=f'{name}: predictions')
  plotting.plain_log_ticks(ranked.yaxis)
  layers.xaxis.get_major_locator().set_params(integer=True)
  ranked.xaxis.get_major_locator().set_params(integer=True)
  layers.legend()
  ranked.legend()


if __name__ == '__main__':
  command_line.run(main, 'ablation', SCALES, __doc__)
