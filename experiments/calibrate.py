"""How often does each test call unrelated networks related? All pairs of many seeds, and of trained networks.

    python -m experiments.calibrate                          # 100 seeds, 4,950 pairs a cell, 40 min on two CPU cores
    python -m experiments.calibrate --runs=results/training_study_laptop/english

A test at level alpha should accuse a fraction alpha of unrelated pairs. A cell
is an architecture, an initialization and a probe: 'gaussian' vectors that all
networks read, 'tokens' with each network's own embedding, or 'shared_tokens'
with one embedding for all. With --runs also networks trained on the same data
in the same order, the latest checkpoint of each seed_* folder.

Tests: the calibrated one; the same without the projection of what the networks
share; the published t-test, U test and analytic z (k lowest dimensions, coset,
softmax), which are slow, over the first --published_seeds networks; and, in
cells of its own, the calibrated one behind a change of basis
(alignment.aligned_test), over the first --aligned_seeds. Intervals are from a
bootstrap over seeds, since pairs share networks.

Writes results.json (a row a cell) and figure.png (p-values against uniform
ones). Started again, it goes on where it was.
"""

import itertools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from tqdm import tqdm

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alignment, fingerprints, networks, published, seedprint
from bornbiased_jax.lineage.verdict import input_is_shared
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage.checkpoint import load_config
from experiments import command_line, study
from experiments.command_line import KINDS, choice, listed, optional, whole
from experiments.results import Results

ALPHAS = (0.05, 0.01, 0.001)
PROBES = ('gaussian', 'tokens', 'shared_tokens')
TESTS = {'calibrated': 'calibrated', 'unprojected': 'without projection', 'published_t': 'published t',
         'published_u': 'published U', 'published_z': 'published z'}
NUM_BOOTSTRAPS = 1000
LEVELS = np.logspace(-4, 0, 81)
SHARED_EMBEDDING_SEED = 2**32 - 1

CALIBRATE_KINDS = KINDS | {
    'probes': (listed(choice(*PROBES)), f'what the networks read, as above, of {", ".join(PROBES)}'),
    'init_schemes': (listed(choice(*configs.INIT_SCHEMES)),
                     'initializations, of gpt2, which divides the std of the matrices that write to the residual '
                     'stream by sqrt(2 layers), and plain, which does not'),
    'k': (optional(whole), "the k most extreme channels that the published test compares; 'auto': about half, and a "
                         'tenth above width 768'),
    'runs': (optional(str), 'folder of training runs seed_*, unrelated to each other'),
    'published_seeds': (lambda text: whole(text, 3), 'networks of a cell that the published tests compare, at most'),
    'aligned_seeds': (lambda text: whole(text, 3), 'networks of a cell that the aligned test compares, at most'),
}
_COMMON = dict(config='tiny_llama2,tiny_gpt2', init_schemes='gpt2,plain', probes=','.join(PROBES), probe_seed='0',
               k='auto', runs='none', published_seeds='45', aligned_seeds='12')
SCALES = {
    'smoke': _COMMON | dict(config='tiny_llama2', init_schemes='gpt2', seeds='0-4', num_sequences='300', length='4',
                            k='16'),
    'laptop': _COMMON | dict(seeds='0-99', num_sequences='2000', length='32'),
    'paper': _COMMON | dict(config='nano_llama2,nano_gpt2', seeds='0-99', num_sequences='2000', length='1024'),
}


def main(settings, output_dir):
  if len(settings.seeds) < 3:
    raise InputError('--seeds: at least three networks are needed')
  todo = cells(settings)
  results = Results(output_dir, 'calibrate', settings)
  done = {row['cell'] for row in results.rows}
  for name, make in todo.items():
    if name not in done:
      results.add({'cell': name} | make())
  results.finish([{name: value for name, value in row.items() if 'level' not in name} for row in results.rows],
                 display, draw(results.rows))


