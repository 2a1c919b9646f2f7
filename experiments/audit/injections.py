"""How many faults of a history does the audit find, and how many sound ones does it suspect?

    python -m experiments.audit.injections      # 20 min

Small networks of two families are trained on Shakespeare, with nine checkpoints after the first.
One fault is put into a history at a random place, as FAULTS says; sound histories are of the kinds
in experiments/audit/trained.py. A fault is found if a finding names its step.

Writes results.json (a row per history), table.md and figure.png.
"""

import functools

import jax
import numpy as np
import scipy

from bornbiased_jax import plotting
from bornbiased_jax.fields import whole
from bornbiased_jax.lineage.comparison.order import order_tests
from bornbiased_jax.models import init_params
from bornbiased_jax.storage.layers import in_memory

from ..shared import program
from ..shared.base_settings import ExperimentSettings
from ..shared.settings import setting
from ..shared.tables import grouped
from . import trained
from .findings import Checkpoint, examine, survey
from .trained import CONFIGS, SOUND, History

# The order numbers the draws of each.
FAULTS = ('whole repeat', 'final weights under an early step', 'layer of the step before',
          'shard of a later step', 'shard of a later step that is not there', 'another birth',
          'two steps swapped', 'checkpoint of another seed',
          'checkpoint of another order of the text', 'layer of another seed', 'NaN or infinity')
# Many histories have most of their checkpoints in common, which are made, read and tested once.
base, _tests = functools.cache(trained.run), functools.cache(order_tests)
_read: dict[int, tuple[dict, Checkpoint]] = {}


class Settings(ExperimentSettings):
  injections: int = setting(20, whole, 'histories of each fault', smoke=1)
  sound: int = setting(3, whole, 'histories of each sound kind', smoke=1)


def main(settings, results):
  counts = dict.fromkeys(SOUND, settings.sound) | dict.fromkeys(FAULTS, settings.injections)
  todo = [{'kind': kind, 'number': number} for number in range(max(counts.values()))
          for kind, count in counts.items() if number < count]
  for row in results.missing(todo, 'history'):
    results.add(row | measure(**row))
  summary = summarize(results.rows)
  results.finish(summary, display, lambda: draw(summary))


def measure(kind: str, number: int) -> dict:
  """What the audit says of one history."""
  family, seed = list(CONFIGS)[number % len(CONFIGS)], number // len(CONFIGS)
  if kind in SOUND:
    history, faulty = SOUND[kind](CONFIGS[family], 100 + seed), []
  else:
    random = np.random.default_rng([number, FAULTS.index(kind)])
    history, faulty = inject(kind, random, CONFIGS[family], seed % 5)
  found = said_of(CONFIGS[family], history)
  faults = [each for each in found if each['is_fault']]
  names_it = [bool(set(faulty) & set(each['steps'])) for each in faults]
  return {'family': family, 'steps': faulty, 'is_sound': kind in SOUND,
          'is_found': any(names_it), 'is_suspected': not all(names_it),
          'findings': [{name: each[name] for name in ('kind', 'steps', 'where', 'value', 'p_value')}
                       for each in faults],
          'notes': sorted({each['kind'] for each in found} - {each['kind'] for each in faults})}


def said_of(config, history: History) -> list[dict]:
  """All findings in a history."""
  return examine(((step, functools.partial(_survey, config, params))
                  for step, params in history.items()), _tests)['findings']


def _survey(config, params):
  if id(params) not in _read:
    _read[id(params)] = params, survey(in_memory(config, params))
  return _read[id(params)][1]


def inject(kind: str, random: np.random.Generator, config, seed: int, run=base):
  """A history with a fault, and the steps at which it is; `run` trains."""
  full = run(config, seed, count=18)
  history = {step: full[step] for step in list(full)[::2]}
  changed = _changed(kind, random, history, full, run, config, seed)
  return history | changed, sorted(changed)


