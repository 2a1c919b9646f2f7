"""Every test of a verdict: what it compares, what it misses, and whether it can decide."""

from typing import NamedTuple

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison import any_basis, order, seedprint
from bornbiased_jax.lineage.comparison.likeness import layers_of
from bornbiased_jax.lineage.comparison.result import TestResult, does_not_apply
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates, input_is_shared
from bornbiased_jax.lineage.evidence.signature import Signature
from bornbiased_jax.lineage.layouts import UNITS


class KindOfTest(NamedTuple):
  """What a test is.

  Attributes:
    decides: whether it can show descent by itself.
    of: what it is of: 'units', 'values', 'states' or 'layers'.
    compares: what it compares.
    misses: descendants that it cannot see.
  """

  decides: bool
  of: str
  compares: str
  misses: str


TESTS = {
    'unit order': KindOfTest(
        True, 'units', 'which MLP unit is where, judged from what the units read and write',
        'units that were permuted, cut from between others, or drawn anew; residual channels that '
        'were permuted, rotated, cut or changed in sign'),
    'value order': KindOfTest(
        True, 'values', 'which value channel is where in its attention head',
        'heads or residual channels that were permuted, rotated, mixed, cut or drawn anew'),
    'unit order, fitted basis': KindOfTest(
        True, 'units', 'the unit order of half of the layers, in a basis fitted to the other half',
        'units that were permuted, cut from between others, or drawn anew; layers that were '
        'moved and changed much, or redrawn in one half'),
    'value order, fitted basis': KindOfTest(
        True, 'values', 'the value order in the same way',
        'heads that were permuted, cut or mixed; value channels that were changed in sign; layers '
        'that were moved and changed much, or redrawn in one half'),
    'SeedPrint': KindOfTest(
        False, 'states', 'last-token hidden states for random tokens, channel by channel',
        'residual channels that were permuted, rotated, cut or changed in sign; other token ids'),
    'hidden states, any basis': KindOfTest(
        False, 'states', 'what the context adds to hidden states, up to a rotation',
        'other token ids; models that were changed so much that they compute something else'),
    'layers, any disguise': KindOfTest(
        False, 'layers', 'what no disguise changes of a layer: sizes and cosines of its units, and '
        'what its heads write', 'weights that were changed by more than about 10 %; units that '
        'were cut'),
    'units, any order': KindOfTest(
        False, 'units', 'MLP units, each with the most similar one, in the basis of the embeddings',
        'other token ids; models so large that only a part of their units is stored'),
}
DECIDING = tuple(name for name, kind in TESTS.items() if kind.decides)
Results = dict[str, TestResult]


def run_tests(base: Signature, suspect: Signature) -> Results:
  """The results of all TESTS of two models, by name."""
  found = order.order_tests(base.features, suspect.features)
  found['SeedPrint'] = seedprint_test(base.states, suspect.states)
  why = _unlike_ids(base.states, suspect.states)
  found['hidden states, any basis'] = does_not_apply(why) if why else any_basis.states_test(
      base.normalized_ND, suspect.normalized_ND)
  found['layers, any disguise'] = any_basis.layers_test(base.invariants, suspect.invariants)
  units = [layers_of(each.features, UNITS) for each in (base, suspect)]
  found['units, any order'] = does_not_apply(why) if why else any_basis.units_test(
      units[0], units[1], base.states.input_ND, suspect.states.input_ND)
  return {name: found[name] for name in TESTS}


def seedprint_test(base: HiddenStates, suspect: HiddenStates) -> TestResult:
  """`seedprint.calibrated_test`, without the input that both models share."""
  if why := _unlike_ids(base, suspect):
    return does_not_apply(why)
  width = base.hidden_ND.shape[1]
  if width != suspect.hidden_ND.shape[1]:
    return does_not_apply(f'they have {width} and {suspect.hidden_ND.shape[1]} residual channels')
  # The mean of both, so that it does not matter which network comes first.
  shared = (base.input_ND + suspect.input_ND) / 2 if input_is_shared(base, suspect) else None
  try:
    result = seedprint.calibrated_test(base.hidden_ND, suspect.hidden_ND, shared)
  except InputError as error:  # Too few sequences, and the network may have no more.
    return does_not_apply(str(error))
  reason = None
  if result.num_constant > thresholds.MOST_CONSTANT * width:
    reason = f'{result.num_constant} of {width} channels are constant in one of the models'
  return TestResult(result.statistic, result.leak, result.std, result.z, result.log10_p,
                    reason=reason)


def _unlike_ids(base, suspect):
  """Why two networks did not read the same, or None."""
  if without := [str(each.about.get('name')) for each in (base, suspect)
                 if not len(each.hidden_ND)]:
    return f'there is no forward pass here for {" and ".join(without)}'
  if base.probe['hash'] == suspect.probe['hash']:
    return None
  shown = [', '.join(f'{name} {value}' for name, value in each.probe.items() if name != 'hash')
           for each in (base, suspect)]
  return f'they read other sequences: {shown[0]}; and {shown[1]}'
