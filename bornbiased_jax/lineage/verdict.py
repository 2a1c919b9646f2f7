"""The verdict on two networks, as sentences that can be quoted and as JSON.

If the evidence is not sufficient either way, the verdict is 'inconclusive'.
"""

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

# 'related' needs a p-value of at most ALPHA, 'unrelated' one above UNRELATED_ABOVE.
ALPHA = 1e-4
UNRELATED_ABOVE = 0.01
# 'unrelated' also needs enough sequences, and a test that can find a mean correlation as small
# as DETECTABLE, 1.5 times what it can find between the trained networks on which it was checked.
LEAST_SEQUENCES = 1000
DETECTABLE = 0.144
# The largest share of constant channels with which a comparison is conclusive.
MOST_DEGENERATE = 0.1
# Inputs of two networks whose cosine is above this count as shared and are projected out. An
# embedding and its copy lie above it after rounding to 8 bits or a little training. Below it,
# an embedding that was taken over and trained further counts as evidence of descent.
SHARED_ABOVE = 0.99

# The least `basis_fit` for 'related' after an alignment: more than what training on similar
# text alone makes.
LEAST_FIT = 0.7

BLIND_TO_BASES = (
    'A descendant whose residual channels were permuted or rotated on purpose would also look '
    'unrelated to this test; the aligned comparison (compare_aligned) is made for that case.')
BLIND_TO_EMBEDDINGS = (
    'A descendant whose embeddings were replaced, or whose tokens were renumbered, would also '
    'look unrelated to this test.')


def compare(base: Fingerprint, suspect: Fingerprint,
            alpha: float = ALPHA) -> tuple[dict, CalibratedResult | None]:
  """Does one of two networks descend from the other, or do both descend from a third?

  Args:
    base: fingerprint of one network.
    suspect: fingerprint of the other network, from the same probe.
    alpha: largest p-value for the verdict 'related'.

  Returns:
    The report, which is JSON, and the result of the test, or None if no test was
    made. The report has schema; verdict, one of VERDICTS; reasons, a list of
    sentences; statistic, z and log10_p of the test (`seedprint.CalibratedResult`);
    permutation_p_value, never below 1e-4; detectable, the mean correlation that the
    test finds with 95 % probability; sequences; width; input_shared; probe; base
    and suspect.

  Raises:
    InputError: the fingerprints are of different probes.

  Example:
    >>> from bornbiased_jax import lineage
    >>> hidden, inputs = np.random.default_rng(0).standard_normal((2, 1000, 8))
    >>> network = lineage.Fingerprint(hidden, inputs, {'probe': {}, 'about': {}})
    >>> lineage.compare(network, network)[0]['verdict']
    'related'
  """
  n, D = base.hidden_ND.shape
  if base.metadata['probe'] != suspect.metadata['probe'] and D == suspect.hidden_ND.shape[1]:
    raise InputError('fingerprints of different probes cannot be compared: the base read '
                     f'{_probe(base)}; the suspect read {_probe(suspect)}{_cure(base, suspect)}')
  report = _report(n, D, base.metadata['probe'], base.metadata['about'], suspect.metadata['about'])
  if D != suspect.hidden_ND.shape[1]:
    return report | _of_widths(D, suspect.hidden_ND.shape[1]), None
  if 'logit_ids' in base.metadata['probe']:
    return report | _ruled('inconclusive', (
        'These fingerprints are logits of chosen token ids. An id means the same in all networks, '
        'so networks trained on similar text answer alike, related or not, and no verdict can '
        'rest on that.')), None
  shared = input_is_shared(base, suspect)
  report['input_shared'] = shared
  channels = base.input_ND.shape[1]
  if shared and n <= 2 * channels:
    return report | _ruled('inconclusive', (
        'Both networks read the same input vectors, or almost the same. These must be projected '
        f'out before the test, and {n} sequences are too few to project out {channels} channels: '
        f'use more than {2 * channels}.')), None
  result = calibrated_test(base.hidden_ND, suspect.hidden_ND, base.input_ND if shared else None)
  report |= _judged(result, alpha, n, D, BLIND_TO_BASES)
  digests = [about.get('digest') for about in (report['base'], report['suspect'])]
  # A stranger's file may claim any digest, so the answers must be equal as well.
  same = digests[0] is not None and digests[0] == digests[1]
  if same and np.array_equal(base.hidden_ND, suspect.hidden_ND):
    report['reasons'].append('Their parameters have the same SHA-256 digest and their answers '
                             'are equal: they are the same network.')
  return report, result


