"""The table and the figure of experiments.text_sinks, and what grows first in its networks."""

import functools
import math
from pathlib import Path

import numpy as np
import scipy

from bornbiased_jax import plotting
from bornbiased_jax.analysis.attention_sink import THRESHOLD, uniform_weight
from bornbiased_jax.configs import AT_ONE_POSITION

from ..shared import figures
from ..shared.tables import ci95, described, grouped, mean_ci95, plus_minus

# Measured at several lengths; the summary has the longest.
AT_FIRST, AT_POSITION = ('first_rate', 'first_weight'), ('position_rate', 'position_weight')

SHARE = f'share of heads with weight > {THRESHOLD:g}'
# Sinks have a panel if more heads and sequences than this share have one.
RARE = 0.02


def summarize(rows) -> list[dict]:
  """Means over seeds at the last step, what grew first, and the same means by step."""
  summary = []
  for fields, group in grouped(last_of(rows), 'intervention', 'afterwards'):
    own = [row for row in rows if all(row[name] == value for name, value in fields.items())]
    summary.append(fields | {'begins_with': group[0].get('begins_with')} | means_of(group, rows))
    # Results of earlier versions have less of the steps.
    if group[0]['step'] and not fields['afterwards'] and 'positions' in group[0]:
      summary[-1] |= what_grew_first(own) | {'by_step': [
          step | means_of(each, rows) for step, each in grouped(own, 'step')]}
  return summary


def onsets(rows: list[dict]) -> list[dict]:
  """When each has grown in each layer: the first checkpoint at which it has, or None.

  A sink has grown when most sequences have it in one head; the first token's disparity when it is
  twice that of the first checkpoint; the variance of the value aggregate when its std at the first
  position is twice that in the middle of the sequence.
  """
  found = []
  for fields, group in grouped(sorted(rows, key=lambda row: row['step']), 'seed'):
    values = lambda name, group=group: np.array([row[name] for row in group])
    disparity_SL, std_SLP = values('disparity_L'), values('positional_std_LP')
    has_grown = {'sink': values('first_rate_LH').max(axis=-1) > 0.5,
                 'disparity': disparity_SL >= 2 * disparity_SL[0],
                 'variance': std_SLP[..., 0] >= 2 * std_SLP[..., -2]}
    steps = [row['step'] for row in group]
    first = lambda grown_S, steps=steps: steps[grown_S.argmax()] if grown_S.any() else None
    found += [fields | {'layer': layer} | {name: first(grown_SL[:, layer - 1])
                                           for name, grown_SL in has_grown.items()}
              for layer in range(1, 1 + disparity_SL.shape[1])]
  return found


def what_grew_first(rows: list[dict]) -> dict:
  """The share of networks with sinks in which each cause came before them in all their layers.

  Layers of a network depend on each other, so that the exact interval is that of networks.
  """
  layers = onsets(rows)
  groups = [group for _, group in grouped([row for row in layers if row['sink'] is not None],
                                          'seed')]
  summary = {'onsets': layers, 'networks_with_sinks': len(groups)}
  for cause in ('variance', 'disparity'):
    is_first = lambda row, cause=cause: row[cause] is not None and row[cause] < row['sink']
    count = sum(all(map(is_first, group)) for group in groups)
    if groups:
      interval = scipy.stats.binomtest(count, len(groups)).proportion_ci()
      summary |= {f'{cause}_first': count / len(groups), f'{cause}_first_ci95': list(interval)}
  return summary


def last_of(rows) -> list[dict]:
  """The rows of networks at their last step, first those that are measured as they were trained."""
  last = max(row['step'] or 0 for row in rows)
  return sorted((row for row in rows if row['step'] in (None, last)),
                key=lambda row: bool(row['afterwards']))


def means_of(group, rows) -> dict:
  """Means over seeds; losses also as differences from the base of the same seed and step."""
  base = {(row['seed'], row['step']): row for row in base_of(rows)}
  names = AT_FIRST + AT_POSITION * acts_there(rows)
  each = [{'disparity': max(row['disparity_L'])}
          | {name: row[name][-1] for name in names} for row in group]
  means = {}
  for name in (*names, 'disparity'):
    means |= mean_ci95(each, name)
  return {'networks': len(group), 'loss': {text: compare_losses(text, group, base)
                                           for text in group[0]['loss']}} | means


def compare_losses(text, group, base) -> dict:
  """Mean loss on a text, and how much more it is than the base's."""
  losses = [row['loss'][text] for row in group]
  difference = [row['loss'][text] - base[row['seed'], row['step']]['loss'][text] for row in group]
  return {'mean': float(np.mean(losses)), **described(difference, 'difference')}


