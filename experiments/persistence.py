"""The bias survives training: each checkpoint against its own initialization and against another's (Fig 10, 11).

    python -m experiments.persistence --study=results/training_study_laptop

Reads the checkpoints of experiments.training_study. Over the dimensions to which
a random network contracts most (the top k of its mean direction), Kendall's tau
between what the checkpoint and the initialization answer to the same random
sequences, dimension by dimension: mean and std over dimensions, for the
network's own initialization and, as a control, for the next seed's. Beside it
how often each hidden dimension is the largest: the histogram of Fig 10.

Writes results.json (a row a checkpoint) and figure.png. The Gaussian probe's
vector, which all networks carry along, is projected out first.
"""

import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.analysis import similarity
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import published
from bornbiased_jax.lineage.kendall import kendall_tau
from bornbiased_jax.lineage.seedprint import without_shared_input
from bornbiased_jax.lineage.verdict import input_is_shared
from bornbiased_jax.storage import checkpoint
from experiments import command_line, seedprint, study
from experiments.command_line import optional, whole
from experiments.results import Results

PHASES = ('english', 'python')
PERSISTENCE_KINDS = study.STUDY_KINDS | seedprint.PROBE_SETTINGS | {
    'top_k': (optional(whole), "dimensions to which networks contract most, or 'auto': the published test's k, about "
                               'half of the width'),
}
_LAPTOP = seedprint.PROBE | dict(study='none', seeds='42,43', top_k='auto')
SCALES = {'smoke': _LAPTOP | dict(num_sequences='300', length='4'), 'laptop': _LAPTOP,
          'paper': _LAPTOP | dict(seeds='42,123', num_sequences='10000', length='1024')}


def main(settings, output_dir):
  pairs = study.with_others(settings.seeds)
  runs = {seed: {phase: study.run_of(settings, phase, seed) for phase in PHASES} for seed in settings.seeds}
  config = checkpoint.load_config(runs[settings.seeds[0]]['english'])
  study.check_num_sequences(settings, config)
  if (settings.top_k or 0) > config.width:
    raise InputError(f'--top_k: {settings.top_k} exceeds the {config.width} channels of the networks')
  results = Results(output_dir, 'persistence', settings)
  take = lambda name: seedprint.take(name, seedprint.probe_of(settings), output_dir / 'fingerprints')
  done = {(row['seed'], row['phase'], row['step']) for row in results.rows}
  for seed, control in pairs:
    own, other = (take(f'{runs[each]["english"]}@0') for each in (seed, control))
    for phase, run in runs[seed].items():
      for step in checkpoint.steps(run):
        if (seed, phase, step) not in done:
          network = take(f'{run}@{step}')
          results.add({'seed': seed, 'phase': phase, 'step': step, **largest(network.hidden_ND),
                       **agreement('own', own, network, settings.top_k),
                       **agreement('control', other, network, settings.top_k)})
  results.finish([{name: value for name, value in row.items() if name != 'largest_count'} for row in results.rows],
                 display, draw(results.rows, settings))


def largest(hidden_ND) -> dict:
  """How often each dimension is a sequence's largest, and the share of the one that is most often."""
  count_D = np.bincount(hidden_ND.argmax(axis=1), minlength=hidden_ND.shape[1])
  return {'largest_dimension': int(count_D.argmax()), 'largest_share': float(count_D.max() / count_D.sum()),
          'largest_count': count_D}


def agreement(name, initial, network, top_k) -> dict:
  """tau of each of the initialization's top dimensions with the same of the checkpoint: mean and std over them."""
  direction_D = np.asarray(similarity.normalize(initial.hidden_ND)).mean(axis=0)
  chosen_K = np.argsort(-direction_D)[:top_k or published.default_k(len(direction_D))]
  answers = initial.hidden_ND, network.hidden_ND
  if input_is_shared(initial, network):
    answers = without_shared_input(*answers, initial.input_ND)
  tau_K = np.asarray(kendall_tau(*(hidden_ND[:, chosen_K] for hidden_ND in answers)))
  return {f'{name}_tau': float(np.nanmean(tau_K)), f'{name}_tau_std': float(np.nanstd(tau_K))}


def display(row):
  return {'seed': str(row['seed']), 'text': row['phase'], 'step': str(row['step']),
          'tau, own init': f'{row["own_tau"]:.3f} ± {row["own_tau_std"]:.3f}',
          'tau, other init': f'{row["control_tau"]:.3f} ± {row["control_tau_std"]:.3f}',
          'largest dimension': f'{row["largest_dimension"]} in {row["largest_share"]:.1%}'}


def draw(rows, settings):
  """Left: tau by step, English then Python. Right: ranked shares of the largest dimension, before and after."""
  with plotting.style():
    figure = plotting.figure(9, 3.3)
    curve, histogram = figure.subplots(1, 2, width_ratios=(3, 2))
    labels = list(dict.fromkeys((row['phase'], row['step']) for row in rows))
    place = {label: i for i, label in enumerate(labels)}
    for i, seed in enumerate(settings.seeds):
      own = [row for row in rows if row['seed'] == seed]
      x = [place[row['phase'], row['step']] + 0.06 * (i - len(settings.seeds) / 2) for row in own]
      for name, style, label in (('own', 'o-', f'seed {seed}, own init'), ('control', 'x:', 'other init')):
        curve.errorbar(x, [row[f'{name}_tau'] for row in own], [row[f'{name}_tau_std'] for row in own], fmt=style,
                       markersize=3, linewidth=1, elinewidth=0.6, color=plotting.COLORS[i % len(plotting.COLORS)],
                       label=label)
    curve.axhline(0, color='black', linewidth=0.8)
    curve.set(ylim=(-0.05, 1.3), ylabel="Kendall's tau with an initialization", title='mean and std over dimensions')
    curve.set_yscale('symlog', linthresh=0.05)
    ticks = (-0.05, 0, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    curve.set_yticks(ticks, map(str, ticks))
    curve.set_xticks(range(len(labels)), [f'{phase} {step}' for phase, step in labels], rotation=45, ha='right')
    curve.legend(fontsize='small', ncols=2)
    last = max(row['step'] for row in rows if row['phase'] == 'english')
    own = {row['step']: row for row in rows if row['seed'] == settings.seeds[0] and row['phase'] == 'english'}
    for step, label in ((0, 'initialization'), (last, f'step {last}')):
      ranked = np.sort(own[step]['largest_count'])[::-1][:20]
      share = 100 * ranked / settings.num_sequences
      histogram.plot(np.arange(1, len(ranked) + 1), share, 'o-', markersize=3, label=label)
    histogram.set(xlabel='hidden dimension, by rank', ylabel='share of sequences where largest (%)',
                  title=f'seed {settings.seeds[0]}')
    histogram.legend()
  return figure


if __name__ == '__main__':
  command_line.run(main, 'persistence', SCALES, __doc__, PERSISTENCE_KINDS)
