"""How long does identity last? Trains networks at ever more weight decay.

With decoupled weight decay λ a weight ends as Π(1 − λ lr_t) of its initial value, about exp(−F),
plus updates by gradients; F = λ Σ lr is the decay exponent of a recipe. Small networks are trained
at several F, and every test of lineage compares each with its initialization, with siblings of the
same initialization that read other text from some step on (from the first: the positive control),
and with networks of other seeds that read the same text (unrelated). All weights are compared, and
then only the weight updates, w_T − Π(1 − λ lr_t) w_0.

    python -m experiments.forgetting     # about eight hours on two CPU cores

Cells come in this order: the first of --config with AdamW at every F of --forgetting and for all
--steps, longest first; one factor at a time at F = 4; SGD with momentum, Muon and the other models
at --few. In the table, F is where a test misses half of the networks at ALPHA, with an interval
of at least 95 % over networks (of eight networks, the lowest to the highest, 99 %); the table of
published recipes has their F.

Writes results.json (a row per pair, with the tests of lineage and the published SeedPrint) and
figure.png.
"""

import dataclasses
import itertools

from tqdm import tqdm

from bornbiased_jax import configs, data
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import listed, number, whole

from ..shared import program
from ..shared.base_settings import Inputs
from ..shared.networks import check_length, check_sequences
from ..shared.settings import preset_name, setting, some
from ..shared.tables import table
from . import measurement, recipes, report
from .report import display
from .training import PEAK_LR, SEGMENTS, VARIANTS, Cell

HELD_OUT = 0.1
ALL_F = [0.0, 0.5, 1.0, 2.0, 4.0, 6.6, 10.0]


class Settings(Inputs):
  config: list[str] = setting(['tiny_llama2', 'tiny_gpt2'], listed(preset_name),
                              'models, comma-separated (see --help=models), the main one first',
                              smoke=['tiny_llama2'])
  seeds: list[int] = setting(range(8), smoke=[0, 1])
  optimizers: list[str] = setting(list(PEAK_LR), *some(PEAK_LR, 'optimizers'), smoke=['adamw'])
  forgetting: list[float] = setting(ALL_F, listed(number), 'F of the main cells', smoke=[0.0, 2.0])
  few: list[float] = setting([0.0, 2.0, 6.6], listed(number), 'F of the other cells', smoke=[0.0])
  variants: list[str] = setting(
      list(VARIANTS), *some(VARIANTS, 'what one factor changes at F = 4'), smoke=['plain'])
  steps: list[int] = setting([1600, 800], listed(whole), 'optimizer steps, longest first',
                             smoke=[8])
  branches: list[int] = setting(
      [0, 2, 3], listed(lambda text: whole(text, 0, SEGMENTS - 1)),
      f'when siblings branch off, in 1/{SEGMENTS} of the steps; 0 is the initialization', smoke=[0])
  batch_size: int = setting(8, whole, 'sequences per step', smoke=2)
  train_length: int = setting(32, whole, 'tokens per sequence of training', smoke=8)
  num_sequences: int = setting(1000, smoke=300)
  length: int = setting(32, smoke=4)


def main(settings, results):
  cells = cells_of(settings)
  check(settings, cells)
  training_text, held_out = data.hold_out(data.load('tinyshakespeare'), HELD_OUT)
  probe = Probe('pairs', settings.num_sequences, settings.length, settings.probe_seed)
  bar = tqdm(cells, unit='cell')
  for cell in bar:
    bar.set_description(f'{cell.config} {cell.optimizer} F={cell.forgetting:g} {cell.variant}')
    fields, keys = dataclasses.asdict(cell), keys_of(cell, settings)
    if results.lacking(keys):
      rows = measurement.rows(cell, settings.seeds, settings.branches, probe, training_text,
                              held_out)
      results.add_lacking((fields | row for row in rows), keys[0])
  found = report.by_cell(results.rows)
  known_recipes = recipes.table()
  print(table([report.display_cell(row) for row in found]))
  print(table([report.display_recipe(row) for row in known_recipes]))
  results.finish(report.summarize(results.rows), display, lambda: report.draw(results.rows),
                 cells=found, recipes=known_recipes)


def keys_of(cell: Cell, settings) -> list[dict]:
  """The fields that tell the rows of a cell from each other and from rows of other cells."""
  pairs = [('unrelated', [a, b], None) for a, b in itertools.combinations(settings.seeds, 2)]
  for seed in settings.seeds:
    pairs += [('birth', [seed, seed], None)]
    pairs += [('sibling', [seed, seed], branch / SEGMENTS) for branch in settings.branches]
  return [dataclasses.asdict(cell) | {'pair': pair, 'weights': weights, 'seeds': seeds,
                                      'branch': branch}
          for weights in measurement.WEIGHTS for pair, seeds, branch in pairs]


def cells_of(settings) -> list[Cell]:
  """Every cell once, the most telling first."""
  first, *others = settings.config
  steps = settings.steps[0]
  make = lambda config, optimizer, F, steps, variant='plain': Cell(
      config, optimizer, F, steps, settings.batch_size, settings.train_length, variant)
  cells = [make(first, 'adamw', F, each) for each in settings.steps for F in settings.forgetting]
  cells += [make(first, 'adamw', 4.0, steps, variant) for variant in settings.variants
            if variant != 'plain']
  cells += [make(first, optimizer, F, steps) for optimizer in settings.optimizers
            for F in settings.few if optimizer != 'adamw']
  cells += [make(config, 'adamw', F, steps) for config in others for F in settings.few]
  return list(dict.fromkeys(cells))


def check(settings, cells: list[Cell]) -> None:
  """Raises InputError for what would otherwise fail while it runs."""
  for name in settings.config:
    if configs.get(name).init_scheme == 'mup':
      raise InputError("--config: init_scheme='mup' has learning rates by tensor, which only the "
                       'AdamW of experiments.pretrain has')
    check_sequences(settings, configs.get(name))
    check_length(settings.train_length, configs.get(name), 'the networks', 'train_length')
  for steps in settings.steps:
    if steps % (2 * SEGMENTS):
      raise InputError(f'--steps: {steps} is not a multiple of {2 * SEGMENTS}')
  for cell in cells:
    _ = cell.weight_decay


if __name__ == '__main__':
  program.measure(main, 'forgetting', Settings, __doc__)
