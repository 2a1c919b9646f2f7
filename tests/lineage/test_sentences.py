"""Sentences say what was found, and no more; levels are those of the normal law."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.lineage import levels, sentences
from bornbiased_jax.lineage.evidence import signature, tensors
from bornbiased_jax.lineage.testing.every_test import TESTS, run_tests
from bornbiased_jax.lineage.testing.result import TestResult, does_not_apply
from small_networks import DEEP_GPT2, born
from small_signatures import PROBE

POSITIONS = dataclasses.replace(DEEP_GPT2, positions='learned')


@pytest.mark.parametrize('likeness, words', [(0.04, '20 % of the size'), (0.5, '100 % of'),
                                             (0.9, None)])
def test_a_small_likeness_may_be_that_of_an_ingredient(likeness, words):
  results = {'unit order': TestResult(likeness, 0.0, 0.01, likeness / 0.01, -20.0)}
  results['value order'] = results['unit order']
  said = sentences.related(results, ['unit order', 'value order'], 1e-4)
  assert 'unit order (z = ' in said[0] and 'one in 10,000 pairs' in said[1]
  assert 'did not' not in said[-1] and said[-1] == sentences.MEANING
  assert (words in said[2]) if words else len(said) == 3
  by_units = sentences.related(results, ['unit order'], 1e-4)
  assert by_units[-2:] == [sentences.UNITS_DECIDE, sentences.MEANING]


def test_p_values_of_tests_that_decide_are_bounds():
  assert sentences.p_text(-3.0) == '≤ 0.001' and sentences.p_text(-40.0) == '< 1e-12'
  results = {name: TestResult(0.5, 0.0, 0.1, 5.0, -3.0) for name in TESTS}
  assert sentences.found(results, ['unit order', 'SeedPrint']) == (
      'They agree in unit order (z = 5.0, p-value ≤ 0.001), SeedPrint (z = 5.0, p-value 0.001).')
  alike = TestResult(0.61, level=levels.ALIKE_IN_ANY_BASIS)
  assert '(0.61, and networks of one text up to 0.5)' in sentences.found(
      {'hidden states, any basis': alike}, ['hidden states, any basis'])


def test_what_is_missing_has_its_reason():
  excluded = TestResult(0.5, 0.4, 0.1, 1.0, -0.5, reason='a pattern')
  assert sentences.excluded('unit order', excluded).startswith(
      'The unit order is no evidence here: a pattern.')
  why = [does_not_apply('other widths'), does_not_apply('other widths')]
  assert sentences.no_test('units', why) == (
      'No test of MLP units applies: other widths. A descendant may have been missed.')
  assert 'below 0.40 may have been missed' in sentences.too_little_power('values', 0.4)


def caveats(config, params, other, others):
  a, b = (signature.of_network(*each, dataclasses.replace(PROBE, num_sequences=100, num_ids=60))
          for each in ((config, params), (other, others)))
  shared = tensors.shared(a.tensors, b.tensors)
  return sentences.caveats(a, b, shared, run_tests(a, b))


def test_there_is_nothing_to_say_of_unrelated_networks():
  assert caveats(POSITIONS, born(POSITIONS, 1), POSITIONS, born(POSITIONS, 3)) == []


def test_shared_tables_other_vocabularies_and_depths_are_named():
  a, b = (born(POSITIONS, seed) for seed in (1, 3))
  table = {'position_embedding': a['position_embedding']}
  said, = caveats(POSITIONS, a, POSITIONS, b | table)
  assert 'table of positions in common' in said
  half = {'embedding': jnp.concatenate((a['embedding'][:35], b['embedding'][35:]))}
  for embedding in (half, {'embedding': a['embedding']}):
    said, = caveats(POSITIONS, a, POSITIONS, b | embedding)
    assert 'one public embedding' in said
  other = dataclasses.replace(POSITIONS, vocab_size=80, num_layers=3)
  vocabularies, depths = caveats(POSITIONS, a, other, born(other, 3))
  assert vocabularies == 'Their vocabularies have 70 and 80 ids.' and '4 and 3 layers' in depths


@pytest.mark.parametrize('size', [0.2, 0.5, 1.0])
def test_the_size_of_an_ingredient_is_that_which_gives_the_likeness(size):
  a, b, common = np.random.default_rng(0).standard_normal((3, 200_000))
  cosine = np.corrcoef(a + size * common, b + size * common)[0, 1]
  assert levels.ingredient_size(cosine) == pytest.approx(size, rel=0.05)


def test_what_is_detectable_is_found_with_that_probability():
  reach = levels.detectable(0.1, 0.02, needed_z=3)
  found = np.random.default_rng(0).normal(reach, 0.02, 100_000) > 0.1 + 3 * 0.02
  assert found.mean() == pytest.approx(levels.POWER, abs=0.005)
