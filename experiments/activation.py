"""Contraction comes from an activation that is not odd (Fig 4, 5 and 6, Prop 2).

Fig 4: stacks of MLP0(x) = W_2 f(W_1 x), with the same weights for every activation f. With ReLU
independent inputs grow alike as Proposition 2 says, with tanh, which is odd, they stay orthogonal.
Fig 5: blocks of a transformer with only LayerNorm, residual stream and MLP. Fig 6: histograms of
what GELU sees, over its curve: it contracts only at the scale that a LayerNorm gives its inputs.

    python -m experiments.activation                 # about 2 min on two CPU cores
    python -m experiments.activation --scale=paper   # width 4096, about 15 min on two CPU cores

Prints a table with a line per variant and layer. Writes results.json (a row per network and
variant) and figure.png, with a panel per figure of the paper.
"""

import math

import jax.numpy as jnp
import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis import combine, ensemble, histogram, inter_sequence, theory
from bornbiased_jax.analysis.simplified import StackConfig
from bornbiased_jax.configs import ACTIVATIONS, BASE_STD, ModelConfig

from .shared import measurements, program
from .shared.base_settings import Stacks
from .shared.measurements import measure_cells, stack_cell
from .shared.settings import setting
from .shared.tables import grouped, mean_and_theory, with_error


class Settings(Stacks):
  width: int = setting(2048, smoke=256, paper=4096)
  seeds: list[int] = setting(range(10), smoke=range(2), paper=range(20))
  depth: int = setting(6, smoke=2, paper=12)
  num_sequences: int = setting(200, smoke=60, paper=2000)

EDGES = np.linspace(-4, 4, 161)
GELU_WIDTH = 768
SATURATED = 'MLP0, large inputs'
BY_LAYER = inter_sequence('residual_last', pair_std=True)


def main(settings, results):
  cells = [*mlp0_cells(settings), *block_cells(settings), *gelu_cells(settings)]
  measure_cells(cells, settings, results)
  results.finish(summarize(results.rows, settings), display, lambda: draw(results.rows, settings))


def mlp0_cells(settings):
  """Fig 4: stacks of MLP0, and one whose inputs and weights are so large that tanh saturates."""
  layers = ('mlp',) * settings.depth
  large = dict(std=1.5 / settings.width**0.5, embedding_std=1.0)
  for block, activation, scale in (
      ('MLP0', 'relu', {}), ('MLP0', 'tanh', {}), (SATURATED, 'tanh', large)):
    config = StackConfig(layers, settings.width, settings.width, activation, **scale)
    yield stack_cell({'block': block, 'activation': activation}, config, 1, settings, BY_LAYER,
                     measurements.layers_row)


def block_cells(settings):
  """Fig 5: the standard MLP-only block, with residual stream and LayerNorm, of GPT-2's width."""
  mlp_width = 4 * GELU_WIDTH
  for activation in ('relu', 'tanh', 'gelu_tanh'):
    config = ModelConfig(
        num_layers=settings.depth, num_heads=1, width=GELU_WIDTH, mlp_width=mlp_width,
        vocab_size=1, sublayers='mlp_only', activation=activation)
    # A stack of the same size, whose place the transformer takes.
    stack = StackConfig(('mlp',) * settings.depth, GELU_WIDTH, mlp_width)
    cell = stack_cell({'block': 'standard', 'activation': activation}, stack, 1, settings,
                      BY_LAYER, measurements.layers_row)
    yield cell._replace(ensemble=ensemble.transformer(config))


def gelu_cells(settings):
  """Fig 6: GELU on inputs of an embedding's scale, as they are and after LayerNorm."""
  statistic = combine({'layers': BY_LAYER, 'histogram': histogram('preactivation', EDGES)})
  for norm in (False, True):
    layers = ('norm', 'mlp') if norm else ('mlp',)
    config = StackConfig(layers, GELU_WIDTH, 4 * GELU_WIDTH, 'gelu_tanh')
    block = 'MLP0 after LayerNorm' if norm else 'MLP0'
    yield stack_cell({'block': block, 'activation': 'gelu_tanh'}, config, 1, settings, statistic,
                     histogram_row)


def histogram_row(measured):
  return measurements.layers_row(measured['layers']) | {'density': measured['histogram']['density']}


