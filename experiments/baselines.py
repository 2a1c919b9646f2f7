"""SeedPrint and other fingerprints, on known lineages (Tables 5, 6, 8 and 12).

    python -m experiments.baselines --study=results/training_study_laptop

Reads the checkpoints of experiments.training_study. Every method compares
  8   each initialization with its trained network (related),
  m   each network in the middle of training with itself at the end (related),
  5   each trained network with its continuation on another text (related),
  6   each network that was continued with its descendants, continued, pruned, quantized and merged
      (related), and with five others, first those that went on with the same texts (unrelated),
  4a  initializations of different seeds (unrelated),
  4d  trained networks of different seeds, same data and order (unrelated).

A pair is judged as published (the same network if the score is above 0.8, or p < 0.01), and by a
p-value of at most 0.01: the method's own or, if it has none, the rank of the score among the scores
of the base with --references fresh networks. For trained networks, which are more alike than random
ones, that rank is not a level; experiments.robustness compares methods at one rate. For methods by
which models were publicly called related, the share of pairs that reach the published score is
listed too.

Writes results.json (a row per method and pair) and figure.png (scores by table).
"""

import functools
import itertools

import jax
import numpy as np

from bornbiased_jax import configs, lineage, plotting, storage
from bornbiased_jax.fields import whole
from bornbiased_jax.lineage import METHODS, Subject
from bornbiased_jax.lineage.baselines import methods
from bornbiased_jax.models import init_params
from bornbiased_jax.storage import checkpoint

from .shared import networks, program
from .shared.base_settings import Inputs
from .shared.settings import setting
from .shared.tables import grouped
from .transforms.lossy import DAMAGING

LEVEL = 0.01
COLUMNS = 3
CAPTION = ('Scores of pairs. Orange: related; blue: unrelated. Dashed: the published threshold, '
           'where there is one.\nOther axes are linear up to 5, then logarithmic')
# What a table compares, by its name and whether its pairs are related.
COMPARED = {('8', True): 'start, end', ('m', True): 'middle, end', ('5', True): 'continued',
            ('6', True): 'descendants', ('6', False): 'others', ('4a', False): 'two starts',
            ('4d', False): 'two ends'}
# What is done to a trained network for Table 6, and how strongly. Merged is an average with a
# random network, so that nobody else among those compared is an ancestor.
CHANGED = {'prune': 0.5, 'quantize': 4, 'average': 0.3}
NUM_OTHERS = 5
AND = ', then '


class Settings(Inputs):
  study: str | None = setting(None)
  seeds: list[int] = setting(range(42, 52), smoke=[42, 43], paper=[42, 123, 1000, 2000])
  methods: list[str] = setting([name for name in METHODS if name != 'SeedPrint logits'])
  references: int = setting(99, whole, 'fresh random networks, among whose scores the score of a '
                            'method without a p-value are ranked; a p-value of 0.01 needs 99',
                            smoke=3)
  statements: str = setting('tinyshakespeare', str,
                            'text whose passages REEF reads, in a form that pretrain takes')
  statement_length: int = setting(64, whole, 'tokens of each of these 200 passages', smoke=8)
  tokenizer: str = setting('bytes')
  num_sequences: int = setting(1000, smoke=300, paper=10_000)
  length: int = setting(32, smoke=4, paper=1024)


def main(settings, results):
  if not results.is_measured:
    measure(settings, results)
  summary = [summarize(fields, group)
             for fields, group in grouped(results.rows, 'table', 'related', 'method')]
  results.finish(summary, display, lambda: draw(results.rows, settings))


def measure(settings, results) -> None:
  todo = pairs(settings)
  config = storage.open(todo[0][2]).config
  networks.check_sequences(settings, config)
  statements = networks.passages(settings.statements, settings.tokenizer,
                                 settings.statement_length, config)
  take = functools.cache(lambda name: networks.subject(*load(name), settings, statements))
  fresh = functools.cache(lambda config: fresh_networks(config, settings, statements))
  null = functools.cache(lambda method, base: methods.reference_scores(
      method, take(base), fresh(take(base).config)))
  for row in results.missing(({'table': table, 'related': related, 'method': method, 'base': base,
                               'suspect': suspect} for table, related, base, suspect in todo
                              for method in settings.methods), 'score'):
    method, base = row['method'], row['base']
    score = networks.compare(method, take(base), take(row['suspect']))
    results.add(row | judge(method, score, functools.partial(null, method, base)))
  # Others are of checkpoints that were the latest when the run was begun.
  results.rows[:] = [row for row in results.rows if (
      row['table'], row['related'], row['base'], row['suspect']) in todo]


