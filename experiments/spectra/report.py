"""The table and the figure of experiments.spectra."""

import numpy as np

from bornbiased_jax import plotting

from ..shared.tables import grouped, plus_minus
from .statistic import z_of

# Octaves that are taken together, by the degrees of their modes.
BANDS = {'1–3': (0, 2), '4–15': (2, 4), '16–63': (4, 6), '1–63': (0, 6)}


def summarize(rows) -> list[dict]:
  """A row per cell and change: z over pairs for each of BANDS, with an error over networks."""
  summary = []
  for fields, group in grouped(rows, 'family', 'width', 'depth', 'steps', 'change'):
    seeds = [row['seeds'] for row in group]
    summary.append(fields | {
        'pairs': len(group), 'networks': len(np.unique(seeds)),
        'moved': np.mean([row['moved'] for row in group])} | {
        name: moments([z_of(row['octaves'][slice(*band)]) for row in group], seeds)
        for name, band in BANDS.items()} | (
            {'layers': moments([row['layers'] for row in group], seeds)}
            if 'layers' in group[0] else {}))
  return summary


def moments(z, seeds) -> dict:
  """Of z over pairs; the error of the mean is by leaving each network out (jackknife)."""
  z, seeds = np.array(z), np.array(seeds)
  means = [z[(seeds != seed).all(axis=1)].mean() for seed in np.unique(seeds)]
  return {'mean': z.mean(), 'error': np.sqrt((len(means) - 1) * np.var(means)),
          'sd': z.std(ddof=1), 'min': z.min(), 'max': z.max()}


def display(row):
  return {'family': row['family'], 'width': row['width'], 'layers': row['depth'],
          'steps': row['steps'], 'compared': row['change'], 'pairs': row['pairs'],
          'change of weights': f'{row["moved"]:.1%}',
          **{f'z, modes {name}': _or_dash(plus_minus(row[name], 'mean', '.1f', 'error'))
             for name in BANDS},
          'least and largest': _or_dash(f'{row["1–63"]["min"]:.1f}, {row["1–63"]["max"]:.1f}'),
          **({'agreement of layers': plus_minus(row['layers'], 'mean', '.2f', 'error'),
              'its least and largest': f'{row["layers"]["min"]:.2f}, {row["layers"]["max"]:.2f}'}
             if 'layers' in row else {})}


def _or_dash(text):
  """A dash for what too few layers, or modes, leave unknown."""
  return '–' if 'nan' in text else text


def draw(rows):
  """z of unrelated networks over width, and below of networks and what became of them."""
  summary = summarize(rows)
  family, depth = rows[0]['family'], rows[0]['depth']
  own = [row for row in summary if (row['family'], row['depth']) == (family, depth)]
  unrelated = [row for row in own if row['change'] == 'unrelated']
  changed = [row for row in own
             if row['width'] == own[0]['width'] and row['change'] != 'unrelated']
  widths = sorted({row['width'] for row in unrelated})
  figure = plotting.figure(9, 5.5)
  panels = figure.subplots(2, len(BANDS), sharey='row')
  for (above, below), band in zip(panels.T, BANDS, strict=True):
    for fields, group in grouped(sorted(unrelated, key=lambda row: row['width']), 'steps'):
      above.errorbar([row['width'] for row in group], [row[band]['mean'] for row in group],
                     [row[band]['error'] for row in group],
                     label=f'after {fields["steps"]:,} steps' if fields['steps'] else 'random')
    above.set_xscale('log')
    above.set_xticks(widths, widths)
    above.minorticks_off()
    above.set(xlabel='width', title=f'modes {band}')
    below.errorbar([row[band]['mean'] for row in changed], range(len(changed)),
                   xerr=[row[band]['error'] for row in changed], fmt='o')
    below.set_yticks(range(len(changed)), [row['change'] for row in changed])
    for axis in (above.yaxis, below.xaxis):
      plotting.z_axis(axis, (-5, 0, 5, 50))
      axis.set_label_text('')
  panels[0, 0].legend(fontsize='small')
  panels[0, 0].set_ylabel('z of unrelated networks')
  figure.supxlabel('z of networks and what became of them (linear to 5, then logarithmic)',
                   fontsize='medium')
  return figure
