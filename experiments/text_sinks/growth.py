"""Draws how sinks grow on English, from growth.json of experiments/measured/text_sinks_english.

    python -m experiments.text_sinks.growth    # writes figure.png into that folder
"""

import json
from pathlib import Path

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.errors import InputError

from ..shared import figures, session
from ..shared.tables import grouped

FOLDER = Path(__file__).parents[1] / 'measured' / 'text_sinks_english'
# Titles of panels, and what they show of a row.
PANELS = {
    'share of heads and sequences with a sink': lambda row: row['rate'],
    'mean weight on the first token, last layer': lambda row: np.mean(row['weight_LH'][-1]),
    'largest disparity of the first state': lambda row: max(row['disparity_L']),
}


def main():
  if not FOLDER.is_dir():
    raise InputError('no results are installed; run it in a checkout of the repository')
  with plotting.style():
    print('wrote', figures.write(draw(json.loads((FOLDER / 'growth.json').read_text())), FOLDER))


def draw(content: dict):
  """A panel per quantity by step: the mean over seeds, and each of them."""
  figure = plotting.figure(10, 3.2)
  axes = figure.subplots(1, len(PANELS))
  for color, (fields, own) in zip(plotting.COLORS[::3], grouped(content['rows'], 'intervention'),
                                  strict=False):
    for ax, value in zip(axes, PANELS.values(), strict=True):
      by_step = {step['step']: [value(row) for row in group]
                 for step, group in grouped(own, 'step')}
      plotting.band(ax, np.array([*by_step]), np.array([*by_step.values()]).T, color=color,
                    label=fields['intervention'])
  for ax, title in zip(axes, PANELS, strict=True):
    ax.set_xscale('function', functions=(np.sqrt, np.square))
    ax.set_xticks([0, 300, 1000, 3000, 6000], ['0', '300', '1,000', '3,000', '6,000'])
    ax.set(xlabel='optimizer step', title=title, xlim=(0, None), ylim=(0, None))
    plotting.label_lines(ax)
  return figure


if __name__ == '__main__':
  session.run(main)
