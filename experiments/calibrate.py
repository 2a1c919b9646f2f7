"""How often does each test call unrelated networks related?

A test at level alpha should accuse a fraction alpha of unrelated pairs.

    python -m experiments.calibrate      # 100 seeds, 4,950 pairs per cell, an hour on two CPU cores
    python -m experiments.calibrate --runs=results/training_study_laptop/english --probes=verdict

A cell is an architecture, an initialization and a probe: 'gaussian' vectors that all networks read,
'tokens' with each network's own embedding, or 'shared_tokens' with one embedding for all. With
--runs there are also cells of networks trained on the same data in the same order: the latest
checkpoint of each folder seed_*.

The tests of answers are
  - the calibrated test,
  - the calibrated test without the projection of what the networks share,
  - the published t-test, U test and analytic z (k lowest dimensions, coset, softmax), which are
    slow, for the first --published_seeds networks.
The cells of the probe 'verdict' have all witnesses of experiments.seedprint and their verdict, for
the first --verdict_seeds networks. Intervals come from a bootstrap over seeds, because pairs share
networks.

Writes results.json (a row per cell) and figure.png (p-values against uniform ones). If a run was
stopped, the same command continues it.
"""

from collections import Counter
import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import configs, lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprints
from bornbiased_jax.lineage.witnesses import WITNESSES, input_is_shared
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

PROBES = ('gaussian', 'tokens', 'shared_tokens', 'verdict')
TESTS = {'calibrated': 'calibrated', 'unprojected': 'without projection',
         'published_t': 'published t', 'published_u': 'published U', 'published_z': 'published z'}
# What is drawn, if a cell has it.
TITLES = {name: title for name, title in TESTS.items() if name[-1] not in 'uz'} | {
    'verdict': 'verdict (all that can accuse)'} | {name: name for name in WITNESSES}
SHARED_EMBEDDING_SEED = 2**32 - 1

SETTINGS = command_line.SETTINGS | {
    'config': Setting(optional(command_line.SETTINGS['config'].parse),
                      command_line.SETTINGS['config'].help + ', or none, for --runs alone'),
    'probes': Setting(listed(choice(*PROBES)),
                      'cells to measure (see above), comma-separated, of '
                      f'{", ".join(PROBES)}'),
    'init_schemes': Setting(listed(choice(*configs.INIT_SCHEMES)),
                            'initializations, comma-separated, of gpt2, which divides the std of '
                            'the matrices that write to the residual stream by sqrt(2 layers), and '
                            'plain, which does not'),
    'k': Setting(optional(whole),
                 'the k most extreme channels, which the published tests compare; if not given, '
                 'about half of them, and a tenth above width 768'),
    'runs': Setting(optional(listed(str)),
                    'folders of training runs seed_*, comma-separated; those of one folder, which '
                    'are to be unrelated to each other, are compared as well'),
    'published_seeds': Setting(lambda text: whole(text, 3),
                               'networks of a cell that the published tests compare, at most'),
    'verdict_seeds': Setting(lambda text: whole(text, 3),
                             'networks of a cell that are judged, at most'),
}
_LAPTOP = dict(
    runs=None, config=['tiny_llama2', 'tiny_gpt2'], seeds=list(range(100)),
    init_schemes=['gpt2', 'plain'], probes=list(PROBES), num_sequences=2000, length=32,
    probe_seed=0, k=None, published_seeds=45, verdict_seeds=12)
SCALES = {
    'smoke': _LAPTOP | dict(config=['tiny_llama2'], seeds=[0, 1, 2, 3, 4], init_schemes=['gpt2'],
                            num_sequences=300, length=4, k=16),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(config=['nano_llama2', 'nano_gpt2'], length=1024),
}


def main(settings, output_dir):
  if len(settings.seeds) < 3:
    raise InputError('--seeds: at least three networks are needed')
  todo = random_cells(settings) | trained_cells(settings)
  if not todo:
    raise InputError('--config: none, and --runs is not given either: nothing to measure')
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
  for name, scheme in itertools.product(settings.config or (), settings.init_schemes):
    config = configs.get(name, init_scheme=scheme)
    networks.check_sequences(settings, config)
    seeds = settings.seeds[:settings.verdict_seeds]
    makers = {kind: lambda config=config, kind=kind: measure(
        random_networks(config, kind, settings), settings) for kind in settings.probes}
    if 'verdict' in makers:
      makers['verdict'] = lambda config=config, seeds=seeds: judge_all(
          [(config, init_params(config, seed)) for seed in seeds], settings)
    found |= {f'{name}, {scheme} init, {kind}': make for kind, make in makers.items()}
  return found


