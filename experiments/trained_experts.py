"""Does the expert with the highest load at initialization keep it in training?

Networks with experts are trained on one text in one order: each seed from GPT-2's initialization
and from the centred one, which is born without a common direction, both with and without a loss
that balances experts. At some steps they read held-out text, and the share of choices that falls on
each expert is counted. The table has the highest load of an expert, how many experts are dead (get
less than a hundredth of the choices), the rank correlation of loads with those at initialization
(Spearman's, mean over layers), in how many layers the expert with the highest load is still the
same, and validation loss.

    python -m experiments.trained_experts       # on tinyshakespeare, 10 min on two CPU cores

Writes checkpoints to OUTPUT_DIR/INIT_BALANCE, results.json (a row per network and checkpoint; the
summary has paired differences over seeds) and figure.png.
"""

from pathlib import Path

import numpy as np
import scipy

from bornbiased_jax import plotting, storage
from bornbiased_jax.analysis import Probe, Statistic, expert_loads, measure
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import listed, number

from .shared import base_settings, figures, program, runs
from .shared.base_settings import INITS, Texts, Training
from .shared.results import Results
from .shared.settings import setting
from .shared.tables import described, grouped, plus_minus

MEASURES = {
    'busiest': 'highest expert load', 'dead': 'dead experts of a layer',
    'birth_rank': 'rank correlation with initialization',
    'same_busiest': 'same expert as at initialization',
    'validation_loss': 'validation loss (nats)'}
DEAD = 0.01


class Settings(Texts):
  # Like Switch: the weight of the chosen expert is its probability, and trains the router.
  config: str = setting(
      'tiny_gpt2,mlp_width=128,num_experts=8,renormalized_experts=false',
      smoke='tiny_gpt2,num_layers=1,mlp_width=32,num_experts=4,renormalized_experts=false')
  seeds: list[int] = setting(range(42, 50), smoke=[42, 43, 44])
  data: str | None = setting('tinyshakespeare', paper=None)
  valid: str | None = setting(None)
  balances: list[float] = setting([0.0, 0.01], listed(number),
                                  'weights of the balance loss; the first is what others are '
                                  'compared with')
  num_steps: int = setting(500, smoke=6, paper=20_000)
  keep_steps: list[int] | None = setting([10, 30, 100, 200], smoke=[3],
                                         paper=[10, 100, 1000, 10_000])
  batch_size: int = setting(8, smoke=4, paper=128)
  length: int = setting(32, smoke=16, paper=1024)
  evaluate_every: int = setting(10, smoke=3, paper=100)
  num_sequences: int = setting(200, smoke=20)
  probe_seed: int = setting(0)


def main(settings: Settings, results: Results) -> None:
  arms = arms_of(settings)
  some = next(iter(arms.values()))  # All have one text and one shape.
  text, held_out = runs.texts(some)
  config = runs.model(some, text)
  if config.num_experts == 1:
    raise InputError(f'--config: {settings.config} has no experts; add num_experts=8')
  probe = Probe('text', settings.num_sequences, settings.length, settings.probe_seed,
                text=held_out)
  runs.train_for(results, {results.directory / f'{init}_{balance:g}': training
                           for (init, balance), training in arms.items()})
  for arm in results.missing(({'init': init, 'balance': balance} for init, balance in arms), 'arm'):
    run = results.directory / f'{arm["init"]}_{arm["balance"]:g}'
    for row in rows_of(run, settings, expert_loads(config.experts_per_token), probe):
      results.add(arm | row)
  results.finish(summarize(results.rows), display, lambda: draw(results.rows))


def arms_of(settings: Settings) -> dict[tuple[str, float], Training]:
  """The training of every initialization and weight of the balance loss."""
  return {(init, balance): base_settings.of_study(
      settings, settings.scale, init_scheme=init, balance=balance)
          for init in INITS for balance in settings.balances}


def rows_of(directory: Path, settings: Settings, statistic: Statistic,
            probe: Probe) -> list[dict]:
  """A row for every network and checkpoint of an arm, which is one ensemble."""
  steps = runs.saved_steps(settings)
  named = [(seed, step) for seed in settings.seeds for step in steps]
  networks = (storage.open(f'{directory}/seed_{seed}@{step}').load() for seed, step in named)
  rows, losses, first = [], {}, None
  for (seed, step), found in zip(named, measure(networks, statistic, probe), strict=True):
    if step == 0:
      first, losses = found['share'], runs.validation_losses(directory / f'seed_{seed}')
    rows.append({'seed': seed, 'step': step, 'validation_loss': losses.get(step)}
                | described_shares(found['share'], first))
  return rows


def described_shares(share_LE: np.ndarray, first_LE: np.ndarray) -> dict:
  """What is followed; of equal shares there is no order, and so no correlation."""
  ranks = [scipy.stats.spearmanr(now, then).statistic if np.ptp(now) and np.ptp(then) else 0.0
           for now, then in zip(share_LE, first_LE, strict=True)]
  return {'share': np.asarray(share_LE), 'busiest': float(share_LE.max(axis=-1).mean()),
          'dead': float((share_LE < DEAD).sum(axis=-1).mean()),
          'birth_rank': float(np.mean(ranks)),
          'same_busiest': float((share_LE.argmax(axis=-1) == first_LE.argmax(axis=-1)).mean())}


def summarize(rows: list[dict]) -> list[dict]:
  """Means over seeds by arm and step, and paired differences from the first arm."""
  summary = []
  for fields, group in grouped(rows, 'step'):
    arms = [(arm, sorted(own, key=lambda row: row['seed']))
            for arm, own in grouped(group, 'init', 'balance')]
    for arm, own in arms:
      summary.append(fields | arm | {'networks': len(own)})
      for name in MEASURES:
        values, first = ([row[name] for row in each] for each in (own, arms[0][1]))
        if None not in values + first:
          summary[-1] |= described(values, name)
          summary[-1] |= described(np.subtract(values, first).tolist(), f'{name}_difference')
  return summary


def display(row: dict) -> dict[str, str]:
  shown = {words: plus_minus(row, name, '.3f') if name in row else '–'
           for name, words in MEASURES.items()}
  return {'step': row['step'], 'initialization': row['init'], 'balance': f'{row["balance"]:g}',
          **shown,
          'loss less that of the first': plus_minus(row, 'validation_loss_difference', '+.3f')
          if 'validation_loss_difference' in row else '–'}


def draw(rows: list[dict]):
  """What is followed by step: means over seeds, and from the lowest to the highest seed."""
  steps = sorted({row['step'] for row in rows})
  figure = plotting.figure(11, 3.1)
  axes = figure.subplots(1, 4)
  for ax, (name, words) in zip(axes, MEASURES.items(), strict=False):
    for color, (arm, group) in zip(plotting.COLORS, grouped(rows, 'init', 'balance'), strict=False):
      label = INITS[arm['init']] + (f', balance {arm["balance"]:g}' if arm['balance'] else '')
      figures.draw_steps(ax, group, name, color=color, label=label, **plotting.DOTS)
    ax.set_title(words)
    figures.log_steps(ax, steps)
  figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=4)
  return figure


if __name__ == '__main__':
  program.measure(main, 'trained_experts', Settings, __doc__)
