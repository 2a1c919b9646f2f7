"""Does identity come from being born biased?

init_scheme='centred' cancels the mean of the MLP's activation by biases, so that MLPs do not
contract. Every seed is trained twice on the same data, from GPT-2's initialization and from the
centred one, whose weights are the same. Both are followed: validation loss, similarity of hidden
states, share of the preferred token, what is left of the direction at initialization, Kendall's tau
and SeedPrint's z with the own initialization, also without what the embedding explains, and, as a
control, with the initialization of the next seed. Tau and z do not see the direction itself.

    python -m experiments.born_unbiased      # on tinyshakespeare, an hour on two CPU cores
    python -m experiments.born_unbiased --data=english_train.jsonl.xz \\
        --valid=english_valid.jsonl.xz

Writes checkpoints to OUTPUT_DIR/gpt2 and OUTPUT_DIR/centred, results.json (a row per network and
checkpoint; the summary has the paired differences over seeds) and figure.png.
"""

from collections.abc import Callable
import functools
from pathlib import Path

import jax
import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis import Probe, inter_sequence, similarity
from bornbiased_jax.analysis import preference as preferences
from bornbiased_jax.lineage import HiddenStates, calibrated_test, kendall_tau
from bornbiased_jax.models.transformer import head_of
from bornbiased_jax.storage import checkpoint

from .shared import base_settings, figures, networks, program, runs
from .shared.base_settings import INITS, Texts, Training
from .shared.results import Results
from .shared.settings import setting
from .shared.tables import described, grouped, plus_minus

# What is followed, and how a table and a figure call it.
MEASURES = {
    'validation_loss': 'validation loss (nats)', 'cosine': 'cosine of two sequences',
    'top1_frequency': 'share of the preferred token',
    'birth_overlap': 'overlap with initialization',
    'tau': "Kendall's tau with initialization", 'z': 'z with own initialization',
    'body_z': 'z beyond the embedding', 'control_z': 'z with another initialization',
}


class Settings(Texts):
  config: str = setting('tiny_gpt2', paper='nano_gpt2')
  seeds: list[int] = setting(range(42, 50), smoke=[42, 43], paper=[42, 43, 44, 45])
  data: str | None = setting('tinyshakespeare', paper=None)
  valid: str | None = setting(None)
  num_steps: int = setting(1000, smoke=6, paper=20_000)
  keep_steps: list[int] | None = setting([10, 30, 100, 300], smoke=[3],
                                         paper=[10, 100, 1000, 3000, 10_000])
  length: int = setting(64, smoke=16, paper=1024)
  evaluate_every: int = setting(10, smoke=3, paper=100)
  num_sequences: int = setting(2000, smoke=300)
  probe_seed: int = setting(0)


def main(settings: Settings, results: Results) -> None:
  pairs = dict(networks.with_others(settings.seeds))
  arms = {init: arm(settings, init) for init in INITS}
  runs.train_for(results, {results.directory / init: training for init, training in arms.items()})
  probe = Probe('tokens', settings.num_sequences, settings.length, settings.probe_seed)
  # The two initializations of a seed are compared with every step.
  take = functools.lru_cache(maxsize=8)(
      lambda name: networks.take(name, probe, results.directory / 'hidden_states'))
  for row in results.missing(({'init': init, 'seed': seed, 'step': step} for init in INITS
                              for seed in pairs for step in runs.saved_steps(settings)),
                             'checkpoint'):
    run, control = (results.directory / row['init'] / f'seed_{each}'
                    for each in (row['seed'], pairs[row['seed']]))
    results.add(row | measured(run, control, row['step'], take))
  results.finish(summarize(results.rows), display, lambda: draw(results.rows))


def arm(settings: Settings, init: str) -> Training:
  """Settings of the training of one initialization."""
  return base_settings.of_study(settings, settings.scale, init_scheme=init)


def measured(run: Path, control: Path, step: int, take: Callable[[str], HiddenStates]) -> dict:
  """The numbers of one checkpoint, against its own and another seed's initialization."""
  born, other, now = (take(f'{path}@{at}') for path, at in ((run, 0), (control, 0), (run, step)))
  config, params = checkpoint.load_params(run, step)
  logits_NV = now.hidden_ND @ np.asarray(head_of(config, params)).T
  count_V = np.bincount(logits_NV.argmax(axis=1), minlength=config.vocab_size)
  return {
      'validation_loss': runs.validation_losses(run).get(step),
      'cosine': contraction(now)['cosine'],
      'top1_frequency': preferences.summarize(count_V)['top1_frequency'],
      'birth_overlap': float(np.dot(direction(born), direction(now))),
      'tau': float(np.nanmean(kendall_tau(born.hidden_ND, now.hidden_ND))),
      'z': calibrated_test(born.hidden_ND, now.hidden_ND).z,
      'body_z': calibrated_test(born.hidden_ND, now.hidden_ND, born.input_ND).z,
      'control_z': calibrated_test(other.hidden_ND, now.hidden_ND).z,
  }


def contraction(states: HiddenStates) -> dict:
  statistic = inter_sequence('hidden')
  return statistic.summarize(jax.jit(statistic.measure)({'hidden': states.hidden_ND}))


def direction(states: HiddenStates) -> np.ndarray:
  """The unit vector [D] towards which hidden states contract."""
  return np.asarray(similarity.normalize(contraction(states)['direction']))


def summarize(rows: list[dict]) -> list[dict]:
  """Means over seeds of both initializations, and of their differences, at each step."""
  summary = []
  for fields, group in grouped(rows, 'step'):
    values = {init: {row['seed']: row for row in group if row['init'] == init} for init in INITS}
    seeds = sorted(values['gpt2'].keys() & values['centred'].keys())
    for label in (*INITS, 'difference'):
      summary.append(fields | {'init': label, 'networks': len(seeds)})
      for name in MEASURES:
        arms = {init: [values[init][seed][name] for seed in seeds] for init in INITS}
        if None not in arms['gpt2'] + arms['centred']:
          arms['difference'] = np.subtract(arms['centred'], arms['gpt2']).tolist()
          summary[-1] |= described(arms[label], name)
  return summary


def display(row: dict) -> dict[str, str]:
  def shown(name):
    return plus_minus(row, name, '.1f' if name.endswith('z') else '.3f') if name in row else '–'

  return {'step': row['step'], 'initialization': row['init'],
          **{words: shown(name) for name, words in MEASURES.items()}}


def draw(rows: list[dict]):
  """What is followed by step: means over seeds, and these or their range."""
  steps = sorted({row['step'] for row in rows})
  figure = plotting.figure(9, 5)
  axes = figure.subplots(2, 3).flat
  for ax, (name, words) in zip(axes, list(MEASURES.items())[:6], strict=True):
    for color, (fields, group) in zip(plotting.COLORS, grouped(rows, 'init'), strict=False):
      figures.draw_steps(ax, group, name, color=color, label=INITS[fields['init']],
                         **plotting.DOTS)
    ax.set_title(words)
    figures.log_steps(ax, steps)
  figure.axes[3].axhline(0, color='black', linewidth=0.8)
  title = plotting.of_networks(len({row['seed'] for row in rows}))
  figure.axes[0].legend(title=title, fontsize='small', title_fontsize='small')
  return figure


if __name__ == '__main__':
  program.measure(main, 'born_unbiased', Settings, __doc__)
