"""The coordinate check of muP at initialization: scales by layer, width and depth.

An initialization suits all widths, or all depths, if its networks do not change with them (Yang et
al. 2022). Four coordinates are measured: the cosine of two sequences, the size of the residual
stream, the norm of the loss's gradient in the parameters of a layer, and the share of the preferred
token. Widths are compared at one std and by the rule of muP, depths with and without the factor
1/√(2 layers) of matrices that write to the stream. Theory (theory.finite_width,
theory.infinite_width and theory.preference_at_initialization) has no fitted number, and says
nothing about gradients. For other positions, activations and initializations its cosine is
compared with networks at all widths. At every layer it should be within 7 % of the last layer's
cosine, or 0.01.

    python -m experiments.coordinates      # 48 networks, 22 min on two CPU cores
    python -m experiments.coordinates --checks='width, mup,width, alibi,width, squared_relu' \\
        --widths=128,256,512,1024 --seeds=0-31

Prints a table with a line per width or depth. Writes results.json (a row per network) and
figure.png to the output folder. If a run was stopped, the same command continues it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import Probe, theory
from bornbiased_jax.fields import listed, whole
from bornbiased_jax.models import next_token_loss, read

from .shared import measurements, program
from .shared.base_settings import Transformers
from .shared.measurements import measure_cells, predict, transformer_cell
from .shared.settings import preset_name, setting, some
from .shared.tables import grouped, mean_ci95, plus_minus

# For each check what is varied, and what else is changed.
CHECKS = {
    'width, std 0.02': ('width', dict(linear_std=0.02)),
    'width, mup': ('width', dict(init_scheme='mup')),
    'depth, plain': ('depth', dict(init_scheme='plain')),
    'depth, gpt2': ('depth', dict(init_scheme='gpt2')),
}
# The figure only shows how far theory is off for these. Up to width 768 the others
# are initialized as by mup.
VARIANTS = {
    'width, squared_relu': ('width', dict(activation='squared_relu')),
    'width, no positions': ('width', dict(positions='none')),
    'width, alibi': ('width', dict(positions='alibi')),
    'width, orthogonal': ('width', dict(init_scheme='orthogonal')),
    'width, zero': ('width', dict(init_scheme='zero')),
}
ALL = CHECKS | VARIANTS
COORDINATES = {'cosine': 'cosine of two sequences', 'size': 'size of states (rms)',
               'gradient': 'norm of the gradient'}
# Sizes and gradients are means over so many sequences.
NUM_READ = 32
# How far theory may be off: a share of the last layer's cosine, or a cosine if that is more.
SHARE, LEAST = 0.07, 0.01
# Networks of the widest, if there are as many.
FEWEST = 4


class Settings(Transformers):
  config: str = setting('tiny_gpt2', preset_name, 'model that is varied, one of '
                        'those below', paper='nano_gpt2')
  seeds: list[int] = setting(range(4), None, 'seeds of the narrowest networks, as 0-99 or 42,43; '
                             'wider ones, which differ less, have fewer in proportion, but '
                             f'{FEWEST}', smoke=range(3), paper=range(20))
  num_sequences: int = setting(500, smoke=30, paper=10_000)
  length: int = setting(32, smoke=8, paper=256)
  widths: list[int] = setting([64, 128, 512], listed(whole), 'channels, comma-separated',
                              smoke=[64], paper=[256, 512, 1024, 2048])
  depths: list[int] = setting([2, 4, 16], listed(whole), 'layers, comma-separated',
                              smoke=[2], paper=[6, 12, 24, 48])
  checks: list[str] = setting(list(CHECKS), *some(ALL, 'checks to make'), smoke=['depth, gpt2'])
  dtype: str = setting('float32', paper='bfloat16')


def main(settings, results):
  cells = [cell(settings, check, value) for check in settings.checks
           for value in (settings.widths if ALL[check][0] == 'width' else settings.depths)]
  # What theory does not know is refused before it is measured.
  expected = {} if results.summary else predict(cells, predicted)
  measure_cells(cells, settings, results)
  summary = results.summary or summarize(results.rows, expected)
  results.finish(summary, display, lambda: draw(summary, settings))


def cell(settings, check, value):
  """The ensemble of one width or depth."""
  base, (varied, changed) = configs.get(settings.config), ALL[check]
  changed = changed | (dict(num_layers=value) if varied == 'depth' else dict(
      width=value, mlp_width=max(1, base.mlp_width * value // base.width)))
  found = transformer_cell(settings.config, settings.length, settings, measurements.preference, row,
                           functools.partial(scales, settings.probe_seed), **changed)
  share = min(settings.widths) / value if varied == 'width' else 1
  return found._replace(fields={'check': check, 'value': value, 'length': settings.length},
                        seeds=settings.seeds[:max(FEWEST, round(share * len(settings.seeds)))])


def scales(probe_seed, config):
  """The size of states and the norm of gradients by layer, as a readout of `ensemble.measure`."""
  probe = Probe('tokens', NUM_READ, config.length, probe_seed)

  def readout(params, sums):
    tokens = probe.inputs(config, jnp.arange(NUM_READ))
    states_LBD = read(config, params, tokens, ('residual_last',))['residual_last']
    gradients = jax.grad(functools.partial(next_token_loss, config))(params, tokens)['blocks']
    squares_L = sum(jnp.square(leaf.reshape(len(leaf), -1)).sum(axis=1)
                    for leaf in jax.tree.leaves(gradients))
    return {'size': jnp.sqrt(jnp.square(states_LBD).mean(axis=(1, 2))),
            'gradient': jnp.sqrt(squares_L)}

  return readout


def row(measured):
  return {'layer_cosine': measured['layers']['cosine'], 'layer_size': measured['size'],
          'layer_gradient': measured['gradient'],
          'top1_frequency': measured['preference']['top1_frequency']}


def predicted(cell):
  """What theory says of a cell; of preferred tokens if it reads tokens."""
  config, probe = cell.ensemble.config, cell.probe
  limit, share = theory.infinite_width(config, probe.length, probe), np.nan
  if probe.kind == 'tokens':
    share = measurements.preferred_tokens(config, probe.num_sequences)['theory_top1_frequency']
  return {'theory_cosine': measurements.predicted_cosine(cell),
          'theory_size': np.sqrt(limit.variance_LT[:, -1]), 'theory_top1_frequency': share}


def summarize(rows, theory):
  return [fields | {'networks': len(group)} | {
      f'layer_{name}': np.mean([row[f'layer_{name}'] for row in group], axis=0)
      for name in COORDINATES} | mean_ci95(
          [{'last_cosine': row['layer_cosine'][-1]} for row in group], 'last_cosine')
          | mean_ci95(group, 'top1_frequency') | theory[tuple(fields.values())]
          for fields, group in grouped(rows, 'check', 'value', 'length')]


def gaps(row):
  """How far theory is off at the worst layer, and how far it may be."""
  cosine_L = np.asarray(row['layer_cosine'])
  return np.abs(cosine_L - row['theory_cosine']).max(), max(SHARE * cosine_L[-1], LEAST)


def display(row):
  first, last = row['layer_gradient'][0], row['layer_gradient'][-1]
  return {
      'check': row['check'], 'value': str(row['value']), 'networks': str(row['networks']),
      'cosine': plus_minus(row, 'last_cosine', '.3f'), 'theory': f'{row["theory_cosine"][-1]:.3f}',
      'worst layer is off by': '{:.3f} of {:.3f}'.format(*gaps(row)),
      'size': f'{row["layer_size"][-1]:.3f}', 'its theory': f'{row["theory_size"][-1]:.3f}',
      'gradient, first and last layer': f'{first:.3f}, {last:.3f}',
      'top-1 share': plus_minus(row, 'top1_frequency', '.1%'),
      'its theory, share': f'{row["theory_top1_frequency"]:.1%}',
  }


def draw(summary, settings):
  """A line of panels per check of CHECKS, and below for all how far theory is off."""
  full = [check for check in settings.checks if check in CHECKS]
  heights = 2.2 * len(full), 0.6 + 0.2 * len(summary)
  figure = plotting.figure(10, sum(heights) + 0.4)
  above, below = figure.add_gridspec(2, 1, height_ratios=[max(0.1, heights[0]), heights[1]])
  if full:
    draw_checks(above.subgridspec(len(full), 4).subplots(squeeze=False, sharey='col'), full,
                summary)
  draw_gaps(below.subgridspec(1, 2).subplots(sharey=True),
            [row for check in settings.checks for row in summary if row['check'] == check])
  counts = sorted({row['networks'] for row in summary})
  figure.suptitle(f'Means of {" to ".join(map(str, counts[::len(counts) - 1 or 1]))} networks. '
                  'Dashed, and black bars: theory', x=0.01, ha='left', fontsize='medium')
  return figure


def draw_checks(grid, checks, summary):
  """Three coordinates by layer, and the preferred token's share."""
  for check, axes in zip(checks, grid, strict=True):
    rows, varied = [row for row in summary if row['check'] == check], CHECKS[check][0]
    for color, each in zip(plotting.COLORS * 9, rows, strict=False):
      draw_layers(axes, each, color, varied)
    draw_share(axes[3], rows, varied)
    axes[0].set(ylabel=check)
    axes[0].legend(fontsize='small', title=varied, title_fontsize='small', ncols=2)
  titles = *COORDINATES.values(), 'share of the preferred token'
  for ax, title in zip(grid[0], titles, strict=True):
    ax.set(title=title)
  for ax in (*grid[:, 1], *grid[:, 2]):
    ax.set_yscale('log')
  for ax in (grid[0, 0], grid[0, 3]):
    ax.set_ylim(bottom=0)


