"""How often does each test call unrelated networks related?

    python -m experiments.calibrate      # 100 seeds, 4,950 pairs per cell, an hour on two CPU cores
    python -m experiments.calibrate --probes=verdict --seeds=0-11 --init_schemes=gpt2 \\
        --config=tiny_gpt2,tiny_llama2,tiny_qwen2 --widths=96,128 --verdict_seeds=6      # 630 pairs
    python -m experiments.calibrate --runs=results/training_study_laptop/english --probes=verdict

A cell is an architecture, an initialization and a probe: 'gaussian' vectors that all networks read,
'tokens' with each network's own embedding, or 'shared_tokens' with one for all. --runs adds
networks trained on the same data in the same order: the latest checkpoint of each folder seed_*.
There are the calibrated test, the same without the projection of what networks share, and the
published t-test, U test and z, which are slow, for the first --published_seeds networks.

The cells of the probe 'verdict' have the verdict of experiments.seedprint and all its tests, for
the first --verdict_seeds networks: all pairs within each architecture and, in cells of their own,
between two of them. Each architecture has seeds of its own, as networks of one seed begin with the
same numbers. Intervals come from a bootstrap over networks, because pairs share them.

Writes results.json (a row per cell) and figure.png (the share of pairs below each level).
"""

from collections.abc import Callable
import dataclasses
import functools
from pathlib import Path
import textwrap

import jax.numpy as jnp
import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import configs, lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import hidden_states
from bornbiased_jax.lineage.evidence import signature as signatures
from bornbiased_jax.lineage.testing.every_test import DECIDING
from bornbiased_jax.models import init_params
from bornbiased_jax.storage import load_config

from ..shared import command_line, networks
from ..shared.network_settings import Inputs
from ..shared.parsing import listed, optional, preset_name, some_of, whole
from ..shared.results import Results
from ..shared.settings import Seeds, setting
from .judged_pairs import Takers, pooled, verdict_cells, z_of
from .unrelated_pairs import (
  LEVELS,
  all_pairs,
  moments,
  pairwise_z,
  project,
  published_p_values,
  rates,
)

KINDS = ('random', 'trained')
PROBES = ('gaussian', 'tokens', 'shared_tokens', 'verdict')
PUBLISHED = {'unprojected': 'without projection', 'published_t': 'published t',
             'published_u': 'published U', 'published_z': 'published z'}
# What is drawn: panels, their colours, and the tests that have each.
GROUPS = {
    'SeedPrint': {'calibrated test': ['calibrated'], 'published t-test': ['published_t'],
                  'published U test': ['published_u']},
    'The verdict': {'verdict': ['verdict'], 'tests that decide': DECIDING,
                    'SeedPrint': ['SeedPrint']},
}
CAPTION = 'Each line is one test on one set of networks.'
OWN_TOKENS = (' Where it is dotted, networks read the same inputs; elsewhere each reads its own '
              'tokens.')
SHARED_EMBEDDING_SEED = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class Settings(Inputs):
  config: list[str] | None = setting(
      ['tiny_llama2', 'tiny_gpt2'], optional(listed(preset_name)),
      'models, comma-separated, of those below, or none, for --runs alone',
      smoke=['tiny_llama2'], paper=['nano_llama2', 'nano_gpt2'])
  widths: list[int] | None = setting(
      None, optional(listed(whole)),
      'residual channels of each model, comma-separated; if not given, its own')
  seeds: Seeds = setting(range(100), smoke=range(5))
  init_schemes: list[str] = setting(
      ['gpt2', 'plain'], some_of(*configs.INIT_SCHEMES),
      'initializations, comma-separated, of gpt2, which divides the std of the matrices that write '
      'to the residual stream by sqrt(2 layers), plain, which does not, and wang, which sets it as '
      'GPT-NeoX does', smoke=['gpt2'])
  probes: list[str] = setting(
      list(PROBES), some_of(*PROBES),
      f'cells to measure (see above), comma-separated, of {", ".join(PROBES)}')
  k: int | None = setting(
      None, optional(whole), 'the k most extreme channels, which the published tests compare; if '
      'not given, about half of them, and a tenth above width 768', smoke=16)
  runs: list[str] | None = setting(
      None, optional(listed(str)), 'folders of training runs seed_*, comma-separated; those of one '
      'folder, and for the verdict those of two folders and different seeds, are compared as '
      'well, and are to be unrelated')
  published_seeds: int = setting(45, lambda text: whole(text, 3),
                                 'networks of a cell that the published tests compare, at most')
  verdict_seeds: int = setting(12, lambda text: whole(text, 3),
                               'networks of a cell that are judged, at most')
  num_sequences: int = setting(2000, smoke=300)
  length: int = setting(32, smoke=4, paper=1024)


