"""How often does each test call unrelated networks related? Compares all pairs of many networks.

A test at level alpha should accuse a fraction alpha of unrelated pairs.

    python -m experiments.calibrate      # 100 seeds, 4,950 pairs per cell, 40 min on two CPU cores
    python -m experiments.calibrate --runs=results/training_study_laptop/english

A cell is an architecture, an initialization and a probe: 'gaussian' vectors that all networks read,
'tokens' with each network's own embedding, or 'shared_tokens' with one embedding for all. With
--runs there are also cells of networks trained on the same data in the same order: the latest
checkpoint of each folder seed_*.

The tests are
  - the calibrated test,
  - the calibrated test without the projection of what the networks share,
  - the published t-test, U test and analytic z (k lowest dimensions, coset, softmax), which are
    slow, for the first --published_seeds networks,
  - in cells of its own, the calibrated test behind a change of basis (alignment.aligned_test), for
    the first --aligned_seeds networks.
Intervals come from a bootstrap over seeds, because pairs share networks.

Writes results.json (a row per cell) and figure.png (p-values against uniform ones). If a run was
stopped, the same command continues it.
"""

import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from scipy import stats
from tqdm import tqdm

from bornbiased_jax import configs, lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alignment, fingerprints
from bornbiased_jax.lineage.witnesses import input_is_shared
from bornbiased_jax.models import init_params
from bornbiased_jax.storage import load_config
from experiments.shared import command_line, networks
from experiments.shared.command_line import Setting
from experiments.shared.parsing import choice, listed, optional, whole
from experiments.shared.results import Results
from experiments.shared.unrelated_pairs import (
  LEVELS,
  pairwise_z,
  project,
  published_p_values,
  rates,
)

PROBES = ('gaussian', 'tokens', 'shared_tokens')
TESTS = {'calibrated': 'calibrated', 'unprojected': 'without projection',
         'published_t': 'published t', 'published_u': 'published U', 'published_z': 'published z'}
SHARED_EMBEDDING_SEED = 2**32 - 1

SETTINGS = command_line.SETTINGS | {
    'probes': Setting(listed(choice(*PROBES)),
                      'what the networks read (see above), comma-separated, of '
                      f'{", ".join(PROBES)}'),
    'init_schemes': Setting(listed(choice(*configs.INIT_SCHEMES)),
                            'initializations, comma-separated, of gpt2, which divides the std of '
                            'the matrices that write to the residual stream by sqrt(2 layers), and '
                            'plain, which does not'),
    'k': Setting(optional(whole),
                 'the k most extreme channels, which the published tests compare; if not given, '
                 'about half of them, and a tenth above width 768'),
    'runs': Setting(optional(str),
                    'folder of training runs seed_*, unrelated to each other, to compare as well'),
    'published_seeds': Setting(lambda text: whole(text, 3),
                               'networks of a cell that the published tests compare, at most'),
    'aligned_seeds': Setting(lambda text: whole(text, 3),
                             'networks of a cell that the aligned test compares, at most'),
}
_LAPTOP = dict(
    runs=None, config=['tiny_llama2', 'tiny_gpt2'], seeds=list(range(100)),
    init_schemes=['gpt2', 'plain'], probes=list(PROBES), num_sequences=2000, length=32,
    probe_seed=0, k=None, published_seeds=45, aligned_seeds=12)
SCALES = {
    'smoke': _LAPTOP | dict(config=['tiny_llama2'], seeds=[0, 1, 2, 3, 4], init_schemes=['gpt2'],
                            num_sequences=300, length=4, k=16),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(config=['nano_llama2', 'nano_gpt2'], length=1024),
}


def main(settings, output_dir):
  if len(settings.seeds) < 3:
    raise InputError('--seeds: at least three networks are needed')
  todo = random_cells(settings)
  if settings.runs:
    todo |= trained_cells(settings)
  results = Results(output_dir, 'calibrate', settings)
  done = {row['cell'] for row in results.rows}
  for name, make in todo.items():
    if name not in done:
      results.add({'cell': name} | make())
  summary = [{name: value for name, value in row.items() if 'level' not in name}
             for row in results.rows]
  results.finish(summary, display, draw(results.rows))


def random_cells(settings) -> dict:
  """The cells of random networks: by name, functions that measure a row."""
  found = {}
  for name, scheme in itertools.product(settings.config, settings.init_schemes):
    config, cell = configs.get(name, init_scheme=scheme), f'{name}, {scheme} init'
    networks.check_sequences(settings, config)
    for kind in settings.probes:
      found[f'{cell}, {kind}'] = lambda config=config, kind=kind: measure(
          random_networks(config, kind, settings), settings)
    if alignable(config):
      found[f'{cell}, aligned'] = lambda config=config: measure_aligned(
          [(config, init_params(config, seed)) for seed in settings.seeds[:settings.aligned_seeds]],
          settings)
  return found


