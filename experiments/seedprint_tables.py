"""Does SeedPrint tell related pairs from unrelated ones (Tables 4 and 9 to 11)?

    python -m experiments.seedprint_tables --study=results/training_study_laptop

Reads the checkpoints of experiments.training_study and compares, with the calibrated and with the
published tests,
  a  initializations of different seeds (unrelated),
  b  each initialization with its own trained network, also if it went on with another text
     (related),
  c  each initialization with the trained network of another seed (unrelated),
  d  trained networks of different seeds (unrelated), also if each went on with a text of its own,
     and networks that went on from one (related),
  e  a trained network and one of another seed that went on with another text, and two of different
     seeds that went on with the same text (unrelated),
and, for the ablation, the lowest k, highest k and k random dimensions. A pair is misjudged by the
calibrated test at 1e-4, by a published one at 0.01.

Writes results.json (a row per pair) and figure.png: z and p by table, and tau over dimensions
(Fig 13). Hidden states are kept in OUTPUT_DIR/hidden_states.
"""

import functools
import itertools
from pathlib import Path

from matplotlib.ticker import MaxNLocator
import numpy as np
import scipy

from bornbiased_jax import plotting, storage
from bornbiased_jax.analysis.statistics import p_value_text
from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.baselines import published
from bornbiased_jax.lineage.comparison import seedprint
from bornbiased_jax.lineage.comparison.permutation import diagonal_moments
from bornbiased_jax.lineage.evidence.hidden_states import input_is_shared
from bornbiased_jax.storage import checkpoint

from .shared import networks, program
from .shared.base_settings import SharedInputs
from .shared.settings import setting
from .shared.tables import grouped


class Settings(SharedInputs):
  study: str | None = setting(None)
  seeds: list[int] = setting(range(42, 52), smoke=[42, 43], paper=[42, 123, 1000, 2000])
  probe: str = setting('tokens', paper='gaussian')
  num_sequences: int = setting(2000, smoke=300, paper=10_000)
  length: int = setting(64, smoke=4, paper=1024)


SUBSETS = ('lowest', 'highest', 'random')
PUBLISHED_LEVEL = 0.01
# How the figure calls the pairs of a group, by whether they are related.
PAIRS = {('a', False): 'two\ninits', ('b', True): 'init,\nits own',
         ('c', False): "init,\nanother's", ('d', False): 'two\ntrained',
         ('d', True): 'trained,\nits own', ('e', False): "trained,\nanother's"}
# p of the paper's t-tests and U tests, for networks without and with biases on query, key and
# value (LLaMA, Qwen).
PUBLISHED = {
    (False, 'a'): ('0.357–0.678', '0.335–0.565'),
    (False, 'b'): ('4.0e-10–5.6e-4', '1.3e-9–2.8e-3'),
    (False, 'c'): ('0.035–0.426', '0.096–0.486'),
    (True, 'a'): ('0.094–0.451', '0.074–0.529'),
    (True, 'b'): ('1.1e-24–4.4e-13', '1.9e-20–2.0e-11'),
    (True, 'c'): ('0.026–0.286', '0.040–0.254'),
}
# The published tests: the field of each, and its mark and place in the figure.
TESTS = {'t': ('t-test', 'o', -0.2), 'u': ('U test', 'x', 0.2)}


def main(settings, results):
  if not results.is_measured:  # Otherwise it is drawn again, also without the study.
    measure(settings, results)
  summary = [summarize(fields, rows)
             for fields, rows in grouped(results.rows, 'group', 'related', 'qkv_bias')]
  results.finish(summary, display, lambda: draw(results.rows, settings.num_sequences))


def measure(settings, results) -> None:
  todo = pairs(settings)
  config = storage.open(todo[0][2]).config
  networks.check_sequences(settings, config)
  probe, cache = networks.probe_of(settings), results.directory / 'hidden_states'
  take = functools.cache(lambda name: networks.take(name, probe, cache))
  null = published.null_taus(settings.num_sequences, config.width)
  names = 'group', 'related', 'base', 'suspect'
  for row in results.missing((dict(zip(names, pair, strict=True)) for pair in todo), 'pair'):
    base, suspect = take(row['base']), take(row['suspect'])
    results.add(row | {'qkv_bias': base.config.qkv_bias} | compare(base, suspect, null))


