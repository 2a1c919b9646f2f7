"""The table and the figure of experiments.attention_sink."""

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis.attention_sink import THRESHOLD, uniform_weight

from .results import ci95, grouped, mean_ci95, plus_minus
from .sink_growth import EPSILONS

NONE = ('intervention', 'none')
# Fields of rows whose means and intervals over networks the summary has.
MEANS = ('rate', 'head_rate', 'weight', 'excess', 'weight_copying', 'weight_resting', 'value_ratio',
         'residual_ratio', 'position_rate', 'position_weight')
# A network has a sink from the first step on at which so many sequences have one.
GROWN = 0.5


def summarize(rows) -> list[dict]:
  """Means over networks, and the excess loss above that of the unchanged network of each seed."""
  base = {row['seed']: row['excess'] for row in rows if is_base(row)}
  summary = []
  for fields, group in grouped(rows, 'factor', 'value', 'afterwards'):
    each = [row | {'head_rate': np.max(row['rate_LH']),
                   'value_ratio': np.mean(row['value_ratio_L']),
                   'residual_ratio': np.mean(row['residual_ratio_L'])}
            for row in group]
    means = {}
    for name in MEANS:
      means |= mean_ci95(each, name)
    cost = [row['excess'] - base[row['seed']] for row in group]
    onsets = [onset for row in group if (onset := onset_of(row)) is not None]
    summary.append({
        **fields, 'networks': len(group), **means, 'floor': group[0]['floor'],
        'position_floor': group[0]['position_floor'],
        'cost': np.mean(cost), 'cost_ci95': ci95(cost),
        'grown': len(onsets), 'onset': np.median(onsets) if onsets else None,
        **{name: np.mean([row[name] for row in group], axis=0)
           for name in ('rate_T', 'weight_T', 'rate_E')}})
  return summary


def is_base(row) -> bool:
  return (row['factor'], row['value']) == NONE and not row['afterwards']


def onset_of(row) -> int | None:
  """The first step at which most sequences have a sink; None if there is none."""
  if row['afterwards']:
    return None
  found = np.flatnonzero(np.array(row['rate_S']) >= GROWN)
  return row['steps'][found[0]] if len(found) else None


def label_of(fields) -> str:
  if fields['afterwards']:
    return f'then {fields["afterwards"]}'
  return fields['value'] if fields['factor'] in ('intervention', 'position') else (
      f'{fields["factor"]} {fields["value"]}')


def display(row):
  return {
      'network': label_of(row), 'seeds': str(row['networks']),
      'sinks': plus_minus(row, 'rate', '.2f'),
      'from step': '–' if row['onset'] is None else f'{row["onset"]:.0f}',
      'weight': f'{row["weight"]:.2f}',
      'copying / resting': f'{row["weight_copying"]:.2f} / {row["weight_resting"]:.2f}',
      'excess loss': plus_minus(row, 'excess', '.3f'),
      'more than none': '–' if is_base(row) else plus_minus(row, 'cost', '+.3f'),
      '|v₁| / |v|': f'{row["value_ratio"]:.2f}',
      'weight on --position': f'{row["position_weight"]:.2f}',
  }


def draw(rows, settings):
  """Above: sinks by step, length and threshold. Below: by kind of network, what it costs."""
  trained = [row for row in rows if not row['afterwards']]
  kinds = [(label_of(fields), group)
           for fields, group in grouped(rows, 'factor', 'value', 'afterwards')]
  curves = [row for row in trained if row['factor'] == 'intervention']
  with plotting.style():
    figure = plotting.figure(10, 3.4 + max(2.6, 0.22 * len(kinds)))
    upper, lower = figure.subfigures(2, 1, height_ratios=(3.4, max(2.6, 0.22 * len(kinds))))
    steps, lengths, thresholds = upper.subplots(1, 3)
    draw_curves(steps, curves, curves[0]['steps'], 'rate_S')
    draw_curves(lengths, curves, settings.lengths, 'rate_T')
    draw_curves(thresholds, curves, EPSILONS, 'rate_E')
    label_curves(steps, lengths, thresholds, settings)
    upper.legend(*steps.get_legend_handles_labels(), loc='outside lower center', ncols=6)
    sinks, rest, cost = lower.subplots(1, 3, sharey=True)
    draw_kinds(sinks, kinds, settings, rest, cost, base_of(rows))
  return figure


def base_of(rows) -> dict[int, float]:
  return {row['seed']: row['excess'] for row in rows if is_base(row)}


def draw_curves(ax, rows, x, name):
  for color, (fields, group) in zip(plotting.COLORS * 9, grouped(rows, 'value'), strict=False):
    plotting.band(ax, x, [row[name] for row in group], color=color, label=fields['value'],
                  clip_on=False)


def label_curves(steps, lengths, thresholds, settings):
  steps.set_xscale('function', functions=(np.sqrt, np.square))
  ticks = [step for step in (0, 50, 200, 500, 1000, 2000, 3000) if step <= settings.num_steps]
  steps.set_xticks(ticks, ticks)
  steps.set(xlabel='optimizer step', xlim=(0, None), title='A sink grows',
            ylabel=f'sequences with weight > {THRESHOLD:g} on the first')
  lengths.axvline(settings.length, color='black', linestyle='--', linewidth=1)
  lengths.set_xscale('log', base=2)
  lengths.set_xticks(settings.lengths, settings.lengths)
  lengths.set(xlabel='sequence length T (dashed: in training)', title='By length')
  thresholds.axvline(THRESHOLD, color='black', linestyle='--', linewidth=1)
  thresholds.set(xlabel='threshold of a sink', title='By threshold')
  for ax in (steps, lengths, thresholds):
    ax.set_ylim(0, 1)


def draw_kinds(sinks, kinds, settings, rest, cost, base):
  """A line per kind of network, a dot per network."""
  for i, (_, group) in enumerate(kinds):
    place = i + np.linspace(-0.25, 0.25, len(group))
    dots = lambda ax, values, color=0, place=place: ax.plot(
        values, place, 'o', markersize=2.5, alpha=0.7, color=plotting.COLORS[color], clip_on=False)
    dots(sinks, [row['rate'] for row in group])
    dots(rest, [row['weight_resting'] for row in group])
    dots(rest, [row['weight_copying'] for row in group], 1)
    dots(cost, [row['excess'] - base[row['seed']] for row in group])
  sinks.set_yticks(range(len(kinds)), [label[-30:] for label, _ in kinds])
  sinks.invert_yaxis()
  sinks.set(xlim=(0, 1), xlabel=f'sequences with weight > {THRESHOLD:g} on the first',
            title=f'Sinks at T = {settings.length}')
  rest.axvline(uniform_weight(settings.length), color='black', linestyle='--', linewidth=1)
  rest.set(xlim=(0, 1), xlabel='weight on the first (dashed: uniform)',
           title='Who rests: copying (orange), others (blue)')
  cost.axvline(0, color='black', linewidth=0.8)
  cost.set_xscale('symlog', linthresh=0.01)
  cost.set(xlabel='nats per token above none', title='What it costs')
