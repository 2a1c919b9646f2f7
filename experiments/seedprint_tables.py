"""SeedPrint on networks of known lineage: Tables 4 and 9 to 11, the published p-values beside the calibrated z.

    python -m experiments.seedprint_tables --study=results/training_study_laptop

Reads the checkpoints of experiments.training_study and compares
  a  initializations of different seeds (unrelated),
  b  each initialization with its own trained network and that continued on Python (related),
  c  each initialization with another seed's trained network (unrelated),
  d  trained networks of different seeds (unrelated), and one with its continuation (related),
and, for the ablation, the tests on the lowest k, highest k, k random and all dimensions.

Writes results.json (a row a pair) and figure.png (z by group). A pair is
misjudged where a related one has p > 1e-4 or an unrelated one p <= 1e-4
(calibrated), or p > .01 and p <= .01 (published).
"""

import functools

import numpy as np
from scipy import stats
from tqdm import tqdm

from bornbiased_jax import plotting
from bornbiased_jax.analysis.statistics import p_value_text
from bornbiased_jax.lineage import fingerprints, networks, published, seedprint, verdict
from bornbiased_jax.storage import checkpoint
from experiments import command_line, study
from experiments import seedprint as program
from experiments.results import Results, grouped

TABLES_KINDS = study.STUDY_KINDS | program.PROBE_SETTINGS
_LAPTOP = program.PROBE | dict(study='none', seeds='42-51')
SCALES = {'smoke': _LAPTOP | dict(seeds='42,43', num_sequences='300', length='4'), 'laptop': _LAPTOP,
          'paper': _LAPTOP | dict(seeds='42,123,1000,2000', num_sequences='10000', length='1024', probe='gaussian')}
SUBSETS = ('lowest', 'highest', 'random')
# p of the paper's t-tests, of networks with and without biases on query, key and value (Qwen, LLaMA).
PUBLISHED = {(False, 'a'): '.357–.678', (False, 'b'): '4.0e-10–5.6e-4', (False, 'c'): '.035–.426',
             (True, 'a'): '.094–.451', (True, 'b'): '1.1e-24–4.4e-13', (True, 'c'): '.026–.286'}


def main(settings, output_dir):
  todo = pairs(settings)
  config = networks.load_config(todo[0][2])
  study.check_num_sequences(settings, config)
  results = Results(output_dir, 'seedprint_tables', settings)
  done = {(row['base'], row['suspect']) for row in results.rows}
  take = functools.cache(lambda name: program.take(name, program.probe_of(settings), output_dir / 'fingerprints'))
  null = published.null_taus(settings.num_sequences, config.width)
  for group, related, base, suspect in tqdm(todo, unit='pair', desc='pairs'):
    if (base, suspect) not in done:
      results.add({'group': group, 'related': related, 'base': base, 'suspect': suspect,
                   'qkv_bias': fingerprints.config_of(take(base)).qkv_bias,
                   **compare(take(base), take(suspect), null)})
  summary = [summarize(fields, rows) for fields, rows in grouped(results.rows, 'group', 'related', 'qkv_bias')]
  results.finish(summary, display, draw(results.rows))


def pairs(settings) -> list[tuple[str, bool, str, str]]:
  """(table, whether related, base, suspect)."""
  others = study.with_others(settings.seeds)
  runs = {seed: study.run_of(settings, 'english', seed) for seed in settings.seeds}
  initial, trained = {seed: f'{run}@0' for seed, run in runs.items()}, {seed: str(run) for seed, run in runs.items()}
  continued = {seed: str(run) for seed in settings.seeds
               if checkpoint.steps(run := study.run_of(settings, 'python', seed))}
  found = [('a', False, initial[a], initial[b]) for a, b in others]
  found += [('b', True, initial[a], f'{runs[a]}@{step}') for a in settings.seeds
            for step in checkpoint.steps(runs[a])[1:]]
  found += [('b', True, initial[a], continued[a]) for a in continued]
  found += [('c', False, initial[a], trained[b]) for a, b in others]
  found += [('d', False, trained[a], trained[b]) for i, a in enumerate(settings.seeds) for b in settings.seeds[:i]]
  found += [('d', False, continued[a], trained[b]) for a, b in others if a in continued]
  return found + [('d', True, trained[a], continued[a]) for a in continued]


