"""Does one network descend from another? Two networks, one verdict (SeedPrint, Algorithm 1, with a calibrated null).

    python -m experiments.seedprint --base=results/pretrain_laptop/seed_42@0 --suspect=results/pretrain_laptop/seed_42
    python -m experiments.seedprint --base=my_llama/ --suspect=their_llama/ --num_sequences=4000

A network is a run of experiments.pretrain (RUN: its latest checkpoint, or
RUN@STEP), a transformers directory (safetensors), a fingerprint .npz, or
PRESET:SEED for a random one. Both read the same random sequences; what they
answer is correlated, channel by channel, and compared with the same under
permuted channels. Fingerprints are kept in OUTPUT_DIR/fingerprints, results.json
has the verdict (schema 1: verdict, reasons, statistic, z, log10_p, …),
figure.png the evidence. With --references=K the base is also compared with K
fresh networks of its own architecture, a null that no theory stands behind. A
suspect whose residual channels may have been rotated or permuted wants --align:
both then read Gaussian vectors, in the basis that their embeddings tell.

Exit code: 0 related, 5 unrelated, 3 inconclusive, 4 not comparable, 2 wrong input; 1, as of any program, a crash.
"""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
from scipy import stats
from tqdm import tqdm

from bornbiased_jax import plotting
from bornbiased_jax.analysis.probes import KINDS as PROBE_KINDS
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprints, methods, networks, published, verdict
from bornbiased_jax.lineage.kendall import MAX_ROWS
from experiments import command_line
from experiments.command_line import KINDS, choice, flagged, optional, required, switch, whole
from experiments.results import make_directory, write_json

EXIT_CODES = {'related': 0, 'unrelated': 5, 'inconclusive': 3, 'not comparable': 4}


PROBE_SETTINGS = {
    'probe': (choice(*PROBE_KINDS), "what both read: 'tokens', random ids, or 'gaussian', random vectors"),
    'num_ids': (optional(whole), "random ids are below it, for networks of different vocabularies; 'auto': all"),
}
SEEDPRINT_KINDS = KINDS | PROBE_SETTINGS | {
    'base': (required(networks.FORMS), f'a network: {networks.FORMS}'),
    'suspect': (required(networks.FORMS), 'another, likewise'),
    'align': (switch, 'undo a rotation or permutation of the residual channels first, found from the embeddings'),
    'references': (lambda text: whole(text, 0, 10**4),
                   "fresh random networks of the base's architecture to compare it with"),
}
PROBE = dict(probe='tokens', num_sequences='2000', length='64', probe_seed='0', num_ids='auto')
_LAPTOP = PROBE | dict(base='none', suspect='none', references='0', align='false')
SCALES = {
    'smoke': _LAPTOP | dict(base='tiny_gpt2:1', suspect='tiny_gpt2:2', num_sequences='300', length='4', references='3'),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(length='1024'),
}


def main(settings, output_dir):
  check(settings)
  make_directory(output_dir)
  report, result, reference = (aligned if settings.align else plain)(settings, output_dir)
  write_json(output_dir / 'results.json', {'experiment': 'seedprint', 'settings': vars(settings),
                                           'environment': environment()} | report | {'reference': reference})
  print(f'{report["verdict"].upper()}: {settings.base} and {settings.suspect}', *report['reasons'], sep='\n  ')
  if result:
    plotting.save(draw(result, report, reference), output_dir / 'figure.png')
  print(f'wrote {output_dir}/results.json' + (' and figure.png' if result else ''))
  sys.exit(EXIT_CODES[report['verdict']])


def check(settings):
  """Raises InputError for networks that are not there, and flags that do not go with --align."""
  models = {getattr(settings, flag): flagged(flag, look_up, getattr(settings, flag)) for flag in ('base', 'suspect')}
  if not settings.align:
    check_vocabularies(models, settings)
  if settings.align and settings.references:
    raise InputError('--references: only without --align')
  if settings.align and any(name.endswith('.npz') for name in (settings.base, settings.suspect)):
    raise InputError('--align: needs the networks themselves; a fingerprint cannot be turned')


def look_up(name: str) -> ModelConfig | None:
  """The model of a network, None of a fingerprint; raises InputError where there is none of that name."""
  if not name.endswith('.npz'):
    return networks.load_config(name)
  fingerprints.load(name)
  return None


