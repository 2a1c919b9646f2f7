"""What fools a fingerprint, and when is it wrong? All methods at one error rate.

    python -m experiments.robustness                                         # random networks
    python -m experiments.robustness --study=results/training_study_laptop   # trained ones
    python -m experiments.robustness --train_steps=300 --transforms='train on,rotate channels'

Each network is trained further, and changed in every way of experiments.transforms that its
architecture allows. Every method compares the changed network with its original (related) and with
the original of the next seed (unrelated). The threshold of a method is the score that a share
--false_positive_rate of all its unrelated pairs exceeds, so that methods with and without p-values
can be compared.

With --study each initialization is also compared with its trained network, and each trained network
with its continuation on other text, its fine-tunings by LoRA and by Prefix-Tuning+, and a trained
mixture of four copies of it.

Writes results.json (a row per transform: all scores, the change of the logits) and figure.png (how
many changed networks each method finds, and its false positives at that threshold and by its own
p-value).
"""

import functools

import jax
import numpy as np
from tqdm import tqdm

from bornbiased_jax import configs, plotting, storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import listed, natural, number, optional, positive
from bornbiased_jax.lineage import METHODS, Subject
from bornbiased_jax.models import init_params
from bornbiased_jax.storage import checkpoint

from .shared import networks, program
from .shared.base_settings import Inputs
from .shared.settings import preset_name, setting, some
from .small_networks.training import fine_tune, train
from .transforms.lossy import DAMAGING, MIXTURES
from .transforms.preserving import PRESERVING

P_LEVEL = 0.01


def rate(text: str) -> float:
  if not 0 < (value := number(text)) < 1:
    raise InputError(f'{text!r} is not a rate between 0 and 1')
  return value


TRANSFORMS = (*PRESERVING, *DAMAGING, *MIXTURES, 'train on')


class Settings(Inputs):
  study: str | None = setting(
      None, optional(str), 'folder of experiments.training_study, whose trained networks are '
      'changed; if not given, random networks are')
  config: list[str] = setting(['tiny_llama2'], listed(preset_name), paper=['nano_llama2'], help=(
      'model of the random networks; not read with --study'))
  train_steps: int = setting(0, natural, 'steps that the random networks are trained on '
                             'Shakespeare before anything else is done')
  peak_lr: float = setting(3e-3, positive, "learning rate of this training, and of 'train on'")
  seeds: list[int] = setting(range(42, 62), smoke=[42, 43, 44])
  methods: list[str] = setting(list(METHODS), smoke=['SeedPrint', 'MLP units', 'Intrinsic'])
  transforms: list[str] = setting(
      list(TRANSFORMS), *some(TRANSFORMS, 'changes to make to networks, comma-separated'),
      smoke=['permute units', 'quantize'])
  false_positive_rate: float = setting(
      0.01, rate, "share of unrelated pairs that exceed a method's threshold")
  num_sequences: int = setting(1000, smoke=300, paper=4000)
  length: int = setting(16, smoke=4, paper=64)


def main(settings, results):
  networks.check_seeds(settings.seeds)
  if len(settings.config) > 1:
    raise InputError('--config: one architecture at a time')
  if not results.is_measured:
    measure_all(settings, results)
  summary = summarize(results.rows, settings)
  # Of few methods a figure says no more than the table.
  is_drawn = len(settings.methods) > 2
  results.finish(summary, display, is_drawn and (lambda: draw(results.rows, settings)))


def measure_all(settings, results) -> None:
  originals = load(settings, '') if settings.study else random_networks(settings)
  networks.check_sequences(settings, originals[settings.seeds[0]].config)
  makers = {(name, strength): make for name, strength, make in transforms_of(settings, originals)}
  for row in results.missing(({'transform': name, 'strength': strength}
                              for name, strength in makers), 'transform'):
    results.add(row | measure(*makers[*row.values()](), settings.methods))


def random_networks(settings) -> dict[int, Subject]:
  config = configs.get(settings.config[0])

  def make(seed):
    params = init_params(config, seed)
    if settings.train_steps:
      params, = train(config, [params], settings.train_steps, peak_lr=settings.peak_lr)
    return networks.subject(config, params, settings)

  return {seed: make(seed) for seed in settings.seeds}


