"""Attention sinks grown on a small task, under interventions (Fig 12, Table 7).

The task is Bigram-Backcopy (Guo et al., arXiv 2410.13835): characters follow each other like in
Shakespeare, but after 't', 'e' or 'o' the character before it comes again. The smallest network
that can learn it has one attention sublayer with one head, which copies after those three and has
nothing to do after all others. Networks of the same seeds read the same sequences in the same
order, each kind with one of the interventions that experiments.text_sinks --help explains.

Networks trained without a change are also measured under each of --afterwards, which they have
never met ("none, then amplify"). --factors chooses other changes, such as depth or learning rate.

    python -m experiments.attention_sink                     # about 20 min on two CPU cores
    python -m experiments.attention_sink --factors=all --seeds=0-3 \\
        --output_dir=results/attention_sink_factors

A head is a sink in a sequence if its mean weight on the first position exceeds 0.3. "Sinks" is the
share of sequences in which the best head is one, "from step" when it first exceeded a half.
"Copying / resting" is the weight that positions which copy, and which do not, give to the first.
The excess loss is the loss in nats per token less the loss of the task's own probabilities; the
cost compares with the unchanged network of the same seed. ‖v1‖ / ‖v‖ is the norm of the first value
over the norm of others, and "× uniform" the weight on --position over its weight under uniform
attention.

Writes results.json (a row per network) and figure.png. For networks that read text see
experiments.text_sinks.
"""

import dataclasses

from tqdm import tqdm

from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import listed, natural, number, positive, whole
from bornbiased_jax.training.recipe import Recipe

from ..shared import program
from ..shared.base_settings import ExperimentSettings
from ..shared.networks import check_shortest
from ..shared.results import Results
from ..shared.settings import AFTERWARDS, SINK_LENGTHS, setting, some
from . import backcopy, conditions, growth, growth_report
from .backcopy import Backcopy
from .conditions import FACTORS, Condition
from .growth_report import display

# What tells rows apart.
KEY = 'factor', 'value', 'afterwards', 'seed'
_LOOK_STEPS = [0, 25, 50, 75, 100, 150, 200, 300, 400]


class Settings(ExperimentSettings):
  seeds: list[int] = setting(range(16), smoke=[0, 1], paper=range(64))
  factors: list[str] = setting(
      ['intervention', 'position'], *some(FACTORS, 'factors to change'), smoke=['position'],
      paper=list(FACTORS))
  afterwards: list[str] | None = setting(AFTERWARDS, smoke=['amplify'])
  position: int = setting(16, whole,
                          "position, from 0, at which 'mask', 'variance' and 'norm' act")
  strength: float = setting(4.0, positive, "factor of 'variance' and 'norm'")
  num_steps: int = setting(600, whole, 'optimizer steps', smoke=20, paper=3000)
  look_steps: list[int] = setting(
      _LOOK_STEPS, listed(natural),
      'steps before the last at which sinks are counted too', smoke=[0, 10],
      paper=[*_LOOK_STEPS, 600, 1000, 2000])
  train_sequences: int = setting(32, whole, 'sequences per step', smoke=8)
  length: int = setting(64, smoke=32)
  lengths: list[int] = setting([16, 32, 64, 128, 256], *SINK_LENGTHS, smoke=[32])
  peak_lr: float = setting(1e-2, number, 'learning rate after warmup; it falls to a tenth')
  data_seed: int = setting(42, natural, 'seed of the sequences to train on')
  num_sequences: int = setting(200, whole, 'other sequences, on which networks are measured',
                               smoke=20)
  probe_seed: int = setting(0)


def main(settings, results):
  check(settings)
  task = backcopy.load()
  kinds = conditions.of(settings.factors)
  with tqdm(total=settings.num_steps * len(kinds), unit='step') as bar:
    for condition in kinds:
      bar.set_description(f'{condition.factor} {condition.value}, {len(settings.seeds)} networks')
      add_rows(results, condition, task, settings, bar.update)
  results.finish(growth_report.summarize(results.rows), display,
                 lambda: growth_report.draw(results.rows, settings))


def check(settings) -> None:
  """Raises InputError for what would otherwise fail while it runs."""
  if settings.position >= settings.length:
    raise InputError(f'--position: {settings.position} does not exist in sequences of '
                     f'--length={settings.length}, whose positions are 0 to {settings.length - 1}')
  check_shortest(min(settings.length, *settings.lengths), 'length, --lengths')
  for condition in conditions.of(settings.factors):
    recipe_of(settings, condition)


def add_rows(results: Results, condition: Condition, task: Backcopy, settings, advance) -> None:
  """Grows the networks of a condition and measures them, unless the results have them all."""
  later = (None, *(settings.afterwards or ())) if condition == conditions.NONE else (None,)
  keys = [dict(zip(KEY, (condition.factor, condition.value, each, seed), strict=True))
          for each in later for seed in settings.seeds]
  if results.lacking(keys):
    # They are grown together, so that a network always has the same companions.
    results.add_lacking(grow_and_measure(condition, later, task, settings, advance), KEY)
  else:
    advance(settings.num_steps)


def recipe_of(settings, condition: Condition) -> Recipe:
  """AdamW without decay of weights, unless the condition has some; see Tables 13 and 14."""
  given = dict(peak_lr=settings.peak_lr, min_lr=settings.peak_lr / 10, weight_decay=0.0)
  return Recipe(num_steps=settings.num_steps, batch_size=settings.train_sequences,
                length=settings.length, warmup_steps=min(50, settings.num_steps // 4),
                **given | condition.recipe)


def grow_and_measure(condition: Condition, later: tuple, task: Backcopy, settings, advance):
  """The rows of a condition, after training and under each intervention of `later`."""
  config = conditions.config_of(condition, task.vocab_size, settings)
  draw = lambda length: growth.held_out(task, settings, length, condition.start)
  ids_NT = draw(settings.length)
  longest_NT = draw(max(settings.lengths))
  steps = [*sorted(step for step in settings.look_steps if step < settings.num_steps),
           settings.num_steps]
  curves = [[] for _ in settings.seeds]
  for _, networks in growth.grow(
      config, recipe_of(settings, condition), task, settings.seeds, start=condition.start,
      data_seed=settings.data_seed, steps=steps, advance=advance):
    for curve, params in zip(curves, networks, strict=True):
      curve.append(growth.look(config, params, task, ids_NT))
  for each in later:
    changed = dataclasses.replace(config, intervention=each or config.intervention)
    for seed, params, curve in zip(settings.seeds, networks, curves, strict=True):
      grown = {} if each else {'steps': steps} | transposed(curve)
      yield {'factor': condition.factor, 'value': condition.value, 'afterwards': each, 'seed': seed,
             **grown, **growth.measure(changed, params, task, ids_NT, longest_NT, settings)}


def transposed(curve: list[dict]) -> dict[str, list]:
  return {f'{name}_S': [point[name] for point in curve] for name in curve[0]}


if __name__ == '__main__':
  program.measure(main, 'attention_sink', Settings, __doc__)
