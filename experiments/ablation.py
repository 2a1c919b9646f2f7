"""Which sublayer contracts inputs, attention or the MLP (Fig 3 and 7, Table 2)?

Full, attention-only and MLP-only networks with the same weights read the same random vectors, those
of each seed its own. In GPT-2 the MLP contracts them, because the mean of its GELU is not zero.
Attention does not, but amplifies what the MLPs have made common. In LLaMA's gated MLP little
is left to contract: the activation is multiplied by an independent unit whose mean is zero.

    python -m experiments.ablation                 # 120 networks, about 4 min on two CPU cores
    python -m experiments.ablation --scale=paper   # 12 layers; needs an accelerator

Prints a table with a line per model, length and variant. Writes results.json (a row per network and
variant) and figure.png.
"""

import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import uniform_baseline

from .shared import measurements, program
from .shared.base_settings import Transformers
from .shared.measurements import measure_cells, transformer_cell
from .shared.settings import setting
from .shared.tables import grouped, mean_ci95, plus_minus


class Settings(Transformers):
  config: list[str] = setting(['tiny_gpt2', 'tiny_llama2'], smoke=['tiny_gpt2'],
                              paper=['nano_gpt2', 'nano_llama2'])
  seeds: list[int] = setting(range(20), smoke=range(3), paper=range(10))
  lengths: list[int] = setting([64], smoke=[8])
  probe: str = setting('gaussian')
  embedding_seed: int | None = setting(0)


def main(settings, results):
  variants = cells(settings)
  measure_cells(variants, settings, results)
  cosine_L = measurements.predict_cosines(variants, results)
  results.finish(summarize(results.rows, cosine_L, settings), display,
                 lambda: draw(results.rows, cosine_L, settings))


def cells(settings):
  return [transformer_cell(name, length, settings, measurements.contraction,
                           measurements.contraction_row, measurements.direction_token,
                           of_each=True, sublayers=sublayers)
          for name in settings.config for length in settings.lengths
          for sublayers in configs.SUBLAYERS]


def summarize(rows, theory, settings):
  """Means over seeds; `theory` has the cosine after each layer by model, length and sublayers."""
  summary = []
  for fields, group in grouped(rows, 'config', 'length', 'sublayers'):
    config = configs.get(fields['config'])
    baseline = uniform_baseline(settings.num_sequences, config.vocab_size)[0]
    similarity = measurements.contraction_summary(
        group, theory[tuple(fields.values())], settings.num_sequences, config.width)
    summary.append(fields | similarity | mean_ci95(group, 'top1_frequency') | {
        'baseline_ratio': np.mean([row['top1_count'] for row in group]) / baseline})
  return summary


def display(row):
  return {
      'model': row['config'], 'T': row['length'], 'sublayers': row['sublayers'],
      'networks': row['networks'],
      'last-layer cosine': plus_minus(row, 'inter_sequence_cosine', 'z.4f'),
      'theory': f'{row["theory_cosine"]:z.4f}',
      'std over pairs': f'{row["pair_std"]:.4f}',
      'log10 p if isotropic': f'{row["median_log10_p_isotropic"]:,.1f}',
      'top-1 share': f'{row["top1_frequency"]:.2%}',
      '× uniform': f'{row["baseline_ratio"]:.1f}',
  }


def draw(rows, theory, settings):
  """The three variants of each model. Left: similarity by layer. Right: predictions by rank."""
  figure = plotting.figure(8, 3 * len(settings.config))
  # All models share their scales, which shows how small a gated MLP's contraction is.
  axes = figure.subplots(len(settings.config), 2, squeeze=False, sharey='col')
  for (layers, ranked), (fields, group) in zip(axes, grouped(rows, 'config'), strict=True):
    for variant, own in grouped(group, 'sublayers', 'length'):
      several = len(settings.lengths) > 1
      label = variant['sublayers'].replace('mlp', 'MLP').replace('_', ' ')
      label += f', T = {variant["length"]}' if several else ''
      draw_variant(layers, ranked, own, settings, label)
      predicted_L = theory[fields['config'], variant['length'], variant['sublayers']]
      plotting.theory(layers, np.arange(1, 1 + len(predicted_L)), predicted_L)
    layers.plot([], [], 'k--', linewidth=1, label='theory')
    label_axes(layers, ranked, fields['config'], settings)
  return figure


def draw_variant(layers, ranked, rows, settings, label):
  cosine = np.array([row['layer_cosine'] for row in rows])
  percent = 100 / settings.num_sequences * np.array([row['top_counts'] for row in rows])
  for ax, values in ((layers, cosine), (ranked, percent)):
    from_one = np.arange(1, values.shape[1] + 1)
    plotting.band(ax, from_one, values, marker='o', markersize=3, label=label)


def label_axes(layers, ranked, name, settings):
  baseline = uniform_baseline(settings.num_sequences, configs.get(name).vocab_size)
  plotting.theory(ranked, np.arange(1, baseline.size + 1),
                  100 * baseline / settings.num_sequences, 'drawn uniformly')
  layers.set(xlabel='layer', ylabel='cosine of two sequences',
             title=f'{name}: {plotting.of_networks(len(settings.seeds))}')
  ranked.set(yscale='log', xlabel='predicted token, by rank', ylabel='share of sequences (%)',
             title=f'{name}: predictions')
  plotting.plain_log_ticks(ranked.yaxis)
  for ax in (layers, ranked):
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend()


if __name__ == '__main__':
  program.measure(main, 'ablation', Settings, __doc__, several_hosts=True)