def trained_cells(settings) -> dict:
  """The cells of the networks of --runs, in the same form."""
  found, runs = {}, runs_of(settings)
  config = load_config(runs[0])
  networks.check_sequences(settings, config)
  for kind in settings.probes:
    if kind != 'shared_tokens':
      found[f'trained, {kind}'] = lambda kind=kind: measure(
          trained_networks(runs, kind, settings), settings)
  if alignable(config):
    found['trained, aligned'] = lambda: measure_aligned(
        [lineage.load(run) for run in runs[:settings.aligned_seeds]], settings)
  return found


def alignable(config) -> bool:
  return config.vocab_size >= alignment.LEAST_TOKENS_A_CHANNEL * config.width


def runs_of(settings) -> list[str]:
  runs = sorted(str(path) for path in Path(settings.runs).expanduser().glob('seed_*'))
  if len(runs) < 3:
    raise InputError(f'--runs: {settings.runs} has {len(runs)} folders seed_*; at least three are '
                     'needed')
  return runs


def random_networks(config, kind, settings):
  seed = SHARED_EMBEDDING_SEED if kind == 'shared_tokens' else None
  with tqdm(total=len(settings.seeds), desc=f'fingerprints, {kind}', unit='network',
            leave=False) as bar:
    return fingerprints.of_seeds(config, settings.seeds, probe_of(kind, settings),
                                 on_network=bar.update, embedding_seed=seed)


def trained_networks(runs, kind, settings):
  bar = tqdm(runs, desc=f'fingerprints, {kind}', unit='network', leave=False)
  return [lineage.fingerprint(run, probe_of(kind, settings)) for run in bar]


def probe_of(kind, settings) -> Probe:
  return Probe('gaussian' if kind == 'gaussian' else 'tokens', settings.num_sequences,
               settings.length, settings.probe_seed)


def measure(prints, settings) -> dict:
  """Every test over all pairs i < j of fingerprints."""
  hidden_SND = jnp.stack([each.hidden_ND for each in prints])
  shared = all(input_is_shared(each, prints[0]) for each in prints)
  unprojected_P = pairwise_z(hidden_SND)
  z_P = pairwise_z(*project(hidden_SND, prints[0].input_ND)) if shared else unprojected_P
  p_values = {'calibrated': stats.norm.sf(z_P), 'unprojected': stats.norm.sf(unprojected_P)}
  p_values |= published_p_values(hidden_SND[:settings.published_seeds], settings.k)
  return {'input_shared': shared,
          'published_networks': min(len(prints), settings.published_seeds),
          **rates(z_P, p_values, len(prints))}


def measure_aligned(loaded, settings) -> dict:
  """The same of `alignment.aligned_test`, which needs a forward pass for every pair."""
  pairs = list(itertools.combinations(loaded, 2))
  probe = probe_of('gaussian', settings)
  z_P = np.array([lineage.aligned_test(*pair, probe, num_permutations=0).z
                  for pair in tqdm(pairs, desc='aligned', unit='pair', leave=False)])
  return {'input_shared': True,
          **rates(z_P, {'calibrated': stats.norm.sf(z_P)}, len(loaded))}


def display(row):
  rate = lambda test, alpha: f'{row[name]:.1%}' if (name := f'{test}_{alpha}') in row else '–'
  low, high = row['calibrated_0.01_ci95']
  return {'unrelated networks': row['cell'], 'pairs': str(row['pairs']),
          'sd z': f'{row["sd_z"]:.2f}', 'calibrated at 0.05': rate('calibrated', 0.05),
          'at 0.01 (95 % interval)': f'{rate("calibrated", 0.01)} ({low:.1%}–{high:.1%})',
          **{f'{TESTS[test]} at 0.01': rate(test, 0.01) for test in list(TESTS)[1:]}}


def draw(rows):
  """For each test: observed share of p-values below each level, a line per cell."""
  tests = 'calibrated', 'unprojected', 'published_t'
  with plotting.style():
    figure = plotting.figure(9, 3.2)
    axes = figure.subplots(1, len(tests), sharey=True)
    for ax, test in zip(axes, tests, strict=True):
      draw_shares(ax, test, rows)
    axes[0].set_ylabel('share of unrelated pairs accused')
    labels = axes[0].get_legend_handles_labels()
    figure.legend(*labels, loc='outside right upper', fontsize='x-small')
  return figure


def draw_shares(ax, test, rows):
  """A test that keeps its level follows the diagonal."""
  for i, row in enumerate(rows):
    if f'{test}_0.01' in row:
      turn, color = divmod(i, len(plotting.COLORS))
      ax.plot(LEVELS, row[f'{test}_share_below_level'], ('-', ':', '--')[turn % 3], linewidth=1,
              label=row['cell'], color=plotting.COLORS[color])
  level = np.array([1e-4, 1])
  plotting.theory(ax, level, level)
  ax.set(xscale='log', yscale='log', xlim=(1e-4, 1), ylim=(1e-4, 1.2), title=TESTS[test],
         xlabel='level (p-value)')


if __name__ == '__main__':
  command_line.run(main, 'calibrate', SCALES, __doc__, SETTINGS)