def cells(settings):
  """By name, functions that measure a row."""
  found = {}
  for name in settings.config:
    for scheme in settings.init_schemes:
      config, cell = configs.get(name, init_scheme=scheme), f'{name}, {scheme} init'
      study.check_num_sequences(settings, config)
      for kind in settings.probes:
        found[f'{cell}, {kind}'] = lambda config=config, kind=kind: measure(random_networks(config, kind, settings),
                                                                            settings)
      if alignable(config):
        found[f'{cell}, aligned'] = lambda config=config: measure_aligned(
            [(config, init_params(config, seed)) for seed in settings.seeds[:settings.aligned_seeds]], settings)
  if settings.runs:
    for kind in (kind for kind in settings.probes if kind != 'shared_tokens'):
      found[f'trained, {kind}'] = lambda kind=kind: measure(trained_networks(kind, settings), settings)
    runs = runs_of(settings)[:settings.aligned_seeds]
    config = load_config(runs[0])
    study.check_num_sequences(settings, config)
    if alignable(config):
      found['trained, aligned'] = lambda: measure_aligned([networks.load(run)[:2] for run in runs], settings)
  return found


def alignable(config) -> bool:
  return config.vocab_size >= alignment.LEAST_TOKENS_A_CHANNEL * config.width


def random_networks(config, kind, settings):
  with tqdm(total=len(settings.seeds), desc=f'fingerprints, {kind}', unit='network', leave=False) as bar:
    return fingerprints.of_seeds(config, settings.seeds, probe_of(kind, settings), on_network=bar.update,
                                 embedding_seed=SHARED_EMBEDDING_SEED if kind == 'shared_tokens' else None)


def trained_networks(kind, settings):
  bar = tqdm(runs_of(settings), desc=f'fingerprints, {kind}', unit='network', leave=False)
  return [networks.fingerprint(run, probe_of(kind, settings)) for run in bar]


def runs_of(settings) -> list[str]:
  runs = sorted(str(path) for path in Path(settings.runs).expanduser().glob('seed_*'))
  if len(runs) < 3:
    raise InputError(f'--runs: {settings.runs} has {len(runs)} folders seed_*; at least three are needed')
  return runs


def probe_of(kind, settings):
  return Probe('gaussian' if kind == 'gaussian' else 'tokens', settings.num_sequences, settings.length,
               settings.probe_seed)


def measure(networks, settings) -> dict:
  """Every test over all pairs i < j of networks: moments of z, rates at each level with 95 % intervals."""
  hidden_SND = jnp.stack([network.hidden_ND for network in networks])
  shared = all(input_is_shared(network, networks[0]) for network in networks)
  z_P = pairwise_z(*project(hidden_SND, networks[0].input_ND)) if shared else pairwise_z(hidden_SND)
  unprojected_P = pairwise_z(hidden_SND) if shared else z_P
  p_values = {'calibrated': stats.norm.sf(z_P), 'unprojected': stats.norm.sf(unprojected_P)}
  p_values |= published_p_values(hidden_SND[:settings.published_seeds], settings.k)
  return {'input_shared': shared, 'published_networks': min(len(networks), settings.published_seeds)} | rates(
      z_P, p_values, len(networks))


def measure_aligned(networks, settings) -> dict:
  """The same of `alignment.aligned_test`, whose every pair needs a forward pass."""
  pairs = tqdm(list(itertools.combinations(networks, 2)), desc='aligned', unit='pair', leave=False)
  probe = probe_of('gaussian', settings)
  z_P = np.array([alignment.aligned_test(*pair, probe, num_permutations=1).z for pair in pairs])
  return {'input_shared': True} | rates(z_P, {'calibrated': stats.norm.sf(z_P)}, len(networks))


def rates(z_P, p_values, num_networks) -> dict:
  row = {'networks': num_networks, 'pairs': len(z_P),
         'mean_z': float(z_P.mean()), 'sd_z': float(z_P.std(ddof=1)), 'max_z': float(z_P.max())}
  for test, p_P in p_values.items():
    for alpha in ALPHAS:
      accused_P = np.asarray(p_P) <= alpha  # NaN, where a test has no answer, accuses nobody.
      row[f'{test}_{alpha}'] = float(accused_P.mean())
      row[f'{test}_{alpha}_ci95'] = bootstrap(accused_P)
    row[f'{test}_share_below_level'] = np.mean(np.asarray(p_P)[:, None] <= LEVELS, axis=0).round(5)
  return row


def project(hidden_SND, input_ND):
  """`seedprint.residuals` and `seedprint.norm_trace` of all networks."""
  left_SND = jax.lax.map(lambda hidden_ND: seedprint.residuals(hidden_ND, input_ND), hidden_SND)
  return left_SND, jax.lax.map(lambda both: seedprint.norm_trace(*both, input_ND), (hidden_SND, left_SND))