def pairs(settings) -> list[tuple[str, bool, str, str]]:
  """(table, whether related, base, suspect)."""
  others, seeds = networks.with_others(settings.seeds), settings.seeds
  runs = {seed: networks.run_of(settings, 'english', seed) for seed in seeds}
  initial = {seed: f'{run}@0' for seed, run in runs.items()}
  trained = {seed: networks.latest(run) for seed, run in runs.items()}
  continued = {key: networks.latest(run) for key, run in networks.continued(settings).items()}
  found = [('a', False, initial[a], initial[b]) for a, b in others]
  found += [('b', True, initial[a], f'{runs[a]}@{step}')
            for a in seeds for step in checkpoint.steps(runs[a])[1:]]
  found += [('b', True, initial[seed], run) for (_, seed), run in continued.items()]
  found += [('c', False, initial[a], trained[b]) for a, b in others]
  found += [('d', False, trained[a], trained[b]) for i, a in enumerate(seeds) for b in seeds[:i]]
  found += [('e', False, run, trained[b]) for a, b in others
            for (_, seed), run in continued.items() if seed == a]
  found += [('e' if one[0] == other[0] else 'd', one[1] == other[1],
             continued[one], continued[other])
            for one, other in itertools.combinations(continued, 2)]
  return found + [('d', True, trained[seed], run) for (_, seed), run in continued.items()]


def compare(base, suspect, null) -> dict:
  hidden = base.hidden_ND, suspect.hidden_ND
  shared = base.input_ND if input_is_shared(base, suspect) else None
  result = seedprint.calibrated_test(*hidden, shared)
  known = published.published_test(*hidden, null=null)
  return {'statistic': result.statistic, 'z': result.z, 'log10_p': result.log10_p,
          'published_t': known.p_value, 'published_u': known.p_value_u,
          'published_tau': np.round(known.tau_S, 4), **subsets(*hidden, shared)}


def subsets(hidden_a, hidden_b, shared_input) -> dict[str, float]:
  """The ablation: z of the calibrated test on k of the base's dimensions, chosen in three ways."""
  matrix_DD, _ = seedprint.channel_correlations(hidden_a, hidden_b, shared_input)
  order_D, k = np.argsort(hidden_a.mean(axis=0)), published.default_k(len(matrix_DD))
  chosen = {'lowest': order_D[:k], 'highest': order_D[-k:],
            'random': np.random.default_rng(0).permutation(order_D)[:k]}
  moments = {name: diagonal_moments(np.nan_to_num(matrix_DD[np.ix_(index_K, index_K)]))
             for name, index_K in chosen.items()}
  return {f'z_{name}': float((statistic - mean) / std)
          for name, (statistic, mean, std) in moments.items()}


def summarize(fields, rows) -> dict:
  z = np.array([row['z'] for row in rows])
  found = np.array([row['log10_p'] for row in rows]) <= np.log10(thresholds.ALPHA)
  return {**fields, 'pairs': len(rows),
          'z_lowest': float(z.min()), 'z_mean': float(z.mean()), 'z_highest': float(z.max()),
          'misjudged': int(np.sum(found != fields['related'])),
          **published_summary('t', fields['related'], rows),
          **published_summary('u', fields['related'], rows),
          'weakest_log10_p': max(row['log10_p'] for row in rows),
          **{f'mean_z_{name}': float(np.mean([row[f'z_{name}'] for row in rows]))
             for name in SUBSETS}}


def published_summary(test, related, rows) -> dict:
  """The range of p of one of the published tests, and how many pairs it misjudges."""
  p_value = np.array([row[f'published_{test}'] for row in rows], float)
  return {f'published_{test}_lowest': float(np.nanmin(p_value)),
          f'published_{test}_highest': float(np.nanmax(p_value)),
          f'published_{test}_misjudged': int(np.sum((p_value <= PUBLISHED_LEVEL) != related))}


