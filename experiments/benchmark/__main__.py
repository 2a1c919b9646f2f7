"""Speed of the hot paths, compared with peers and a large matrix product.

A peer is another implementation of the same computation, such as scipy's or PyTorch's (pip install
-e '.[parity]'). Alternatives run in turn in one process, and their ratios are medians over rounds.

    python -m experiments.benchmark                # all of them, about 20 min on two CPU cores
    python -m experiments.benchmark kendall sweep  # of sweep, contraction, training, kendall,
                                                   # statistics and comparison
    python -m experiments.benchmark streaming      # 6 min, 6.4 GB on disk, only if named
    python -m experiments.benchmark sweep training --scale=smoke   # both as small as they get

Writes results.json (the measurements of each benchmark; a stopped run goes on with the next) and
figure.png, whose bars are of the measurements that have a peer.
"""

import os

from bornbiased_jax.errors import InputError

from ..shared import program, session
from ..shared.base_settings import ExperimentSettings
from ..shared.results import Results
from ..shared.settings import arguments
from . import ranks, streaming, sweep, training
from .chart import display, draw

BENCHMARKS = {
    'sweep': sweep.sweep, 'contraction': sweep.contraction, 'training': training.training,
    'kendall': ranks.kendall, 'statistics': ranks.statistics, 'comparison': ranks.comparison}
ONLY_IF_NAMED = {'streaming': streaming.streaming}
AT_SMOKE = {'sweep': sweep.small_sweep, 'training': training.small_training}


class Settings(ExperimentSettings):
  names: list[str] = arguments('[TASK ...]')


def main(settings: Settings, results: Results) -> None:
  known = AT_SMOKE if settings.scale == 'smoke' else BENCHMARKS | ONLY_IF_NAMED
  for name in settings.names:
    if name not in known:
      raise InputError(f'{name!r} is no benchmark; there are {", ".join(known)}')
  # Peers need memory of the same GPU.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  names = settings.names or [name for name in known if name not in ONLY_IF_NAMED]
  for part in results.missing(({'name': name} for name in names), 'benchmark'):
    results.add(part | {'rows': known[part['name']]()})
  rows = [row for part in results.rows for row in part['rows']]
  results.finish(rows, display, lambda: draw(rows, session.device_of(results.content)))


if __name__ == '__main__':
  program.measure(main, 'benchmark', Settings, __doc__)
