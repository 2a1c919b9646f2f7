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
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import whole
from bornbiased_jax.lineage.comparison.order import order_tests
from bornbiased_jax.models import init_params
from bornbiased_jax.storage.layers import in_memory

from ..shared import program
from ..shared.base_settings import ExperimentSettings
from ..shared.settings import setting
from . import trained
from .findings import examine
from .history import Checkpoint, survey
from .trained import CONFIGS, SOUND, History

# Many histories have most of their checkpoints in common, which are read and tested once.
_READ: dict[int, tuple[dict, Checkpoint]] = {}
_TESTS = functools.cache(order_tests)


class Settings(ExperimentSettings):
  injections: int = setting(20, whole, 'histories of each fault', smoke=1)
  sound: int = setting(3, whole, 'histories of each sound kind', smoke=1)


def main(settings, results):
  todo = [{'kind': kind, 'number': number}
          for number in range(max(settings.injections, settings.sound))
          for kind in [*(SOUND if number < settings.sound else ()),
                       *(FAULTS if number < settings.injections else ())]]
  for row in results.missing(todo, 'history'):
    results.add(row | measure(**row))
  results.finish(summarize(results.rows), display, lambda: draw(results.rows))


def measure(kind: str, number: int) -> dict:
  """What the audit says of one history."""
  family, seed = list(CONFIGS)[number % len(CONFIGS)], number // len(CONFIGS)
  if kind in SOUND:
    history, faulty = SOUND[kind](CONFIGS[family], 100 + seed), []
  else:
    random = np.random.default_rng([number, list(FAULTS).index(kind)])
    history, faulty = inject(kind, random, family, seed % 5)
  found = examine(((step, _survey(family, params)) for step, params in history.items()),
                  _TESTS)['findings']
  faults = [each for each in found if each['is_fault']]
  return {'family': family, 'steps': faulty, 'is_sound': kind in SOUND,
          'is_found': any(set(faulty) & set(each['steps']) for each in faults),
          'is_suspected': any(not set(faulty) & set(each['steps']) for each in faults),
          'findings': [{name: each[name] for name in ('kind', 'steps', 'where', 'value', 'p_value')}
                       for each in faults],
          'notes': sorted({each['kind'] for each in found} - {each['kind'] for each in faults})}


def _survey(family: str, params: dict) -> Checkpoint | InputError:
  if id(params) not in _READ:
    try:
      _READ[id(params)] = params, survey(in_memory(CONFIGS[family], params))
    except InputError as error:
      return error
  return _READ[id(params)][1]


@functools.cache
def base(family: str, seed: int, data_seed: int = 0, count: int = 9) -> History:
  """A run whose checkpoints faults are made of."""
  return trained.run(CONFIGS[family], seed, data_seed=data_seed, count=count)


def inject(kind: str, random: np.random.Generator, family: str, seed: int):
  """A history with a fault, and the steps at which it is."""
  history = dict(base(family, seed))
  changed = FAULTS[kind](random, history, family, seed)
  return history | changed, sorted(changed)


def _inner(random, history, margin=1) -> int:
  """A place between the first and the last."""
  return int(random.integers(margin, len(history) - margin))


def _with_layer(params, source, layer, names=()):
  """A network with one layer of another, and its parameters of these names."""
  blocks = jax.tree.map(lambda a, b: np.concatenate([a[:layer], b[layer:layer + 1], a[layer + 1:]]),
                        params['blocks'], source['blocks'])
  return params | {'blocks': blocks} | {name: source[name] for name in names}


def _shard(params, source):
  """A network whose first shard, the embedding and two layers, is another's."""
  return _with_layer(_with_layer(params, source, 0, ['embedding']), source, 1)


# Each takes a history, its family and seed, and returns what replaces some steps.


def whole_repeat(random, history, family, seed):
  step, source = sorted(random.choice(list(history), 2, replace=False).tolist())
  return {step: history[source], source: history[source]}


def final_weights_early(random, history, family, seed):
  return {list(history)[int(random.integers(0, 4))]: history[max(history)]}


def layer_repeat(random, history, family, seed):
  t, steps = _inner(random, history, 2), list(history)
  return {steps[t]: _with_layer(history[steps[t]], history[steps[t - 1]], int(random.integers(4)))}


def later_shard(random, history, family, seed):
  t, steps = _inner(random, history, 2), list(history)
  later = steps[int(random.integers(t + 1, len(steps)))]
  return {steps[t]: _shard(history[steps[t]], history[later])}