def compare(base, suspect, null) -> dict:
  report, result = verdict.compare(base, suspect)
  known = published.published_test(base.hidden_ND, suspect.hidden_ND, null=null)
  return {'verdict': report['verdict'], 'statistic': result.statistic, 'z': result.z, 'log10_p': result.log10_p,
          'published_t': known.p_value, 'published_u': known.p_value_u, **subsets(base, suspect)}


def subsets(base, suspect) -> dict[str, float]:
  """The ablation: z of the calibrated test on k of the base's dimensions, chosen in three ways."""
  answers = base.hidden_ND, suspect.hidden_ND
  if verdict.input_is_shared(base, suspect):
    answers = seedprint.without_shared_input(*answers, base.input_ND)
  matrix_DD = np.asarray(seedprint.correlations(*answers))
  order_D, k = np.argsort(base.hidden_ND.mean(axis=0)), published.default_k(len(matrix_DD))
  chosen = {'lowest': order_D[:k], 'highest': order_D[-k:], 'random': np.random.default_rng(0).permutation(order_D)[:k]}
  return {f'z_{name}': seedprint.permutation_test(matrix_DD[np.ix_(index_K, index_K)], 99).z
          for name, index_K in chosen.items()}


def summarize(fields, rows) -> dict:
  z, t = np.array([row['z'] for row in rows]), np.array([row['published_t'] for row in rows], float)
  found = np.array([row['log10_p'] for row in rows]) <= np.log10(verdict.ALPHA)
  return {**fields, 'pairs': len(rows),
          'z_lowest': float(z.min()), 'z_mean': float(z.mean()), 'z_highest': float(z.max()),
          'misjudged': int(np.sum(found != fields['related'])), 'published_t_lowest': float(np.nanmin(t)),
          'published_t_highest': float(np.nanmax(t)),
          'published_misjudged': int(np.sum((t <= 0.01) != fields['related'])),
          'weakest_log10_p': max(row['log10_p'] for row in rows),
          **{f'mean_z_{name}': float(np.mean([row[f'z_{name}'] for row in rows])) for name in SUBSETS}}


def display(row):
  return {'table': row['group'], 'truth': 'related' if row['related'] else 'unrelated', 'pairs': str(row['pairs']),
          'z (lowest, mean, highest)': f'{row["z_lowest"]:.1f}, {row["z_mean"]:.1f}, {row["z_highest"]:.1f}',
          'largest p': p_value_text(row['weakest_log10_p']), 'misjudged': str(row['misjudged']),
          'published test, p of t': f'{row["published_t_lowest"]:.2g}–{row["published_t_highest"]:.2g}',
          'it misjudges': str(row['published_misjudged']),
          'in the paper': PUBLISHED.get((row['qkv_bias'], row['group']), '–'),
          'mean z of low / high / random k': ' / '.join(f'{row[f"mean_z_{name}"]:.1f}' for name in SUBSETS)}


def draw(rows):
  """z of every pair by table, and its published p-value."""
  with plotting.style():
    figure = plotting.figure(8, 3.2)
    left, right = figure.subplots(1, 2)
    groups = [(fields, own) for fields, own in grouped(rows, 'group', 'related')]
    jitter = np.random.default_rng(0)
    for i, (fields, own) in enumerate(groups):
      x = i + jitter.uniform(-0.2, 0.2, len(own))
      color = plotting.COLORS[1 if fields['related'] else 0]
      left.plot(x, [row['z'] for row in own], 'o', markersize=4, alpha=0.7, color=color)
      p_value = [1 if row['published_t'] is None else max(row['published_t'], 1e-12) for row in own]
      right.plot(x, p_value, 'o', markersize=4, alpha=0.7, color=color)
    left.axhline(stats.norm.isf(verdict.ALPHA), color='black', linestyle='--', linewidth=1)
    left.set(yscale='symlog', ylim=(-5, 200), ylabel='z, calibrated',
             title=f'calibrated test (dashed: p = {verdict.ALPHA:g})')
    right.axhline(0.01, color='black', linestyle='--', linewidth=1)
    right.set(yscale='log', ylabel='p-value of the t-test', title='published test (dashed: p = .01)')
    for ax in (left, right):
      ax.set_xticks(range(len(groups)), [f'{fields["group"]}\n{"related" if fields["related"] else "unrelated"}'
                                         for fields, _ in groups])
  return figure


if __name__ == '__main__':
  command_line.run(main, 'seedprint_tables', SCALES, __doc__, TABLES_KINDS)