def load(settings, step, phase='english') -> dict[int, Subject]:
  """The study's networks by seed, those that are there: at a step ('@0'), or at the last ('')."""
  runs = {seed: networks.run_of(settings, phase, seed) for seed in settings.seeds}
  return {seed: networks.subject(*storage.open(f'{run}{step}').load(), settings)
          for seed, run in runs.items() if checkpoint.steps(run)}


def transforms_of(settings, originals):
  """(name, strength, function that makes originals and suspects by seed) of each row."""
  def changed(change, *strength):
    def make(seed, network):
      made = change(network.config, network.params, jax.random.key(seed), *strength)
      return networks.subject(*made, settings)

    return lambda: (originals, {seed: make(seed, network) for seed, network in originals.items()})

  yield 'none', None, lambda: (originals, originals)
  original = next(iter(originals.values()))
  without_strength = PRESERVING | MIXTURES | {
      'train on': functools.partial(fine_tune, peak_lr=settings.peak_lr)}
  for name in settings.transforms:
    if name in DAMAGING:
      change, strengths = DAMAGING[name]
      for strength in strengths:
        yield name, strength, changed(change, strength)
    elif is_allowed(without_strength[name], original):
      yield name, None, changed(without_strength[name])
  if settings.study:
    yield 'train from init', None, lambda: (load(settings, '@0'), originals)
    for name, trained in TRAININGS.items() if original.config.num_experts == 1 else ():
      yield name, None, changed(functools.partial(trained, peak_lr=settings.peak_lr))
    if python := load(settings, '', 'python'):
      yield 'train on Python', None, lambda: (originals, python)


TRAININGS = {
    'train with LoRA': functools.partial(fine_tune, adapter='lora'),
    'train with prefix_plus': functools.partial(fine_tune, adapter='prefix_plus'),
    'upcycle and train': lambda config, params, key, peak_lr: fine_tune(
        *MIXTURES['upcycle'](config, params, key), peak_lr=peak_lr)}


def is_allowed(change, network: Subject) -> bool:
  """Whether the architecture has the symmetry that a change makes use of."""
  try:
    jax.eval_shape(lambda key: change(network.config, network.params, key)[1], jax.random.key(0))
    return True
  except InputError:
    return False


def measure(originals, suspects, methods) -> dict:
  """All scores: each suspect with its original, and with the next seed's original."""
  related = [(originals[seed], suspect) for seed, suspect in suspects.items()]
  others = dict(networks.with_others(list(originals)))
  unrelated = [(originals[others[seed]], suspect) for seed, suspect in suspects.items()]
  row = {'logit_change': float(np.mean([logit_change(*pair) for pair in related]))}
  for method in methods:
    for kind, pairs in (('related', related), ('unrelated', unrelated)):
      bar = tqdm(pairs, desc=method, unit='pair', leave=False)
      scores = [networks.compare(method, *pair) for pair in bar]
      row[f'{method}, {kind}'] = [score.score for score in scores]
      row[f'{method}, {kind} log10 p'] = [score.log10_p for score in scores]
  return row


def logit_change(base, suspect) -> float:
  """Largest change of a logit, over the largest logit."""
  change = np.abs(suspect.logits - base.logits)
  return float(change.max() / np.abs(base.logits).max())


def thresholds(rows, settings) -> dict[str, float]:
  """By method, the score that a share of unrelated pairs exceeds; equal scores count once.

  They come from transforms that leave what a method compares as it was.
  """
  distinct = {method: {score for row in rows for score in row[f'{method}, unrelated']} - {None}
              for method in settings.methods}
  return {method: float(np.quantile(list(scores), 1 - settings.false_positive_rate,
                                    method='higher')) if scores else np.inf
          for method, scores in distinct.items()}


