"""Contraction comes from an activation that is not odd: ReLU against tanh, and GELU under LayerNorm (Fig 4, 5, 6).

    python -m experiments.activation                 # about 1 min on two CPU cores
    python -m experiments.activation --scale=paper   # width 4096, about 15 min on two CPU cores

MLP0(x) = W_2 f(W_1 x) with the same weights for every f: with ReLU independent
inputs grow alike from layer to layer as Proposition 2 says, with tanh they stay
orthogonal. GELU is nearly linear near zero, and contracts only at the scale
that a LayerNorm gives its pre-activations.

Writes results.json (a row for each network and variant; in the summary the
measured mean, its standard error and the theory for each layer) and figure.png
to the output folder. Started again, it goes on where it was.
"""

import functools
import math

import jax.numpy as jnp
import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis import ensemble, similarity, statistics, theory
from bornbiased_jax.analysis.simplified import StackConfig
from bornbiased_jax.configs import BASE_STD, ModelConfig
from bornbiased_jax.models.transformer import activate
from experiments import command_line
from experiments.amplification import COMMON, layers_row
from experiments.cells import measure_cells, stack_cell
from experiments.results import Results, grouped, mean_and_theory

SCALES = {
    'smoke': COMMON | dict(seeds='0-2', width='256', depth='3', num_sequences='60'),
    'laptop': COMMON | dict(seeds='0-9', width='2048', depth='6', num_sequences='200'),
    'paper': COMMON | dict(seeds='0-19', width='4096', depth='12', num_sequences='2000'),
}
EDGES = np.linspace(-4, 4, 161)
GELU_WIDTH = 768


def main(settings, output_dir):
  results = Results(output_dir, 'activation', settings)
  measure_cells([*mlp0_cells(settings), *block_cells(settings), *gelu_cells(settings)], settings, results)
  results.finish(summarize(results.rows, settings), display, draw(results.rows, settings))


def mlp0_cells(settings):
  """Fig 4: stacks of MLP0."""
  for activation in ('relu', 'tanh'):
    config = StackConfig(('mlp',) * settings.depth, settings.width, settings.width, activation)
    yield stack_cell({'block': 'MLP0', 'activation': activation}, config, 1, settings,
                     similarity.inter_sequence('residual_last', pair_std=True), layers_row)


def block_cells(settings):
  """Fig 5: the standard MLP-only block, with residual stream and LayerNorm, of GPT-2's width."""
  for activation in ('relu', 'tanh', 'gelu_tanh'):
    config = ModelConfig(num_layers=settings.depth, num_heads=1, width=GELU_WIDTH, mlp_width=4 * GELU_WIDTH,
                         vocab_size=1, sublayers='mlp_only', activation=activation)
    cell = stack_cell({'block': 'standard', 'activation': activation},
                      StackConfig(('mlp',) * settings.depth, GELU_WIDTH, 4 * GELU_WIDTH), 1, settings,
                      similarity.inter_sequence('residual_last', pair_std=True), layers_row)
    yield cell._replace(network=ensemble.transformer(config))


def gelu_cells(settings):
  """Fig 6: GELU on inputs of an embedding's scale, as they are and after LayerNorm."""
  statistic = statistics.combine({'layers': similarity.inter_sequence('residual_last', pair_std=True),
                                  'histogram': statistics.histogram('preactivation', EDGES)})
  for norm in (False, True):
    config = StackConfig(('norm',) * norm + ('mlp',), GELU_WIDTH, 4 * GELU_WIDTH, 'gelu_tanh')
    yield stack_cell({'block': 'MLP0 after LayerNorm' if norm else 'MLP0', 'activation': 'gelu_tanh'}, config, 1,
                     settings, statistic, histogram_row)


def histogram_row(measured):
  return layers_row(measured['layers']) | {'density': measured['histogram']['density']}


