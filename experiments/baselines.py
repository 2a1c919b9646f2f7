"""SeedPrint against the other fingerprints on networks of known lineage (Tables 5, 6, 8 and 12).

    python -m experiments.baselines --study=results/training_study_laptop

Reads the checkpoints of experiments.training_study; every method compares
  8   each initialization with what was trained from it (related),
  5   each trained network with its continuation on Python (related),
  6   each network in the middle of training with itself at the end (related),
  4a  initializations of different seeds (unrelated),
  4d  trained networks of different seeds, same data and order (unrelated).
A pair is judged twice: as published (the same above .8, or p < .01), and by the
method's own p-value of at most .01 or, where it has none, by the rank of its
score among those of the base with --references fresh networks. That rank is no
level for trained networks, which are more alike than random ones; 4d shows by
how much, and experiments.robustness compares methods at one rate. What each method
compares stands in experiments/README.md.

Writes results.json (a row a method and pair) and figure.png (scores by table).
"""

import functools
import itertools

import numpy as np
from tqdm import tqdm

from bornbiased_jax import plotting
from bornbiased_jax.lineage import methods, networks
from bornbiased_jax.lineage.methods import METHODS, Subject
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import checkpoint
from experiments import command_line, study
from experiments.command_line import whole
from experiments.results import Results, grouped

LEVEL = 0.01

BASELINES_KINDS = study.STUDY_KINDS | {
    'references': (whole, 'fresh random networks, among which methods without a p-value rank a score; a p-value of '
                          '.01 needs 99'),
}
_LAPTOP = dict(study='none', seeds='42-51', num_sequences='1000', length='32', probe_seed='0',
               methods=','.join(name for name in METHODS if name != 'SeedPrint logits'), references='99')
SCALES = {'smoke': _LAPTOP | dict(seeds='42,43', num_sequences='300', length='4', references='3'), 'laptop': _LAPTOP,
          'paper': _LAPTOP | dict(seeds='42,123,1000,2000', num_sequences='10000', length='1024')}


def main(settings, output_dir):
  todo = pairs(settings)
  study.check_num_sequences(settings, networks.load_config(todo[0][2]))
  results = Results(output_dir, 'baselines', settings)
  done = {(row['table'], row['method'], row['base'], row['suspect']) for row in results.rows}
  take = functools.cache(lambda name: study.subject(*networks.load(name)[:2], settings))
  fresh = functools.cache(lambda config: fresh_networks(config, settings))
  null = functools.cache(lambda method, base: methods.reference_scores(method, take(base), fresh(take(base).config)))
  for table, related, base, suspect in tqdm(todo, desc='pairs', unit='pair'):
    for method in settings.methods:
      if (table, method, base, suspect) not in done:
        score = study.compare(method, take(base), take(suspect))
        results.add({'table': table, 'related': related, 'method': method, 'base': base, 'suspect': suspect}
                    | judge(method, score, functools.partial(null, method, base)))
  summary = [summarize(fields, rows) for fields, rows in grouped(results.rows, 'table', 'related', 'method')]
  results.finish(summary, display, draw(results.rows, settings))


def pairs(settings) -> list[tuple[str, bool, str, str]]:
  """(table, whether related, base, suspect)."""
  runs = {seed: study.run_of(settings, 'english', seed) for seed in settings.seeds}
  middle = {seed: halfway(checkpoint.steps(run)) for seed, run in runs.items()}
  python = {seed: study.run_of(settings, 'python', seed) for seed in settings.seeds}
  found = [('8', True, f'{run}@0', str(run)) for run in runs.values()]
  found += [('5', True, str(runs[seed]), str(run)) for seed, run in python.items() if checkpoint.steps(run)]
  found += [('6', True, f'{run}@{middle[seed]}', str(run)) for seed, run in runs.items()]
  for a, b in itertools.combinations(runs.values(), 2):
    found += [('4a', False, f'{a}@0', f'{b}@0'), ('4d', False, str(a), str(b))]
  return found


def halfway(steps: list[int]) -> int:
  return min(steps, key=lambda step: abs(step - steps[-1] / 2))


def fresh_networks(config, settings) -> list[Subject]:
  return [study.subject(config, init_params(config, methods.FIRST_REFERENCE + i), settings)
          for i in range(settings.references)]


def judge(method, score, null) -> dict:
  if score.score is None:
    return {'score': None, 'p_value': None, 'same_as_published': None, 'same': None}
  p_value = methods.rank_p_value(score.score, null()) if score.log10_p is None else 10**score.log10_p
  return {'score': score.score, 'p_value': p_value, 'same_as_published': methods.published_verdict(method, score),
          'same': p_value <= LEVEL}


def summarize(fields, rows) -> dict:
  rows = [row for row in rows if row['score'] is not None]
  if not rows:
    return {**fields, 'pairs': 0}
  scores = np.array([row['score'] for row in rows])
  return {**fields, 'pairs': len(rows), 'score_lowest': scores.min(), 'score_mean': scores.mean(),
          'score_highest': scores.max(), 'same_as_published': np.mean([row['same_as_published'] for row in rows]),
          'same': np.mean([row['same'] for row in rows])}


def display(row):
  known = row['pairs'] > 0
  return {'table': row['table'], 'truth': 'related' if row['related'] else 'unrelated', 'method': row['method'],
          'pairs': str(row['pairs']), 'score (lowest, mean, highest)':
          f'{row["score_lowest"]:.3g}, {row["score_mean"]:.3g}, {row["score_highest"]:.3g}' if known else '–',
          'the same, as published': f'{row["same_as_published"]:.0%}' if known else '–',
          'p ≤ .01, or above all fresh': f'{row["same"]:.0%}' if known else '–'}


def draw(rows, settings):
  """A panel a method: the score of every pair by table."""
  tables = list(dict.fromkeys((row['table'], row['related']) for row in rows))
  jitter = np.random.default_rng(0)
  with plotting.style():
    columns = 4
    figure = plotting.figure(12, 2.4 * -(-len(settings.methods) // columns))
    panels = figure.subplots(-(-len(settings.methods) // columns), columns, squeeze=False).ravel()
    for ax in panels[len(settings.methods):]:
      ax.set_axis_off()
    for ax, method in zip(panels, settings.methods, strict=False):
      for i, (name, related) in enumerate(tables):
        scores = [row['score'] for row in rows if (row['table'], row['method']) == (name, method)
                  and row['score'] is not None]
        ax.plot(i + jitter.uniform(-0.2, 0.2, len(scores)), scores, 'o', markersize=3, alpha=0.7,
                color=plotting.COLORS[1 if related else 0])
      if limit := METHODS[method].threshold:
        ax.axhline(limit, color='black', linestyle='--', linewidth=1)
      else:
        ax.set_yscale('symlog', linthresh=3)
      ax.set_xticks(range(len(tables)), [f'{name}\n{"related" if related else "unrel."}' for name, related in tables],
                    fontsize='x-small')
      ax.set(title=method, ylabel=METHODS[method].unit)
  return figure


if __name__ == '__main__':
  command_line.run(main, 'baselines', SCALES, __doc__, BASELINES_KINDS)