def trained_cells(settings) -> dict:
  """The cells of the networks of --runs, in the same form."""
  found = {}
  for folder in settings.runs or ():
    runs = runs_of(folder)
    config = load_config(runs[0])
    networks.check_sequences(settings, config)
    makers = {kind: lambda kind=kind, runs=runs: measure(
        trained_networks(runs, kind, settings), settings)
              for kind in settings.probes if kind != 'shared_tokens'}
    if 'verdict' in makers:
      makers['verdict'] = lambda runs=runs: judge_all(
          [lineage.load(run) for run in runs[:settings.verdict_seeds]], settings)
    found |= {f'trained {label(config)}, {kind}': make for kind, make in makers.items()}
  return found


def label(config) -> str:
  """An architecture for readers."""
  family = 'LLaMA' if config.gated_mlp else 'GPT-2'
  head = 'tied' if config.tied_head else 'own head'
  return f'{family} of width {config.width}, {head}'


def runs_of(folder: str) -> list[str]:
  runs = sorted(str(path) for path in Path(folder).expanduser().glob('seed_*'))
  if len(runs) < 3:
    raise InputError(f'--runs: {folder} has {len(runs)} folders seed_*; at least three are needed')
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
  p_values = {'calibrated': scipy.stats.norm.sf(z_P),
              'unprojected': scipy.stats.norm.sf(unprojected_P)}
  p_values |= published_p_values(hidden_SND[:settings.published_seeds], settings.k)
  return {'input_shared': shared,
          'published_networks': min(len(prints), settings.published_seeds),
          **rates(z_P, p_values, len(prints))}


def judge_all(loaded, settings) -> dict:
  """Rates of every witness and of the verdict over all pairs i < j of networks."""
  subjects = [networks.subject(*network, settings) for network in loaded]
  bar = tqdm(list(itertools.combinations(subjects, 2)), desc='verdicts', unit='pair', leave=False)
  reports = [lineage.judge(*pair) for pair in bar]
  p_values, z = {'verdict': [each['p_value'] for each in reports]}, {}
  for i, witness in enumerate(reports[0]['witnesses']):
    heard = [each['witnesses'][i] for each in reports]
    if witness['obstacle'] is None:
      p_values[witness['witness']] = [each['p_value'] for each in heard]
      z[witness['witness']] = np.array([each['z'] for each in heard])
  return {'verdicts': Counter(each['verdict'] for each in reports),
          'z_of': {name: {'mean': z_P.mean(), 'sd': z_P.std(ddof=1), 'max': z_P.max()}
                   for name, z_P in z.items()},
          **rates(z['unit order'], p_values, len(subjects))}


def display(row):
  test = 'verdict' if 'verdicts' in row else 'calibrated'
  rate = lambda test, alpha: f'{row[name]:.1%}' if (name := f'{test}_{alpha}') in row else '–'
  low, high = row[f'{test}_0.01_ci95']
  verdicts = ', '.join(f'{count} {name}' for name, count in row.get('verdicts', {}).items())
  return {'unrelated networks': row['cell'], 'pairs': str(row['pairs']),
          'sd z': f'{row["sd_z"]:.2f}', 'accused at 0.05': rate(test, 0.05),
          'at 0.01 (95 % interval)': f'{rate(test, 0.01)} ({low:.1%}–{high:.1%})',
          **{f'{TESTS[test]} at 0.01': rate(test, 0.01) for test in list(TESTS)[1:]},
          'verdicts': verdicts or '–'}


def draw(rows):
  """For each test: observed share of p-values below each level, a line per cell."""
  tests = [test for test in (*TITLES,) if any(f'{test}_0.01' in row for row in rows)]
  lines = -(-len(tests) // 4)
  with plotting.style():
    figure = plotting.figure(11, 0.4 + 2.6 * lines)
    panels = figure.subplots(lines, min(4, len(tests)), sharey=True, squeeze=False)
    for ax in panels.ravel()[len(tests):]:
      ax.set_axis_off()
    for ax, test in zip(panels.ravel(), tests, strict=False):
      draw_shares(ax, test, rows)
    for ax in panels[:, 0]:
      ax.set_ylabel('share of pairs accused')
    handles = {name: handle for ax in panels.ravel()
               for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc='outside lower center', ncols=3,
                  fontsize='x-small')
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
  ax.set(xscale='log', yscale='log', xlim=(1e-4, 1), ylim=(1e-4, 1.2), title=TITLES[test],
         xlabel='level (p-value)')


if __name__ == '__main__':
  command_line.run(main, 'calibrate', SCALES, __doc__, SETTINGS)
