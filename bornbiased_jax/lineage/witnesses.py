"""The witnesses of a verdict: calibrated tests that see different traces of descent.

Some can accuse: they compare an order of hidden features that chance alone decides in
an independent network, whatever it has learned and from whom (`features`). The others
compare answers. Answers agree in descendants, but also in networks that share an
embedding, a teacher, or an order of their channels, so that they accuse nobody alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alignment, features, orders, patterns, seedprint
from bornbiased_jax.lineage.dossiers import Dossier
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.permutations import (
  NUM_PERMUTATIONS,
  CalibratedResult,
  permutation_test,
)

# Inputs of two networks whose cosine is above this count as shared and are projected out. An
# embedding and its copy lie above it after rounding to 8 bits or a little training.
SHARED_ABOVE = 0.99


class Kind(NamedTuple):
  """What a witness is.

  Attributes:
    accuses: whether it can show descent alone.
    compares: what it compares.
    misses: descendants that it cannot see.
  """

  accuses: bool
  compares: str
  misses: str


WITNESSES = {
    'unit order': Kind(
        True, 'which MLP unit is where, by what the units read and write',
        'units that were permuted or drawn anew; residual channels that were permuted, rotated or '
        'changed in sign'),
    'value order': Kind(
        True, 'which value channel is where in its attention head',
        'heads or residual channels that were permuted, rotated, mixed or drawn anew'),
    'tokens': Kind(
        False, 'the answers to random tokens, channel by channel',
        'residual channels that were permuted, rotated or changed in sign; renumbered tokens'),
    'tokens, any sign': Kind(
        False, 'the same with squared correlations, whatever the signs of channels',
        'residual channels that were permuted or rotated; renumbered tokens'),
    'vectors': Kind(
        False, 'the answers to single random vectors, without what the vectors themselves pass on',
        'residual channels that were permuted, rotated or changed in sign'),
    'aligned unit order': Kind(
        True, "the unit order, after the suspect's residual stream was turned into the base's",
        'units that were permuted; embeddings that were replaced or renumbered'),
    'aligned value order': Kind(
        True, 'the value order, after the same turn',
        'heads that were permuted or mixed; embeddings that were replaced or renumbered'),
    'aligned answers': Kind(
        False, 'the answers to single random vectors, after the same turn',
        'embeddings that were replaced or renumbered'),
}
Testimony = dict[str, CalibratedResult | str]


def hear(base: Dossier, suspect: Dossier, num_permutations: int = NUM_PERMUTATIONS) -> Testimony:
  """What the witnesses say that need no more than two dossiers of one width.

  Args:
    base: one network.
    suspect: the other.
    num_permutations: as in `permutations.permutation_test`.

  Returns:
    By witness, its result, or a sentence that says why it has none.

  Raises:
    InputError: the networks read different probes.
  """
  tests = {
      'unit order': lambda: orders.unit_order(*_sketches(base, suspect), num_permutations),
      'value order': lambda: orders.value_order(*_sketches(base, suspect), num_permutations),
  }
  heard = {name: _heard(test) for name, test in tests.items()}
  for kind in ('tokens', 'vectors'):
    pair = getattr(base, kind), getattr(suspect, kind)
    heard |= answers(kind, *pair, num_permutations) if None not in pair else {
        kind: f'the answers of one of the networks to {kind} are not known'}
  return heard


def _heard(test: Callable[[], CalibratedResult]) -> CalibratedResult | str:
  try:
    return test()
  except InputError as error:
    return str(error)


def _sketches(base: Dossier, suspect: Dossier) -> tuple[dict, dict]:
  if base.sketch is None or suspect.sketch is None:
    raise InputError('the weights of one of the networks are not known')
  return base.sketch, suspect.sketch


def answers(kind: str, base: Fingerprint, suspect: Fingerprint,
            num_permutations: int = NUM_PERMUTATIONS) -> Testimony:
  """The witnesses that compare answers to one probe, 'tokens' or 'vectors'."""
  check_probes(base, suspect)
  if 'logit_ids' in base.metadata['probe']:
    return {kind: 'they are logits of chosen ids, which mean the same in all networks, so that '
                  'networks trained on similar text answer alike, related or not'}
  try:
    matrix_DD, leak = correlated(base, suspect)
  except InputError as error:
    return {kind: str(error)}
  found: Testimony = {kind: permutation_test(matrix_DD, num_permutations, leak=leak)}
  if kind == 'tokens':
    found['tokens, any sign'] = permutation_test(matrix_DD**2, num_permutations)
  return found


def correlated(base: Fingerprint, suspect: Fingerprint) -> tuple[np.ndarray, float]:
  """`seedprint.channel_correlations` of two fingerprints, without the input that they share."""
  shared = base.input_ND if input_is_shared(base, suspect) else None
  return seedprint.channel_correlations(base.hidden_ND, suspect.hidden_ND, shared)


def check_probes(base: Fingerprint, suspect: Fingerprint) -> None:
  """Raises InputError if two fingerprints are of different probes."""
  if base.metadata['probe'] != suspect.metadata['probe']:
    raise InputError('fingerprints of different probes cannot be compared: the base read '
                     f'{_probe(base)}; the suspect read {_probe(suspect)}{_cure(base, suspect)}')


def _probe(fingerprint):
  probe = fingerprint.metadata['probe']
  return ', '.join(f'{name} {value}' for name, value in probe.items()
                   if name not in ('hash', 'logit_ids'))


def _cure(*both):
  sizes = [fingerprint.metadata['probe'].get('num_ids') for fingerprint in both]
  if None in sizes or sizes[0] == sizes[1]:
    return ''
  return f'; a probe with num_ids={min(sizes)} lets both read the same tokens'


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


def hear_aligned(base: tuple[ModelConfig, dict], suspect: tuple[ModelConfig, dict], probe: Probe,
                 num_permutations: int = NUM_PERMUTATIONS) -> tuple[Testimony, float | None]:
  """What the witnesses say after undoing a change of basis of the residual stream.

  The change is found from the embeddings alone (`alignment.basis_change`).

  Args:
    base: configuration and parameters of one network.
    suspect: configuration and parameters of the other.
    probe: random vectors of one position (`dossiers.vector_probe`).
    num_permutations: as in `permutations.permutation_test`.

  Returns:
    The testimony, and `alignment.basis_fit`, or None if there is no such change.
  """
  names = 'aligned unit order', 'aligned value order', 'aligned answers'
  try:
    change_DD, fit = alignment.fitted_change(base, suspect)
  except InputError as error:
    return dict.fromkeys(names, str(error)), None
  a, b = features.vectors(*base), features.turned(features.vectors(*suspect), change_DD)
  tests = (lambda: _order(orders.unit_order, a, b, features.UNITS, num_permutations),
           lambda: _order(orders.value_order, a, b, features.VALUES, num_permutations),
           lambda: alignment.aligned_test(base, suspect, probe, change_DD=change_DD,
                                          num_permutations=num_permutations))
  return {name: _heard(test) for name, test in zip(names, tests, strict=True)}, fit


def _order(test, a, b, group, num_permutations):
  """A test of the order of features, unless a pattern could make them agree."""
  result = test(a, b, num_permutations)
  if why := patterns.pattern(a, b, group):
    raise InputError(why)
  return result
