"""How often does each test call unrelated pairs related?

    python -m experiments.calibrate      # 100 seeds, 4,950 pairs per cell, an hour on two CPU cores
    python -m experiments.calibrate --probes=verdict --seeds=0-11 --init_schemes=gpt2 \\
        --config=tiny_gpt2,tiny_llama2,tiny_qwen2 --widths=96,128 --verdict_seeds=6      # 630 pairs
    python -m experiments.calibrate --runs=results/training_study_laptop/english --probes=verdict

A cell is an architecture, an initialization and a probe: 'gaussian' vectors that all networks read,
'tokens' with each network's own embedding, or 'shared_tokens' with one for all. --runs adds
networks trained on the same data in the same order: the latest checkpoint of each folder seed_*.
There are the calibrated test, the same without projecting out shared inputs, and the
published t-test, U test and z, which are slow, for the first --published_seeds networks.

The cells of the probe 'verdict' have the verdict of experiments.seedprint and all its tests, for
the first --verdict_seeds networks, and those of 'order' only the tests that decide, which need no
forward pass: all pairs within each architecture and, in cells of their own, between two of them.
Each architecture has seeds of its own, as networks of one seed begin with the same numbers.
Intervals come from a bootstrap over networks, because pairs share them.

Writes results.json (a row per cell) and figure.png (the share of pairs below each level).
"""

from collections.abc import Callable
import functools
from pathlib import Path

import jax.numpy as jnp
import scipy
from tqdm import tqdm

from bornbiased_jax import configs, lineage, storage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import listed, optional, some_of, whole
from bornbiased_jax.lineage.evidence import features, hidden_states
from bornbiased_jax.lineage.evidence import signature as signatures
from bornbiased_jax.lineage.networks import common_probe, probe_of_all
from bornbiased_jax.models import init_params

from ..shared import networks, program
from ..shared.base_settings import Inputs
from ..shared.settings import preset_name, setting, some
from .judged_pairs import JUDGES, Takers, judged_cells
from .report import display, draw, summarize
from .unrelated_pairs import (
  all_pairs,
  moments,
  pairwise_z,
  project,
  published_p_values,
  rates,
)

PROBES = ('gaussian', 'tokens', 'shared_tokens', *JUDGES)
SHARED_EMBEDDING_SEED = 2**32 - 1


class Settings(Inputs):
  config: list[str] | None = setting(
      ['tiny_llama2', 'tiny_gpt2'], optional(listed(preset_name)),
      'models, comma-separated (see --help=models), or none, to judge only --runs',
      smoke=['tiny_llama2'], paper=['nano_llama2', 'nano_gpt2'])
  widths: list[int] | None = setting(
      None, optional(listed(whole)),
      'residual channels of each model, comma-separated; if not given, its own')
  seeds: list[int] = setting(range(100), smoke=range(5))
  init_schemes: list[str] = setting(
      ['gpt2', 'plain'], some_of(*configs.INIT_SCHEMES),
      'initializations, comma-separated, of gpt2, which divides the std of the matrices that write '
      'to the residual stream by sqrt(2 layers), plain, which does not, and wang, which sets it as '
      'GPT-NeoX does', smoke=['gpt2'])
  probes: list[str] = setting(
      list(PROBES[:-1]), *some(PROBES, 'cells to measure (see above), comma-separated'))
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


def main(settings, results):
  networks.check_seeds(settings.seeds)
  if not (settings.config or settings.runs):
    raise InputError('--config: none, and --runs is not given either: nothing to measure')
  todo = random_cells(settings)
  if not results.is_measured:  # Otherwise it is drawn again, also without its runs.
    todo |= trained_cells(settings)
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
      found |= measured_cells(f'{name}, {scheme} init', PROBES[:3], settings, functools.partial(
          random_networks, config))
    for probe in asked(settings):
      found |= judged_cells(random_takers(models, probe, settings), f'{scheme} init, {probe}',
                            JUDGES[probe])
  return found


def trained_cells(settings) -> dict[str, Callable[[], dict]]:
  """The cells of the networks of --runs, in the same form."""
  found, runs_by_name = {}, {}
  for folder in settings.runs or ():
    runs = runs_of(folder)
    config = storage.open(runs[0]).config
    networks.check_sequences(settings, config)
    name = f'trained {label(config)}'
    name += f' ({folder})' * (name in runs_by_name)
    runs_by_name[name] = runs
    found |= measured_cells(name, ('gaussian', 'tokens'), settings, functools.partial(
        trained_networks, runs))
  for probe in asked(settings) if runs_by_name else ():
    found |= judged_cells(trained_takers(runs_by_name, probe, settings), probe, JUDGES[probe])
  return found


def asked(settings) -> list[str]:
  return [probe for probe in settings.probes if probe in JUDGES]


def measured_cells(name, kinds, settings, make) -> dict[str, Callable[[], dict]]:
  """A cell for each probe of those that are asked for; `make` reads it."""
  return {f'{name}, {kind}': lambda kind=kind: measure(make(kind, settings), settings)
          for kind in settings.probes if kind in kinds}


def label(config) -> str:
  """An architecture for readers."""
  plain = 'Pythia' if config.parallel_residual else 'GPT-2'
  family = plain if not config.gated_mlp else 'Qwen' if config.qkv_bias else 'LLaMA'
  return f'{family} of width {config.width} with {config.num_layers} layers'


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


def random_takers(models: dict[str, configs.ModelConfig], kind: str, settings) -> dict[str, Takers]:
  """By name of a model the signatures of its networks; no two models share a seed."""
  probe = probe_of_all(probe_of(kind, settings), models.values())
  apart = 1 + max(settings.seeds)

  @functools.cache
  def take(config, seed):
    params = init_params(config, seed)
    return features.of_network(config, params) if kind == 'order' else signatures.of_network(
        config, params, probe)

  return {name: {str(seed): functools.partial(take, config, seed)
                 for seed in (i * apart + own for own in settings.seeds[:settings.verdict_seeds])}
          for i, (name, config) in enumerate(models.items())}


def trained_takers(runs_by_name: dict[str, list[str]], kind: str, settings) -> dict[str, Takers]:
  """The same of runs."""
  known = [storage.open(runs[0]) for runs in runs_by_name.values()]
  probe = common_probe(probe_of(kind, settings), known)
  take = functools.cache(lambda run: features.of_network(*storage.open(run).load())
                         if kind == 'order' else lineage.signature(run, probe))
  return {name: {Path(run).name: functools.partial(take, run)
                 for run in runs[:settings.verdict_seeds]}
          for name, runs in runs_by_name.items()}


if __name__ == '__main__':
  program.measure(main, 'calibrate', Settings, __doc__)