def display(row):
  # Results of earlier versions do not say it.
  cells = {'network': label_of(row), 'begins with': row.get('begins_with') or '–'}
  for text, loss in row['loss'].items():
    name, is_base = Path(text).name, loss['difference'] == 0
    cells |= {f'perplexity, {name}': f'{perplexity(loss["mean"]):.2f}',
              f'nats more, {name}': None if is_base else plus_minus(loss, 'difference', '+.4f')}
  cells |= {'sinks at first': plus_minus(row, 'first_rate', '.3f'),
            'weight': f'{row["first_weight"]:.3f}'}
  if 'position_rate' in row:
    cells |= {'at --position': plus_minus(row, 'position_rate', '.3f'),
              'its weight': f'{row["position_weight"]:.3f}'}
  return cells | {'disparity': f'{row["disparity"]:.1f}',
                  'disparity first': f'{row["disparity_first"]:.0%} of {row["networks_with_sinks"]}'
                                     if 'disparity_first' in row else None}


def perplexity(loss):
  return math.inf if loss > 700 else math.exp(loss)


def label_of(row):
  return row['intervention'] + (f', then {row["afterwards"]}' if row['afterwards'] else '')


def acts_there(rows) -> bool:
  """Whether something acts at --position, or may, of networks that somebody else trained."""
  return any(row['step'] is None or {row['intervention'], row['afterwards']} & {*AT_ONE_POSITION}
             for row in rows)


def base_of(rows):
  """The networks that others are compared with: trained without intervention, or the first."""
  names = [row['intervention'] for row in rows]
  base = 'none' if 'none' in names else names[0]
  return [row for row in rows if row['intervention'] == base and not row['afterwards']]


def draw(rows, settings):
  """By length and step: sinks, if there are any, and weight. By network: heads, losses."""
  last = last_of(rows)
  as_trained = [row for row in last if not row['afterwards']]
  everywhere = [row for row in as_trained if row['intervention'] not in AT_ONE_POSITION]
  interventions = dict.fromkeys(row['intervention'] for row in everywhere)
  trained = [row for row in rows if row['step'] is not None and not row['afterwards']
             and row['intervention'] in interventions]
  color = dict(zip(interventions, plotting.COLORS * 9, strict=False))
  panels = [functools.partial(draw_weights, everywhere, color)]
  has_sinks = any(max(row['first_rate']) > RARE for row in everywhere)
  if has_sinks:
    panels.insert(0, functools.partial(draw_rates, everywhere, color))
  if trained:
    panels.append(functools.partial(draw_steps, trained, color, has_sinks))
  panels.append(functools.partial(
      draw_heads, max(base_of(last), key=lambda row: row['first_rate'][-1])))
  if acts_there(last):
    panels.append(functools.partial(draw_position, last, settings))
  if len(as_trained) > 1:
    panels.append(functools.partial(draw_losses, as_trained))
  columns = 3 if len(panels) != 4 else 2
  lines = [panels[i:i + columns] for i in range(0, len(panels), columns)]
  figure = plotting.figure(10, 3.3 * len(lines))
  for line, part in zip(lines, figure.subfigures(len(lines), squeeze=False).flat, strict=True):
    for draw_panel, ax in zip(line, part.subplots(1, len(line), squeeze=False).flat, strict=True):
      draw_panel(ax)
  return figure


def draw_rates(rows, color, ax):
  draw_lengths(ax, rows, 'first_rate', color)
  ax.set(ylim=(0, None), ylabel=SHARE, title='sinks at the first position')
  plotting.label_lines(ax)


def draw_weights(rows, color, ax):
  draw_lengths(ax, rows, 'first_weight', color)
  lengths = rows[0]['lengths']
  plotting.theory(ax, lengths, list(map(uniform_weight, lengths)))
  ax.legend(ax.lines[-1:], ['uniform attention'], loc='lower left')
  ax.set(ylim=(0, None), ylabel='mean weight on it', title='attention to the first position')
  plotting.label_lines(ax)