def closed_form(block, activation, layer, settings):
  """Similarity after `layer` layers of infinite width, or None where there is no closed form (residual stream)."""
  if block == 'standard':
    return 0.0 if activation == 'tanh' else None
  if activation == 'gelu_tanh':
    norm = block != 'MLP0'
    scale = BASE_STD * math.sqrt(GELU_WIDTH) * (1 if norm else BASE_STD)
    return 0.0 if layer < 1 + norm else float(
        theory.activation_similarity(functools.partial(activate, activation), 0.0, scale))
  return float(theory.iterate(theory.relu_similarity, 0.0, layer)[-1]) if activation == 'relu' else 0.0


def summarize(rows, settings):
  summary = []
  for fields, group in grouped(rows, 'block', 'activation'):
    for layer in range(1, len(group[0]['layer_cosine']) + 1):
      cosine = [row['layer_cosine'][layer - 1] for row in group]
      width = settings.width if fields['block'] == 'MLP0' and fields['activation'] != 'gelu_tanh' else GELU_WIDTH
      summary.append({**fields, 'layer': layer, 'networks': len(group),
                      'pair_std': np.mean([row['layer_cosine_std'][layer - 1] for row in group]),
                      **mean_and_theory(cosine, similarity.isotropic_std(settings.num_sequences, width),
                                        closed_form(**fields, layer=layer, settings=settings))})
  return summary


def display(row):
  return {'block': row['block'], 'activation': row['activation'], 'layer': str(row['layer']),
          'cosine': f'{row["measured"]:.4f} ± {row["standard_error"]:.4f} (s.e.)',
          'theory': '–' if row['theory'] is None else f'{row["theory"]:.4f}',
          'std over pairs': f'{row["pair_std"]:.4f}'}


def draw(rows, settings):
  """Fig 4, 5 and 6 side by side."""
  with plotting.style():
    figure = plotting.figure(11, 3.2)
    mlp0, standard, gelu = figure.subplots(1, 3)
    for fields, group in grouped(rows, 'block', 'activation'):
      if fields['block'] == 'standard' or 'density' not in group[0]:
        draw_layers(standard if fields['block'] == 'standard' else mlp0, fields['activation'], group)
    depth = np.arange(settings.depth + 1)
    plotting.theory(mlp0, depth, [0, *theory.iterate(theory.relu_similarity, 0.0, settings.depth)], 'Proposition 2')
    mlp0.set_title(f'MLP0, width {settings.width}')
    standard.set_title(f'MLP-only blocks, width {GELU_WIDTH}')
    mlp0.legend()
    standard.legend()
    draw_gelu(gelu, [row for row in rows if 'density' in row])
  return figure


def draw_layers(ax, activation, rows):
  cosine = np.array([[0, *row['layer_cosine']] for row in rows])
  plotting.band(ax, np.arange(cosine.shape[1]), cosine, marker='o', markersize=3, label=activation)
  ax.set(xlabel='layer', ylabel='cosine of two inputs', ylim=(-0.05, 1))
  ax.xaxis.get_major_locator().set_params(integer=True)


def draw_gelu(ax, rows):
  """Densities scaled to a common height over GELU and its linear part."""
  middle = (EDGES[1:] + EDGES[:-1]) / 2
  for color, (fields, group) in zip(plotting.COLORS[4:2:-1], reversed(grouped(rows, 'block')), strict=True):
    density = np.mean([row['density'] for row in group], axis=0)
    cosine = np.mean([row['layer_cosine'][-1] for row in group])
    label = ('after LayerNorm' if 'LayerNorm' in fields['block'] else 'as they are') + f' (cosine {cosine:.3f})'
    ax.fill_between(middle, density / density.max(), color=color, alpha=0.6, linewidth=0, step='mid', label=label)
  ax.plot(EDGES, activate('gelu_tanh', jnp.asarray(EDGES)), color='black', label='GELU(u)')
  ax.plot(EDGES, EDGES / 2, color='black', linestyle=':', linewidth=1, label='its linear part, u/2')
  ax.set(xlabel='pre-activation u', ylabel='GELU(u); density, peak at 1', xlim=(-3, 3), ylim=(-0.5, 2),
         title='what GELU sees')
  ax.legend(fontsize='small')


if __name__ == '__main__':
  command_line.run(main, 'activation', SCALES, __doc__)
