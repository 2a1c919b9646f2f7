"""The sentences of a verdict."""

from collections.abc import Iterator
import dataclasses
import math

from bornbiased_jax.analysis.statistics import p_value_text
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison.every_test import DECIDING, TESTS, Results
from bornbiased_jax.lineage.comparison.result import TestResult
from bornbiased_jax.lineage.evidence import tensors
from bornbiased_jax.lineage.evidence.hidden_states import input_is_shared
from bornbiased_jax.lineage.evidence.signature import Signature

IDENTICAL = 'Their parameters have the same SHA-256 digest: both hold the same numbers.'
NOTHING_FOUND = 'No relation is found: no test finds more likeness than chance gives.'
NONE_DECIDES = 'No test that decides has a result.'
MEANING = (
    'Related means that one descends from the other, that both share an ancestor, or that both '
    'began with the same numbers, like models that the same code draws from one seed. '
    'The test does not say which of them came first.')
ONLY_VALUES = (
    'Their value channels agree, but it is not shown that their MLP units do. A descendant keeps '
    'its units in order unless they were permuted on purpose or cut. A model that was trained to '
    "have the other's values, channel by channel, agrees in this way too. Descent is not shown.")
UNITS_DECIDE = (
    "Only their MLP units are shown to agree. A model that was trained to have the other's MLP "
    'activations, unit by unit, agrees in this way too, and so may models where one public '
    'pattern was added to a few layers. The tests do not tell these from descent.')
ONLY_UNITS = (
    'Their MLP units agree in part, and their value channels do not. Two layers are too few to '
    'tell descent from public patterns that differ from layer to layer. Descent is not shown.')
ONE_LAYER = (
    'They agree in one layer, and too little in the others. A public pattern that was added to one '
    'layer of both has this effect, and so has one layer that was copied. Descent is not shown.')
TOKENIZERS = (
    'Tokenizers were not compared. If an id stands for another token in each model, the tests of '
    'hidden states may miss a descendant. The order of units and of values does not depend on ids.')
_PARTS = {'units': 'MLP units', 'values': 'value channels', 'states': 'hidden states',
          'layers': 'layers in any disguise'}


def found(results: Results, names: list[str]) -> str:
  """Which tests find something."""
  return f'They agree in {", ".join(_shown(name, results[name]) for name in names)}.'


def _shown(name, result):
  if result.level is not None:
    return f'{name} ({result.statistic:.2f}; models of one text stay below {result.level:g})'
  p_value = p_text(result.log10_p) if TESTS[name].decides else p_value_text(result.log10_p)
  return f'{name} (z = {result.z:.1f}, p-value {p_value})'


def p_text(log10_p: float) -> str:
  """An upper bound of a p-value, for readers."""
  text = p_value_text(log10_p)
  return text if text.startswith('<') else f'≤ {text}'


def related(results: Results, names: list[str], alpha: float) -> list[str]:
  """Why two models are related, and what that means."""
  said = [found(results, names), (
      f'At most one in {1 / alpha:,.0f} pairs of unrelated models is called related, if only '
      'chance decides which of two neighbouring features comes first, like in models that are '
      'drawn at random and trained. This is not the probability that these two are unrelated.')]
  likeness = max(results[name].statistic or 0.0 for name in names)
  size = thresholds.ingredient_size(likeness)
  if size <= 1:
    said.append(
        f'Their likeness is {likeness:.2f}, where a copy has 1. They have a part of their weights '
        'in common. Either they have a common origin and were changed much, or only some layers of '
        f'one were copied, or both merged one ingredient of about {size * 100:.0f} % of the size '
        'of their weights, such as a public adapter or task vector, or somebody matched the units '
        'of one to the other on purpose. The tests do not tell these apart.')
  if all(TESTS[name].of == 'units' for name in names):
    said.append(UNITS_DECIDE)
  return [*said, MEANING]


def too_weak(alpha: float, log10_p: float | None) -> str:
  """Why an agreement does not suffice for 'related'."""
  return (f'Chance seldom gives as much, but the verdict "related" needs a p-value of {alpha:g} '
          'at most over all deciding tests, and here it is '
          f'{p_text(log10_p) if log10_p is not None else "not known"}.')


def other_causes(names: list[str]) -> Iterator[str]:
  """What else than descent makes models alike in tests that do not decide."""
  yield ('But it is not shown that their units and value channels are in the same order, which a '
         'descendant keeps unless it was changed on purpose.')
  if names == ['SeedPrint']:
    yield ('Hidden states also agree, channel by channel, in models that share an embedding or a '
           'teacher.')
  else:
    yield ('They may be copies whose units, value channels and residual channels were all changed. '
           'Models that learned from one teacher or with one embedding look the same.')


