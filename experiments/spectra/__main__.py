"""Do numbers of layers that no disguise changes tell descendants from others?

    python -m experiments.spectra        # an hour on two CPU cores

Networks that differ only in their seed are drawn and trained on one text, and all pairs of them
are compared by the spectra of their layers (`statistic`), and by what the verdict reads of layers
(`any_basis.layers_test`). The first of --widths, --depths and
--config is the base; the others change one of these at a time. Random networks of the base get
noise, are rounded or disguised, trained networks are trained further, and each is compared with its
changed copy.

Writes results.json (a row per pair: for each octave of modes the sum, the sum of squares and the
number of products; and the agreement of layers), figure.png, and a file with the singular values
and other numbers of each network.
"""

from collections.abc import Iterator
import dataclasses
import functools
import itertools

import jax
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.fields import listed, natural, whole
from bornbiased_jax.hosts import on_host
from bornbiased_jax.lineage.comparison.any_basis import layers_test
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.storage.layers import in_memory

from ..shared import program
from ..shared.base_settings import ExperimentSettings
from ..shared.networks import check_seeds
from ..shared.settings import preset_name, setting, some
from ..small_networks.training import from_seeds, train
from ..transforms import lossy, preserving
from . import statistic
from .report import display, draw, summarize

_SPECTRUM, _INVARIANT = 'spectrum ', 'invariant '
# A learning rate times the width.
RATE = 0.2
# Largest product of width and steps; networks of a cell other than the base.
MOST, FEW = 60_000, 3
# What is done to a network, by name: functions of (config, params, key), some with a strength.
ALTERED = {'noise 5 %': [(lossy.add_noise, 0.05)], 'noise 20 %': [(lossy.add_noise, 0.2)],
           'noise 50 %': [(lossy.add_noise, 0.5)], 'int8': [(lossy.quantize, 8)],
           'int4': [(lossy.quantize, 4)],
           'disguise': [(preserving.PRESERVING[name],) for name in (
               'permute units', 'permute heads', 'mix values', 'scale channels', 'turn queries',
               'rotate channels')]}
# Steps of further training, their rate over that before, and how many networks are trained so.
TUNED = {'300 more steps at a low rate': (300, 0.1, FEW), '300 more steps': (300, 1.0, FEW),
         '3000 more steps at a low rate': (3000, 0.1, 2)}


class Settings(ExperimentSettings):
  config: list[str] = setting(['tiny_llama2', 'tiny_gpt2', 'tiny_qwen2', 'pythia_70m'],
                              listed(preset_name), 'families: models whose sizes are replaced',
                              smoke=['tiny_llama2'])
  widths: list[int] = setting([64, 128, 256, 512, 1024], listed(whole), 'residual channels',
                              smoke=[32])
  depths: list[int] = setting([6, 12, 24], listed(lambda text: whole(text, 3)), 'layers', smoke=[3])
  steps: list[int] = setting([0, 100], listed(natural),
                             'steps of training, each from the start', smoke=[0, 2])
  seeds: list[int] = setting(range(6), smoke=range(3))
  changes: list[str] = setting(
      [*ALTERED, *TUNED], *some([*ALTERED, *TUNED], 'changes to make to networks of the base'))
  text: str = setting('tinyshakespeare', str, 'what to train on, as experiments.pretrain takes it')
  other_text: str = setting('tinyshakespeare', str, 'what to train on afterwards')


def main(settings, results):
  check_seeds(settings.seeds)
  pairs = [pair for cell in cells_of(settings) for pair in pairs_of(cell, settings)]
  for pair in results.missing(pairs, 'pair'):
    results.add(pair | measured(pair, settings, results.directory))
  results.finish(summarize(results.rows), display, lambda: draw(results.rows))


