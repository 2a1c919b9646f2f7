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

Writes results.json (a row per cell) and figure.png (the share of pairs that is accused at each
level). If a run was stopped, the same command continues it.
"""

from collections import Counter
import itertools
from pathlib import Path
import textwrap

import jax.numpy as jnp
import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import configs, lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import reading
from bornbiased_jax.lineage.verdict import ACCUSERS
from bornbiased_jax.lineage.witnesses import input_is_shared
from bornbiased_jax.models import init_params
from bornbiased_jax.storage import load_config

from .shared import command_line, networks
from .shared.command_line import Setting
from .shared.parsing import listed, optional, some_of, whole
from .shared.results import Results
from .shared.unrelated_pairs import (
  LEVELS,
  pairwise_z,
  project,
  published_p_values,
  rates,
)

PROBES = ('gaussian', 'tokens', 'shared_tokens', 'verdict')
TESTS = {'calibrated': 'calibrated', 'unprojected': 'without projection',
         'published_t': 'published t', 'published_u': 'published U', 'published_z': 'published z'}
# What is drawn: panels, their colours, and the tests that have each.
GROUPS = {
    'SeedPrint': {'calibrated test': ['calibrated'], 'published t-test': ['published_t'],
                  'published U test': ['published_u']},
    'The verdict': {'verdict': ['verdict'], 'the witnesses that can accuse': ACCUSERS},
    'Other witnesses': {
        'tokens and vectors': ['tokens', 'tokens, any sign', 'vectors'],
        'aligned answers': ['aligned answers']},
}
CAPTION = 'Each line is one test on one set of networks.'
OWN_TOKENS = (' Where it is dotted, networks read the same inputs; elsewhere each reads its own '
              'tokens.')
SHARED_EMBEDDING_SEED = 2**32 - 1

SETTINGS = command_line.SETTINGS | {
    'config': Setting(optional(command_line.SETTINGS['config'].parse),
                      command_line.SETTINGS['config'].help + ', or none, for --runs alone'),
    'probes': Setting(some_of(*PROBES),
                      'cells to measure (see above), comma-separated, of '
                      f'{", ".join(PROBES)}'),
    'init_schemes': Setting(some_of(*configs.INIT_SCHEMES),
                            'initializations, comma-separated, of gpt2, which divides the std of '
                            'the matrices that write to the residual stream by sqrt(2 layers), '
                            'plain, which does not, and wang, which sets it as GPT-NeoX does'),
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
    return reading.of_seeds(config, settings.seeds, probe_of(kind, settings),
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
  # Who is not heard accuses nobody.
  known = lambda rows: [1.0 if each['p_value'] is None else each['p_value'] for each in rows]
  p_values, z = {'verdict': known(reports)}, {}
  for i, witness in enumerate(reports[0]['witnesses']):
    heard = [each['witnesses'][i] for each in reports]
    if any(each['obstacle'] is None for each in heard):
      p_values[witness['witness']] = known(heard)
      z[witness['witness']] = np.array([each['z'] for each in heard], float)
  return {'verdicts': Counter(each['verdict'] for each in reports),
          'z_of': {name: {'mean': np.nanmean(z_P), 'sd': np.nanstd(z_P, ddof=1),
                          'max': np.nanmax(z_P)}
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
  """A panel per kind of networks and group of tests."""
  is_trained = lambda row: row['cell'].startswith('trained')
  kinds = {'random': [row for row in rows if not is_trained(row)],
           'trained': [row for row in rows if is_trained(row)]}
  shown = [(f'{title} on {kind} networks', curves) for kind, own in kinds.items()
           for title, tests in GROUPS.items() if (curves := curves_of(tests, own))]
  columns = min(3, len(shown))
  lines = -(-len(shown) // columns)
  with plotting.style():
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
  command_line.run(main, 'calibrate', SCALES, __doc__, SETTINGS)
