"""What does it take to fool a fingerprint, and whom does it accuse? Methods x alterations, at one false-positive rate.

    python -m experiments.robustness                                         # random networks
    python -m experiments.robustness --study=results/training_study_laptop   # trained ones

Each network is altered in every way of bornbiased_jax.alterations and compared,
by every method, with the original (related) and with the other networks
(unrelated). A method's threshold is the score that --false_positive_rate of all
its unrelated pairs exceed, whatever was done to the second: so methods can be
compared that have p-values and that have none. S networks make S (S - 1) / 2
pairs an alteration, which share networks: a rate of 1 % is a rough one. With
--study also each initialization with what was trained from it, and each trained
network with its continuation on other text. Alterations that the architecture
does not allow are left out. What each method compares and each alteration does
stands in experiments/README.md.

Writes results.json (a row an alteration: all scores, the change of the logits)
and figure.png (share of altered networks found, and of unrelated ones accused at
that threshold and by the method's own p-value). Started again, it goes on where it was.
"""

import jax
import numpy as np
from tqdm import tqdm

from bornbiased_jax import configs, plotting
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alterations, networks
from bornbiased_jax.lineage.methods import METHODS, Subject
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import checkpoint
from experiments import command_line, study
from experiments.command_line import KINDS, choice, listed, number, optional
from experiments.results import Results

P_LEVEL = 0.01


def rate(text: str) -> float:
  if not 0 < (value := number(text)) < 1:
    raise InputError(f'{text!r} is not a rate between 0 and 1')
  return value


ALTERATIONS = (*alterations.PRESERVING, *alterations.DAMAGING)
ROBUSTNESS_KINDS = study.STUDY_KINDS | {
    'study': (optional(str), 'folder of experiments.training_study, whose trained networks are altered'),
    'config': (KINDS['config'][0], 'model of the random networks; not read with --study'),
    'alterations': (listed(choice(*ALTERATIONS)), f'what is done to networks, of {", ".join(ALTERATIONS)}'),
    'false_positive_rate': (rate, "share of unrelated pairs that a method's threshold accuses"),
}
_LAPTOP = dict(study='none', config='tiny_llama2', seeds='42-46', num_sequences='1000', length='16', probe_seed='0',
               alterations=','.join(ALTERATIONS), methods=','.join(METHODS), false_positive_rate='0.01')
SCALES = {
    'smoke': _LAPTOP | dict(seeds='42-44', num_sequences='300', length='4', alterations='permute units,quantize',
                            methods='SeedPrint,MLP units,Intrinsic'),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(config='nano_llama2', num_sequences='4000', length='64'),
}


def main(settings, output_dir):
  if len(settings.seeds) < 3:
    raise InputError('--seeds: at least three networks are needed')
  if len(settings.config) > 1:
    raise InputError('--config: one architecture at a time')
  originals = load(settings, '') if settings.study else random_networks(settings)
  study.check_num_sequences(settings, originals[settings.seeds[0]].config)
  results = Results(output_dir, 'robustness', settings)
  done = {(row['alteration'], row['strength']) for row in results.rows}
  todo = [suspects for suspects in alterations_of(settings, originals) if suspects[:2] not in done]
  for name, strength, make in tqdm(todo, desc='alterations', unit='alteration'):
    results.add({'alteration': name, 'strength': strength} | measure(*make(), settings.methods))
  summary = summarize(results.rows, settings)
  results.finish(summary, display, draw(summary, settings))


def random_networks(settings) -> dict[int, Subject]:
  config = configs.get(settings.config[0])
  return {seed: study.subject(config, init_params(config, seed), settings) for seed in settings.seeds}


def load(settings, step, phase='english') -> dict[int, Subject]:
  """Networks of the study by seed, as they are at a step ('@0') or, '', at the last; those that are there."""
  runs = {seed: study.run_of(settings, phase, seed) for seed in settings.seeds}
  return {seed: study.subject(*networks.load(f'{run}{step}')[:2], settings) for seed, run in runs.items()
          if checkpoint.steps(run)}


def alterations_of(settings, originals):
  """(name, strength, function that makes originals and suspects by seed) of each row."""
  def altered(change, *strength):
    return lambda: (originals, {seed: study.subject(*change(*network.pair, jax.random.key(seed), *strength),
                                                    settings) for seed, network in originals.items()})

  def allowed(change):
    try:
      jax.eval_shape(lambda key: change(*next(iter(originals.values())).pair, key)[1], jax.random.key(0))
      return True
    except InputError:
      return False

  yield 'none', None, lambda: (originals, originals)
  for name in settings.alterations:
    if name in alterations.DAMAGING:
      change, strengths = alterations.DAMAGING[name]
      for strength in strengths:
        yield name, strength, altered(change, strength)
    elif allowed(alterations.PRESERVING[name]):
      yield name, None, altered(alterations.PRESERVING[name])
  if settings.study:
    yield 'train from init', None, lambda: (load(settings, '@0'), originals)
    if python := load(settings, '', 'python'):
      yield 'train on Python', None, lambda: (originals, python)