def excluded(name: str, result: TestResult) -> str:
  """Why a deciding test has a result that is no evidence."""
  return f'The {name} is no evidence here: {result.reason}. A descendant may have been missed.'


def no_test(of: str, results: list[TestResult]) -> str:
  """Why no test of some parts has a result."""
  why = '; '.join(dict.fromkeys(str(result.reason) for result in results))
  return f'No test of {_PARTS[of]} applies: {why}. A descendant may have been missed.'


def not_in_a_fitted_basis(reason: str | None) -> str:
  """That no test looked for a descendant in another basis."""
  return ('No test looked for a descendant whose residual channels were permuted or rotated: '
          f'{reason}.')


def equal_matrices(layers: dict[str, list[int]]) -> str:
  """Which matrices are equal, by name."""
  shown = ', '.join(f'{name} of layer{"s" * (len(found) > 1)} {", ".join(map(str, found))}'
                    for name, found in layers.items())
  return (f'These matrices hold the same numbers in both models: {shown}. Independent training '
          'does not give that, so the two are not called unrelated.')


def too_little_power(of: str, reach: float) -> str:
  """That a test would not have found what it has to find."""
  limit = f' below {reach:.2f}' if math.isfinite(reach) else ''
  return (f'A mean likeness of {_PARTS[of]}{limit} may have been missed, where a copy '
          f'has 1. To call two models unrelated, a test must find a likeness of '
          f'{thresholds.DETECTABLE:g} with a probability of {thresholds.POWER * 100:.0f} %.')


def too_few_sequences(count: int) -> str:
  """That hidden states of too few sequences were compared."""
  return (f'{count} sequences are too few to call two models unrelated: use at least '
          f'{thresholds.LEAST_SEQUENCES}.')


def too_few_ids(count: int) -> str:
  """That sequences were drawn from too few token ids."""
  return (f'{count} token ids are too few to call two models unrelated: draw sequences from at '
          f'least {thresholds.LEAST_IDS} ids.')


def detectable(results: Results, of: str) -> float:
  """The smallest mean likeness that the deciding tests of some parts find; infinite without one."""
  return min((results[name].detectable(len(DECIDING)) for name in DECIDING
              if TESTS[name].of == of and results[name].counts), default=math.inf)


def limits(results: Results, base: Signature, suspect: Signature) -> Iterator[str]:
  """What 'unrelated' leaves open."""
  reach = max(detectable(results, 'units'), detectable(results, 'values'))
  yield (f'A mean likeness of {reach:.2f} of units, and of value channels, would have been found '
         f'with a probability of at least {thresholds.POWER * 100:.0f} %, where a copy has 1. A '
         'smaller likeness may have been missed.')
  if base.config.mlp_width != suspect.config.mlp_width:
    yield ('Their MLPs differ in width. A descendant whose units were cut, and whose value '
           'channels were changed as well, would have been missed.')
  yield ('A copy whose units, value channels and residual channels were all changed on purpose '
         'looks unrelated too, if its weights were also changed by more than 10 %. '
         'So does one whose residual channels were rotated and whose layers were dropped or moved, '
         'if it was also trained hard.')
  yield TOKENIZERS


def caveats(base: Signature, suspect: Signature, shared: list[dict],
            results: Results) -> list[str]:
  """What else a reader should know of a pair."""
  said = [f'The {name} does not count: {result.reason}.' for name, result in results.items()
          if result.applies and not result.counts]
  if any(each['tensor'] in tensors.OF_TOKENS for each in shared) or input_is_shared(
      base.states, suspect.states):
    said.append('They have the embedding or LM head in common, like models that were built on '
                'one public embedding. This by itself does not show descent.')
  if any(each['tensor'] == 'position_embedding' for each in shared):
    said.append('They have their table of positions in common, which tells channels apart in the '
                'same way.')
  for each in (base, suspect):
    if 'model_type' in each.about:
      said.append(f'{each.about["name"]} was read {each.about["read"]} (layers of '
                  f'{each.about["stack"]}, model_type {each.about["model_type"]}).')
  a, b = base.config, suspect.config
  if a.vocab_size != b.vocab_size:
    said.append(f'Their vocabularies have {a.vocab_size} and {b.vocab_size} ids.')
  if a.num_layers != b.num_layers:
    said.append(f'They have {a.num_layers} and {b.num_layers} layers. A layer that copies an '
                'earlier one is left out. The others are matched by numbers that stay the same '
                'when units change places.')
  return said


def other_settings(base: ModelConfig, suspect: ModelConfig) -> list[str]:
  """What models of the same numbers may still differ in."""
  names = [field.name for field in dataclasses.fields(base)
           if getattr(base, field.name) != getattr(suspect, field.name)]
  return [f'Their configurations differ in {", ".join(names)}. They may therefore compute '
          'different things.'] if names else []
