"""The verdict on two fingerprints, in words that can be quoted and in JSON; when in doubt, none."""

import math

import numpy as np
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.fingerprints import Fingerprint
from bornbiased_jax.seedprint import CalibratedResult, calibrated_test
from bornbiased_jax.statistics import p_value_text

SCHEMA = 1
VERDICTS = ('related', 'unrelated', 'inconclusive', 'not comparable')

ALPHA = 1e-4
UNRELATED_ABOVE = 0.01
# What a comparison must have before it may say 'unrelated': sequences, and a mean correlation that it would see.
LEAST_SEQUENCES = 1000
DETECTABLE = 0.1
MOST_DEGENERATE = 0.1


def compare(base: Fingerprint, suspect: Fingerprint, alpha: float = ALPHA) -> tuple[dict, CalibratedResult | None]:
  """Does one of two networks descend from the other, or both from a third?

  Args:
    base: of one network.
    suspect: of the other, from the same probe.
    alpha: largest p-value of 'related'.

  Returns:
    JSON: schema, verdict (one of VERDICTS), reasons (sentences), statistic, z,
    log10_p, p_value (see `seedprint.CalibratedResult`), detectable (the mean
    correlation that would have been seen), sequences, width, input_shared,
    probe, base and suspect. And the test's result; None where there is none.

  Raises:
    InputError: the fingerprints are of different probes.
  """
  if base.metadata['probe'] != suspect.metadata['probe'] and base.hidden_ND.shape[1] == suspect.hidden_ND.shape[1]:
    raise InputError(f'fingerprints of different probes cannot be compared: {_probe(base)} and {_probe(suspect)}')
  n, D = base.hidden_ND.shape
  report = {'schema': SCHEMA, 'verdict': None, 'reasons': [], 'statistic': None, 'z': None, 'log10_p': None,
            'p_value': None, 'detectable': None, 'sequences': n, 'width': D, 'input_shared': None,
            'probe': base.metadata['probe'], 'base': base.metadata['about'], 'suspect': suspect.metadata['about']}
  if D != suspect.hidden_ND.shape[1]:
    other = suspect.hidden_ND.shape[1]
    return report | _ruled('not comparable', f'The networks have {D} and {other} residual channels, which this test '
                                             'pairs one by one; it does not truncate.'), None
  shared = input_is_shared(base, suspect)
  report['input_shared'] = shared
  if shared and n <= 2 * D:
    return report | _ruled('inconclusive', 'Both networks read the same vectors, which must be projected out first; '
                                           f'{n} sequences are too few for {D} channels: use more than {2 * D}.'), None
  result = calibrated_test(base.hidden_ND, suspect.hidden_ND, base.input_ND if shared else None)
  detectable = abs(stats.norm.isf(alpha)) * result.null_std
  report |= {'statistic': result.statistic, 'z': result.z, 'log10_p': result.log10_p, 'p_value': result.p_value,
             'detectable': detectable}
  return report | _ruled(*_decide(result, detectable, alpha, n, D)), result


def input_is_shared(base: Fingerprint, suspect: Fingerprint) -> bool:
  """Whether both networks read the same vectors: of a Gaussian probe, or of one embedding; but for rounding."""
  difference = np.abs(base.input_ND - suspect.input_ND).max()
  return bool(difference <= 1e-4 * base.input_ND.std())


def _decide(result, detectable, alpha, n, D):
  found = (f'The {D} channels of one network correlate with the same channels of the other by {result.statistic:.4f} '
           f'on average, over {n} sequences: z = {result.z:.1f}, p-value {p_value_text(result.log10_p)}.')
  if result.num_degenerate > MOST_DEGENERATE * D:
    return 'inconclusive', found, f'{result.num_degenerate} of {D} channels are constant: the networks hardly answer.'
  if result.log10_p <= math.log10(alpha) and result.p_value <= max(alpha, 1e-3):
    return 'related', found, (
        f'Networks of independent seeds would agree as much in fewer than {alpha:g} of comparisons. That they share an '
        'ancestor does not say which of them came first.')
  if 10**result.log10_p <= UNRELATED_ABOVE:
    return 'inconclusive', found, (
        f'Between {alpha:g} and {UNRELATED_ABOVE:g}: more than chance would often give, less than an accusation needs. '
        'More sequences, or another probe seed, will tell.')
  if n < LEAST_SEQUENCES or detectable > DETECTABLE:
    return 'inconclusive', found, (f'Only a mean correlation above {detectable:.3f} would have been seen: use more '
                                   f'sequences, {LEAST_SEQUENCES} at least.')
  return 'unrelated', found, (f'A mean correlation above {detectable:.4f} would have been seen. A descendant whose '
                              'residual channels were permuted or rotated on purpose would look the same.')


def _ruled(verdict, *reasons):
  return {'verdict': verdict, 'reasons': list(reasons)}


def _probe(fingerprint):
  probe = fingerprint.metadata['probe']
  return ', '.join(f'{name} {value}' for name, value in probe.items())
