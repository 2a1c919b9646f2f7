"""The verdict on two fingerprints, in words that can be quoted and in JSON; when in doubt, none."""

import math

import numpy as np
from scipy import stats

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.statistics import p_value_text
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alignment, fingerprints
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.seedprint import CalibratedResult, calibrated_test

SCHEMA = 1
VERDICTS = ('related', 'unrelated', 'inconclusive', 'not comparable')

ALPHA = 1e-4
UNRELATED_ABOVE = 0.01
# What a comparison must have before it may say 'unrelated': sequences, and a mean correlation that it would see, of at
# most half as much again as the pairs of the training study let see.
LEAST_SEQUENCES = 1000
DETECTABLE = 0.144
MOST_DEGENERATE = 0.1
# Cosine of what two networks read from which on it is projected out: that of an embedding before and after rounding to
# 8 bits or a little training. With less, an embedding that was taken over and trained on counts as descent.
SHARED_ABOVE = 0.99

# Cosine of embeddings in another basis from which on 'related' is said: above what training on similar text makes.
LEAST_FIT = 0.7

BLIND_TO_BASES = ('A descendant whose residual channels were permuted or rotated on purpose would look the same; '
                  'experiments.seedprint --align looks behind that.')
BLIND_TO_EMBEDDINGS = 'A descendant whose embeddings were replaced, or its tokens renumbered, would look the same.'


def compare(base: Fingerprint, suspect: Fingerprint, alpha: float = ALPHA) -> tuple[dict, CalibratedResult | None]:
  """Does one of two networks descend from the other, or both from a third?

  Args:
    base: of one network.
    suspect: of the other, from the same probe.
    alpha: largest p-value of 'related'.

  Returns:
    JSON: schema, verdict (one of VERDICTS), reasons (sentences), statistic, z,
    log10_p (of z), permutation_p_value (its floor is 1e-4; see
    `seedprint.CalibratedResult`), detectable (the mean correlation that is seen
    with 95 % probability), sequences, width, input_shared, probe, base and
    suspect. And the test's result; None where there is none.

  Raises:
    InputError: the fingerprints are of different probes.
  """
  if base.metadata['probe'] != suspect.metadata['probe'] and base.hidden_ND.shape[1] == suspect.hidden_ND.shape[1]:
    raise InputError(f'fingerprints of different probes cannot be compared: the base read {_probe(base)}; the suspect '
                     f'{_probe(suspect)}{_cure(base, suspect)}')
  n, D = base.hidden_ND.shape
  report = _report(n, D, base.metadata['probe'], base.metadata['about'], suspect.metadata['about'])
  if D != suspect.hidden_ND.shape[1]:
    return report | _of_widths(D, suspect.hidden_ND.shape[1]), None
  if 'logit_ids' in base.metadata['probe']:
    return report | _ruled('inconclusive', (
        'These are logits of chosen ids, which mean the same in all networks: those trained on similar text answer '
        'alike, related or not.')), None
  shared = input_is_shared(base, suspect)
  report['input_shared'] = shared
  channels = base.input_ND.shape[1]
  if shared and n <= 2 * channels:
    return report | _ruled('inconclusive', (
        'Both networks read the same vectors, or almost the same, which must be projected out first; '
        f'{n} sequences are too few for {channels} channels: use more than {2 * channels}.')), None
  result = calibrated_test(base.hidden_ND, suspect.hidden_ND, base.input_ND if shared else None)
  report |= _judged(result, alpha, n, D, BLIND_TO_BASES)
  checksums = [about.get('checksum') for about in (report['base'], report['suspect'])]
  # A stranger's file may claim any checksum.
  if checksums[0] is not None and checksums[0] == checksums[1] and np.array_equal(base.hidden_ND, suspect.hidden_ND):
    report['reasons'].append('Their parameters have the same checksum: they are the same network.')
  return report, result