def measure(originals, suspects, methods) -> dict:
  """All scores: of each suspect with its original, and with the originals before it in the order of seeds."""
  related = [(originals[seed], suspect) for seed, suspect in suspects.items()]
  unrelated = [(other, suspect) for seed, suspect in suspects.items() for other_seed, other in originals.items()
               if other_seed < seed]
  row = {'logit_change': float(np.mean([logit_change(*pair) for pair in related]))}
  for method in methods:
    for kind, pairs in (('related', related), ('unrelated', unrelated)):
      scores = [study.compare(method, *pair) for pair in tqdm(pairs, desc=method, unit='pair', leave=False)]
      row[f'{method}, {kind}'] = [score.score for score in scores]
      row[f'{method}, {kind} log10 p'] = [score.log10_p for score in scores]
  return row


def logit_change(base, suspect) -> float:
  """Largest change of a logit, over the largest logit."""
  before, after = base.logits.hidden_ND, suspect.logits.hidden_ND
  return float(np.abs(after - before).max() / np.abs(before).max())


def threshold(rows, method, false_positive_rate) -> float:
  """Scores that an alteration left as they were count once."""
  scores = {score for row in rows for score in row[f'{method}, unrelated'] if score is not None}
  return float(np.quantile(list(scores), 1 - false_positive_rate, method='higher')) if scores else np.inf


def summarize(rows, settings) -> list[dict]:
  """Of each alteration: the share of altered networks that each method finds at its threshold."""
  limits = {method: threshold(rows, method, settings.false_positive_rate) for method in settings.methods}
  return [{'alteration': row['alteration'], 'strength': row['strength'], 'logit_change': row['logit_change'],
           'thresholds': limits,
           **{name: {method: share(row[f'{method}, {kind}'], lambda score, limit=limit: score > limit)
                     for method, limit in limits.items()}
              for name, kind in (('found', 'related'), ('accused', 'unrelated'))},
           'accused_at_p_01': {method: share(row[f'{method}, unrelated log10 p'], lambda p: p < np.log10(P_LEVEL))
                               for method in settings.methods}} for row in rows]


def share(values, test) -> float | None:
  """None where the method cannot compare, or has no p-values."""
  known = [value for value in values if value is not None]
  return float(np.mean([test(value) for value in known])) if known else None


def label(row) -> str:
  return row['alteration'] + ('' if row['strength'] is None else f' {row["strength"]:g}')


def display(row):
  shown = lambda value: '–' if value is None else f'{value:.0%}'
  return {'alteration': label(row), 'largest change of a logit, of the largest': f'{row["logit_change"]:.1g}',
          **{method: shown(found) for method, found in row['found'].items()}}


def draw(summary, settings):
  """Shares of related pairs found at a method's threshold, of unrelated ones accused at it, and of those by own p."""
  with plotting.style():
    figure = plotting.figure(17, 2.2 + 0.24 * len(summary))
    with_p = [method for method in settings.methods if any(row['accused_at_p_01'][method] is not None
                                                           for row in summary)]
    found, accused, by_p = figure.subplots(1, 3, sharey=True, width_ratios=(
        len(settings.methods), len(settings.methods), max(1, len(with_p))))
    heat(found, [row['found'] for row in summary], settings.methods, 'Greens', 1.0,
         f'related pairs found (thresholds: {settings.false_positive_rate:.0%} of unrelated pairs)')
    heat(accused, [row['accused'] for row in summary], settings.methods, 'Reds', 0.2,
         'unrelated pairs accused at that threshold')
    heat(by_p, [row['accused_at_p_01'] for row in summary], with_p, 'Reds', 0.2, 'and by own p < .01')
    found.set_yticks(range(len(summary)), [label(row) for row in summary])
  return figure


def heat(ax, cells, methods, colors, largest, title):
  """A share a cell, in percent; grey where there is none."""
  shares = np.array([[np.nan if row[method] is None else row[method] for method in methods] for row in cells])
  ax.set_facecolor('#dddddd')
  ax.imshow(shares, cmap=colors, vmin=0, vmax=largest, aspect='auto')
  for (i, j), value in np.ndenumerate(shares):
    ax.text(j, i, '–' if np.isnan(value) else f'{100 * value:.0f}', ha='center', va='center', fontsize='x-small',
            color='white' if value > 0.6 * largest else 'black')
  ax.set_xticks(range(len(methods)), methods, rotation=35, ha='right')
  ax.grid(False)
  ax.set_title(title, fontsize='medium')


if __name__ == '__main__':
  command_line.run(main, 'robustness', SCALES, __doc__, ROBUSTNESS_KINDS)
