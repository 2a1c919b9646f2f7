"""Does the bias survive training? Checkpoints and initializations (Fig 10, 11).

Compares the hidden states of a checkpoint with its own initialization and, as a control, with the
initialization of the next seed, by Kendall's tau over the dimensions to which a random network
contracts most, the top k of its mean direction. Also counts how often each token is predicted and
each hidden dimension is the largest: the histograms of Fig 10.

    python -m experiments.persistence --study=results/training_study_laptop

Reads the checkpoints of experiments.training_study. Vectors of a Gaussian probe, which all networks
pass on, are projected out first. Writes results.json (a row per checkpoint) and figure.png.
Hidden states are kept in OUTPUT_DIR/hidden_states.
"""

import functools

import jax
import numpy as np

from bornbiased_jax import plotting, storage
from bornbiased_jax.analysis import similarity
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import optional, whole
from bornbiased_jax.lineage import kendall_tau
from bornbiased_jax.lineage.baselines import published
from bornbiased_jax.lineage.comparison.seedprint import without_shared_input
from bornbiased_jax.lineage.evidence.hidden_states import input_is_shared
from bornbiased_jax.models.transformer import head_of
from bornbiased_jax.storage import checkpoint

from .shared import networks, program
from .shared.base_settings import SharedInputs
from .shared.settings import setting
from .shared.tables import grouped


class Settings(SharedInputs):
  study: str | None = setting(None)
  seeds: list[int] = setting([42, 43], paper=[42, 123])
  probe: str = setting('tokens')
  num_sequences: int = setting(2000, smoke=300, paper=10_000)
  length: int = setting(64, smoke=4, paper=1024)
  top_k: int | None = setting(
      None, optional(whole), 'dimensions to which networks contract most; if not given, the k of '
      'the published test, about half of the width')


def main(settings, results):
  if not results.is_measured:
    measure(settings, results)
  summary = [{name: value for name, value in row.items() if not name.endswith('_counts')}
             for row in results.rows]
  results.finish(summary, display, lambda: draw(results.rows, settings))


def measure(settings, results) -> None:
  pairs = dict(networks.with_others(settings.seeds))
  runs = {seed: {'english': networks.run_of(settings, 'english', seed)}
          for seed in settings.seeds}
  for (text, seed), run in networks.continued(settings).items():
    runs[seed][text] = run
  check(settings, storage.open(str(runs[settings.seeds[0]]['english'])).config)
  probe = networks.probe_of(settings)
  take = functools.lru_cache(maxsize=3)(
      lambda name: networks.take(name, probe, results.directory / 'hidden_states'))
  for row in results.missing(({'seed': seed, 'phase': phase, 'step': step} for seed in pairs
                              for phase, run in runs[seed].items()
                              for step in checkpoint.steps(run)), 'checkpoint'):
    own, other = (take(f'{runs[each]["english"]}@0') for each in (row['seed'], pairs[row['seed']]))
    run, step = runs[row['seed']][row['phase']], row['step']
    network = take(f'{run}@{step}')
    results.add(row | largest('token', predictions(run, step, network.hidden_ND))
                | largest('dimension', network.hidden_ND.argmax(axis=1))
                | agreement('own', own, network, settings.top_k)
                | agreement('control', other, network, settings.top_k))


def check(settings, config) -> None:
  """Raises InputError for settings that the networks do not allow."""
  networks.check_sequences(settings, config)
  if (settings.top_k or 0) > config.width:
    raise InputError(f'--top_k: {settings.top_k} exceeds the {config.width} channels of the '
                     'networks')


def predictions(run, step, hidden_ND) -> np.ndarray:
  """The token that a checkpoint predicts after each sequence, from its hidden states."""
  head_VD = head_of(*checkpoint.load_params(run, step))
  with jax.default_matmul_precision('highest'):
    return np.asarray(jax.lax.map(lambda hidden_D: (head_VD @ hidden_D).argmax(), hidden_ND,
                                  batch_size=256))


def largest(kind, largest_N) -> dict:
  """Which token or dimension is the largest most often, and how often those are that ever are."""
  count = np.bincount(largest_N)
  return {f'largest_{kind}': int(count.argmax()),
          f'largest_{kind}_share': float(count.max() / count.sum()),
          f'largest_{kind}_counts': np.sort(count[count > 0])[::-1]}


