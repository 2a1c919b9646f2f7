"""The table and the figure of experiments.attention_sink."""

import math
from pathlib import Path

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis.attention_sink import THRESHOLD, uniform_weight
from bornbiased_jax.configs import AT_ONE_POSITION
from experiments.results import ci95, grouped, mean_ci95, plus_minus


def summarize(rows) -> list[dict]:
  """Means over seeds at the last step; losses also as differences from 'none' (networks: the first), paired by seed."""
  base = {row['seed']: row for row in base_of(rows)}
  summary = []
  for fields, group in grouped(rows, 'intervention', 'afterwards'):
    each = [{'first_rate': row['first_rate'][-1], 'position_rate': row['position_rate'][-1],
             'first_weight': row['first_weight'][-1], 'position_weight': row['position_weight'][-1],
             'disparity': max(row['disparity_L'])} for row in group]
    row = fields | {'networks': len(group), 'loss': {}}
    for name in each[0]:
      row |= mean_ci95(each, name)
    for text in group[0]['loss']:
      difference = [row_['loss'][text] - base[row_['seed']]['loss'][text] for row_ in group]
      row['loss'][text] = {'mean': float(np.mean([row_['loss'][text] for row_ in group])),
                           'difference': float(np.mean(difference)), 'difference_ci95': ci95(difference)}
    summary.append(row)
  return summary


def display(row):
  cells = {'network': label_of(row)}
  for text, loss in row['loss'].items():
    name = Path(text).name[-24:]
    cells |= {f'perplexity, {name}': f'{math.exp(loss["mean"]):.2f}',
              f'nats more, {name}': plus_minus(loss, 'difference', '+.4f')}
  return cells | {'sinks at first': plus_minus(row, 'first_rate', '.3f'), 'weight': f'{row["first_weight"]:.3f}',
                  'at --position': plus_minus(row, 'position_rate', '.3f'),
                  'its weight': f'{row["position_weight"]:.3f}',
                  'disparity': f'{row["disparity"]:.1f}'}


def label_of(row):
  return f'{row["intervention"]}, then {row["afterwards"]}' if row['afterwards'] else row['intervention']


def base_of(rows):
  """Those that others are compared with: trained without intervention, or else the first."""
  names = [row['intervention'] for row in rows]
  base = 'none' if 'none' in names else names[0]
  return [row for row in rows if row['intervention'] == base and not row['afterwards']]


def draw(rows, settings):
  """Above: the first position, by length, by training step, by head. Below: the chosen one, and what it costs."""
  last = [row for row in rows if row['loss']]
  everywhere = [row for row in last if not row['afterwards'] and row['intervention'] not in AT_ONE_POSITION]
  color = dict(zip(dict.fromkeys(row['intervention'] for row in everywhere), plotting.COLORS * 9, strict=False))
  with plotting.style():
    figure = plotting.figure(11, 6.4)
    (rate, weight, steps), (heads, position, loss) = figure.subplots(2, 3)
    draw_lengths(rate, everywhere, 'first_rate', color)
    rate.set(ylim=(-0.02, 1), ylabel=f'heads with weight > {THRESHOLD:g} on it', title='Sinks at the first position')
    rate.legend(fontsize='small', loc='upper right')
    draw_lengths(weight, everywhere, 'first_weight', color)
    lengths = everywhere[0]['lengths']
    plotting.theory(weight, lengths, [uniform_weight(length) for length in lengths], 'uniform attention')
    weight.set(ylim=(0, None), ylabel='mean weight on it', title='Attention to the first position')
    weight.legend(fontsize='small', loc='upper right')
    draw_steps(steps, rows, color)
    draw_heads(figure, heads, everywhere[0])
    draw_position(position, last, settings)
    draw_losses(loss, [row for row in last if not row['afterwards']])
  return figure