def pairs(settings) -> list[tuple[str, bool, str, str]]:
  """(table, whether related, base, suspect)."""
  runs = {seed: networks.run_of(settings, 'english', seed) for seed in settings.seeds}
  halfway = lambda steps: min(steps, key=lambda step: abs(step - steps[-1] / 2))
  middle = {seed: halfway(checkpoint.steps(run)) for seed, run in runs.items()}
  last = {seed: networks.latest(run) for seed, run in runs.items()}
  found = [('8', True, f'{run}@0', last[seed]) for seed, run in runs.items()]
  found += [('m', True, f'{run}@{middle[seed]}', last[seed]) for seed, run in runs.items()]
  continued = [(last[seed], networks.latest(run))
               for (_, seed), run in networks.continued(settings).items()]
  found += [('5', True, *pair) for pair in continued]
  found += [('6', True, *pair) for pair in continued]
  for base in dict.fromkeys(base for base, _ in continued):
    found += [('6', True, base, f'{base}{AND}{change}') for change in CHANGED]
    others = ([name for parent, name in continued if parent != base]
              + [name for name in last.values() if name != base])
    found += [('6', False, base, other) for other in others[:NUM_OTHERS]]
  for a, b in itertools.combinations(runs, 2):
    found += [('4a', False, f'{runs[a]}@0', f'{runs[b]}@0'), ('4d', False, last[a], last[b])]
  return found


def load(name: str) -> tuple[configs.ModelConfig, dict]:
  """A network by its name, to which `AND` and a transform may be appended."""
  original, _, change = name.rpartition(AND)
  if change not in CHANGED:
    return storage.open(name).load()
  transform, _ = DAMAGING[change]
  return transform(*storage.open(original).load(), jax.random.key(0), CHANGED[change])


def fresh_networks(config, settings, statements) -> list[Subject]:
  seeds = (methods.FIRST_REFERENCE + i for i in range(settings.references))
  return [networks.subject(config, init_params(config, seed), settings, statements)
          for seed in seeds]


def judge(method, score, null) -> dict:
  if score.score is None:
    return {'score': None, 'p_value': None, 'same_as_published': None, 'same': None}
  if score.log10_p is not None:
    p_value, level = 10**score.log10_p, LEVEL
  else:
    p_value = methods.rank_p_value(score.score, null())
    level = max(LEVEL, 1 / (len(null()) + 1))  # Above all fresh networks, if they are few.
  return {'score': score.score, 'p_value': p_value,
          'same_as_published': methods.published_verdict(method, score), 'same': p_value <= level}


def summarize(fields, rows) -> dict:
  rows = [row for row in rows if row['score'] is not None]
  if not rows:
    return {**fields, 'pairs': 0}
  scores = np.array([row['score'] for row in rows])
  return {**fields, 'pairs': len(rows), 'score_lowest': scores.min(), 'score_mean': scores.mean(),
          'score_highest': scores.max(),
          'same_as_published': np.mean([row['same_as_published'] for row in rows]),
          'same': np.mean([row['same'] for row in rows]),
          'at_disputed': {f'{limit:g}': np.mean(scores >= limit)
                          for limit in METHODS[fields['method']].disputed}}


def display(row):
  scores = same_as_published = same = '–'
  if row['pairs']:
    names = ('score_lowest', 'score_mean', 'score_highest')
    scores = ', '.join(f'{row[name]:.3g}' for name in names)
    same_as_published, same = f'{row["same_as_published"]:.0%}', f'{row["same"]:.0%}'
  # Summaries of earlier versions lack the shares at disputed scores.
  at_disputed = [f'{share:.0%} at {limit}' for limit, share in row.get('at_disputed', {}).items()]
  return {'table': row['table'], 'truth': 'related' if row['related'] else 'unrelated',
          'method': row['method'], 'pairs': row['pairs'],
          'score (lowest, mean, highest)': scores, 'the same, as published': same_as_published,
          f'p ≤ {LEVEL:g}, or above all fresh': same,
          'at least as high as in a public dispute': ', '.join(at_disputed) or '–'}


def draw(rows, settings):
  """A panel per method: the score of every pair by table."""
  lines = -(-len(settings.methods) // COLUMNS)
  jitter = np.random.default_rng(0)
  figure = plotting.figure(10, 1.2 + 1.9 * lines)
  panels = figure.subplots(lines, COLUMNS, sharex=True, squeeze=False).ravel()
  for ax in panels[len(settings.methods):]:
    ax.set_axis_off()
  for ax in panels[max(0, len(settings.methods) - COLUMNS):]:
    ax.tick_params(labelbottom=True)
  for ax, method in zip(panels, settings.methods, strict=False):
    draw_scores(ax, method, rows, jitter)
  figure.suptitle(CAPTION, fontsize='medium')
  return figure


def draw_scores(ax, method, rows, jitter):
  tables = list(dict.fromkeys((row['table'], row['related']) for row in rows))
  for i, (name, related) in enumerate(tables):
    scores = [row['score'] for row in rows if row['score'] is not None
              and (row['table'], row['related'], row['method']) == (name, related, method)]
    ax.plot(i + jitter.uniform(-0.2, 0.2, len(scores)), scores, 'o', markersize=3, alpha=0.7,
            color=plotting.COLORS[1 if related else 0])
  if limit := lineage.METHODS[method].threshold:
    ax.axhline(limit, color='black', linestyle='--', linewidth=1)
  else:
    plotting.z_axis(ax.yaxis, (-5, 0, 5, 50) if lineage.METHODS[method].unit == 'z' else (0, 5, 50))
  ax.set_xticks(range(len(tables)), [COMPARED[table] for table in tables], rotation=90)
  ax.set(title=method, ylabel=lineage.METHODS[method].unit)


if __name__ == '__main__':
  program.measure(main, 'baselines', Settings, __doc__)