def agreement(name, initial, network, top_k) -> dict:
  """Mean and std over the initialization's top dimensions of tau between it and the checkpoint."""
  direction_D = np.asarray(similarity.normalize(initial.hidden_ND)).mean(axis=0)
  chosen_K = np.argsort(-direction_D)[:top_k or published.default_k(len(direction_D))]
  both = initial.hidden_ND, network.hidden_ND
  if input_is_shared(initial, network):
    both = without_shared_input(*both, initial.input_ND)
  tau_K = np.asarray(kendall_tau(*(hidden_ND[:, chosen_K] for hidden_ND in both)))
  return {f'{name}_tau': float(np.nanmean(tau_K)), f'{name}_tau_std': float(np.nanstd(tau_K))}


def display(row):
  return {'seed': row['seed'], 'text': row['phase'], 'step': row['step'],
          'tau (± std), own init': f'{row["own_tau"]:.3f} ± {row["own_tau_std"]:.3f}',
          'tau (± std), other init': f'{row["control_tau"]:.3f} ± {row["control_tau_std"]:.3f}',
          **{f'largest {kind}': f'{row[f"largest_{kind}"]} in {row[f"largest_{kind}_share"]:.1%}'
             for kind in ('token', 'dimension')}}


def draw(rows, settings):
  """Left: tau by step, on all texts. Right: how often tokens and dimensions are the largest."""
  figure = plotting.figure(9, 4.4)
  panels = figure.subplot_mosaic([['tau', 'token'], ['tau', 'dimension']], width_ratios=(3, 2))
  draw_tau(panels['tau'], rows, settings.seeds)
  draw_largest(panels['token'], 'token', rows, settings)
  draw_largest(panels['dimension'], 'dimension', rows, settings)
  panels['token'].set_title(f'seed {settings.seeds[0]}')
  panels['token'].legend()
  return figure


def draw_tau(ax, rows, seeds):
  """tau with both initializations at each checkpoint, a colour per seed."""
  labels = list(dict.fromkeys((row['phase'], row['step']) for row in rows))
  place = {label: i for i, label in enumerate(labels)}
  for i, seed in enumerate(seeds):
    of_seed = [row for row in rows if row['seed'] == seed]
    for name, style, label in (('own', 'o-', f'seed {seed}, own init'),
                               ('control', 'x:', f'seed {seed}, other init')):
      # Each text is a branch of its own, which begins where English ended.
      for branch, (_, own) in enumerate(grouped(of_seed, 'phase')):
        x = [place[row['phase'], row['step']] + 0.06 * (i - len(seeds) / 2) for row in own]
        tau, std = ([row[f'{name}_{part}'] for row in own] for part in ('tau', 'tau_std'))
        ax.errorbar(x, tau, std, fmt=style, markersize=3, linewidth=1, elinewidth=0.6,
                    color=plotting.COLORS[i % len(plotting.COLORS)],
                    label=None if branch else label)
  ax.axhline(0, color='black', linewidth=0.8)
  ax.set(ylim=(-0.05, 1.3), ylabel="Kendall's tau with an initialization",
         title='mean and std over dimensions (linear up to 0.05, then logarithmic)')
  ax.set_yscale('symlog', linthresh=0.05)
  ticks = (-0.05, 0, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
  ax.set_yticks(ticks, [f'{tick}'.replace('-', '−') for tick in ticks])
  ax.set_xticks(range(len(labels)), [step for _, step in labels], fontsize='small')
  for phase in dict.fromkeys(phase for phase, _ in labels):
    middle = np.mean([place[label] for label in labels if label[0] == phase])
    ax.annotate(f'steps of\n{phase}', (middle, 0), (0, -20), xycoords=('data', 'axes fraction'),
                textcoords='offset points', ha='center', va='top')
  ax.legend(fontsize='small', ncols=2)


def draw_largest(ax, kind, rows, settings):
  """How often the tokens or dimensions are the largest, before and after training on English."""
  own = {row['step']: row for row in rows
         if row['seed'] == settings.seeds[0] and row['phase'] == 'english'}
  for step, label in ((0, 'initialization'), (max(own), f'step {max(own)}')):
    share = 100 * np.array(own[step][f'largest_{kind}_counts'][:20]) / settings.num_sequences
    ax.plot(np.arange(1, len(share) + 1), share, 'o-', markersize=3, label=label)
  what = {'token': 'predicted token', 'dimension': 'largest dimension'}[kind]
  ax.set(xlabel=f'{what}, by rank', ylabel='% of sequences', ylim=(0, None))


if __name__ == '__main__':
  program.measure(main, 'persistence', Settings, __doc__)