def _changed(kind, random, history, full, run, config, seed):
  """What stands at some steps of a history in place of what was there."""
  steps = list(history)
  # A step, and so many at least come before it and after it.
  place = lambda margin: int(random.integers(margin, len(steps) - margin))
  two = lambda: random.choice(steps, 2, replace=False).tolist()
  match kind:
    case 'whole repeat':
      first, last = sorted(two())
      return {first: history[last], last: history[last]}
    case 'final weights under an early step':
      return {steps[random.integers(4)]: history[steps[-1]]}
    case 'layer of the step before':
      t = place(2)
      return {steps[t]: _with_layer(history[steps[t]], history[steps[t - 1]], random.integers(4))}
    case 'shard of a later step':
      t = place(2)
      later = steps[random.integers(t + 1, len(steps))]
      return {steps[t]: _with_shard(history[steps[t]], history[later])}
    case 'shard of a later step that is not there':  # But between two others that are.
      t = place(3)
      later = list(full)[random.integers(t + 2, len(steps) - 1) * 2 + 1]
      return {steps[t]: _with_shard(history[steps[t]], full[later])}
    case 'another birth':
      return {0: jax.device_get(init_params(config, 1000 + seed))}
    case 'two steps swapped':
      a, b = two()
      return {a: history[b], b: history[a]}
    case 'checkpoint of another seed':
      step = steps[place(1)]
      return {step: run(config, 50 + seed)[step]}
    case 'checkpoint of another order of the text':
      step = steps[place(1)]
      return {step: run(config, seed, data_seed=7)[step]}
    case 'layer of another seed':
      step = steps[place(0)]
      return {step: _with_layer(history[step], run(config, 50 + seed)[step], random.integers(4))}
    case 'NaN or infinity':
      step = steps[place(0)]
      made = jax.tree.map(np.array, history[step])
      kernel = made['blocks']['up']['kernel']
      kernel.flat[random.integers(kernel.size)] = random.choice([np.nan, np.inf])
      return {step: made}


def _with_layer(params, source, layer):
  """A network with one layer of another."""
  blocks = jax.tree.map(lambda a, b: np.concatenate([a[:layer], b[layer:layer + 1], a[layer + 1:]]),
                        params['blocks'], source['blocks'])
  return params | {'blocks': blocks}


def _with_shard(params, source):
  """A network whose first shard, the embedding and two layers, is another's."""
  params = params | {'embedding': source['embedding']}
  return _with_layer(_with_layer(params, source, 0), source, 1)


def summarize(rows: list[dict]) -> list[dict]:
  """A row per kind, also of those that are no longer measured, and one of all sound histories."""
  groups = grouped(sorted(rows, key=lambda row: row['is_sound']), 'kind')
  return [_summary(fields['kind'], own) for fields, own in groups] + [
      _summary('all sound histories', [row for row in rows if row['is_sound']])]


def _summary(kind, rows):
  suspected, is_sound = sum(row['is_suspected'] for row in rows), rows[0]['is_sound']
  upper = scipy.stats.binomtest(suspected, len(rows)).proportion_ci(0.9).high
  return {'kind': kind, 'is_sound': is_sound, 'histories': len(rows),
          'found': None if is_sound else sum(row['is_found'] for row in rows),
          'suspected': suspected, 'suspected_upper': upper,
          'named': sorted({each['kind'] for row in rows for each in row['findings']})}


def display(row):
  found = '–' if row['is_sound'] else f'{row["found"]} of {row["histories"]}'
  # Stored kinds keep the word of earlier versions.
  return {'history': row['kind'].replace('birth', 'initialization'), 'found': found,
          'other steps suspected': f'{row["suspected"]} of {row["histories"]}',
          'called': ', '.join(row['named']) or '–'}


def draw(summary):
  """How many of each kind are found, or suspected."""
  *summary, _ = summary
  figure = plotting.figure(7, 0.9 + 0.24 * len(summary))
  ax = figure.subplots()
  for i, row in enumerate(summary):
    count = row['suspected'] if row['is_sound'] else row['found']
    bar = ax.barh(i, count / row['histories'], color=plotting.COLORS[int(row['is_sound'])],
                  height=0.7)
    ax.bar_label(bar, [f'{count} of {row["histories"]}'], padding=2, fontsize='small')
  ax.set_yticks(range(len(summary)), [display(row)['history'] for row in summary])
  ax.set(xlim=(0, 1.15), ylim=(len(summary) - 0.5, -0.5),
         xlabel='share of histories with a fault that is found, or sound and suspected')
  ax.axhline(sum(not row['is_sound'] for row in summary) - 0.5, color='black', linewidth=0.8)
  return figure


if __name__ == '__main__':
  program.measure(main, 'audit.injections', Settings, __doc__)