def main(settings, output_dir):
  if len(settings.seeds) < 3:
    raise InputError('--seeds: at least three networks are needed')
  todo = random_cells(settings) | trained_cells(settings)
  if not todo:
    raise InputError('--config: none, and --runs is not given either: nothing to measure')
  results = Results(output_dir, 'calibrate', settings)
  for row in results.missing(({'cell': name} for name in todo), 'cell'):
    results.add(row | todo[row['cell']]())
  results.finish(summarize(results.rows), display, lambda: draw(results.rows))


def random_cells(settings) -> dict[str, Callable[[], dict]]:
  """The cells of random networks: by name, functions that measure a row."""
  found = {}
  for scheme in settings.init_schemes:
    models = {f'{preset} ({width})' if width else preset: configs.get(
        preset, init_scheme=scheme, **{'width': width} if width else {})
              for preset in settings.config or () for width in settings.widths or [None]}
    for name, config in models.items():
      networks.check_sequences(settings, config)
      found |= measured_cells(f'{name}, {scheme} init', PROBES[:-1], settings, functools.partial(
          random_networks, config))
    if 'verdict' in settings.probes:
      found |= verdict_cells(random_signatures(models, settings), f'{scheme} init, verdict')
  return found


def trained_cells(settings) -> dict[str, Callable[[], dict]]:
  """The cells of the networks of --runs, in the same form."""
  found, runs_by_name = {}, {}
  for folder in settings.runs or ():
    runs = runs_of(folder)
    config = load_config(runs[0])
    networks.check_sequences(settings, config)
    name = f'trained {label(config)}'
    name += f' ({folder})' * (name in runs_by_name)
    runs_by_name[name] = runs
    found |= measured_cells(name, ('gaussian', 'tokens'), settings, functools.partial(
        trained_networks, runs))
  if 'verdict' in settings.probes and runs_by_name:
    found |= verdict_cells(trained_signatures(runs_by_name, settings), 'verdict')
  return found


def measured_cells(name, kinds, settings, make) -> dict[str, Callable[[], dict]]:
  """A cell for each probe of those that are asked for; `make` reads it."""
  return {f'{name}, {kind}': lambda kind=kind: measure(make(kind, settings), settings)
          for kind in settings.probes if kind in kinds}


def label(config) -> str:
  """An architecture for readers."""
  family = 'GPT-2' if not config.gated_mlp else 'Qwen' if config.qkv_bias else 'LLaMA'
  head = 'tied' if config.tied_head else 'own head'
  return f'{family} of width {config.width}, {head}'


def runs_of(folder: str) -> list[str]:
  runs = sorted(str(path) for path in Path(folder).expanduser().glob('seed_*'))
  if len(runs) < 3:
    raise InputError(f'--runs: {folder} has {len(runs)} folders seed_*; at least three are needed')
  return runs


def random_networks(config, kind, settings):
  seed = SHARED_EMBEDDING_SEED if kind == 'shared_tokens' else None
  with tqdm(total=len(settings.seeds), desc=f'hidden states, {kind}', unit='network',
            leave=False) as bar:
    return hidden_states.of_seeds(config, settings.seeds, probe_of(kind, settings),
                                  on_network=bar.update, embedding_seed=seed)


def trained_networks(runs, kind, settings):
  bar = tqdm(runs, desc=f'hidden states, {kind}', unit='network', leave=False)
  return [lineage.states(run, probe_of(kind, settings)) for run in bar]


def probe_of(kind, settings) -> Probe:
  return Probe('gaussian' if kind == 'gaussian' else 'tokens', settings.num_sequences,
               settings.length, settings.probe_seed)


def measure(states, settings) -> dict:
  """Every test of hidden states over all pairs i < j of networks."""
  hidden_SND = jnp.stack([each.hidden_ND for each in states])
  shared = all(hidden_states.input_is_shared(each, states[0]) for each in states)
  unprojected_P = pairwise_z(hidden_SND)
  z_P = pairwise_z(*project(hidden_SND, states[0].input_ND)) if shared else unprojected_P
  known = published_p_values(hidden_SND[:settings.published_seeds], settings.k)
  published_networks = min(len(states), settings.published_seeds)
  return {'input_shared': shared, 'published_networks': published_networks,
          'networks': len(states), 'pairs': len(z_P),
          **{f'{name}_z': value for name, value in moments(z_P).items()},
          **rates({'calibrated': scipy.stats.norm.sf(z_P),
                   'unprojected': scipy.stats.norm.sf(unprojected_P)}, all_pairs(len(states))),
          **rates(known, all_pairs(published_networks))}


def random_signatures(models: dict[str, configs.ModelConfig], settings) -> dict[str, Takers]:
  """By name of a model the signatures of its networks; no seed is that of two models."""
  probe = networks.probe_of_all(probe_of('verdict', settings), models.values())
  apart = 1 + max(settings.seeds)

  @functools.cache
  def take(config, seed):
    return signatures.of_network(config, init_params(config, seed), probe)

  return {name: {str(seed): functools.partial(take, config, seed)
                 for seed in (i * apart + own for own in settings.seeds[:settings.verdict_seeds])}
          for i, (name, config) in enumerate(models.items())}