def display(row):
  p_range = lambda test: (f'{row[f"published_{test}_lowest"]:.2g}–'
                          f'{row[f"published_{test}_highest"]:.2g}')
  in_paper = PUBLISHED.get((row['qkv_bias'], row['group']), ('–', '–'))
  return {
      'table': row['group'], 'truth': truth(row), 'pairs': row['pairs'],
      'z (lowest, mean, highest)':
          f'{row["z_lowest"]:.1f}, {row["z_mean"]:.1f}, {row["z_highest"]:.1f}',
      'largest p': p_value_text(row['weakest_log10_p']), 'misjudged': row['misjudged'],
      'p of t-test': p_range('t'), 'p of U test': p_range('u'),
      't and U misjudge': ', '.join(str(row[f'published_{test}_misjudged']) for test in TESTS),
      'p of t in the paper': in_paper[0], 'p of U in the paper': in_paper[1],
      'mean z of low / high / random k':
          ' / '.join(f'{row[f"mean_z_{name}"]:.1f}' for name in SUBSETS),
  }


def truth(fields) -> str:
  return 'related' if fields['related'] else 'unrelated'


def draw(rows, num_sequences):
  """z of every pair by table, p of the published tests, and tau over dimensions."""
  groups = grouped(rows, 'group', 'related')
  jitter = np.random.default_rng(0)
  figure = plotting.figure(12, 3.2)
  left, right, histogram = figure.subplots(1, 3, width_ratios=(6, 6, 5))
  for i, (fields, own) in enumerate(groups):
    x = i + jitter.uniform(-0.2, 0.2, len(own))
    look = dict(markersize=4, alpha=0.7, color=plotting.COLORS[1 if fields['related'] else 0])
    left.plot(x, [row['z'] for row in own], 'o', **look)
    for test, (_, marker, shift) in TESTS.items():
      p_value = [1 if (p := row[f'published_{test}']) is None else max(p, 1e-12) for row in own]
      right.plot(i + shift + (x - i) / 2, p_value, marker, **look)
  for label, marker, _ in TESTS.values():
    right.plot([], [], f'k{marker}', markersize=4, label=label)
  left.axhline(scipy.stats.norm.isf(thresholds.ALPHA), color='black', linestyle='--', linewidth=1)
  plotting.z_axis(left.yaxis, (-5, 0, 5, 50))
  left.set(ylim=(-5, 200), title=f'calibrated (orange: related; dashed: p = {thresholds.ALPHA:g})')
  right.axhline(PUBLISHED_LEVEL, color='black', linestyle='--', linewidth=1)
  right.set(yscale='log', ylabel='p-value, at least 1e-12',
            title=f'published tests (dashed: p = {PUBLISHED_LEVEL:g})')
  right.legend(loc=(0.45, 0.1), fontsize='small')
  for ax in (left, right):
    ax.set_xticks(range(len(groups)),
                  [PAIRS[fields['group'], fields['related']] for fields, _ in groups],
                  fontsize='small')
  draw_tau(histogram, rows, num_sequences)
  return figure


def draw_tau(ax, rows, num_sequences):
  """Fig 13: tau over the published test's dimensions, of an initialization and trained networks."""
  taus = {}
  for group, label in (('b', 'its own descendant'), ('c', "another's")):
    # Of every descendant the last checkpoint on the first text.
    last = {row['base']: row for row in rows
            if row['group'] == group and Path(row['suspect']).parent.name == 'english'}
    taus[label] = np.concatenate([row['published_tau'] for row in last.values()])
  edges = np.linspace(min(map(np.min, taus.values())), max(map(np.max, taus.values())), 26)
  for color, (label, tau) in zip(plotting.COLORS[1::-1], taus.items(), strict=True):
    ax.hist(tau, edges, density=True, color=color, alpha=0.6, label=label)
  density = scipy.stats.norm(scale=published.tau_std(num_sequences)).pdf(edges)
  plotting.theory(ax, edges, density, 'independent networks')
  ax.set(xlabel="Kendall's tau of a dimension", ylabel='density',
         title='an initialization and a last checkpoint')
  ax.margins(y=0.3)
  ax.xaxis.set_major_locator(MaxNLocator(5))
  ax.legend(fontsize='small')


if __name__ == '__main__':
  program.measure(main, 'seedprint_tables', Settings, __doc__)