def draw_lengths(ax, rows, name, color):
  """A line per intervention, the mean over seeds, with its interval or, of two, a dot per seed."""
  lengths = rows[0]['lengths']
  for i, (fields, group) in enumerate(grouped(rows, 'intervention')):
    values_NT, own = np.array([row[name] for row in group]), color[fields['intervention']]
    # Side by side on the logarithmic axis, so that no interval hides another.
    x_T = np.array(lengths) * 2 ** (0.03 * (i - (len(color) - 1) / 2))
    ax.plot(x_T, values_NT.mean(axis=0), color=own, label=fields['intervention'][-24:].lstrip('_'))
    if len(group) > 2:
      ax.errorbar(x_T, values_NT.mean(axis=0), [ci95(own_N) for own_N in values_NT.T], fmt='o',
                  markersize=3, elinewidth=0.8, color=own)
    else:
      ax.plot(x_T, values_NT.T, 'o', markersize=3, color=own)
  ax.set_xscale('log', base=2)
  ax.set_xticks(lengths, map(str, lengths))
  ax.set_xlabel('sequence length T' + '\nmeans with 95 % intervals' * (len(group) > 2))


def draw_steps(trained, color, has_sinks, ax):
  """Sinks, if there are any, or else weight, at the longest length while training."""
  name = 'first_rate' if has_sinks else 'first_weight'
  for fields, group in grouped(trained, 'intervention'):
    figures.draw_steps(ax, [row | {name: row[name][-1]} for row in group], name,
                       color=color[fields['intervention']], label=fields['intervention'])
  steps = sorted({row['step'] for row in trained}, reverse=True)
  ticks = steps[:1]
  for step in steps:
    if ticks[-1] ** 0.5 - step ** 0.5 >= 0.2 * ticks[0] ** 0.5:  # Where there is room.
      ticks.append(step)
  ax.set_xscale('function', functions=(np.sqrt, np.square))
  ax.set_xticks(ticks, [f'{step:,}' for step in ticks])
  seeds = len({row['seed'] for row in trained})
  ax.set(xlabel=f'optimizer step\nmeans of {plotting.of_networks(seeds)}', xlim=(0, None),
         ylim=(0, None), ylabel=SHARE if has_sinks else 'mean weight on it',
         title=f'{"sinks" if has_sinks else "attention"} by step, T = {trained[-1]["lengths"][-1]}')
  plotting.label_lines(ax)


def draw_heads(row, ax):
  weight_LH = np.array(row['first_weight_LH'])
  named = row['intervention']
  if row['seed'] is not None:
    named = f"'{named}', seed {row['seed']}"
  cells = plotting.heat(ax, weight_LH, plotting.COLORS[0])
  ax.set(xlabel='head', ylabel='layer', title=f'by head, {named[-30:]}',
         xticks=range(weight_LH.shape[1]), xticklabels=range(1, 1 + weight_LH.shape[1]),
         yticks=range(len(weight_LH)), yticklabels=range(1, 1 + len(weight_LH)))
  ax.figure.colorbar(cells, ax=ax, label='weight on the first position')


def draw_position(rows, settings, ax):
  """Weight on --position over its weight under uniform attention, where an intervention acts."""
  shown = [row for row in rows if row['afterwards'] in AT_ONE_POSITION
           or not row['afterwards'] and row['intervention'] in ('none', *AT_ONE_POSITION)] or rows
  # A masked position gives itself weight, which is in its floor: no head has learned that.
  draw_dots(ax, shown, lambda row: row['position_weight'][-1] / row['position_floor'][-1])
  ax.axvline(1, color='black', linestyle='--', linewidth=1)
  ax.set_xlim(0, 1.05 * ax.get_xlim()[1])
  ax.set(xlabel='weight on it (1: uniform attention)',
         title=f'attention to position {settings.position}')


def draw_losses(rows, ax):
  """Loss on the first text above the base's, of the same seed if there are seeds."""
  base = {row['seed']: row for row in base_of(rows)}
  text = next(iter(rows[0]['loss']))
  draw_dots(ax, rows, lambda row: row['loss'][text] - base[row['seed']]['loss'][text])
  ax.axvline(0, color='black', linewidth=0.8)
  ax.margins(x=0.1)
  ax.locator_params(axis='x', nbins=3)
  ax.set(xlabel=f"nats per token\nabove '{base_of(rows)[0]['intervention'][-12:]}'",
         title='loss on the first text')


def draw_dots(ax, rows, value):
  places = {label: i for i, label in enumerate(dict.fromkeys(map(label_of, rows)))}
  for row in rows:
    ax.plot(value(row), places[label_of(row)], 'o', markersize=4,
            color=plotting.COLORS[1 if row['afterwards'] else 0], alpha=0.7)
  ax.set_yticks(list(places.values()), [label[-24:] for label in places])
  ax.invert_yaxis()
