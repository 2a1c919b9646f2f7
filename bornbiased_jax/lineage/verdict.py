"""The verdict on two models, from all tests, as sentences that can be quoted and as JSON.

Three things may be true. Two models have a common origin: one descends from the other, or both
from a third. They share an ingredient, such as a public adapter that both merged, an embedding, or
a teacher. Or they are unrelated. Where the evidence does not suffice, the verdict is
'inconclusive', and the reasons say what is missing.
"""

import math

import numpy as np

from bornbiased_jax.errors import InputError, check_kind
from bornbiased_jax.lineage import sentences, thresholds
from bornbiased_jax.lineage.comparison.every_test import DECIDING, TESTS, Results, run_tests
from bornbiased_jax.lineage.comparison.likeness import layers_of
from bornbiased_jax.lineage.comparison.order import FITTED
from bornbiased_jax.lineage.comparison.result import TestResult
from bornbiased_jax.lineage.comparison.shared_patterns import distinct_layers
from bornbiased_jax.lineage.evidence import tensors
from bornbiased_jax.lineage.evidence.signature import Signature
from bornbiased_jax.lineage.layouts import UNITS

SCHEMA = 3
VERDICTS = ('related', 'unrelated', 'inconclusive')


def compare(base: Signature, suspect: Signature, *, alpha: float = thresholds.ALPHA) -> dict:
  """Does one of two models descend from the other, or do both descend from a third?

  Args:
    base: the signature of one model.
    suspect: the signature of the other.
    alpha: largest p-value for the verdict 'related', at most `thresholds.ALPHA`.

  Returns:
    The report, which is JSON. It has schema; verdict, one of VERDICTS; reasons, a list of
    sentences; p_value, an upper bound: the smallest p-value of the deciding tests times their
    number; tests, a row for each (`describe`); agree, the names of those that find
    something, which need not suffice; caveats, a list of sentences;
    shared_tensors (`tensors.shared`); identical, whether both are one model; sequences; widths;
    alpha; probe; base and suspect.

  Raises:
    InputError: one is no signature, or alpha is not between 0 and `thresholds.ALPHA`.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
    >>> network = lineage.signature('tiny_gpt2:42', probe)
    >>> lineage.compare(network, network)['identical']
    True
  """
  for each in base, suspect:
    check_kind(each, Signature, 'a Signature, as lineage.signature(name, probe) makes')
  if not 0 < alpha <= thresholds.ALPHA:
    raise InputError(f'alpha={alpha} is not between 0 and {thresholds.ALPHA:g}')
  results = run_tests(base, suspect)
  shared = tensors.shared(base.tensors, suspect.tensors)
  verdict, reasons = decide(results, base, suspect, alpha)
  identical = are_one(base, suspect)
  if identical:
    verdict, reasons = 'related', [sentences.IDENTICAL]
  return {
      'schema': SCHEMA, 'verdict': verdict, 'reasons': reasons,
      'p_value': thresholds.shown_p_value(familywise_log10_p(results)),
      'tests': [describe(name, result) for name, result in results.items()],
      'agree': what_agrees(results),
      'caveats': (sentences.other_settings(base.config, suspect.config) if identical else
                  sentences.caveats(base, suspect, shared, results)),
      'shared_tensors': shared,
      'identical': identical, 'sequences': len(base.states.hidden_ND),
      'widths': [base.config.width, suspect.config.width], 'alpha': alpha,
      'probe': base.states.probe, 'base': base.about, 'suspect': suspect.about}


def describe(name: str, result: TestResult) -> dict:
  """A row of the report: what a test is, and its result or why there is none."""
  kind = TESTS[name]
  counts, is_known = result.counts, math.isfinite(result.bound)
  reach = result.detectable(len(DECIDING)) if result.std and is_known else math.inf
  return {'test': name, 'decides': kind.decides, 'of': kind.of, 'compares': kind.compares,
          'misses': kind.misses, 'statistic': result.statistic,
          'bound': result.bound if is_known else None,
          'std': result.std, 'z': result.z if counts else None,
          'p_value': thresholds.shown_p_value(result.log10_p) if counts else None,
          'level': result.level, 'applies': result.applies, 'reason': result.reason,
          'detectable': reach if math.isfinite(reach) else None}


def familywise_log10_p(results: Results, of_rest: bool = False) -> float | None:
  """log10 of the p-value of descent, the smallest that decides times their number, or None.

  Of the rest if that is asked: without the two layers that are most alike.
  """
  field = 'log10_p_of_rest' if of_rest else 'log10_p'
  log10_p = [getattr(results[name], field) for name in DECIDING
             if results[name].counts and results[name].log10_p is not None]
  return min(0.0, math.log10(len(log10_p)) + min(log10_p)) if log10_p else None


