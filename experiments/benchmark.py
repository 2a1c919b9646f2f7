"""Speed and memory of the hot paths against their peers and their floors.

    python -m experiments.benchmark sweep          # about 3 min on two CPU cores
    python -m experiments.benchmark contraction    # about 2 min
    python -m experiments.benchmark training       # about 3 min
    python -m experiments.benchmark kendall        # about 2 min
    python -m experiments.benchmark comparison     # about 10 min

PyTorch's rows need the extra: pip install -e '.[parity]'.
Alternatives run in turn in one process; ratios are medians over rounds.
Prints what it measured and writes it to OUTPUT_DIR/NAME.json.
"""

import importlib
import json
from pathlib import Path

from absl import flags

from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from experiments import settings as command_line
from experiments.results import make_directory, write_json

BENCHMARKS = ('sweep', 'contraction', 'training', 'kendall', 'comparison')


def main(arguments):
  if len(arguments) != 1 or arguments[0] not in BENCHMARKS:
    raise InputError(f'name one benchmark of {", ".join(BENCHMARKS)}; see --help')
  name, directory = arguments[0], Path(flags.FLAGS.output_dir)
  make_directory(directory)
  rows = importlib.import_module(f'experiments.benchmarks.{name}').run()
  path = directory / f'{name}.json'
  write_json(path, {'benchmark': name, 'environment': environment(), 'rows': rows})
  print(json.dumps(json.loads(path.read_text())['rows'], indent=1))
  print(f'wrote {path}')


if __name__ == '__main__':
  flags.DEFINE_string('output_dir', 'results/benchmark', 'folder of the results')
  command_line.launch(main, __doc__, ('output_dir',))