def pairwise_z(hidden_SND, trace_S=None) -> np.ndarray:
  """z of `seedprint.calibrated_test` for all pairs i < j, the ranks made once a network."""
  ranks_SND = jax.lax.map(seedprint.unit_ranks, hidden_SND)
  trace_S = jnp.zeros(len(hidden_SND)) if trace_S is None else trace_S

  @jax.jit
  def against_all(rank_ND, trace):
    def z_of(other):
      with jax.default_matmul_precision('highest'):
        statistic, mean, std = seedprint.diagonal_moments(rank_ND.T @ other[0])
      return (statistic - trace * other[1] - mean) / std
    return jax.lax.map(z_of, (ranks_SND, trace_S))

  z_SS = np.stack([against_all(*each) for each in zip(ranks_SND, trace_S, strict=True)])
  return z_SS[np.triu_indices(len(z_SS), 1)]


def published_p_values(hidden_SND, k) -> dict[str, list[float]]:
  null = published.null_taus(*hidden_SND.shape[1:], k=k)
  bar = tqdm(list(zip(*np.triu_indices(len(hidden_SND), 1), strict=True)), desc='published', unit='pair', leave=False)
  pairs = [published.published_test(hidden_SND[i], hidden_SND[j], k=k, null=null) for i, j in bar]
  return {'published_t': [pair.p_value for pair in pairs], 'published_u': [pair.p_value_u for pair in pairs],
          'published_z': [pair.p_value_z for pair in pairs]}


def bootstrap(accused_P) -> list[float]:
  """95 % interval of a rate over pairs, by drawing networks with replacement.

  Where all pairs agree there is nothing to draw: Clopper and Pearson's, of as many pairs as share no network.
  """
  num_networks = round((1 + math.sqrt(1 + 8 * len(accused_P))) / 2)
  if accused_P.all() or not accused_P.any():
    disjoint = num_networks // 2
    return list(stats.binomtest(disjoint * int(accused_P.all()), disjoint).proportion_ci())
  draws = np.random.default_rng(0).multinomial(num_networks, np.full(num_networks, 1 / num_networks), NUM_BOOTSTRAPS)
  i, j = np.triu_indices(num_networks, 1)
  weight_BP = draws[:, i] * draws[:, j]
  rate_B = weight_BP @ accused_P / np.maximum(1, weight_BP.sum(axis=1))
  return np.percentile(rate_B, (2.5, 97.5)).tolist()


def display(row):
  rate = lambda test, alpha: f'{row[name]:.1%}' if (name := f'{test}_{alpha}') in row else '–'
  low, high = row['calibrated_0.01_ci95']
  return {'unrelated networks': row['cell'], 'pairs': str(row['pairs']), 'sd z': f'{row["sd_z"]:.2f}',
          'calibrated at .05': rate('calibrated', 0.05), 'at .01 (95 % interval)':
          f'{rate("calibrated", 0.01)} ({low:.1%}–{high:.1%})',
          **{f'{TESTS[test]} at .01': rate(test, 0.01) for test in list(TESTS)[1:]}}


def draw(rows):
  """For each test: observed share of p-values below each level, a line a cell, against the diagonal."""
  with plotting.style():
    figure = plotting.figure(9, 3.2)
    axes = figure.subplots(1, 3, sharey=True)
    for ax, test in zip(axes, ('calibrated', 'unprojected', 'published_t'), strict=True):
      for i, row in enumerate(rows):
        if f'{test}_0.01' not in row:
          continue
        turn, color = divmod(i, len(plotting.COLORS))
        ax.plot(LEVELS, row[f'{test}_share_below_level'], ('-', ':', '--')[turn % 3], linewidth=1, label=row['cell'],
                color=plotting.COLORS[color])
      level = np.array([1e-4, 1])
      plotting.theory(ax, level, level)
      ax.set(xscale='log', yscale='log', xlim=(1e-4, 1), ylim=(1e-4, 1.2), title=TESTS[test],
             xlabel='level (p-value)')
    axes[0].set_ylabel('share of unrelated pairs accused')
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside right upper', fontsize='x-small')
  return figure


if __name__ == '__main__':
  command_line.run(main, 'calibrate', SCALES, __doc__, CALIBRATE_KINDS)
