"""Speed and memory of the hot paths, beside their peers and a large matrix product.

A peer is another implementation of the same computation, such as scipy's or PyTorch's (pip install
-e '.[parity]'). Alternatives run in turn in one process, and their ratios are medians over rounds.

    python -m experiments.benchmark                # all of them, about 20 min on two CPU cores
    python -m experiments.benchmark kendall sweep  # of sweep, contraction, training, kendall,
                                                   # statistics, interventions and comparison
    python -m experiments.benchmark streaming      # 30 min, 6.4 GB on disk, only if named

Prints what each benchmark measured, and writes it to OUTPUT_DIR/NAME.json. The bars of
OUTPUT_DIR/chart.png show the measurements that have a peer.
"""

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError

from ..shared import command_line, figures, provenance
from ..shared.results import make_directory, write_json
from ..shared.settings import ProgramSettings, setting
from . import chart, comparison, ranks, streaming, sweep, training

BENCHMARKS = {
    'sweep': sweep.sweep, 'contraction': sweep.contraction, 'training': training.training,
    'interventions': training.interventions, 'kendall': ranks.kendall,
    'statistics': ranks.statistics, 'comparison': comparison.comparison}
ONLY_IF_NAMED = {'streaming': streaming.streaming}


@dataclasses.dataclass(frozen=True)
class Settings(ProgramSettings):
  output_dir: str = setting('results/benchmark', str, 'folder of the results')
  names: list[str] = dataclasses.field(default_factory=list)

  WORDS: ClassVar = 'names'


def main(settings):
  known = BENCHMARKS | ONLY_IF_NAMED
  for name in settings.names:
    if name not in known:
      raise InputError(f'{name!r} is no benchmark; there are {", ".join(known)}')
  directory = Path(settings.output_dir)
  make_directory(directory)
  for name in settings.names or BENCHMARKS:
    record = provenance.begin()
    rows, path = known[name](), directory / f'{name}.json'
    write_json(path, {'benchmark': name, 'environment': environment(), 'run': record(),
                      'rows': rows})
    print(json.dumps(json.loads(path.read_text())['rows'], indent=1))
    print(f'wrote {path}')
  rows = chart.rows_of([directory / f'{name}.json' for name in BENCHMARKS])
  if rows:
    print(f'wrote {figures.write(chart.draw(rows), directory, "chart")}')


if __name__ == '__main__':
  command_line.start(main, Settings, __doc__, after=(figures.FLAG,))