def trained_signatures(runs_by_name: dict[str, list[str]], settings) -> dict[str, Takers]:
  """The same of runs."""
  known = [load_config(runs[0]) for runs in runs_by_name.values()]
  probe = networks.probe_of_all(probe_of('verdict', settings), known)
  take = functools.cache(lambda run: lineage.signature(run, probe))
  return {name: {Path(run).name: functools.partial(take, run)
                 for run in runs[:settings.verdict_seeds]}
          for name, runs in runs_by_name.items()}


def summarize(rows) -> list[dict]:
  """A row per cell, and one for all cells of verdicts on random, or on trained networks."""
  summary = [{name: value for name, value in row.items()
              if 'level' not in name and name not in ('z', 'p_values')}
             | ({'z_of': z_of([row])} if 'verdicts' in row else {}) for row in rows]
  for kind in KINDS:
    cells = judged(rows, kind)
    if len(cells) > 1:
      summary.append({'cell': f'all {kind} networks, verdict'} | pooled(cells))
  return summary


def kind_of(row) -> str:
  return 'trained' if row['cell'].startswith('trained') else 'random'


def judged(rows, kind: str) -> list[dict]:
  """The cells of verdicts on random, or on trained networks."""
  return [row for row in rows if 'verdicts' in row and kind_of(row) == kind]


def display(row):
  test = 'verdict' if 'verdicts' in row else 'calibrated'
  rate = lambda test, alpha: f'{row[name]:.1%}' if (name := f'{test}_{alpha}') in row else '–'
  ends = row.get(f'{test}_0.01_ci95')
  verdicts = ', '.join(f'{count} {name}' for name, count in row.get('verdicts', {}).items())
  cell = row['cell'].removesuffix(', verdict')
  for words, shorter in ((' and trained ', ' and '), (' of width ', ' ')):
    cell = cell.replace(words, shorter)
  return {'unrelated networks': cell, 'pairs': row['pairs'],
          'verdicts': verdicts or '–',
          'sd z': f'{row["sd_z"]:.2f}' if 'sd_z' in row else '–',
          'false positives at 0.05': rate(test, 0.05),
          'at 0.01 (95 % interval)': rate(test, 0.01)
              + (f' ({ends[0]:.1%}–{ends[1]:.1%})' if ends else ''),
          **{f'{words} at 0.01': rate(test, 0.01) for test, words in PUBLISHED.items()}}


def draw(rows):
  """A panel per kind of networks and group of tests."""
  kinds = {kind: [row for row in rows if kind_of(row) == kind] for kind in KINDS}
  shown = [(f'{title} on {kind} networks', curves) for kind, own in kinds.items()
           for title, tests in GROUPS.items() if (curves := curves_of(tests, own))]
  columns = min(2, len(shown))
  lines = -(-len(shown) // columns)
  figure = plotting.figure(3.3 * columns + 0.7, 3.1 * lines + 0.3)
  panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
  for ax, (title, curves) in zip(panels.ravel(), shown, strict=False):
    draw_curves(ax, title, curves)
  for ax in panels[:, 0]:
    ax.set_ylabel('share of unrelated pairs with p ≤ level')
  for ax in panels[-1]:
    ax.set_xlabel('level of the test')
  has_probes = any(reads_own(row['cell']) is not None for row in rows)
  caption = CAPTION + (OWN_TOKENS if has_probes else '')
  figure.suptitle(textwrap.fill(caption, 48 * columns), fontsize='medium')
  return figure


def reads_own(cell: str) -> bool | None:
  """Whether networks read tokens of their own in this cell; None where they are judged."""
  return None if cell.endswith(', verdict') else cell.endswith(', tokens')


def curves_of(tests, rows) -> list[tuple[str, bool, list[float]]]:
  """Of each test in each cell: its name, whether inputs are shared, and the shares by level."""
  return [(name, reads_own(row['cell']) is False, row[f'{test}_share_below_level'])
          for name, own in tests.items() for test in own for row in rows if f'{test}_0.01' in row]


def draw_curves(ax, title, curves):
  """A test that keeps its level follows the diagonal."""
  level = np.array([1e-3, 1])
  plotting.theory(ax, level, level, 'as many as allowed')
  colors = dict(zip(dict.fromkeys(name for name, *_ in curves), plotting.COLORS, strict=False))
  for name, is_shared, shares in reversed(curves):  # The first are on top.
    ax.plot(LEVELS, shares, color=colors[name], linewidth=1, linestyle=':' if is_shared else '-')
  for name, color in colors.items():
    ax.plot([], [], color=color, label=name)
  ax.set(xscale='log', yscale='log', xlim=(1e-3, 1), ylim=(1e-3, 1), title=title)
  for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_formatter(lambda share, _: f'{100 * share:g} %')
  ax.legend(fontsize='small')


if __name__ == '__main__':
  command_line.run(main, 'calibrate', Settings, __doc__)
