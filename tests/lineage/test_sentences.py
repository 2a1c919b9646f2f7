"""Caveats name what two networks share or differ in; levels are those of the normal law."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.lineage import sentences, thresholds
from bornbiased_jax.lineage.comparison.every_test import run_tests
from bornbiased_jax.lineage.evidence import signature, tensors
from bornbiased_jax.storage.layers import in_memory
from small_networks import DEEP_GPT2, born
from small_signatures import random_states

POSITIONS = dataclasses.replace(DEEP_GPT2, positions='learned')


def caveats(config, params, other, others):
  """Those of two networks, whose hidden states are random numbers: nothing is compiled."""
  a, b = (signature.survey(in_memory(*each)).signature(random_states(each[0], seed))
          for seed, each in enumerate(((config, params), (other, others))))
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
  assert thresholds.ingredient_size(cosine) == pytest.approx(size, rel=0.05)


def test_what_is_detectable_is_found_with_that_probability():
  reach = thresholds.detectable(0.1, 0.02, needed_z=3)
  found = np.random.default_rng(0).normal(reach, 0.02, 100_000) > 0.1 + 3 * 0.02
  assert found.mean() == pytest.approx(thresholds.POWER, abs=0.005)