@dataclasses.dataclass(frozen=True)
class Cell:
  """Networks of one architecture that were trained for so many steps."""

  family: str
  width: int
  depth: int
  steps: int

  def __str__(self) -> str:
    return f'{self.family}, width {self.width}, {self.depth} layers, {self.steps} steps'

  @property
  def config(self) -> ModelConfig:
    """Of the family, with other sizes and bytes as tokens."""
    mlp_width = round(configs.get(self.family).mlp_width / configs.get(self.family).width
                      * self.width)
    return configs.get(self.family, width=self.width, num_layers=self.depth, vocab_size=256,
                       num_heads=max(4, self.width // 64), mlp_width=mlp_width)


def cells_of(settings) -> Iterator[Cell]:
  """The base, then one thing after another changed: widths, families, depths; each at all steps."""
  family, width, depth = settings.config[0], settings.widths[0], settings.depths[0]
  shapes = [*((family, other, depth) for other in settings.widths),
            *((other, width, depth) for other in settings.config[1:]),
            *((family, width, other) for other in settings.depths[1:])]
  for shape in shapes:
    yield from (Cell(*shape, steps) for steps in settings.steps if steps * shape[1] <= MOST)


def changes_of(cell: Cell, settings) -> list[str]:
  """What is done to networks of the base: to random ones, and training that goes on."""
  cells = list(cells_of(settings))
  if cell.config != cells[0].config:
    return []
  fit = {**(ALTERED if cell.steps == 0 else {}),
         **(TUNED if cell.steps == max(each.steps for each in cells) else {})}
  return [change for change in settings.changes if change in fit]


def pairs_of(cell: Cell, settings) -> list[dict]:
  """The fields that name each row: all pairs of networks, and each with what became of it."""
  seeds = seeds_of(cell, settings)
  pairs = [('unrelated', list(pair)) for pair in itertools.combinations(seeds, 2)]
  pairs += [(change, [seed, seed]) for change in changes_of(cell, settings)
            for seed in changed_seeds(change, seeds)]
  return [dataclasses.asdict(cell) | {'change': change, 'seeds': seeds} for change, seeds in pairs]


def seeds_of(cell, settings) -> list[int]:
  return settings.seeds if cell.config == next(cells_of(settings)).config else settings.seeds[:FEW]


def changed_seeds(change: str, seeds: list[int]) -> list[int]:
  return seeds[:TUNED[change][-1] if change in TUNED else FEW]


def measured(pair: dict, settings, output_dir) -> dict:
  """How far a network was moved, and how the modes of two agree."""
  cell = Cell(**{field.name: pair[field.name] for field in dataclasses.fields(Cell)})
  (a, b), change = pair['seeds'], pair['change']
  other = 'none' if change == 'unrelated' else change
  first, second = (spectra_of(cell, *each, settings, output_dir) for each in (
      (a, 'none'), (b, other)))
  part = lambda arrays, kind: {name.removeprefix(kind): x for name, x in arrays.items()
                               if name.startswith(kind)}
  return {'moved': float(second['moved']), 'octaves': statistic.agreement(*(
      [statistic.modes(x) for x in part(each, _SPECTRUM).values()] for each in (first, second))),
          'layers': layers_test(*(part(each, _INVARIANT) for each in (first, second))).statistic}


def spectra_of(cell: Cell, seed: int, change: str, settings, output_dir) -> dict[str, np.ndarray]:
  """Spectra of a network by number, invariants, and how far it was `moved`; kept in a file."""
  path = output_dir / f'{cell}, seed {seed}, {change}.npz'
  if not path.exists():
    network, size = made(cell, seed, change, settings)
    found = signature.survey(in_memory(*network)).invariants
    np.savez(path, moved=size, **{_INVARIANT + name: x for name, x in found.items()},
             **{f'{_SPECTRUM}{i}': x.astype(np.float32)
                for i, x in enumerate(statistic.spectra(*network))})
  with np.load(path) as arrays:
    return dict(arrays)


def made(cell, seed, change, settings) -> tuple[tuple[ModelConfig, dict], float]:
  """A network, and the relative change of its weights."""
  config, rate = cell.config, RATE / cell.width
  before, = from_seeds(config, [seed])
  network = config, before
  if cell.steps:
    network = config, *train(config, [before], cell.steps, peak_lr=rate, source=settings.text)
  if change == 'none':
    return network, moved(before, network[1])
  params = network[1]
  if change in TUNED:
    steps, slower, _ = TUNED[change]
    network = config, *train(config, [params], min(steps, 30 * cell.steps), data_seed=1,
                             source=settings.other_text, peak_lr=slower * rate)
  else:
    network = config, altered(config, change, network[1], jax.random.key(seed))
  return network, moved(params, network[1])


@functools.partial(jax.jit, static_argnums=(0, 1))
def altered(config, change, params, key):
  """Parameters to which something was done that leaves the architecture as it is."""
  network = config, params
  for alter, *strength in ALTERED[change]:
    network = alter(*network, key, *strength)
  return network[1]


def moved(before: dict, after: dict) -> float:
  """The Frobenius norm of the change of the matrices of blocks, relative to their own norm."""
  kernels = [[on_host(network['blocks'][name]['kernel']) for network in (before, after)]
             for name in before['blocks'] if 'kernel' in before['blocks'][name]]
  squares = [(np.sum((x - y)**2), np.sum(x**2)) for x, y in kernels]
  changed, whole = np.sum(squares, axis=0)
  return float(np.sqrt(changed / whole))


if __name__ == '__main__':
  program.measure(main, 'spectra', Settings, __doc__)