def draw_lengths(ax, rows, name, color):
  """A line an intervention, the mean over seeds; each seed a dot, with its interval over sequences where it has one."""
  for intervention, group in [(fields['intervention'], group) for fields, group in grouped(rows, 'intervention')]:
    lengths = group[0]['lengths']
    ax.plot(lengths, np.mean([row[name] for row in group], axis=0), color=color[intervention], label=intervention[-24:])
    for row in group:
      ax.errorbar(lengths, row[name], row.get(f'{name}_ci95'), fmt='o', markersize=3, elinewidth=0.8,
                  color=color[intervention])
  ax.set_xscale('log', base=2)
  ax.set_xticks(lengths, map(str, lengths))
  ax.set_xlabel('sequence length T')


def draw_steps(ax, rows, color):
  """Weight on the first position at the longest length, while training."""
  trained = [row for row in rows if row['step'] is not None and not row['afterwards'] and row['intervention'] in color]
  if not trained:
    ax.set_axis_off()
    return
  for fields, group in grouped(trained, 'intervention', 'seed'):
    ax.plot([row['step'] for row in group], [row['first_weight'][-1] for row in group], 'o-', markersize=3,
            color=color[fields['intervention']], linewidth=1)
  steps = sorted({row['step'] for row in trained})
  ax.set_xscale('function', functions=(np.sqrt, np.square))
  ax.set_xticks(steps, steps, rotation=45)
  ax.set(xlabel='optimizer step', ylabel='mean weight on it', ylim=(0, None),
         title=f'The same while training, T = {rows[-1]["lengths"][-1]}')


def draw_heads(figure, ax, row):
  weight_LH = np.array(row['first_weight_LH'])
  image = ax.imshow(weight_LH, cmap='Blues', vmin=0, aspect='auto')
  named = row['intervention'] if row['seed'] is None else f"'{row['intervention']}', seed {row['seed']}"
  ax.set(xlabel='head', ylabel='layer', title=f'By head, {named[-30:]}', xticks=range(weight_LH.shape[1]),
         yticks=range(len(weight_LH)))
  ax.set_yticklabels(range(1, 1 + len(weight_LH)))
  ax.grid(visible=False)
  figure.colorbar(image, ax=ax)


def draw_position(ax, rows, settings):
  """Weight on the chosen position of all that may change it, over that of uniform attention, a dot a seed."""
  shown = [row for row in rows if row['afterwards'] in AT_ONE_POSITION
           or not row['afterwards'] and row['intervention'] in ('none', *AT_ONE_POSITION)] or rows
  uniform = uniform_weight(rows[0]['lengths'][-1], settings.position)
  # Less what a masked position gives itself, which no head has learned.
  draw_dots(ax, shown, lambda row: (row['position_weight'][-1] - row['position_floor'][-1]) / uniform + 1)
  ax.axvline(1, color='black', linestyle='--', linewidth=1, label='uniform attention')
  ax.set(xlabel="mean weight on it over uniform attention's", xlim=(0, None),
         title=f'Attention to position {settings.position}')
  ax.legend(fontsize='small')


def draw_losses(ax, rows):
  """Loss on the first text less that of the first row, of the same seed where there are seeds."""
  base = {row['seed']: row for row in base_of(rows)}
  text = next(iter(rows[0]['loss']))
  draw_dots(ax, rows, lambda row: row['loss'][text] - base[row['seed']]['loss'][text])
  ax.axvline(0, color='black', linewidth=0.8)
  ax.set(xlabel=f'nats a token, {Path(text).name[-30:]}',
         title=f'Loss less that of {base_of(rows)[0]["intervention"][-20:]}')


def draw_dots(ax, rows, value):
  places = {label: i for i, label in enumerate(dict.fromkeys(map(label_of, rows)))}
  for row in rows:
    ax.plot(value(row), places[label_of(row)], 'o', markersize=4,
            color=plotting.COLORS[1 if row['afterwards'] else 0], alpha=0.7)
  ax.set_yticks(list(places.values()), [label[-24:] for label in places])
  ax.invert_yaxis()
