"""Sentences say what was found, and no more."""

from bornbiased_jax.lineage import sentences
from bornbiased_jax.lineage.testing import result

NAMES = ['unit order']


def related(likeness):
  results = {'unit order': result.TestResult(likeness, 0.0, 0.01, likeness / 0.01, -20.0)}
  return ' '.join(sentences.related(results, NAMES, 1e-4))


def test_a_small_likeness_may_be_that_of_an_ingredient():
  assert 'adapter' in related(0.04) and '20 % of the size' in related(0.04)
  assert 'adapter' not in related(0.9)


def test_p_values_are_bounds():
  assert sentences.p_text(-3.0) == '≤ 0.001' and sentences.p_text(-40.0) == '< 1e-12'
