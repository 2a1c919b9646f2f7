"""What grows first in the layers of a network: what the theories call the cause, or a sink."""

import numpy as np
import scipy

from ..shared.tables import grouped


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


def summarize(rows: list[dict]) -> dict:
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
