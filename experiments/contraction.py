"""Inputs contract towards one direction, which is the preference (Fig 2).

The last-token states of unrelated random sequences become more alike with every layer of a random
GPT-2, and little in a LLaMA, whose gated MLP contracts little. Their mean direction, passed through
the LM head, predicts a token: how often is this the preferred token?

    python -m experiments.contraction                 # 200 networks, about 6 min on two CPU cores
    python -m experiments.contraction --scale=paper   # Findings 2.1 and 2.2; needs an accelerator

Prints a table with a line per model and length. Writes results.json (a row per network and length)
and figure.png.
"""

import numpy as np

from bornbiased_jax import configs, plotting

from .shared import measurements, program, tables
from .shared.base_settings import Transformers
from .shared.measurements import measure_cells, transformer_cell
from .shared.settings import setting
from .shared.tables import grouped, plus_minus, share_of


class Settings(Transformers):
  config: list[str] = setting(['tiny_gpt2', 'tiny_llama2'], smoke=['tiny_gpt2'],
                              paper=['nano_gpt2', 'nano_llama2'])
  seeds: list[int] = setting(range(100), smoke=range(4))
  num_sequences: int = setting(1000, smoke=60, paper=2000)
  lengths: list[int] = setting([64], smoke=[8], paper=[64, 1024])
  embedding_seed: int | None = setting(0)
  dtype: str = setting('float32', paper='bfloat16')


def main(settings, results):
  cells = [transformer_cell(name, length, settings, measurements.contraction,
                            measurements.contraction_row, measurements.direction_token)
           for name in settings.config for length in settings.lengths]
  measure_cells(cells, settings, results)
  cosine_L = measurements.predict_cosines(cells, results)
  results.finish(summarize(results.rows, cosine_L, settings), display,
                 lambda: draw(results.rows, cosine_L))


def summarize(rows, theory, settings):
  """Means over seeds; `theory` has the cosine after each layer by model and length."""
  summary = []
  for fields, group in grouped(rows, 'config', 'length'):
    width = configs.get(fields['config']).width
    similarity = measurements.contraction_summary(
        group, theory[tuple(fields.values())], settings.num_sequences, width)
    summary.append(fields | similarity | {
        'first_layer_cosine': np.mean([row['layer_cosine'][0] for row in group]),
        **tables.direction_agreement(group)})
  return summary


def display(row):
  return {
      'model': row['config'], 'T': row['length'], 'networks': row['networks'],
      'cosine, layer 1': f'{row["first_layer_cosine"]:.4f}',
      'last layer': plus_minus(row, 'inter_sequence_cosine', 'z.4f'),
      'theory': f'{row["theory_cosine"]:z.4f}',
      'std over pairs': f'{row["pair_std"]:.4f}',
      'direction predicts top-1': share_of(row, 'direction_agreement'),
  }


def draw(rows, theory):
  """Left: similarity by layer over networks. Right: agreement of direction and preference."""
  figure = plotting.figure(8, 3.2)
  layers, agreement = figure.subplots(1, 2, width_ratios=(3, 2))
  for fields, group in grouped(rows, 'config', 'length'):
    cosine = np.array([row['layer_cosine'] for row in group])
    from_one = np.arange(1, cosine.shape[1] + 1)
    plotting.band(layers, from_one, cosine, marker='o', markersize=3,
                  label=f'{fields["config"]}, T = {fields["length"]}')
    plotting.theory(layers, from_one, theory[tuple(fields.values())])
  layers.plot([], [], 'k--', linewidth=1, label='theory')
  layers.set(xlabel='layer', ylabel='cosine of two sequences',
             ylim=(min(0, layers.get_ylim()[0]), None),
             title=f'similarity of last tokens, {plotting.of_networks(len(group))}')
  layers.xaxis.get_major_locator().set_params(integer=True)
  layers.legend()
  draw_agreement(agreement, rows)
  return figure


def draw_agreement(ax, rows):
  labels = []
  for position, (fields, group) in enumerate(grouped(rows, 'config', 'length')):
    share = tables.direction_agreement(group)
    low, high = (100 * bound for bound in share['direction_agreement_ci95'])
    middle = 100 * share['direction_agreement']
    color = plotting.COLORS[position % len(plotting.COLORS)]
    ax.bar(position, middle, color=color, alpha=0.7)
    if len(group) > 2:
      ax.errorbar(position, middle, [[middle - low], [high - middle]], color='black', capsize=3)
    else:
      count = round(share['direction_agreement'] * len(group))
      ax.text(position, middle + 2, f'{count} of {len(group)}', ha='center')
    labels.append(f'{fields["config"]}\nT = {fields["length"]}')
  ax.set(xticks=range(len(labels)), xticklabels=labels, ylim=(0, 100),
         ylabel='share of networks (%)', title="direction's token is the preferred one")
  ax.grid(axis='x', visible=False)
  if len(labels) > 2:
    ax.tick_params(axis='x', labelrotation=30)


if __name__ == '__main__':
  program.measure(main, 'contraction', Settings, __doc__, several_hosts=True)
