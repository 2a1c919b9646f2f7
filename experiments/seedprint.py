"""Does one network descend from another? This program compares two networks and gives a verdict.

The test is SeedPrint (Algorithm 1) with a calibrated null. Both networks read the same random
sequences. Their answers are correlated channel by channel, and the mean correlation is compared
with what it is when the channels of one network are permuted.

    python -m experiments.seedprint --base=results/pretrain_laptop/seed_42@0 \\
        --suspect=results/pretrain_laptop/seed_42
    python -m experiments.seedprint --base=my_llama/ --suspect=their_llama/ --num_sequences=4000

A network is given as a run of experiments.pretrain (RUN for its latest checkpoint, RUN@STEP for
another one), a transformers directory (safetensors), a saved fingerprint (.npz), or PRESET:SEED for
a random network.

If the residual channels of the suspect may have been rotated or permuted, add --align. Both
networks then read Gaussian vectors, and the suspect is first turned into the basis of the base,
which is found from the embeddings of both.

With --references=K the base is also compared with K fresh random networks of its own architecture,
which gives a null distribution that rests on no theory.

Writes the verdict to OUTPUT_DIR/results.json (schema 1: verdict, reasons, statistic, z, log10_p, …)
and the evidence to OUTPUT_DIR/figure.png. Fingerprints are kept in OUTPUT_DIR/fingerprints.

Exit codes: 0 related, 5 unrelated, 3 inconclusive, 4 not comparable, 2 wrong input, 1 a crash.
"""

import dataclasses
import sys

import numpy as np
from scipy import stats
from tqdm import tqdm

from bornbiased_jax import lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprints, methods
from bornbiased_jax.lineage.kendall import MAX_ROWS
from bornbiased_jax.lineage.networks import FORMS
from experiments.shared import command_line, networks
from experiments.shared.command_line import Setting, flagged
from experiments.shared.parsing import whole
from experiments.shared.results import make_directory, write_json

EXIT_CODES = {'related': 0, 'unrelated': 5, 'inconclusive': 3, 'not comparable': 4}
SETTINGS = networks.SETTINGS | {
    'base': Setting(str, f'a network: {FORMS}', hint=FORMS),
    'suspect': Setting(str, 'the other network, in the same form', hint=FORMS),
    'align': Setting(None,
                     'first undo a rotation or permutation of the residual channels, which is '
                     'found from the embeddings'),
    'references': Setting(lambda text: whole(text, 0, 10**4),
                          "fresh random networks of the base's architecture to compare it with"),
}
_LAPTOP = dict(base=None, suspect=None, align=False, references=0) | networks.PROBE
SCALES = {
    'smoke': _LAPTOP | dict(base='tiny_gpt2:1', suspect='tiny_gpt2:2', num_sequences=300, length=4,
                            references=3),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(length=1024),
}


def main(settings, output_dir):
  probe = probe_of(settings)
  check(settings, probe)
  make_directory(output_dir)
  judge = aligned if settings.align else plain
  report, result, reference = judge(settings, probe, output_dir)
  write_json(output_dir / 'results.json', {
      'experiment': 'seedprint', 'settings': vars(settings), 'environment': environment()} | report
      | {'reference': reference})
  show(report, settings)
  if result:
    plotting.save(draw(result, report, reference), output_dir / 'figure.png')
  print(f'wrote {output_dir}/results.json' + (' and figure.png' if result else ''))
  sys.exit(EXIT_CODES[report['verdict']])


def probe_of(settings) -> Probe:
  """What both read; tokens mean nothing to a network in another basis."""
  probe = networks.probe_of(settings)
  return dataclasses.replace(probe, kind='gaussian', num_ids=None) if settings.align else probe


def check(settings, probe) -> None:
  """Raises InputError for networks that are not there, and flags that do not go with --align."""
  models = {getattr(settings, flag): flagged(flag, networks.look_up, getattr(settings, flag))
            for flag in ('base', 'suspect')}
  networks.check_probe(models, probe)
  if settings.align and settings.references:
    raise InputError('--references: only without --align')
  if settings.align and None in models.values():
    raise InputError('--align: needs the networks themselves; a fingerprint cannot be turned')


