"""What a run tells while it trains: metrics.jsonl, a progress line, and a stop at the first loss that is not finite."""

import json
import math
from pathlib import Path
import time

import jax
import numpy as np
from tqdm import tqdm

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

WRITE_INTERVAL_S = 1.0


class Monitor:
  """Metrics of the networks that train together, a metrics.jsonl in the folder of each.

  A step's metrics are fetched while the next step runs. Process 0 alone
  writes and prints.

  Args:
    directories: one a network; lines after `start` are dropped.
    start: steps that were made before.
    num_steps: steps of the whole run.
    tokens_a_step: over all networks.
    utilization: from tokens a second to the share of the peak rate.
  """

  def __init__(self, directories: list[Path], start: int, num_steps: int, tokens_a_step: int, utilization):
    self._paths = [directory / 'metrics.jsonl' for directory in directories]
    self._tokens_a_step, self._utilization = tokens_a_step, utilization
    self._pending, self._clock, self._lines, self._seconds = None, None, [[] for _ in directories], []
    self._is_first = jax.process_index() == 0
    if self._is_first:
      for path in self._paths:
        keep = [line for line in read(path.parent) if line['step'] <= start]
        write_atomically(path, _encode(keep))
    self._bar = tqdm(total=num_steps, initial=start, unit='step', disable=not self._is_first)
    self._written = time.monotonic()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._write()
    self._bar.close()

  def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
    """Takes a step's metrics, unread, and reads those of the step before.

    Raises:
      InputError: that step's loss or gradient is not finite.
    """
    self._settle()
    self._pending = step, metrics

  def flush(self) -> None:
    """Reads and writes all that was added; raises as `add`. The next step's time is not counted."""
    self._settle()
    self._write()
    self._clock = None

  def validation(self, step: int, losses: np.ndarray) -> None:
    """Mean loss in nats a token of each network on text that it is not trained on."""
    for lines, loss in zip(self._lines, losses, strict=True):
      lines.append({'step': step, 'validation_loss': float(loss), 'perplexity': math.exp(min(loss, 700))})
    self._write()

  def rate(self) -> dict[str, float | None]:
    """Median over steps of this session: tokens a second, seconds a step, and utilization; None before two steps."""
    if not self._seconds:
      return {'seconds_a_step': None, 'tokens_per_s': None, 'utilization': None}
    seconds = float(np.median(self._seconds))
    return {'seconds_a_step': seconds, 'tokens_per_s': self._tokens_a_step / seconds,
            'utilization': self._utilization(self._tokens_a_step / seconds)}

  def _settle(self):
    if self._pending is None:
      return
    step, metrics = self._pending
    self._pending = None
    values = {name: np.atleast_1d(jax.device_get(value)).astype(float) for name, value in metrics.items()}
    now = time.monotonic()
    seconds, self._clock = (now - self._clock if self._clock else None), now
    for i, lines in enumerate(self._lines):
      lines.append({'step': step, **{name: float(value[i]) for name, value in values.items()}, 'seconds': seconds})
    if seconds:
      self._seconds.append(seconds)
    self._show(float(values['loss'].mean()))
    for name in ('loss', 'gradient_norm'):
      for value, path in zip(values[name], self._paths, strict=True):
        if not math.isfinite(value):
          raise InputError(f'{name} is {value} at step {step} of {path.parent}; a smaller --peak_lr or a longer '
                           '--warmup_steps may help')

  def _show(self, loss):
    self._bar.update()
    if self._seconds:
      tokens_per_s = self._tokens_a_step / float(np.median(self._seconds[-20:]))
      self._bar.set_postfix_str(f'loss {loss:.3f}, {tokens_per_s:,.0f} tokens/s, '
                                f'{self._utilization(tokens_per_s):.0%} of peak', refresh=False)
    if time.monotonic() - self._written > WRITE_INTERVAL_S:
      self._write()

  def _write(self):
    self._written = time.monotonic()
    for path, lines in zip(self._paths, self._lines, strict=True):
      if self._is_first and lines:
        with open(path, 'ab') as file:
          file.write(_encode(lines))
      lines.clear()


def _encode(lines):
  plain = lambda value: None if isinstance(value, float) and not math.isfinite(value) else value
  return b''.join(json.dumps({name: plain(value) for name, value in line.items()}).encode() + b'\n' for line in lines)


def read(directory: Path) -> list[dict]:
  """The lines of a run's metrics.jsonl, as far as they are whole."""
  path, lines = Path(directory) / 'metrics.jsonl', []
  for line in path.read_bytes().splitlines() if path.exists() else ():
    try:
      lines.append(json.loads(line))
    except ValueError:  # A kill cuts off the last line.
      break
  return lines
