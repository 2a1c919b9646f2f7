"""Every test says what it is, and has a result or a reason."""

import functools

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.lineage.testing.every_test import DECIDING, TESTS, run_tests
from bornbiased_jax.models.initialization import init_params
from small_networks import DEEP, DEEP_GPT2


@functools.cache
def taken(config, seed, embedding_seed=None, count=300):
  return signature.of_network(config, init_params(config, seed, embedding_seed),
                              Probe('tokens', count, 4))


def test_all_tests_have_results():
  results = run_tests(taken(DEEP, 1), taken(DEEP, 2))
  assert results.keys() == TESTS.keys() and all(each.counts for each in results.values())
  assert not any(each.is_alike(len(TESTS)) for each in results.values())


def test_what_does_not_apply_says_why():
  results = run_tests(taken(DEEP, 1), taken(DEEP_GPT2, 2))
  assert 'gated' in results['unit order'].reason
  results = run_tests(taken(DEEP, 1), taken(DEEP, 2, count=200))
  assert 'other sequences' in results['SeedPrint'].reason and results['unit order'].counts


def test_a_shared_embedding_is_projected_out():
  results = run_tests(taken(DEEP, 1, 9), taken(DEEP, 2, 9))
  assert abs(results['SeedPrint'].z) < 4
  assert all(not results[name].is_alike(len(TESTS)) for name in DECIDING)