def unpublished_shard(random, history, family, seed):
  """The shard is of a step that the history lacks, two steps later or more."""
  full = base(family, seed, count=18)
  history.update({step: full[step] for step in history})
  t, steps = _inner(random, history, 3), list(full)
  later = steps[int(random.integers(t + 2, len(history) - 1)) * 2 + 1]
  return {steps[2 * t]: _shard(full[steps[2 * t]], full[later])}


def other_initialization(random, history, family, seed):
  return {0: jax.tree.map(np.asarray, init_params(CONFIGS[family], 1000 + seed))}


def swapped(random, history, family, seed):
  a, b = random.choice(list(history), 2, replace=False).tolist()
  return {a: history[b], b: history[a]}


def foreign_checkpoint(random, history, family, seed):
  step = list(history)[_inner(random, history)]
  return {step: base(family, 50 + seed)[step]}


def sibling_checkpoint(random, history, family, seed):
  """One of a run of the same seed with another order of the text."""
  step = list(history)[_inner(random, history)]
  return {step: base(family, seed, data_seed=7)[step]}


def foreign_layer(random, history, family, seed):
  step = int(random.choice(list(history)))
  source = base(family, 50 + seed)[step]
  return {step: _with_layer(history[step], source, int(random.integers(4)))}


def not_finite(random, history, family, seed):
  step = int(random.choice(list(history)))
  made = jax.tree.map(np.array, history[step])
  kernel = made['blocks']['up']['kernel']
  kernel.flat[random.integers(kernel.size)] = random.choice([np.nan, np.inf])
  return {step: made}


FAULTS = {
    'whole repeat': whole_repeat,
    'final weights under an early step': final_weights_early,
    'layer of the step before': layer_repeat,
    'shard of a later step': later_shard,
    'shard of a later step that is not there': unpublished_shard,
    'another birth': other_initialization,
    'two steps swapped': swapped,
    'checkpoint of another seed': foreign_checkpoint,
    'checkpoint of another order of the text': sibling_checkpoint,
    'layer of another seed': foreign_layer,
    'NaN or infinity': not_finite,
}


def summarize(rows: list[dict]) -> list[dict]:
  """A row per kind, and one of all sound histories."""
  # A stored result may have kinds that are no longer measured.
  known = dict.fromkeys(row['kind'] for row in sorted(rows, key=lambda row: row['is_sound']))
  kinds = [[row for row in rows if row['kind'] == kind] for kind in known]
  made = [_summary(group[0]['kind'], group) for group in kinds]
  return made + [_summary('all sound histories', [row for row in rows if row['is_sound']])]


def _summary(kind, rows):
  suspected = sum(row['is_suspected'] for row in rows)
  upper = scipy.stats.binomtest(suspected, len(rows)).proportion_ci(0.9).high
  is_sound = rows[0]['is_sound']
  return {'kind': kind, 'is_sound': is_sound, 'histories': len(rows),
          'found': None if is_sound else sum(row['is_found'] for row in rows),
          'suspected': suspected, 'suspected_upper': upper,
          'named': sorted({each['kind'] for row in rows for each in row['findings']})}


def words_of(kind: str) -> str:
  """A kind of history, for readers."""
  return kind.replace('birth', 'initialization')


def display(row):
  found = '–' if row['is_sound'] else f'{row["found"]} of {row["histories"]}'
  return {'history': words_of(row['kind']), 'found': found,
          'other steps suspected': f'{row["suspected"]} of {row["histories"]}',
          'called': ', '.join(row['named']) or '–'}


def draw(rows):
  """How many of each kind are found, or suspected."""
  summary = summarize(rows)[:-1]
  figure = plotting.figure(7, 0.9 + 0.24 * len(summary))
  ax = figure.subplots()
  for i, row in enumerate(summary):
    share = (row['suspected'] if row['is_sound'] else row['found']) / row['histories']
    ax.barh(i, share, color=plotting.COLORS[1 if row['is_sound'] else 0], height=0.7)
    ax.text(share + 0.01, i, f'{round(share * row["histories"])} of {row["histories"]}',
            va='center', fontsize='small')
  ax.set_yticks(range(len(summary)), [words_of(row['kind']) for row in summary])
  ax.set(xlim=(0, 1.15), ylim=(len(summary) - 0.5, -0.5),
         xlabel='share of histories with a fault that is found, or sound and suspected')
  ax.axhline(sum(not row['is_sound'] for row in summary) - 0.5, color='black', linewidth=0.8)
  return figure


if __name__ == '__main__':
  program.measure(main, 'audit.injections', Settings, __doc__)
