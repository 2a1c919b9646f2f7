"""The table and the figure of experiments.attention_sink."""

import math

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis.attention_sink import THRESHOLD, uniform_weight

from ..shared.tables import described, grouped, mean_ci95, plus_minus
from .growth import EPSILONS

NONE = ('intervention', 'none')
# Fields of rows whose means and intervals over networks the summary has.
MEANS = ('rate', 'rate_all', 'weight', 'excess', 'weight_copying', 'weight_resting', 'value_ratio',
         'residual_ratio', 'position_weight')
# With more kinds of networks than this a panel per factor shows sinks only.
MOST_KINDS = 20
# A sink has grown at the first step at which so many sequences have one, whether or not it stays.
GROWN = 0.5


def summarize(rows) -> list[dict]:
  """Means over networks, and the excess loss above the unchanged network of each seed."""
  rows = [with_nan(row) for row in rows]
  base = base_of(rows)
  summary = []
  for fields, group in grouped(rows, 'factor', 'value', 'afterwards'):
    each = [row | {'value_ratio': np.mean(row['value_ratio_L']),
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
        **described(cost, 'cost'),
        'grown': len(onsets), 'onset': np.median(onsets) if onsets else None,
        **{name: np.mean([row[name] for row in group], axis=0)
           for name in ('rate_T', 'weight_T', 'rate_E')}})
  return summary


def with_nan(row) -> dict:
  """The row with NaN for what JSON has as null, such as the loss of a network that diverged."""
  return row | {name: math.nan for name in (*MEANS, 'excess') if row.get(name, 0) is None}


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
    return f'{fields["value"]}, then {fields["afterwards"]}'
  is_intervention = fields['factor'] in ('intervention', 'position')
  return fields['value'] if is_intervention else f'{fields["factor"]}: {fields["value"]}'


def display(row):
  return {
      'network': label_of(row),
      'sinks': plus_minus(row, 'rate', '.2f'),
      'from step': ('–' if row['onset'] is None else
                    f'{row["onset"]:.0f} ({row["grown"]} of {row["networks"]})'),
      'copying / resting': f'{row["weight_copying"]:.2f} / {row["weight_resting"]:.2f}',
      'excess loss': plus_minus(row, 'excess', '.3f'),
      'cost': '–' if is_base(row) else plus_minus(row, 'cost', '+.3f'),
      '‖v1‖ / ‖v‖': f'{row["value_ratio"]:.2f}',
      '× uniform': f'{row["position_weight"] / row["position_floor"]:.1f}',
  }


def draw(rows, settings):
  """Above, by intervention: sinks by step, length, threshold. Below: all kinds of networks."""
  rows = [with_nan(row) for row in rows]
  kinds = [(label_of(fields), group)
           for fields, group in grouped(rows, 'factor', 'value', 'afterwards')]
  is_long = len(kinds) > MOST_KINDS
  below = 0.09 * len(kinds) + 2 if is_long else max(2.6, 0.22 * len(kinds))
  if 'intervention' in settings.factors:
    figure = plotting.figure(10, 3.4 + below)
    upper, lower = figure.subfigures(2, 1, height_ratios=(3.4, below))
    draw_growth(upper, [row for row in rows if row['factor'] == 'intervention'
                        and not row['afterwards']], settings)
  else:
    figure = lower = plotting.figure(10, below)
  if is_long:
    draw_factors(lower, rows, settings)
  else:
    draw_kinds(lower.subplots(1, 3, sharey=True), kinds, settings, base_of(rows))
  return figure


def draw_factors(figure, rows, settings):
  """A panel per factor: the share of sequences with a sink, a dot per network."""
  columns = [[]]
  for each in grouped(rows, 'factor'):
    if len(columns) < 3 and sum(len(own) for _, own in columns[-1]) >= len(rows) / 3.2:
      columns.append([])
    columns[-1].append(each)
  for part, column in zip(figure.subfigures(1, len(columns)), columns, strict=True):
    panels = [grouped(own, 'factor', 'value', 'afterwards') for _, own in column]
    axes = part.subplots(len(column), 1, sharex=True, squeeze=False,
                         height_ratios=[len(kinds) + 1 for kinds in panels])[:, 0]
    for ax, (fields, _), kinds in zip(axes, column, panels, strict=True):
      for place, (_, own) in enumerate(kinds):
        ax.plot([row['rate'] for row in own], [place] * len(own), 'o', markersize=3.5, alpha=0.6,
                color=plotting.COLORS[0], markeredgewidth=0, clip_on=False)
      ax.set_yticks(range(len(kinds)), [
          f'{each["value"]}, then {each["afterwards"]}' if each['afterwards'] else each['value']
          for each, _ in kinds])
      ax.set(xlim=(0, 1), ylim=(len(kinds) - 0.4, -0.6), title=fields['factor'])
    axes[-1].set_xlabel(f'sequences with a sink, T = {settings.length}')


