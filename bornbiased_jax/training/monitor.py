"""What a run tells while it trains: metrics, a progress bar, and a stop at a NaN."""

from collections.abc import Callable
import json
import math
from pathlib import Path
import time

import jax
import numpy as np
from tqdm import tqdm

from bornbiased_jax import hosts
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

WRITE_INTERVAL_S = 1.0


class Monitor:
  """Writes the metrics of networks that train together, and shows their progress.

  The metrics of a step are fetched while the next step runs, so that the
  device never waits for the host. Only process 0 writes and prints. If
  tensorboardX is installed, metrics also go to event files for TensorBoard.

  Args:
    directories: the folder of each network, which gets a metrics.jsonl. Lines
      of steps after `start`, from an earlier session, are dropped.
    start: the step at which this session begins.
    num_steps: steps of the whole run.
    tokens_per_step: over all networks.
    utilization: function from tokens per second to the share of the peak rate.
  """

  def __init__(self, directories: list[Path], start: int, num_steps: int, tokens_per_step: int,
               utilization: Callable[[float], float]):
    self._paths = [directory / 'metrics.jsonl' for directory in directories]
    self._tokens_per_step, self._utilization = tokens_per_step, utilization
    # A step's metrics that are still on the device, and when those before them arrived.
    self._pending: tuple[int, dict[str, jax.Array]] | None = None
    self._clock: float | None = None
    self._lines: list[list[dict]] = [[] for _ in directories]
    self._seconds: list[float] = []
    self._is_first = hosts.is_first()
    if self._is_first:
      for path in self._paths:
        keep = [line for line in read(path.parent) if line['step'] <= start]
        write_atomically(path, _encode(keep))
    self._events = event_writers(directories, start) if self._is_first else []
    self._bar = tqdm(total=num_steps, initial=start, unit='step', desc='compiling',
                     disable=not self._is_first)
    self._written = time.monotonic()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._write()
    self._bar.close()
    for events in self._events:
      events.close()

  def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
    """Takes the metrics of a step, still on the device, and reads the previous step's."""
    self._settle()
    self._pending = step, metrics

  def flush(self) -> None:
    """Reads and writes all that was added; the time until the next step does not count."""
    self._settle()
    self._write()
    self._clock = None

  def validation(self, step: int, losses: np.ndarray) -> None:
    """Adds the validation loss of each network, in nats per token."""
    for lines, loss in zip(self._lines, losses, strict=True):
      # Beyond 700 the exponential overflows.
      lines.append({'step': step, 'validation_loss': float(loss),
                    'perplexity': math.exp(min(loss, 700))})
    self._write()

  def rate(self) -> dict[str, float | None]:
    """Medians of this session: seconds_a_step, tokens_per_s, utilization; None before two steps."""
    if not self._seconds:
      return {'seconds_a_step': None, 'tokens_per_s': None, 'utilization': None}
    seconds = float(np.median(self._seconds))
    return {'seconds_a_step': seconds, 'tokens_per_s': self._tokens_per_step / seconds,
            'utilization': self._utilization(self._tokens_per_step / seconds)}

  def _settle(self):
    if self._pending is None:
      return
    step, metrics = self._pending
    self._pending = None
    values = {name: np.atleast_1d(jax.device_get(value)).astype(float)
              for name, value in metrics.items()}
    now = time.monotonic()
    seconds, self._clock = (now - self._clock if self._clock else None), now
    for i, lines in enumerate(self._lines):
      own = {name: float(value[i]) for name, value in values.items()}
      lines.append({'step': step, **own, 'seconds': seconds})
    if seconds:
      self._seconds.append(seconds)
    self._show(float(values['loss'].mean()))
    for name in ('loss', 'gradient_norm'):
      for value, path in zip(values[name], self._paths, strict=True):
        if not math.isfinite(value):
          raise InputError(f'{name} is {value} at step {step} of {path.parent}; a smaller peak_lr '
                           'or a larger warmup_steps may help, in another folder')

  def _show(self, loss):
    self._bar.set_description('training', refresh=False)
    self._bar.update()
    if self._seconds:
      tokens_per_s = self._tokens_per_step / float(np.median(self._seconds[-20:]))
      self._bar.set_postfix_str(f'loss {loss:.3f}, {tokens_per_s:,.0f} tokens/s, '
                                f'{self._utilization(tokens_per_s):.0%} of peak', refresh=False)
    if time.monotonic() - self._written > WRITE_INTERVAL_S:
      self._write()

  def _write(self):
    self._written = time.monotonic()
    for events, lines in zip(self._events, self._lines, strict=False):
      for line in lines:
        add_scalars(events, line)
    for path, lines in zip(self._paths, self._lines, strict=True):
      if self._is_first and lines:
        with open(path, 'ab') as file:
          file.write(_encode(lines))
      lines.clear()


def event_writers(directories: list[Path], start: int) -> list:
  """A writer of TensorBoard's event files per folder, without steps after `start`, if installed."""
  try:
    from tensorboardX import SummaryWriter
  except ImportError:
    return []
  return [SummaryWriter(str(directory), purge_step=start + 1, filename_suffix=f'.{start}')
          for directory in directories]


def add_scalars(events, line: dict) -> None:
  """Adds the finite numbers of a line to an event file."""
  for name, value in line.items():
    if name != 'step' and value is not None and math.isfinite(value):
      events.add_scalar(name, value, line['step'])


def _encode(lines):
  """One JSON object per line; NaN and infinities, which JSON lacks, become null."""
  plain = lambda value: None if isinstance(value, float) and not math.isfinite(value) else value
  objects = [{name: plain(value) for name, value in line.items()} for line in lines]
  return b''.join(json.dumps(each).encode() + b'\n' for each in objects)


def read(directory: Path) -> list[dict]:
  """The lines of a run's metrics.jsonl, without a last one that a kill has cut off."""
  path = Path(directory) / 'metrics.jsonl'
  texts = path.read_bytes().splitlines() if path.exists() else []
  lines = []
  for number, text in enumerate(texts, start=1):
    try:
      line = json.loads(text)
      lines.append({'step': line['step']} | line)
    except (ValueError, TypeError, KeyError):
      if number < len(texts):
        raise InputError(f'{path}, line {number}: this is not a line of a training run; remove '
                         'it') from None
  return lines
