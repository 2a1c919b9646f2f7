"""How the bias at initialization grows with depth, length and scale of weights.

Theory is drawn as curves: the cosine of two sequences after the last layer, in the limit of great
width (theory.infinite_width) and with what finite width adds (theory.finite_width). Ensembles of
random networks are the points. For models that are too large for this machine only theory is shown,
also for the preferred token (theory.preference_at_initialization).

    python -m experiments.scaling                 # about 40 min on two CPU cores
    python -m experiments.scaling --scale=paper   # longer sequences, and nano; needs an accelerator

Prints a table with a line per variant and large model. Writes results.json (a row per network) and
figure.png.
"""

import math

import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import theory
from bornbiased_jax.analysis.probes import OF_TEXT
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import listed, num_tokens, whole

from .shared import measurements, program, tables
from .shared.base_settings import Transformers
from .shared.measurements import measure_cells, predict, transformer_cell
from .shared.settings import preset_name, setting, some
from .shared.tables import grouped, mean_ci95, plus_minus

FACTORS = {
    'depth': 'layers', 'width': 'width, std 0.02', 'scaled width': 'width, std ∝ 1/√width',
    'length': 'tokens per sequence', 'scale': 'std of pre-activations',
    'vocabulary': 'token ids', 'unit': 'hidden unit',
}
UNITS = {'gelu': dict(activation='gelu_tanh'), 'relu': dict(activation='relu'),
         'silu': dict(activation='silu'), 'tanh': dict(activation='tanh'),
         'centred gelu': dict(activation='gelu_tanh', init_scheme='centred', mlp_bias=True)}
UNITS = {name: changed | dict(gated_mlp=False) for name, changed in UNITS.items()} | {
    'gated silu': dict(activation='silu', gated_mlp=True)}

class Settings(Transformers):
  config: str = setting('tiny_gpt2', preset_name, paper='nano_gpt2', help=(
      'model from which the variants differ (see --help=models)'))
  seeds: list[int] = setting(range(20), smoke=[0, 1], paper=range(100))
  num_sequences: int = setting(200, smoke=30, paper=10_000)
  length: int = setting(64, smoke=8, paper=256)
  factors: list[str] = setting(list(FACTORS), *some(FACTORS, 'factors to vary'), smoke=['unit'])
  large: list[str] = setting(['gpt2_1b2', 'llama2_7b'], listed(preset_name),
                             'large models, for which only theory is computed',
                             smoke=['tiny_gpt2'])
  large_lengths: list[int] = setting([64, 256, 1024], listed(num_tokens), 'their sequence lengths',
                                     smoke=[8])
  large_sequences: int = setting(10_000, whole, 'sequences that each of them would read', smoke=50)
  dtype: str = setting('float32', paper='bfloat16')


def main(settings, results):
  if settings.probe in OF_TEXT:
    raise InputError(f'--probe: {settings.probe} is not one of tokens, gaussian, sphere; '
                     'experiments.real_text reads texts')
  cells = [cell(settings, factor, value, changed) for factor in settings.factors
           for value, changed in variants(settings, factor)]
  # What theory does not know is refused before it is measured. It takes longer than the networks,
  # and is not computed again to draw them.
  theory = {} if results.summary else predict(cells, predicted)
  measure_cells(cells, settings, results)
  summary = results.summary or summarize(results.rows, theory) + predictions(settings)
  results.finish(summary, display, lambda: draw(summary, settings))


def variants(settings, factor: str, dense: bool = False) -> list[tuple]:
  """The values of a factor, each with the changes of the configuration that make it."""
  base = configs.get(settings.config)
  powers = lambda low, high: [2**k for k in range(low, high + 1)]
  width = lambda d: dict(width=d, mlp_width=4 * d, num_heads=4)
  longest = int(math.log2(settings.length)) + 2
  match factor:
    case 'depth':
      return [(L, dict(num_layers=L)) for L in powers(1, 6 if dense else 4)]
    case 'width':
      return [(d, width(d) | dict(linear_std=0.02)) for d in powers(6, 12 if dense else 8)]
    case 'scaled width':
      std = base.linear_std * base.width**0.5
      return [(d, width(d) | dict(linear_std=std / d**0.5))
              for d in powers(6, 12 if dense else 8)]
    case 'length':
      return [(T, dict(length=T)) for T in powers(0, longest + 2 if dense else longest)]
    case 'scale':
      values = np.linspace(0.1, 1.1, 11) if dense else (0.2, 0.4, 0.8, 1.1)
      return [(round(float(s), 3), dict(linear_std=float(s) / base.width**0.5)) for s in values]
    case 'vocabulary':
      return [(V, dict(vocab_size=V)) for V in powers(7, 13)]
    case _:
      return list(UNITS.items())


def cell(settings, factor, value, changed):
  """The ensemble of one variant."""
  changed = dict(length=settings.length) | changed
  length = changed.pop('length')
  found = transformer_cell(settings.config, length, settings, measurements.preference, row,
                           **changed)
  return found._replace(fields={'factor': factor, 'value': value, 'length': length})