def closed_form(block, activation, layer):
  """Similarity after layers of infinite width; None with a residual stream, except for tanh."""
  if block == 'standard':
    return 0.0 if activation == 'tanh' else None
  if activation == 'gelu_tanh':
    norm = block != 'MLP0'
    if layer < 1 + norm:
      return 0.0
    scale = BASE_STD * math.sqrt(GELU_WIDTH) * (1 if norm else BASE_STD)
    gelu = ACTIVATIONS[activation]
    return float(theory.activation_similarity(gelu, 0.0, scale))
  if activation == 'relu':
    return float(theory.iterate(theory.relu_similarity, 0.0, layer)[-1])
  return 0.0


def summarize(rows, settings):
  summary = []
  for fields, group in grouped(rows, 'block', 'activation'):
    is_wide = fields['block'] in ('MLP0', SATURATED) and fields['activation'] != 'gelu_tanh'
    width = settings.width if is_wide else GELU_WIDTH
    for layer in range(1, len(group[0]['layer_cosine']) + 1):
      cosine = [row['layer_cosine'][layer - 1] for row in group]
      expected = closed_form(**fields, layer=layer)
      summary.append({
          **fields, 'layer': layer, 'networks': len(group),
          'pair_std': np.mean([row['layer_cosine_std'][layer - 1] for row in group]),
          **mean_and_theory(cosine, expected),
          'median_log10_p_isotropic': measurements.median_log10_p(
              cosine, settings.num_sequences, width),
      })
  return summary


def display(row):
  return {'block': row['block'], 'activation': row['activation'], 'layer': row['layer'],
          'cosine': with_error(row, 'z.4f'),
          'theory': '–' if row['theory'] is None else f'{row["theory"]:z.4f}',
          'std over pairs': f'{row["pair_std"]:.4f}',
          'log10 p if isotropic': f'{row["median_log10_p_isotropic"]:,.1f}'}


def draw(rows, settings):
  """Fig 4, 5 and 6 side by side."""
  figure = plotting.figure(11, 3.2)
  mlp0, standard, gelu = figure.subplots(1, 3)
  for fields, group in grouped(rows, 'block', 'activation'):
    if fields['block'] == 'standard' or 'density' not in group[0]:
      ax = standard if fields['block'] == 'standard' else mlp0
      is_large = fields['block'] == SATURATED
      label = f'{fields["activation"]}, large inputs' if is_large else fields['activation']
      draw_layers(ax, group, label=label, **plotting.OPEN if is_large else plotting.DOTS)
  expected = [0, *theory.iterate(theory.relu_similarity, 0.0, settings.depth)]
  plotting.theory(mlp0, np.arange(settings.depth + 1), expected, 'Proposition 2')
  mlp0.set_title(f'Fig 4: MLP0, width {settings.width:,}')
  standard.set_title(f'Fig 5: MLP-only blocks, width {GELU_WIDTH}')
  count = plotting.of_networks(len({row['seed'] for row in rows}))
  mlp0.legend(title=count)
  standard.legend()
  draw_gelu(gelu, [row for row in rows if 'density' in row])
  return figure


def draw_layers(ax, rows, **look):
  cosine = np.array([[0, *row['layer_cosine']] for row in rows])
  plotting.band(ax, np.arange(cosine.shape[1]), cosine, **look)
  ax.set(xlabel='layer', ylabel='cosine of two inputs', ylim=(-0.05, 1))
  ax.xaxis.get_major_locator().set_params(integer=True)


def draw_gelu(ax, rows):
  """Densities of pre-activations, scaled to a common height, over GELU and its linear part."""
  middle = (EDGES[1:] + EDGES[:-1]) / 2
  groups = reversed(grouped(rows, 'block'))
  for color, (fields, group) in zip(plotting.COLORS[4:2:-1], groups, strict=True):
    density = np.mean([row['density'] for row in group], axis=0)
    cosine = np.mean([row['layer_cosine'][-1] for row in group])
    inputs = 'after LayerNorm' if 'LayerNorm' in fields['block'] else 'as they are'
    ax.fill_between(middle, density / density.max(), color=color, alpha=0.6, linewidth=0,
                    step='mid', label=f'{inputs} (cosine {cosine:.3f})')
  ax.plot(EDGES, ACTIVATIONS['gelu_tanh'](jnp.asarray(EDGES)), color='black', label='GELU(u)')
  ax.plot(EDGES, EDGES / 2, color='black', linestyle=':', linewidth=1,
          label='its linear part, u/2')
  ax.set(xlabel='pre-activation u', ylabel='GELU(u); density, peak at 1', xlim=(-3, 3),
         ylim=(-0.5, 2), title='Fig 6: what GELU sees')
  ax.legend(fontsize='small')


if __name__ == '__main__':
  program.measure(main, 'activation', Settings, __doc__, several_hosts=True)
