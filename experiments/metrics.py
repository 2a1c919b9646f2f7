"""Makes CSV files, and event files for TensorBoard, of the metrics of training runs.

    python -m experiments.metrics results/pretrain_laptop
    python -m experiments.metrics results/pretrain_laptop --tensorboard
    tensorboard --logdir=results

Takes runs of experiments.pretrain, or folders with such runs in them. --tensorboard needs the
extra: pip install 'bornbiased_jax[tensorboard]'.

Writes metrics.csv beside every metrics.jsonl, with a row for each step, and with --tensorboard also
an event file, whose time is that of training. Files of an earlier call are replaced, so that the
command can be given again while a run goes on.
"""

import csv
import io
from pathlib import Path
import sys
import tempfile

from absl import flags

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically
from bornbiased_jax.training import monitor

from .shared import command_line

# One name, so that a later call replaces the file; TensorBoard looks for 'tfevents'.
EVENTS = 'events.out.tfevents.metrics'


def main(*words):
  if not words:
    raise InputError('give a run, or a folder of runs, with metrics.jsonl; see --help')
  for run in [run for word in words for run in runs_in(Path(word).expanduser())]:
    convert(run, flags.FLAGS.tensorboard)


def runs_in(folder: Path) -> list[Path]:
  """The runs in a folder, which may be one itself; raises InputError if there is none."""
  found = sorted(path.parent for path in folder.rglob('metrics.jsonl'))
  if not found:
    raise InputError(f'{folder}: no metrics.jsonl in it; give a run of experiments.pretrain')
  return found


def convert(run: Path, tensorboard: bool) -> None:
  """Writes the files of one run, each whole or not at all."""
  rows = by_step(monitor.read(run))
  if not rows:
    print(f'left out: {run / "metrics.jsonl"} has no step yet', file=sys.stderr)
    return
  content = {'metrics.csv': as_csv(rows)}
  if tensorboard:
    content[EVENTS] = as_events(rows)
  for name, encoded in content.items():
    write_atomically(run / name, encoded)
    print('wrote', run / name)


def by_step(lines: list[dict]) -> list[dict]:
  """One row for each step, with the metrics of its training and of its evaluation."""
  rows: dict[int, dict] = {}
  for line in lines:
    rows.setdefault(line['step'], {}).update(line)
  return list(rows.values())


def as_csv(rows: list[dict]) -> bytes:
  """Rows as CSV; a cell is empty where a number is not known or not finite."""
  text = io.StringIO()
  writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row))
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue().encode()


def as_events(rows: list[dict]) -> bytes:
  """Rows as an event file of TensorBoard, in which time is the seconds of training so far.

  Raises:
    InputError: tensorboardX is not installed.
  """
  try:
    from tensorboardX import SummaryWriter
  except ImportError:
    raise InputError('--tensorboard needs tensorboardX: '
                     "pip install 'bornbiased_jax[tensorboard]'") from None
  elapsed = 0.0
  with tempfile.TemporaryDirectory() as folder:
    with SummaryWriter(folder) as writer:
      for row in rows:
        elapsed += row.get('seconds') or 0
        for name, value in row.items():
          if name != 'step' and value is not None:
            writer.add_scalar(name, value, row['step'], walltime=elapsed)
    written, = Path(folder).iterdir()
    return written.read_bytes()


if __name__ == '__main__':
  flags.DEFINE_boolean('tensorboard', False, 'write an event file for TensorBoard too')
  command_line.launch(main, __doc__, ('tensorboard',), takes_words=True)