def summarize(rows, settings) -> list[dict]:
  """A row per transform: the shares of related pairs that each method finds, and of others."""
  limits = thresholds(rows, settings)
  return [{'transform': row['transform'], 'strength': row['strength'],
           'logit_change': row['logit_change'], 'thresholds': limits,
           'found': above([row], 'related', limits),
           'false_positives': above([row], 'unrelated', limits),
           'false_positives_at_p_01': below_level([row], settings.methods)} for row in rows]


def above(rows, kind, limits) -> dict[str, float | None]:
  """By method, the share of pairs whose score exceeds the threshold; None if it can compare none.

  Transforms after which it can compare no pair are left out.
  """
  compared = lambda row, method: {*row[f'{method}, related'], *row[f'{method}, unrelated']} - {None}
  return {method: share([score is not None and score > limit for row in rows
                         if compared(row, method) for score in row[f'{method}, {kind}']])
          for method, limit in limits.items()}


def below_level(rows, methods) -> dict[str, float | None]:
  """By method, the share of unrelated pairs whose own p-value, if any, is below P_LEVEL."""
  return {method: share([log10_p < np.log10(P_LEVEL) for row in rows
                         for log10_p in row[f'{method}, unrelated log10 p'] if log10_p is not None])
          for method in methods}


def share(are_so: list[bool]) -> float | None:
  return float(np.mean(are_so)) if are_so else None


def label(row) -> str:
  return row['transform'] + ('' if row['strength'] is None else f' {row["strength"]:g}')


def display(row):
  shown = lambda value: '–' if value is None else f'{value:.0%}'
  change = f'{row["logit_change"]:.1g}'
  return {'transform': label(row), 'largest change of a logit, of the largest': change,
          **{method: shown(found) for method, found in row['found'].items()}}


def draw(rows, settings):
  """Above: the false positives of each method. Below: the changed networks that it finds."""
  limits = thresholds(rows, settings)
  height = 0.2 * len(rows)
  figure = plotting.figure(8.5, height + 3.4)
  false, found = figure.subplots(2, 1, sharex=True, height_ratios=(1.4, height))
  draw_false(false, rows, limits, settings.false_positive_rate)
  draw_found(found, rows, limits)
  false.set_xticks(range(len(limits)), limits, rotation=90)
  false.tick_params(axis='x', length=0, labelbottom=True)
  return figure


def draw_false(ax, rows, limits, allowed):
  """Two bars per method: its share of all unrelated pairs, over all transforms."""
  by_threshold, by_p_value = above(rows, 'unrelated', limits), below_level(rows, limits)
  for shift, shares, name in (
      (-0.2, by_threshold, f'above the threshold of the method, which aims at {percent(allowed)}'),
      (0.2, by_p_value, f'by its own p-value < {P_LEVEL:g}, if it has one')):
    ax.bar(np.arange(len(limits)) + shift, [share or 0 for share in shares.values()], 0.4,
           label=name)
  ax.axhline(allowed, color='black', linestyle='--', linewidth=1)
  ax.yaxis.set_major_formatter(lambda share, _: percent(share))
  ax.grid(visible=False, axis='x')
  ax.set_ylim(bottom=0)
  ax.set_title('False positives: unrelated pairs that are called related')
  ax.legend(fontsize='small')


def draw_found(ax, rows, limits):
  """A cell per transform and method, which says how many networks are found unless all are."""
  found = [above([row], 'related', limits) for row in rows]
  shares = [list(each.values()) for each in found]
  # How many of all are found, unless all are or none can be compared.
  texts = [['' if share in (1, None) else '{}/{}'.format(
      round(share * (count := len(row[f'{method}, related']))), count)
            for method, share in each.items()] for row, each in zip(rows, found, strict=True)]
  plotting.heat(ax, np.array(shares, float), plotting.COLORS[5], 1, texts)
  ax.set_yticks(range(len(rows)), [label(row) for row in rows])
  ax.tick_params(labelbottom=False)
  ax.set_title('Changed networks that are found: all (blue), or as many as the cell says; '
               'grey: not comparable')


def percent(share: float) -> str:
  return f'{100 * share:g} %'


if __name__ == '__main__':
  program.measure(main, 'robustness', Settings, __doc__)