def what_agrees(results: Results) -> list[str]:
  """The tests that find something, by name."""
  num_tests = sum(result.counts for result in results.values())
  return [name for name, result in results.items() if result.is_alike(max(1, num_tests))]


def decide(results: Results, base: Signature, suspect: Signature,
           alpha: float) -> tuple[str, list[str]]:
  """The verdict, and the sentences that give its reasons."""
  alike = what_agrees(results)
  deciding = [name for name in alike if TESTS[name].decides]
  log10_p = familywise_log10_p(results)
  if log10_p is not None and log10_p <= math.log10(alpha):
    if why := _why_not_shown(results, deciding, base, suspect, alpha):
      return 'inconclusive', [sentences.found(results, deciding), why]
    return 'related', sentences.related(results, deciding, alpha)
  if deciding:
    return 'inconclusive', [sentences.found(results, deciding),
                            sentences.too_weak(alpha, log10_p)]
  if alike:
    why = what_is_missing(results, base) if log10_p is None else sentences.other_causes(alike)
    return 'inconclusive', [sentences.found(results, alike), *why]
  equal = tensors.equal_matrices(base.tensors, suspect.tensors, base.about.get('stack'))
  missing = what_is_missing(results, base)
  if equal or missing:
    nothing = sentences.NONE_DECIDES if log10_p is None else sentences.NOTHING_FOUND
    named = [sentences.equal_matrices(equal)] if equal else []
    return 'inconclusive', [*named, nothing, *missing]
  return 'unrelated', [sentences.NOTHING_FOUND, *sentences.limits(results, base, suspect)]


def _why_not_shown(results, deciding, base, suspect, alpha):
  """Why a likeness in only one layer, or of one kind of features, is no descent, or None."""
  if familywise_log10_p(results, of_rest=True) > math.log10(alpha):
    return sentences.ONE_LAYER
  kinds = {TESTS[name].of for name in deciding}
  likeness = max(results[name].statistic or 0.0 for name in deciding)
  if kinds == {'units'} and likeness < thresholds.HALF and any(
      len(distinct_layers(layers_of(each.features, UNITS))) < 3 for each in (base, suspect)):
    return sentences.ONLY_UNITS
  has_units = any(TESTS[name].of == 'units' and results[name].counts for name in DECIDING)
  same_width = base.config.mlp_width == suspect.config.mlp_width
  # Where values were learned from a teacher, in their order, the fitted basis finds nothing.
  in_fitted_basis = any(name.endswith(FITTED) for name in deciding)
  if kinds == {'values'} and (likeness < thresholds.COPY or has_units and same_width
                              or not in_fitted_basis):
    return sentences.ONLY_VALUES
  return None


def what_is_missing(results: Results, base: Signature) -> list[str]:
  """What keeps a verdict from being 'unrelated': sentences."""
  found = [sentences.excluded(name, results[name]) for name in DECIDING
           if results[name].applies and not results[name].counts]
  for of in ('units', 'values'):
    ran = [results[name] for name in DECIDING if TESTS[name].of == of]
    reach = sentences.detectable(results, of)
    if not any(result.counts for result in ran):
      found.append(sentences.no_test(of, ran))
    elif not reach <= thresholds.DETECTABLE:  # NaN is no power either.
      found.append(sentences.too_little_power(of, reach))
  fitted = [result for name, result in results.items() if name.endswith(FITTED)]
  if not any(result.counts for result in fitted):
    found.append(sentences.not_in_a_fitted_basis(fitted[0].reason))
  layers = results['layers, any disguise']
  if not layers.counts:
    found.append(sentences.no_test('layers', [layers]))
  states = [result for name, result in results.items() if TESTS[name].of == 'states']
  if not any(result.counts for result in states):
    found.append(sentences.no_test('states', states))
  elif len(base.states.hidden_ND) < thresholds.LEAST_SEQUENCES:
    found.append(sentences.too_few_sequences(len(base.states.hidden_ND)))
  num_ids = base.states.probe.get('num_ids')
  if num_ids is not None and num_ids < thresholds.LEAST_IDS:
    found.append(sentences.too_few_ids(num_ids))
  return found


def are_one(base: Signature, suspect: Signature) -> bool:
  """Whether two signatures are of one model; a stranger's file may claim any digest."""
  a, b = base.tensors, suspect.tensors
  return a.keys() == b.keys() and all(
      tensor.digest == b[name].digest and np.array_equal(tensor.sample, b[name].sample)
      for name, tensor in a.items())