def draw_gaps(axes, rows):
  """The last layer's cosine, and how far theory is off, a line per width or depth of a check."""
  place = np.arange(len(rows))
  axes[0].errorbar([row['last_cosine'] for row in rows], place,
                   xerr=[row['last_cosine_ci95'] for row in rows], fmt='o', markersize=4)
  axes[0].plot([row['theory_cosine'][-1] for row in rows], place, 'k|', markersize=9, zorder=3)
  axes[1].plot([np.divide(*gaps(row)) for row in rows], place, 'o', markersize=4)
  axes[0].set_yticks(place, [
      f'{row["check"].split(", ")[1]}, {ALL[row["check"]][0]} {row["value"]}' for row in rows])
  axes[0].set(title='cosine after the last layer', xlim=(0, None), ylim=(len(rows) - 0.5, -0.5))
  axes[1].set(title='gap to theory at the worst layer (1: largest allowed)')
  axes[1].axvline(1, color='black', linestyle='--', linewidth=0.8)
  axes[1].set_xlim(0, max(1.1, axes[1].dataLim.x1 * 1.05))


def draw_layers(axes, row, color, varied):
  """Three coordinates of one width or depth, with theory where there is one."""
  layer = np.arange(1, len(row['layer_cosine']) + 1)
  x = layer / len(layer) if varied == 'depth' else layer
  for ax, name in zip(axes, COORDINATES, strict=False):
    ax.plot(x, row[f'layer_{name}'], color=color, label=str(row['value']), **plotting.DOTS)
    if f'theory_{name}' in row:
      plotting.theory(ax, x, row[f'theory_{name}'])
    ax.set(xlabel='layer / layers' if varied == 'depth' else 'layer')
    if varied == 'width':
      ax.xaxis.get_major_locator().set_params(integer=True)


def draw_share(ax, rows, varied):
  of = lambda name: 100 * np.array([row[name] for row in rows])
  values = [row['value'] for row in rows]
  ax.errorbar(values, of('top1_frequency'), of('top1_frequency_ci95'), fmt='o', markersize=4)
  plotting.theory(ax, values, of('theory_top1_frequency'))
  ax.set_xscale('log', base=2)
  ax.set(xlabel='width' if varied == 'width' else 'layers', ylabel='%')
  ax.set_xticks(values, [str(value) for value in values])


if __name__ == '__main__':
  program.measure(main, 'coordinates', Settings, __doc__, several_hosts=True)
