"""How many faults of a history does the audit find, and how many sound ones does it suspect?

    python -m experiments.audit.injections      # 3 min

Small networks of two families are trained on Shakespeare, with nine checkpoints after the first.
One fault of FAULTS is put into a history at a random place; sound histories are of the kinds in
SOUND. A fault is found if a finding names its step.

Writes results.json (a row per history), table.md and figure.png.
"""

from collections.abc import Callable
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from bornbiased_jax import configs, plotting
from bornbiased_jax.fields import whole
from bornbiased_jax.models import init_params, next_token_loss
from bornbiased_jax.storage.layers import in_memory
from bornbiased_jax.training.step import first_state

from ..shared import program
from ..shared.base_settings import ExperimentSettings
from ..shared.settings import setting
from ..shared.tables import grouped
from ..small_networks.training import descend, fit, freezing, text
from .findings import examine, survey

_SIZE = dict(num_layers=4, num_heads=4, width=32, vocab_size=128, length=64)
CONFIGS = {'llama': configs.get('tiny_llama2', **_SIZE, mlp_width=96),
           'gpt2': configs.get('tiny_gpt2', **_SIZE, mlp_width=128)}
STEPS = 360
History = dict[int, dict]  # Parameters by step.


@functools.cache  # Many histories have most of their checkpoints in common.
def run(config, seed, *, peak=3e-3, schedule='cosine', count=9, data_seed=0, decay=1e-4,
        frozen=()) -> History:
  """The history of a run: its initialization, and `count` checkpoints more, evenly spaced."""
  start, every = jax.device_get(init_params(config, seed)), STEPS // count
  batches = text(config.vocab_size, STEPS, data_seed).reshape(count, every, 8, 33)
  kept = jax.device_get(_run(config, schedule, frozen, start, jnp.asarray(batches, jnp.int32),
                             peak, decay))
  return {0: start} | {(i + 1) * every: jax.tree.map(lambda leaf, i=i: leaf[i], kept)
                       for i in range(count)}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _run(config, schedule, frozen, start, batches, peak, decay):
  rate = {'cosine': optax.cosine_decay_schedule(1.0, STEPS),
          'constant': optax.constant_schedule(1.0),
          'restarts': optax.sgdr_schedule([dict(init_value=0.0, peak_value=1.0, warmup_steps=5,
                                                decay_steps=STEPS // 3, end_value=0.0)] * 3),
          }[schedule]
  optimizer = optax.chain(
      optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.add_decayed_weights(decay),
      optax.scale_by_schedule(lambda step: -rate(step)), optax.scale(peak), freezing(frozen))

  def part(state, batches_MBT):
    state = fit(state, batches_MBT, functools.partial(descend, config, optimizer, next_token_loss))
    return state, state.params

  return lax.scan(part, first_state(optimizer, start), batches)[1]


def averaged_end(config, seed):
  """The last checkpoint is the mean of the last four."""
  history = run(config, seed, schedule='constant')
  mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *list(history.values())[-4:])
  return history | {max(history): mean}


def uneven(config, seed):
  """Steps 0, 2, 4, 8, … like Pythia has them, then evenly spaced."""
  history = run(config, seed, schedule='constant', count=STEPS // 2, peak=1e-3)
  return {step: history[step] for step in (0, 2, 4, 8, 16, 32, 64, 138, 212, 286, 360)}


def rounded(config, seed, dtype, **how):
  """Stored in 16 bits."""
  return jax.tree.map(lambda x: np.asarray(x, dtype).astype(np.float32), run(config, seed, **how))


SOUND: dict[str, Callable[..., History]] = {
    'rate falls to 0': run,
    'strong warm restarts': functools.partial(run, schedule='restarts', peak=2e-2),
    'strong weight decay': functools.partial(run, decay=1.0, peak=1e-2),
    'constant rate': functools.partial(run, schedule='constant'),
    'frozen embedding': functools.partial(run, frozen=('embedding',)),
    'average at the end': averaged_end,
    'uneven steps': uneven,
    'bfloat16': functools.partial(rounded, dtype=jnp.bfloat16),
    'bfloat16, small rate': functools.partial(rounded, dtype=jnp.bfloat16, peak=3e-5),
    'float16': functools.partial(rounded, dtype=np.float16),
}
FAULTS = ('whole repeat', 'shard of a later step', 'another birth', 'two steps swapped',
          'checkpoint of another seed', 'checkpoint of another order of the text',
          'layer of another seed')


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
  config, random = CONFIGS[family], np.random.default_rng([number, *kind.encode()])
  if kind in SOUND:
    history, changed = SOUND[kind](config, 100 + seed), {}
  else:
    history, changed = run(config, seed % 5), changes(kind, random, config, seed % 5)
  found = said_of(config, history | changed)
  names_it = [bool(changed.keys() & set(each['steps'])) for each in found]
  return {'family': family, 'steps': sorted(changed), 'is_sound': kind in SOUND,
          'is_found': any(names_it), 'is_suspected': not all(names_it),
          'findings': [{name: each[name] for name in ('kind', 'steps', 'where')} for each in found]}


def said_of(config, history: History) -> list[dict]:
  """All findings in a history."""
  return examine((step, functools.partial(survey, in_memory(config, params)))
                 for step, params in history.items())['findings']


def changes(kind: str, random: np.random.Generator, config, seed: int, run=run) -> History:
  """What stands at some steps of run(config, seed) in place of what was there."""
  history = run(config, seed)
  steps = list(history)
  first, last = sorted(random.choice(steps, 2, replace=False).tolist())
  early, later = sorted(random.choice(steps[1:-1], 2, replace=False).tolist())
  step = int(random.choice(steps[1:-1]))
  match kind:
    case 'whole repeat':
      return {first: history[last], last: history[last]}
    case 'shard of a later step':  # The first shard is the embedding and two layers.
      mixed = _with_layers(history[early], history[later], [0, 1])
      return {early: mixed | {'embedding': history[later]['embedding']}}
    case 'another birth':
      return {0: jax.device_get(init_params(config, 1000 + seed))}
    case 'two steps swapped':
      return {first: history[last], last: history[first]}
    case 'checkpoint of another seed':
      return {step: run(config, 50 + seed)[step]}
    case 'checkpoint of another order of the text':
      return {step: run(config, seed, data_seed=7)[step]}
    case 'layer of another seed':
      other = run(config, 50 + seed)[step]
      return {step: _with_layers(history[step], other, [random.integers(config.num_layers)])}


def _with_layers(params, source, layers):
  """A network with some layers of another."""
  def mixed(own, other):
    own = own.copy()
    own[layers] = other[layers]
    return own

  return params | {'blocks': jax.tree.map(mixed, params['blocks'], source['blocks'])}


def summarize(rows: list[dict]) -> list[dict]:
  """A row per kind, also of those that are no longer measured, and one of all sound histories."""
  groups = grouped(sorted(rows, key=lambda row: row['is_sound']), 'kind')
  return [_summary(fields['kind'], own) for fields, own in groups] + [
      _summary('all sound histories', [row for row in rows if row['is_sound']])]


def _summary(kind, rows):
  suspected, is_sound = sum(row['is_suspected'] for row in rows), rows[0]['is_sound']
  return {'kind': kind, 'is_sound': is_sound, 'histories': len(rows),
          'found': None if is_sound else sum(row['is_found'] for row in rows),
          'suspected': suspected,
          'named': sorted({each['kind'] for row in rows for each in row['findings']})}


def display(row):
  found = '–' if row['is_sound'] else f'{row["found"]} of {row["histories"]}'
  # Stored kinds keep the word of earlier versions.
  return {'history': row['kind'].replace('birth', 'initialization'), 'found': found,
          'other steps suspected': f'{row["suspected"]} of {row["histories"]}',
          'called': ', '.join(row['named']) or '–'}


def draw(summary):
  """How many of each kind are found, or suspected."""
  kinds = summary[:-1]
  figure = plotting.figure(7, 0.9 + 0.24 * len(kinds))
  ax = figure.subplots()
  for row in kinds:
    count = row['suspected'] if row['is_sound'] else row['found']
    bar = ax.barh(display(row)['history'], count / row['histories'], height=0.7,
                  color=plotting.COLORS[int(row['is_sound'])])
    ax.bar_label(bar, [f'{count} of {row["histories"]}'], padding=2, fontsize='small')
  ax.set(xlim=(0, 1.15), ylim=(len(kinds) - 0.5, -0.5),
         xlabel='share of histories with a fault that is found, or sound and suspected')
  ax.axhline(sum(not row['is_sound'] for row in kinds) - 0.5, color='black', linewidth=0.8)
  return figure


if __name__ == '__main__':
  program.measure(main, 'audit.injections', Settings, __doc__)