def row(measured):
  return {'inter_sequence_cosine': measured['layers']['cosine'][-1],
          'top1_frequency': measured['preference']['top1_frequency']}


def config_of(settings, changed):
  return configs.get(settings.config, **(dict(length=settings.length) | changed))


def predicted(cell):
  """What theory says of a variant; of preferred tokens where the vocabulary is varied."""
  config, probe = cell.ensemble.config, cell.probe
  asks_preference = (cell.fields['factor'], probe.kind) == ('vocabulary', 'tokens')
  return similarity(config, probe.length, probe.kind) | (
      measurements.preferred_tokens(config, probe.num_sequences) if asks_preference else {})


def similarity(config, length, kind='tokens'):
  """The cosine of sequences in the limit of infinite width and at the width of a model."""
  finite = theory.finite_width(config, length, kind)
  return {'limit': limit(config, kind),
          'theory_cosine': finite.inter_cosine_L[-1],
          'theory_cosine_std': finite.inter_cosine_std, 'dimensions': finite.dimensions}


def limit(config, kind):
  return float(theory.infinite_width(config, config.length, kind).inter_cosine_L[-1])


def summarize(rows, theory):
  return [fields | {
      'networks': len(group), **mean_ci95(group, 'inter_sequence_cosine'),
      **tables.top1_summary(group), **theory[tuple(fields.values())]}
          for fields, group in grouped(rows, 'factor', 'value', 'length')]


def predictions(settings):
  """What theory says of large models that nothing here has measured."""
  rows = []
  for name in settings.large:
    for length in settings.large_lengths:
      config = configs.get(name, length=length)
      rows.append({
          'factor': name, 'value': 'predicted', 'length': length, 'networks': 0,
          **similarity(config, length),
          **measurements.preferred_tokens(config, settings.large_sequences)})
  return rows


def display(row):
  measured = row['networks'] > 0
  return {
      'factor': row['factor'], 'value': row['value'], 'T': row['length'],
      'cosine': plus_minus(row, 'inter_sequence_cosine', '.3f') if measured else '–',
      'limit': f'{row["limit"]:.3f}', 'theory': f'{row["theory_cosine"]:.3f}',
      'dimensions': f'{row["dimensions"]:.0f}',
      'top-1 share': f'{row["top1_frequency"]:.1%}' if measured else '–',
      **tables.top1_columns(row),
  }


def draw(summary, settings):
  """A panel per factor: theory as curves, ensembles as points with 95 % intervals."""
  panels = list(dict.fromkeys(factor.removeprefix('scaled ') for factor in settings.factors))
  figure = plotting.figure(9, 2.7 * math.ceil(len(panels) / 3))
  axes = figure.subplots(math.ceil(len(panels) / 3), min(3, len(panels)), squeeze=False).flat
  for ax, factor in zip(axes, panels, strict=False):
    both = ('width', 'scaled width') if factor == 'width' else (factor,)
    for color, each in zip(plotting.COLORS, both, strict=False):
      rows = [row for row in summary if row['factor'] == each]
      if rows:
        draw_factor(ax, each, rows, settings, color)
    ax.set(xlabel=FACTORS[factor] if len(both) == 1 else 'width',
           ylabel='share of the preferred token (%)' if factor == 'vocabulary' else 'cosine')
    if len(both) > 1:
      ax.legend()
  for ax in list(axes):
    ax.remove()
  figure.axes[0].plot([], [], 'k--', linewidth=1, label='theory, width → ∞')
  figure.axes[0].plot([], [], 'k+', label='theory, this width')
  figure.axes[0].legend()
  measured = sorted({row['networks'] for row in summary if row['networks']})
  figure.suptitle(f'Points: means over {" or ".join(map(str, measured))} networks, with 95 % '
                  'intervals', fontsize='medium')
  return figure


def draw_factor(ax, factor, rows, settings, color):
  share = factor == 'vocabulary'
  name, predicted = (('top1_frequency', 'theory_top1_frequency') if share
                     else ('inter_sequence_cosine', 'theory_cosine'))
  is_named = factor == 'unit'
  x = range(len(rows)) if is_named else [row['value'] for row in rows]
  factor_label = FACTORS[factor] if 'width' in factor else None
  unit = 100 if share else 1
  of = lambda field: unit * np.array([row[field] for row in rows])
  ax.errorbar(x, of(name), of(f'{name}_ci95'), fmt='o', markersize=4, color=color,
              label=factor_label)
  ax.plot(x, of(predicted), 'k+', markersize=8)
  if is_named:
    ax.set_xticks(list(x), [row['value'] for row in rows], rotation=30, ha='right')
  elif not share:
    curve = [(value, limit(config_of(settings, changed), settings.probe))
             for value, changed in variants(settings, factor, dense=True)]
    ax.plot(*zip(*curve, strict=True), '--', linewidth=1, color=color if factor_label else 'black')
  if factor not in ('unit', 'scale'):
    ax.set_xscale('log', base=2)
  ax.set_ylim(bottom=0)


if __name__ == '__main__':
  program.measure(main, 'scaling', Settings, __doc__, several_hosts=True)