def compare_aligned(base: tuple[ModelConfig, dict], suspect: tuple[ModelConfig, dict], probe: Probe,
                    about: tuple[dict, dict] = ({}, {}),
                    alpha: float = ALPHA) -> tuple[dict, CalibratedResult | None]:
  """`compare` after undoing a change of basis of the residual stream (`alignment.aligned_test`).

  Args:
    base: configuration and parameters of one network.
    suspect: configuration and parameters of the other.
    probe: a probe of kind 'gaussian'.
    about: JSON for each of them that says which network it is.
    alpha: largest p-value for the verdict 'related'.

  Returns:
    As `compare`; the report also has embedding_fit (`alignment.basis_fit`). The
    verdict is 'inconclusive' if the networks cannot be aligned, or if they agree
    although their embeddings fit badly: training on similar text may do as much.
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
  report['reasons'].append(
      'In the best common basis the embeddings of the two networks have a mean cosine of '
      f'{fit:.2f}, measured on tokens that were not used to find that basis.')
  if report['verdict'] == 'related' and fit < LEAST_FIT:
    report['verdict'] = 'inconclusive'
    report['reasons'].append(
        f'Where this cosine is below {LEAST_FIT}, unrelated networks that were trained on similar '
        'text may agree as well, so the verdict is not related but inconclusive.')
  return report, result


def _report(n, D, probe, base, suspect):
  return {'schema': SCHEMA, 'verdict': None, 'reasons': [], 'statistic': None, 'z': None,
          'log10_p': None, 'permutation_p_value': None, 'detectable': None, 'sequences': n,
          'width': D, 'input_shared': None, 'probe': probe, 'base': base, 'suspect': suspect}


def _of_widths(base, suspect):
  return _ruled('not comparable', (
      f'The networks have {base} and {suspect} residual channels. This test pairs channels one by '
      'one and does not leave any out to make the numbers equal.'))


def _judged(result, alpha, n, D, blind_spot):
  # The mean of the null, with the leak of a shared input added.
  null_mean = result.statistic - result.z * result.null_std
  detectable = null_mean + (stats.norm.isf(alpha) + stats.norm.isf(0.05)) * result.null_std
  return {'statistic': result.statistic, 'z': result.z, 'log10_p': result.log10_p,
          'permutation_p_value': result.p_value, 'detectable': detectable} | _ruled(
              *_decide(result, detectable, alpha, n, D, blind_spot))


def input_is_shared(base: Fingerprint, suspect: Fingerprint) -> bool:
  """Whether two networks read the same vectors, or almost the same.

  These come from a Gaussian probe, from a common embedding, or from slightly changed
  copies of one. The criterion is a cosine above SHARED_ABOVE. What learned positions
  add is the same for every sequence and does not count.
  """
  if base.input_ND.shape != suspect.input_ND.shape:
    return False
  a_ND, b_ND = (each.input_ND - each.input_ND.mean(axis=0) for each in (base, suspect))
  return bool(np.vdot(a_ND, b_ND) > SHARED_ABOVE * np.linalg.norm(a_ND) * np.linalg.norm(b_ND))


def _decide(result, detectable, alpha, n, D, blind_spot):
  most_permuted_p = max(alpha, 1e-3)
  found = (f'Over {n} sequences, the {D} channels of one network have a mean rank correlation of '
           f'{result.statistic:.4f} with the same channels of the other. Compared with permuted '
           f'channels: z = {result.z:.1f}, p-value {p_value_text(result.log10_p)}.')
  if result.num_degenerate > MOST_DEGENERATE * D:
    return 'inconclusive', found, (
        f'{result.num_degenerate} of {D} channels are constant in at least one of the networks. '
        f'With more than {MOST_DEGENERATE:.0%} such channels a comparison is inconclusive.')
  if result.log10_p <= math.log10(alpha) and result.p_value <= most_permuted_p:
    return 'related', found, (
        f'At most one in {1 / alpha:,.0f} pairs of independent networks is called related. This '
        'is not the probability that these two networks are independent. Related means that one '
        'descends from the other or that both share an ancestor; the test does not say which of '
        'the two came first.')
  if 10**result.log10_p <= UNRELATED_ABOVE:
    return 'inconclusive', found, (
        f'The p-value is at most {UNRELATED_ABOVE:g}, which chance seldom gives, but an '
        f'accusation needs at most {alpha:g}, and at most {most_permuted_p:g} under random '
        f'permutations, where it is {result.p_value:.2g}. More sequences, or another probe seed, '
        'may settle the question.')
  if n < LEAST_SEQUENCES:
    return 'inconclusive', found, (f'{n} sequences are too few to call two networks unrelated: '
                                   f'use {LEAST_SEQUENCES} at least.')
  if detectable > DETECTABLE:
    return 'inconclusive', found, (
        f'A mean correlation below {detectable:.3f} may have been missed. To call two networks '
        f'unrelated, the test must be able to find one of {DETECTABLE:g}: use more sequences.')
  return 'unrelated', found, (
      f'A mean correlation of {detectable:.4f} or more would have been found with a probability '
      f'of 95 %; a smaller one may have been missed. {blind_spot}')


def _ruled(verdict, *reasons):
  return {'verdict': verdict, 'reasons': list(reasons)}


def _probe(fingerprint):
  probe = fingerprint.metadata['probe']
  return ', '.join(f'{name} {value}' for name, value in probe.items()
                   if name not in ('hash', 'logit_ids'))


def _cure(*both):
  sizes = [fingerprint.metadata['probe'].get('num_ids') for fingerprint in both]
  if None in sizes or sizes[0] == sizes[1]:
    return ''
  return f'; a probe with num_ids={min(sizes)} lets both read the same tokens'