def compare_aligned(base: tuple[ModelConfig, dict], suspect: tuple[ModelConfig, dict], probe: Probe,
                    about: tuple[dict, dict] = ({}, {}),
                    alpha: float = ALPHA) -> tuple[dict, CalibratedResult | None]:
  """`compare`, whatever the basis of the suspect's residual stream (`alignment.aligned_test`).

  Args:
    base: configuration and parameters.
    suspect: likewise.
    probe: of kind 'gaussian'.
    about: JSON that says which networks they are.
    alpha: largest p-value of 'related'.

  Returns:
    As `compare`, and embedding_fit (`alignment.basis_fit`). 'inconclusive',
    and why, where the networks cannot be aligned, or where they agree but
    their embeddings hardly fit: training on similar text may do as much.
  """
  n, D = probe.num_sequences, base[0].width
  report = _report(n, D, fingerprints.probe_settings(probe, base[0]), *about)
  report |= {'input_shared': True, 'embedding_fit': None}
  if D != suspect[0].width:
    return report | _of_widths(D, suspect[0].width), None
  try:
    result = alignment.aligned_test(base, suspect, probe)
    report['embedding_fit'] = fit = alignment.basis_fit(*alignment.common_embeddings(base, suspect),
                                                        alignment.kind_of(base[0]))
  except InputError as error:
    return report | _ruled('inconclusive', f'These networks cannot be aligned: {error}.'), None
  report |= _judged(result, alpha, n, D, BLIND_TO_EMBEDDINGS)
  report['reasons'].append(f'In the best common basis their embeddings have a cosine of {fit:.2f}, on tokens that did '
                           'not choose it.')
  if report['verdict'] == 'related' and fit < LEAST_FIT:
    report['verdict'] = 'inconclusive'
    report['reasons'].append(f'Below {LEAST_FIT} unrelated networks that were trained on similar text may agree too.')
  return report, result


def _report(n, D, probe, base, suspect):
  return {'schema': SCHEMA, 'verdict': None, 'reasons': [], 'statistic': None, 'z': None, 'log10_p': None,
          'permutation_p_value': None, 'detectable': None, 'sequences': n, 'width': D, 'input_shared': None,
          'probe': probe, 'base': base, 'suspect': suspect}


def _of_widths(base, suspect):
  return _ruled('not comparable', f'The networks have {base} and {suspect} residual channels, which this test pairs '
                                  'one by one; it does not truncate.')


def _judged(result, alpha, n, D, blind_spot):
  null_mean = result.statistic - result.z * result.null_std  # The leak of a shared input included.
  detectable = null_mean + (stats.norm.isf(alpha) + stats.norm.isf(0.05)) * result.null_std
  return {'statistic': result.statistic, 'z': result.z, 'log10_p': result.log10_p,
          'permutation_p_value': result.p_value, 'detectable': detectable} | _ruled(
              *_decide(result, detectable, alpha, n, D, blind_spot))


def input_is_shared(base: Fingerprint, suspect: Fingerprint) -> bool:
  """Whether both networks read the same vectors, of a Gaussian probe or one embedding, or vectors made from these.

  A cosine above SHARED_ABOVE. What positions add is the same for every sequence and does not count.
  """
  if base.input_ND.shape != suspect.input_ND.shape:
    return False
  a_ND, b_ND = (each.input_ND - each.input_ND.mean(axis=0) for each in (base, suspect))
  return bool(np.vdot(a_ND, b_ND) > SHARED_ABOVE * np.linalg.norm(a_ND) * np.linalg.norm(b_ND))


def _decide(result, detectable, alpha, n, D, blind_spot):
  found = (f'The {D} channels of one network correlate with the same channels of the other by {result.statistic:.4f} '
           f'on average, over {n} sequences: z = {result.z:.1f}, p-value {p_value_text(result.log10_p)}.')
  if result.num_degenerate > MOST_DEGENERATE * D:
    return 'inconclusive', found, f'{result.num_degenerate} of {D} channels are constant: the networks hardly answer.'
  if result.log10_p <= math.log10(alpha) and result.p_value <= max(alpha, 1e-3):
    return 'related', found, (
        f'At most one in {1 / alpha:,.0f} pairs of independent networks is called related. That they share an ancestor '
        'does not say which of them came first.')
  if 10**result.log10_p <= UNRELATED_ABOVE:
    return 'inconclusive', found, (
        f'Between {alpha:g} and {UNRELATED_ABOVE:g}: more than chance would often give, less than an accusation needs. '
        'More sequences, or another probe seed, will tell.')
  if n < LEAST_SEQUENCES:
    return 'inconclusive', found, f'{n} sequences are too few to say unrelated: use {LEAST_SEQUENCES} at least.'
  if detectable > DETECTABLE:
    return 'inconclusive', found, f'A mean correlation below {detectable:.3f} may go unseen: use more sequences.'
  return 'unrelated', found, (f'A mean correlation of {detectable:.4f} or more would have been seen, with 95 % '
                              f'probability. {blind_spot}')


def _ruled(verdict, *reasons):
  return {'verdict': verdict, 'reasons': list(reasons)}


def _probe(fingerprint):
  probe = fingerprint.metadata['probe']
  return ', '.join(f'{name} {value}' for name, value in probe.items() if name not in ('hash', 'logit_ids'))


def _cure(*both):
  sizes = [fingerprint.metadata['probe'].get('num_ids') for fingerprint in both]
  return '' if None in sizes or sizes[0] == sizes[1] else f'; num_ids={min(sizes)} lets both read the same'