def check_vocabularies(models: dict[str, ModelConfig | None], settings: SimpleNamespace) -> None:
  """Raises InputError for networks of one width, by name, that would draw different tokens from the probe."""
  if settings.probe != 'tokens' or settings.num_ids:
    return
  first = {}
  for name, model in models.items():
    other, size = first.setdefault(model.width, (name, model.vocab_size)) if model else (None, None)
    if model and model.vocab_size != size:
      raise InputError(f'--num_ids: {other} knows {size} token ids and {name} {model.vocab_size}; give '
                       f'--num_ids={min(size, model.vocab_size)} or less, so that all read the same')


def plain(settings, output_dir):
  """Report, result and reference of the fingerprints of both."""
  probe = probe_of(settings)
  base, suspect = (take(name, probe, output_dir / 'fingerprints') for name in (settings.base, settings.suspect))
  report, result = verdict.compare(base, suspect)
  reference = refer(base, report, probe, settings) if settings.references and result else None
  if reference:
    as_much = sum(z >= report['z'] for z in reference['z'])
    report['reasons'].append(f'Of {settings.references} fresh networks of its architecture {as_much} agree with the '
                             'base as much.')
    if report['verdict'] == 'related' and as_much:
      report['verdict'] = 'inconclusive'
  if result and probe.num_sequences <= MAX_ROWS:
    report['published_p_value'] = published.published_test(base.hidden_ND, suspect.hidden_ND).p_value
  return report, result, reference


def aligned(settings, output_dir):
  """The same of both networks, the suspect in a basis that is found from the embeddings."""
  probe = dataclasses.replace(probe_of(settings), kind='gaussian', num_ids=None)
  *networks, about = zip(*(networks.load(name) for name in (settings.base, settings.suspect)), strict=True)
  return *verdict.compare_aligned(*zip(*networks, strict=True), probe, about), None


def probe_of(settings) -> Probe:
  return Probe(settings.probe, settings.num_sequences, settings.length, settings.probe_seed, settings.num_ids)


def take(name, probe, cache):
  with tqdm(total=probe.num_sequences, desc=name[-40:], unit='seq', delay=1, leave=False) as bar:
    return networks.fingerprint(name, probe, cache, on_batch=bar.update)


def refer(base, report, probe, settings) -> dict:
  """Rank of the suspect's z among those of fresh networks: p = (1 + as large) / (K + 1)."""
  config = fingerprints.config_of(base)
  seeds = methods.FIRST_REFERENCE + np.arange(settings.references)
  with tqdm(total=len(seeds), desc='references', unit='network', leave=False) as bar:
    fresh = fingerprints.of_seeds(config, seeds.tolist(), probe, on_network=bar.update)
  z_K = [verdict.compare(base, other)[0]['z'] for other in fresh]
  return {'z': z_K, 'p_value': methods.rank_p_value(report['z'], z_K)}


def draw(result, report, reference):
  """Left: t against its null. Right: the correlations of the channels with themselves."""
  with plotting.style():
    figure = plotting.figure(8, 3)
    null, channels = figure.subplots(1, 2)
    mean, std = result.statistic - result.z * result.null_std, result.null_std
    reach = max(5 * std, 1.2 * abs(result.statistic))
    grid = np.linspace(-reach, reach, 801)
    null.fill_between(grid, stats.norm.pdf(grid, mean, std), color='#999999', alpha=0.5, linewidth=0,
                      label='channels permuted')
    null.axvline(result.statistic, color=plotting.COLORS[1], label=f'observed, z = {result.z:.1f}')
    for i, z in enumerate(reference['z'] if reference else ()):
      null.axvline(mean + z * std, ymax=0.1, color=plotting.COLORS[0], linewidth=1,
                   label='fresh networks' if i == 0 else None)
    null.set(xlabel='mean rank correlation of same channels, t', ylabel='density',
             ylim=(0, None), title=f'Verdict: {report["verdict"]}')
    null.legend()
    lowest, highest = result.dimension_D.min(), result.dimension_D.max()
    margin = max(0.02, 0.1 * (highest - lowest))
    channels.hist(result.dimension_D, bins=np.linspace(lowest - margin, highest + margin, 41), color=plotting.COLORS[0])
    channels.axvline(0, color='black', linewidth=1)
    channels.set(xlabel='rank correlation', ylabel='channels',
                 title=f'Each of {len(result.dimension_D)} channels with the other\'s')
  return figure


if __name__ == '__main__':
  command_line.run(main, 'seedprint', SCALES, __doc__, SEEDPRINT_KINDS)