def plain(settings, probe, output_dir):
  """Report, result and reference from the fingerprints of both networks."""
  cache = output_dir / 'fingerprints'
  base, suspect = (networks.take(name, probe, cache) for name in (settings.base, settings.suspect))
  report, result = lineage.compare(base, suspect)
  reference = None
  if settings.references and result:
    reference = refer(base, report, probe, settings)
    count_agreeing(report, reference)
  if result and probe.num_sequences <= MAX_ROWS:
    published = lineage.published_test(base.hidden_ND, suspect.hidden_ND)
    report['published_p_value'] = published.p_value
  return report, result, reference


def aligned(settings, probe, output_dir):
  """Report and result of both networks, the suspect in a basis found from the embeddings."""
  *pair, about = zip(*(lineage.load(name) for name in (settings.base, settings.suspect)),
                     strict=True)
  return *lineage.compare_aligned(*zip(*pair, strict=True), probe, about), None


def refer(base, report, probe, settings) -> dict:
  """Rank of the suspect's z among those of fresh networks: p = (1 + as large) / (K + 1)."""
  config = fingerprints.config_of(base)
  seeds = methods.FIRST_REFERENCE + np.arange(settings.references)
  with tqdm(total=len(seeds), desc='references', unit='network', leave=False) as bar:
    fresh = fingerprints.of_seeds(config, seeds.tolist(), probe, on_network=bar.update)
  z_K = [lineage.compare(base, other)[0]['z'] for other in fresh]
  return {'z': z_K, 'p_value': methods.rank_p_value(report['z'], z_K)}


def count_agreeing(report, reference) -> None:
  """Adds to the reasons how many fresh networks agree as much, of which one forbids 'related'."""
  as_much = sum(z >= report['z'] for z in reference['z'])
  report['reasons'].append(f'Of {len(reference["z"])} fresh networks of its architecture {as_much} '
                           'agree with the base as much.')
  if report['verdict'] == 'related' and as_much:
    report['verdict'] = 'inconclusive'


def show(report, settings) -> None:
  print(f'{report["verdict"].upper()}: {settings.base} and {settings.suspect}', *report['reasons'],
        sep='\n  ')
  if report['verdict'] == 'unrelated' and not settings.align:
    print('  With --align the comparison also looks behind a permutation or rotation.')


def draw(result, report, reference):
  """Left: t and its null. Right: the correlation of each channel with the other network's."""
  with plotting.style():
    figure = plotting.figure(8, 3)
    null, channels = figure.subplots(1, 2)
    draw_null(null, result, reference)
    null.set(ylim=(0, None), title=f'Verdict: {report["verdict"]}')
    null.legend()
    lowest, highest = result.dimension_D.min(), result.dimension_D.max()
    margin = max(0.02, 0.1 * (highest - lowest))
    channels.hist(result.dimension_D, bins=np.linspace(lowest - margin, highest + margin, 41),
                  color=plotting.COLORS[0])
    channels.axvline(0, color='black', linewidth=1)
    channels.set(xlabel='rank correlation', ylabel='channels',
                 title=f'Each of {len(result.dimension_D)} channels with the other\'s')
  return figure


def draw_null(ax, result, reference):
  """The statistic, its null under permuted channels, and those of fresh networks as ticks."""
  mean, std = result.statistic - result.z * result.null_std, result.null_std
  reach = max(5 * std, 1.2 * abs(result.statistic))
  grid = np.linspace(-reach, reach, 801)
  ax.fill_between(grid, stats.norm.pdf(grid, mean, std), color='#999999', alpha=0.5, linewidth=0,
                  label='channels permuted')
  ax.axvline(result.statistic, color=plotting.COLORS[1], label=f'observed, z = {result.z:.1f}')
  for i, z in enumerate(reference['z'] if reference else ()):
    ax.axvline(mean + z * std, ymax=0.1, color=plotting.COLORS[0], linewidth=1,
               label='fresh networks' if i == 0 else None)
  ax.set(xlabel='mean rank correlation of same channels, t', ylabel='density')


if __name__ == '__main__':
  command_line.run(main, 'seedprint', SCALES, __doc__, SETTINGS)