def draw_growth(figure, rows, settings):
  steps, lengths, thresholds = figure.subplots(1, 3)
  draw_curves(steps, rows, rows[0]['steps'], 'rate_S')
  draw_curves(lengths, rows, settings.lengths, 'rate_T')
  draw_curves(thresholds, rows, EPSILONS, 'rate_E')
  label_curves(steps, lengths, thresholds, settings)
  plotting.label_lines(steps)


def base_of(rows) -> dict[int, float]:
  return {row['seed']: row['excess'] for row in rows if is_base(row)}


def draw_curves(ax, rows, x, name):
  """Means over networks, whose spread is below: bands of several kinds would hide each other."""
  for color, (fields, group) in zip(plotting.COLORS * 9, grouped(rows, 'value'), strict=False):
    mean = np.mean([row[name] for row in group], axis=0)
    ax.plot(x[:len(mean)], mean, color=color, label=fields['value'], **plotting.DOTS)


def label_curves(steps, lengths, thresholds, settings):
  steps.set_xscale('function', functions=(np.sqrt, np.square))
  ticks = [step for step in (0, 20, 100, 300, 600, 1000, 2000, 3000) if step <= settings.num_steps]
  steps.set_xticks(ticks, ticks)
  steps.set(xlabel='optimizer step', xlim=(0, None),
            title=f'By step, mean of {len(settings.seeds)} networks',
            ylabel='share of sequences with a sink')
  lengths.axvline(settings.length, color='black', linestyle='--', linewidth=1)
  lengths.set_xscale('log', base=2)
  lengths.set_xticks(settings.lengths, settings.lengths)
  lengths.set(xlabel='sequence length T (dashed: in training)', title='By length')
  thresholds.axvline(THRESHOLD, color='black', linestyle='--', linewidth=1)
  thresholds.set(xlabel=f'weight that makes a sink (elsewhere {THRESHOLD:g})', title='By threshold')
  for ax in (steps, lengths, thresholds):
    ax.set_ylim(-0.03, 1.03)


def draw_kinds(axes, kinds, settings, base):
  """A line per kind of network, a dot per network."""
  sinks, rest, cost = axes
  for i, (_, group) in enumerate(kinds):
    place = i + np.linspace(-0.25, 0.25, len(group))
    dots = lambda ax, values, color=0, place=place: ax.plot(
        values, place, 'o', markersize=2.5, alpha=0.7, color=plotting.COLORS[color], clip_on=False)
    dots(sinks, [row['rate'] for row in group])
    dots(rest, [row['weight_resting'] for row in group])
    dots(rest, [row['weight_copying'] for row in group], 1)
    dots(cost, [row['excess'] - base[row['seed']] for row in group])
  sinks.set_yticks(range(len(kinds)), [label[-36:] for label, _ in kinds])
  sinks.set_ylim(len(kinds) - 0.4, -0.6)
  sinks.set(xlim=(0, 1), xlabel='share of sequences with a sink',
            title=f'T = {settings.length}, a dot per network')
  # The dots leave out the first query, which sees nothing else.
  uniform = (settings.length * uniform_weight(settings.length) - 1) / (settings.length - 1)
  rest.axvline(uniform, color='black', linestyle='--', linewidth=1)
  rest.set(xlim=(0, 1), xlabel='weight on the first token (dashed: uniform)',
           title='Blue: nothing to copy; orange: copying')
  cost.axvline(0, color='black', linewidth=0.8)
  cost.set_xscale('symlog', linthresh=0.01)
  limits, ticks = cost.get_xlim(), [-0.1, -0.01, 0, 0.01, 0.1, 1]
  cost.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
  cost.set(xlim=limits, title='Cost (less is better)',
           xlabel='nats per token above none of its seed')
